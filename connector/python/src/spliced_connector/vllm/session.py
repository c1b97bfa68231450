"""What a mode is built from: the engine's model at the daemon."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, cast

from spliced_connector import __version__
from spliced_connector.client import Client, Losses, Model
from spliced_connector.segments import Finder, Tokenizer
from spliced_connector.serving.offline import read_losses
from spliced_connector.serving.primers import primer_ids
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.rounding import Rounding
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.support import Engine, weights_of

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from spliced_connector.serving.ranks import Ranks

_FINEST = 128
"""Tokens between prefixes that have names, at least: more names cost time in every request and
save next to nothing."""


@dataclass(frozen=True, slots=True)
class Session:
    """One half's view of engine and daemon."""

    settings: Settings
    engine: Engine
    model: Model
    tally: EngineTally
    block_tokens: int
    """Prefixes have names at multiples of it."""
    rank: int = 0
    finder: Finder = field(default_factory=Finder)
    """What finds segments of prompts that name none; only the scheduler's half has finders."""
    primer: tuple[int, ...] = ()
    """Token ids of what segments are captured after, none for nothing."""
    rounding: Rounding | None = None
    """Tracks rounded states, likewise; None in an engine that rounds none."""


def block_tokens(engine: Engine) -> int:
    """The multiples at which every group has whole blocks, and states where there are any."""
    whole = math.lcm(*(group.block_tokens for group in engine.groups))
    return whole if engine.states else math.lcm(whole, _FINEST)


def join(
    client: Client,
    settings: Settings,
    engine: Engine,
    tally: EngineTally,
    config: VllmConfig,
    rank: int = 0,
) -> Session:
    """Registers the engine's model; the client does so again at every daemon that it finds.

    Raises ValueError for a primer that cannot be read, or that the model cannot have.
    """
    passage, of = settings.primer, config.model_config
    tokenizer = tokenizer_of(of) if isinstance(passage, str) and passage else None
    primer = primer_ids(passage, tokenizer, engine.identity, of.get_vocab_size())
    step = block_tokens(engine)
    model = client.model(
        engine.identity,
        tenant=settings.tenant,
        rank=rank,
        block_tokens=step,
        connector=f"vllm {__version__}",
        engine=f"vllm {engine.version}",
    )
    return Session(settings, engine, model, tally, step, rank, primer=primer)


def losses_of(session: Session, config: VllmConfig) -> Losses:
    """The losses that were measured offline, for the half that asks for advice. Raises ValueError
    for a file that is not of this engine."""
    given = session.settings
    weights = partial(weights_of, config, given)
    return read_losses(
        given.fidelity, weights, session.primer, given.seam_tokens, given.primer_after
    )


def ranks_of(rank: int, size: int) -> Ranks:
    """The engine's tensor-parallel ranks, as one of them sees them."""
    from spliced_connector.serving.ranks import Ranks  # needs torch

    if size == 1:
        return Ranks()
    from vllm.distributed.parallel_state import get_tp_group

    return Ranks.of(get_tp_group().cpu_group, rank, size)


def tokenizer_of(config: ModelConfig) -> Tokenizer | None:
    """The engine's own tokenizer; None where it was started without."""
    from vllm.tokenizers import cached_tokenizer_from_config

    return cast("Tokenizer | None", cached_tokenizer_from_config(config))
