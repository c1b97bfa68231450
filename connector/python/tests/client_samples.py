"""A small hybrid model and bytes for what is kept of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from spliced_connector.client import Accept, Client, Model, NewCheckpoint, NewSegment
from spliced_connector.model import (
    NOTHING,
    Attention,
    Conv,
    DType,
    Family,
    Identity,
    KeyMode,
    Kind,
    Layer,
    Layout,
    Linear,
    Rope,
    SegmentSpec,
)

Connect = Callable[..., Client]
"""Of the fixture `connect`: a socket, and fields of `Options`."""

LINEAR = Linear(Family.GDN, 2, 4, 16, 16, DType.F32, DType.F16, Conv(4, (32, 32, 64), DType.BF16))
FULL = Attention(2, 16, 16, DType.BF16, KeyMode.AT_ZERO, Rope(8, 10000.0))

SMALL = Identity(
    "small-hybrid",
    bytes(range(32)),
    (Layer(Kind.LINEAR, linear=LINEAR), Layer(Kind.FULL, attention=FULL)),
)
"""Some KiB per segment."""

LARGE = replace(
    SMALL,
    model="large-hybrid",
    layers=(
        Layer(Kind.LINEAR, linear=replace(LINEAR, key_dim=256, value_dim=256)),
        Layer(Kind.FULL, attention=replace(FULL, kv_heads=8, key_dim=128, value_dim=128)),
    ),
)
"""Some MiB per segment: parts of several chunks."""


PATIENCE = 30.0
"""Seconds after which a test gives up on what has to come to pass, however busy the machine is."""

PATIENT: dict[str, Any] = {"timeout": 10.0, "attach_timeout": 10.0, "transfer_timeout": 20.0}
"""Options of clients whose calls have to succeed."""


def fill(layout: Layout, seed: int) -> list[bytes]:
    """Bytes for the parts of an object."""
    rng = random.Random(seed)
    return [rng.randbytes(part.nbytes) for part in layout.parts]


def ids(n: int, seed: int = 0) -> list[int]:
    """Token ids."""
    rng = random.Random(seed)
    return [rng.randrange(100_000) for _ in range(n)]


def spec_of(model: Model, tokens: int, seam: int = 4) -> SegmentSpec:
    """A segment in the middle of a prompt."""
    spec = model.profile.mid_spec(tokens, seam)
    if spec is None:
        raise ValueError(f"{tokens} tokens are too few")
    return spec


def new_segment(model: Model, tokens: int = 64, seed: int = 0) -> NewSegment:
    """A segment that nobody holds."""
    spec = spec_of(model, tokens)
    return NewSegment(spec, ids(tokens, seed), fill(model.profile.segment_layout(spec), seed))


def key_of(model: Model, new: NewSegment) -> bytes:
    """The name of a segment."""
    key = model.segment_key(new.spec, new.tokens)
    if key is None:
        raise ValueError("no salt")
    return key


@contextlib.contextmanager
def limited(model: Model, **timeouts: Any) -> Iterator[None]:
    """Inside, calls of the model have these timeouts."""
    before = model._enrolment.registration
    assert before is not None
    within = replace(before, options=replace(before.options, **timeouts))
    model._enrolment.registration = within
    try:
        yield
    finally:
        if model._enrolment.registration is within:  # it was not registered again
            model._enrolment.registration = before


def publish_one(model: Model, tokens: int = 64, seed: int = 0) -> tuple[bytes, NewSegment]:
    """Publish a segment, and its key."""
    new = new_segment(model, tokens, seed)
    codes = model.publish([new])
    if codes != [0]:
        raise RuntimeError(f"publish: {codes}")
    return key_of(model, new), new


def new_checkpoint(
    model: Model,
    tokens: Sequence[int],
    end: int,
    parent: int = 0,
    kind: Accept = Accept.EXACT,
    seed: int = 0,
) -> NewCheckpoint:
    """A checkpoint of the first `end` tokens behind one of `parent`."""
    positions = [parent, end] if parent else [end]
    hashes = model.prefix_hashes(tokens, positions)
    if hashes is None:
        raise ValueError("no salt")
    parts = fill(model.profile.checkpoint_layout(end - parent), seed)
    return NewCheckpoint(hashes[-1], end, hashes[0] if parent else NOTHING, parent, kind, parts)


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    """Shared mappings of memfds in this process."""
    return len(re.findall(r"/memfd:", Path("/proc/self/maps").read_text()))


def workers() -> int:
    """Threads of clients."""
    return sum(thread.name == "spliced" for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Poll for something that another process does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it does not come to pass"
        time.sleep(0.005)


_SLACK = 1.0  # seconds that are not looked at


class Lateness:
    """How much later than it asked for a thread was woken, in all. A busy machine has some."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.is_set():
            begin = time.monotonic()
            time.sleep(0.01)
            self.seconds += time.monotonic() - begin - 0.01

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """What is inside has to end in so many seconds, and what the machine is late."""
    with Lateness() as lateness:
        begin = time.monotonic()
        yield
        took = time.monotonic() - begin
    late = lateness.seconds
    assert took < seconds + _SLACK + late, f"took {took:.2f} s; threads woke {late:.2f} s late"


def seen(model: Model) -> str:
    """What its client has counted, for messages."""
    counters = dataclasses.asdict(model._keeper.tally.snapshot())
    return ", ".join(f"{name} {n}" for name, n in counters.items() if n)


def wait_again(model: Model, times: int = 2) -> None:
    """Wait until a daemon was found so many times in all, and took the model."""
    wait_until(lambda: model._keeper.tally.snapshot().attached >= times)
    assert model.wait_attached(PATIENCE)
