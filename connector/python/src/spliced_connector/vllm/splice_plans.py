"""Messages of mode splice to vLLM's workers. This module imports neither torch nor vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from spliced_connector.serving.splices import Splice
from spliced_connector.vllm.pages.plans import PagePlan
from spliced_connector.vllm.plans import Blocks, News, PrefixPlan, Work


@dataclass(frozen=True, slots=True)
class Base:
    """The prefix before a splice: rows and states of the first `tokens` tokens.

    The engine has the first `held` tokens, in blocks that other requests read. name: the hash of
    the daemon's checkpoint; empty if the engine has the whole prefix. states: used if the engine
    has the whole prefix. It lists, by cache group, the engine's blocks with the states after the
    prefix, or is None if these states were lost since the lookup. spliced: whether the checkpoint
    may come from a splice.
    """

    tokens: int = 0
    held: int = 0
    name: bytes = b""
    states: tuple[int, ...] | None = ()
    spliced: bool = False


@dataclass(frozen=True, slots=True)
class SpliceLoad:
    """Fill a request's blocks with `splice` after `base`. ids: token ids of the whole prompt."""

    request_id: str
    ids: tuple[int, ...]
    splice: Splice
    blocks: Blocks
    sampled: bool  # the canary recomputes it
    base: Base = Base()
    away: frozenset[bytes] = frozenset()  # keys of segments that other nodes compute
    pages: PagePlan | None = None  # tokens in shared pages; None: all are in own blocks


@dataclass(frozen=True, slots=True)
class SplicePlan:
    """Work of mode splice in one step. loads: new requests. dropped: requests that have ended.
    prefix: the work of mode prefix. alone: the engine computes nothing in this step, so no running
    request waits. news: about segments that requests wait for. work: segments for other nodes,
    computed if no request has work."""

    loads: tuple[SpliceLoad, ...] = ()
    dropped: frozenset[str] = frozenset()
    prefix: PrefixPlan | None = None
    alone: bool = False
    news: tuple[News, ...] = ()
    work: tuple[Work, ...] = ()
