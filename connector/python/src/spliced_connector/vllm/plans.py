"""Messages from the scheduler's half to the worker's half, and the interfaces of a mode for both.

Plans are pickled and sent to every rank, so that all ranks do the same. They contain ids and
block numbers, never tensors.
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

    The engine has the first `begin` tokens already, in blocks that others may read: they are not
    touched. Rows [begin, tokens) and the states after token `tokens` are written.
    """

    request_id: str
    hash: bytes
    tokens: int
    begin: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Store a request's rows and states up to token `tokens`, on top of a stored parent.

    parent_tokens 0 is no parent. spliced: segments were composed into it. A state that is not at
    a block boundary only exists in the step that ends at it.
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
    """Outcomes of a request's segments that other nodes compute, by key: they are available, or
    this engine has to compute them."""

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
    """One rank has stored its share of such a segment, or cannot. rows and seconds are of the
    batch that it was computed in, reported for one job of the batch: 0 for the others."""

    id: int
    stored: bool
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests whose blocks are settled after a step, and those of them whose blocks were not
    filled; the times of the walks that ended; and outcomes of other nodes' segments.

    Invariant: failed is part of done.
    """

    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    walks: tuple[Walked, ...] = ()
    worked: tuple[Worked, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """The scheduler's half has failed, and these requests wait for promised tokens. The workers
    abandon their remaining work, and report all of them as failed."""

    request_ids: frozenset[str]


class SchedulerMode(Protocol):
    """A mode's decisions, in the scheduler's process. Requests that cannot be reused (adapters,
    images, embeddings, pooling) are never passed to it."""

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Returns the available tokens after the first `computed`, and whether they are loaded
        later than this step. Called any number of times for a request."""
        ...

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        """The request has blocks; `external` tokens of them are for us to fill, 0 for none."""
        ...

    def plan(self, step: SchedulerOutput) -> object:
        """Returns the workers' work in this step. Called once for each step, including empty
        ones."""
        ...

    def settled(self, outcome: Outcome) -> None:
        """Handles the loads that a step has ended."""
        ...

    def served(self, report: Served) -> Served:
        """Adds what it knows of a request, by its name, that has its first token."""
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
        """Whether `load` may fill blocks, or store data."""
        ...

    def load(self, plan: object) -> Outcome:
        """Fills blocks. A failure of the daemon is not raised: the request fails."""
        ...

    def save(self, plan: object) -> None:
        """Saves the results of the step."""
        ...

    def drain(self, timeout: float) -> bool:
        """Waits until all saved data is stored or abandoned, at most `timeout` seconds."""
        ...

    def stop_storing(self) -> None:
        """Drops what is not stored yet, and stores nothing more."""
        ...

    def close(self) -> None:
        """Ends background work."""
        ...
