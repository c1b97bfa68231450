"""Messages of mode splice to vLLM's workers. No torch, no vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from spliced_connector.serving.splices import Splice
from spliced_connector.vllm.pages.plans import PagePlan
from spliced_connector.vllm.plans import Blocks, News, PrefixPlan, Work


@dataclass(frozen=True, slots=True)
class Base:
    """The prefix before a splice: exact rows and states of the first `tokens` tokens.

    The engine has the first `held` of them, in blocks that others read. name: of a checkpoint of
    the daemon; empty if the engine has all of them. states: then its blocks with the states after
    them, by cache group; None if they were lost since the match. spliced: the checkpoint may be
    of a splice.
    """

    tokens: int = 0
    held: int = 0
    name: bytes = b""
    states: tuple[int, ...] | None = ()
    spliced: bool = False


@dataclass(frozen=True, slots=True)
class SpliceLoad:
    """Fill a request's blocks with `splice` after `base`. ids: of the whole prompt."""

    request_id: str
    ids: tuple[int, ...]
    splice: Splice
    blocks: Blocks
    sampled: bool  # the canary recomputes it
    base: Base = Base()
    away: frozenset[bytes] = frozenset()  # keys of segments that other nodes compute
    pages: PagePlan | None = None  # which of it is in bins; None: all in the request's own blocks


@dataclass(frozen=True, slots=True)
class SplicePlan:
    """Work of mode splice in one step: new requests, those that ended before their turn, and the
    work of mode prefix for the others. alone: the engine computes nothing in this step, so that
    no running request waits for it. news: of segments that requests wait for. work: segments for
    other nodes, when no request has work."""

    loads: tuple[SpliceLoad, ...] = ()
    dropped: frozenset[str] = frozenset()
    prefix: PrefixPlan | None = None
    alone: bool = False
    news: tuple[News, ...] = ()
    work: tuple[Work, ...] = ()
