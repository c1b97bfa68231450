"""What the scheduler's half tells the worker's half, and what both ask of a mode.

Plans are pickled and sent to every rank, so that all ranks do the same. They hold ids and block
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
"""The number of the engine's block that stands for none: its contents are nobody's."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Fill a request's blocks from a checkpoint.

    The engine holds the first `begin` tokens already, in blocks that others may read: they are
    not touched. Rows [begin, tokens) and the states behind token `tokens` are written.
    """

    request_id: str
    hash: bytes
    tokens: int
    begin: int
    blocks: Blocks


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Store what a request holds behind token `tokens`, on top of a stored parent.

    parent_tokens 0 is no parent. spliced: segments were composed into it. A state that is not at a
    block boundary is there in the step that ends at it only.
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
    """What mode prefix does in one step."""

    loads: tuple[LoadPlan, ...] = ()
    saves: tuple[SavePlan, ...] = ()


@dataclass(frozen=True, slots=True)
class News:
    """What has become of segments of a request that other nodes compute, by key: they are held, or
    this engine has to compute them."""

    request_id: str
    came: frozenset[bytes]
    lost: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Work:
    """A segment that another node asks for: compute it alone and publish it."""

    id: int
    spec: SegmentSpec
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Worked:
    """One rank has stored its share of such a segment, or cannot. rows and seconds are of the batch
    that it was computed in, said by one of the batch: 0 by the others."""

    id: int
    stored: bool
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Requests whose blocks are settled behind a step, and those of them that got nothing; what
    the walks that ended have taken; and what has become of other nodes' segments.

    Invariant: failed is part of done.
    """

    done: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    walks: tuple[Walked, ...] = ()
    worked: tuple[Worked, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """The scheduler's half has failed, and these requests wait for what it has promised. The
    workers give up what they still have, and say so of all of them."""

    request_ids: frozenset[str]


class SchedulerMode(Protocol):
    """A mode's decisions, in the scheduler's process. Requests that cannot be touched (adapters,
    images, embeddings, pooling) never get here."""

    def match(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """Tokens behind the first `computed` that can be had, and whether they come later than
        this step. Called any number of times for a request."""
        ...

    def allocated(self, request: Request, blocks: Blocks, external: int) -> None:
        """The request has blocks; `external` tokens of them are ours to fill, 0 for none."""
        ...

    def plan(self, step: SchedulerOutput) -> object:
        """What the workers do in this step. Called once for each step, empty ones too."""
        ...

    def settled(self, outcome: Outcome) -> None:
        """The loads that a step has ended."""
        ...

    def served(self, told: Served) -> Served:
        """Adds what it knows of a request, by its name, whose first token is there."""
        ...

    def finished(self, request: Request) -> dict[str, object] | None:
        """The request is over or aborted. What comes back is the `kv_transfer_params` of its
        response."""
        ...

    def pending(self) -> bool:
        """Whether there is work for steps without requests."""
        ...

    def bind(self, manager: KVCacheManager) -> None:
        """The engine's blocks can be asked about from now on. Called before the first request."""
        ...

    def close(self) -> None:
        """Give back what is held of the engine's blocks."""
        ...


class WorkerMode(Protocol):
    """A mode's work, in the process and on the thread that run the model."""

    def shares(self, plan: object) -> bool:
        """Whether `load` may fill blocks, or store something."""
        ...

    def load(self, plan: object) -> Outcome:
        """Fill blocks. Never raises for trouble of the daemon: that is a failed request."""
        ...

    def save(self, plan: object) -> None:
        """Take what the step has computed."""
        ...

    def drain(self, timeout: float) -> bool:
        """Wait until everything taken is stored or given up, at most `timeout` seconds."""
        ...

    def stop_storing(self) -> None:
        """Drops what is not stored yet, and stores nothing more."""
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...
