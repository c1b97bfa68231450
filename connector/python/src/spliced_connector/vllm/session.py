"""The data that a mode is built from: settings, engine, and the engine's model at the daemon."""

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
"""Minimum tokens between two prefixes that are hashed. More hashes would cost time in every request
and save next to nothing."""


@dataclass(frozen=True, slots=True)
class Session:
    """One half's view of engine and daemon."""

    settings: Settings
    engine: Engine
    model: Model
    tally: EngineTally
    block_tokens: int
    """Prefixes are hashed at multiples of this number of tokens."""
    rank: int = 0
    finder: Finder = field(default_factory=Finder)
    """The finders for prompts whose requests name no cuts; only the scheduler's half has any."""
    primer: tuple[int, ...] = ()
    """Token ids of the primer, empty without one."""
    rounding: Rounding | None = None
    """Tracks rounded states in the scheduler's half; None for an engine that does not round
    states."""


def block_tokens(engine: Engine) -> int:
    """Returns a number of tokens such that, at each multiple, a block ends in every cache group,
    and the engine has states if the model has any."""
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
    """Registers the engine's model. The client registers it again at every daemon that it attaches
    to.

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
    """Returns the losses that were measured offline, for the half that asks for advice. Raises
    ValueError for a file that was measured on another engine."""
    given = session.settings
    weights = partial(weights_of, config, given)
    return read_losses(
        given.fidelity, weights, session.primer, given.seam_tokens, given.primer_after
    )


def ranks_of(rank: int, size: int) -> Ranks:
    """Returns the engine's tensor-parallel ranks. rank: the number of this process's rank."""
    from spliced_connector.serving.ranks import Ranks  # needs torch

    if size == 1:
        return Ranks()
    from vllm.distributed.parallel_state import get_tp_group

    return Ranks.of(get_tp_group().cpu_group, rank, size)


def tokenizer_of(config: ModelConfig) -> Tokenizer | None:
    """Returns the engine's own tokenizer; None if it was started without one."""
    from vllm.tokenizers import cached_tokenizer_from_config

    return cast("Tokenizer | None", cached_tokenizer_from_config(config))
