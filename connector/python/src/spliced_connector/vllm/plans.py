"""Messages between the scheduler's half and the workers' halves, and the interfaces of a mode in
both.

Plans are pickled and sent to every rank, so that all ranks do the same. They contain ids and block
numbers, never tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from spliced_connector.model import SegmentSpec
from spliced_connector.serving.prices import Walked

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from spliced_connector.serving.telling import Served

Blocks = tuple[tuple[int, ...], ...]
"""The block numbers of one request, a row for each of the engine's cache groups."""

NO_BLOCK = 0
"""The number of the engine's null block, whose contents are never used."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Fill a request's blocks from a checkpoint.

    The engine already has the first `begin` tokens, in blocks that other requests may read; these
    are not touched. The rows of tokens [begin, tokens) and the states after `tokens` tokens are
    written.
    """

    request_id: str
    hash: bytes
    tokens: int
    begin: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Store a request's rows and states up to token `tokens`, as an extension of a stored parent.

    parent_tokens 0 means no parent. spliced: whether segments were composed into the state. A state
    that is not at a block boundary exists only in the step that ends there.
    """

    request_id: str
    hash: bytes
    tokens: int
    parent_hash: bytes
    parent_tokens: int
    blocks: Blocks
    spliced: bool = False


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """Work of mode prefix in one step."""

    loads: tuple[LoadPlan, ...] = ()
    saves: tuple[SavePlan, ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """News about segments of a request that other nodes compute, by key. came: they are available
    now. lost: this engine must compute them."""

    request_id: str
    came: frozenset[bytes]
    lost: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Work:
    """A segment that another node requests: compute it in isolation and publish it."""

    id: int
    spec: SegmentSpec
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Worked:
    """Whether one rank has stored its share of a segment that another node requested (`Work`). rows
    and seconds count the whole batch; only one job of the batch reports them, the others report
    0."""

    id: int
    stored: bool
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step. done: requests on which the workers have no more work. failed: the
    requests of `done` whose blocks were not filled. walks: times of finished walks. worked:
    outcomes of segments for other nodes.

    Invariant: failed is a subset of done.
    """

    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    walks: tuple[Walked, ...] = ()
    worked: tuple[Worked, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """The scheduler's half has failed while these requests wait for promised tokens. The workers
    abandon their remaining work and report all these requests as failed."""

    request_ids: frozenset[str]


class SchedulerMode(Protocol):
    """A mode's decisions, in the scheduler's process. Requests whose state cannot be reused
    (adapters, images, embeddings, pooling) are never passed to a mode."""

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Returns how many tokens after the first `computed` are available (None: ask again later),
        and whether they are loaded in a later step. May be called repeatedly for a request."""
        ...

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        """Called when a request has blocks. external: the number of tokens that the connector must
        fill in these blocks."""
        ...

    def plan(self, step: SchedulerOutput) -> object:
        """Returns the workers' work in this step. Called once for each step, including empty
        ones."""
        ...

    def settled(self, outcome: Outcome) -> None:
        """Handles the outcome of a step."""
        ...

    def served(self, report: Served) -> Served:
        """Completes the report of a request that has its first token."""
        ...

    def finished(self, request: Request) -> dict[str, object] | None:
        """Handles the end or abort of a request. Returns the `kv_transfer_params` of its
        response."""
        ...

    def pending(self) -> bool:
        """Whether there is work for steps without requests."""
        ...

    def bind(self, manager: KVCacheManager) -> None:
        """Gives access to the engine's blocks. Called before the first request."""
        ...

    def close(self) -> None:
        """Releases references to the engine's blocks."""
        ...


class WorkerMode(Protocol):
    """A mode's work, in the process and on the thread that run the model."""

    def shares(self, plan: object) -> bool:
        """Whether `load` may fill blocks or store data for this plan."""
        ...

    def load(self, plan: object) -> Outcome:
        """Fills blocks. If the daemon fails, this raises nothing: the request is in
        `Outcome.failed`."""
        ...

    def save(self, plan: object) -> None:
        """Saves the results of the step."""
        ...

    def drain(self, timeout: float) -> bool:
        """Waits until all saved data is stored or abandoned, at most `timeout` seconds."""
        ...

    def stop_storing(self) -> None:
        """Drops data that is not stored yet, and stores nothing more."""
        ...

    def close(self) -> None:
        """Ends background work."""
        ...
