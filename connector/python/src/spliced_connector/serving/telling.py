"""Reports to the daemon how prompts were served, on a separate thread that nothing waits for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spliced_connector import client
from spliced_connector.client import (
    Match,
    Model,
    ServedSegment,
    served_bytes,
    served_segments,
    way_of,
)
from spliced_connector.model import Profile, Prompt
from spliced_connector.serving.splices import Splice
from spliced_connector.serving.tally import EngineTally

_MOST_WAITING = 256
"""Maximum number of waiting reports. If the daemon does not answer, the oldest ones are dropped."""


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine knows about a prompt once its first token is there. Times are in seconds."""

    name: str
    tokens: int
    engine: int
    """Number of leading tokens from the engine's own cache."""
    prefix: int = 0
    """Number of tokens after these that came from a checkpoint."""
    placed: int = 0
    """Position after the last token that was placed in the engine."""
    prompt: Prompt | None = None
    """The prompt's segments; None without any."""
    splice: Splice | None = None
    """The splice of these segments; None without one."""
    found: Match = field(default_factory=Match)
    """The match of the prompt's prefixes."""
    asked: Match | None = None
    """The match of the segments' keys, in order; None without one."""
    predicted: Sequence[float] = ()
    decided: float = 0.0
    waited: float = 0.0
    first: float = 0.0
    trace: str = ""

    def told(self, profile: Profile) -> client.Served:
        """Returns the report for the daemon."""
        rows = () if self.prompt is None else self._segments(self.prompt)
        return client.Served(
            way=way_of(self.prefix, sum(row.reused for row in rows)),
            tokens=self.tokens,
            engine=self.engine,
            prefix=self.prefix,
            prefix_tier=self.found.prefix_tier,
            prefix_reason=self.found.prefix_reason,
            segments=rows,
            read_bytes=served_bytes(profile, self.prefix, rows),
            decided=self.decided,
            waited=self.waited,
            first=self.first,
            predicted=self.predicted,
            loss=None if self.splice is None else self.splice.loss,
            request=self.name,
            trace=self.trace,
        )

    def _segments(self, prompt: Prompt) -> tuple[ServedSegment, ...]:
        spans = () if self.splice is None else self.splice.hits
        reused = {s.segment: (s.start, max(0, min(s.length, self.placed - s.start))) for s in spans}
        return served_segments(prompt, self.asked or Match(), reused)


class Teller:
    """Sends the reports of one engine. The first report starts the thread."""

    def __init__(self, model: Model, tally: EngineTally) -> None:
        self._model, self._tally = model, tally
        self._change = threading.Condition()
        self._waiting: deque[Served] = deque(maxlen=_MOST_WAITING)
        self._over = False
        self._thread: threading.Thread | None = None

    def tell(self, served: Served) -> None:
        """Queues a report. It is sent soon, or dropped."""
        with self._change:
            if self._over:
                return
            if len(self._waiting) == _MOST_WAITING:
                self._tally.add("untold")
            self._waiting.append(served)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spliced-tell", daemon=True)
                self._thread.start()
            self._change.notify()

    def close(self) -> None:
        """Sends the pending reports, with one attempt each, and ends the thread."""
        with self._change:
            self._over = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._over)
                if not self._waiting:
                    return
                served = self._waiting.popleft()
            if self._model.served(served.told(self._model.profile)) is None:
                self._tally.add("untold")


def traceparent(headers: object) -> str:
    """Returns the traceparent among a request's headers, empty if there is none. Engines have
    headers as a mapping or as pairs. Anything else means that the request is not traced."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(pairs, Iterable) or isinstance(headers, str):
        return ""
    found = (pair for pair in pairs if isinstance(pair, tuple) and len(pair) == 2)
    return next((str(value) for name, value in found if str(name).lower() == "traceparent"), "")
