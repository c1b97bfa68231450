"""Prompts, the adapter over a daemon, and what the model answers by itself."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hybrids import VOCABULARY
from running import Daemon
from spliced_connector.hf import HFSettings, Prefilled, SplicedTransformers
from spliced_connector.hf.forward import step
from spliced_connector.model import DType
from spliced_connector.walk import Naming

NAMING = Naming(b"\x07" * 32, transition=DType.F32, tolerance=0.0)
"""Segments stay as they were written, so that what is reused is what is computed, to rounding."""
CUTS = [0, 60, 120, 180]
WARMING = HFSettings(keep_all=True)


def tokens(n: int, seed: int = 1) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(t) for t in torch.randint(0, VOCABULARY, (n,), generator=generator)]


def ids_of(model: PreTrainedModel, n: int, seed: int = 1) -> list[int]:
    """As `tokens`, of a model that may have other ones, without its special ones."""
    most = model.config.vocab_size
    return [3 + t % (most - 3) for t in tokens(n, seed)]


def exchanged(ids: list[int]) -> list[int]:
    """A prompt between CUTS with its second and third segment exchanged."""
    return [*ids[:60], *ids[120:180], *ids[60:120], *ids[180:]]


def behind_prefix(e: SplicedTransformers) -> tuple[list[int], list[int]]:
    """A prompt with segments behind a prefix that the daemon has, and its cuts."""
    lead = tokens(64, seed=5)
    e.prefill(lead + tokens(4, seed=6), (), "prefix")
    return lead + tokens(200), [64 + at for at in CUTS]


def far(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def engine(
    model: PreTrainedModel,
    connect: Connect,
    daemon: Daemon,
    naming: Naming = NAMING,
    settings: HFSettings = WARMING,
) -> SplicedTransformers:
    # Seconds, not milliseconds: the tests' machine may be busy.
    client = connect(daemon.socket, timeout=20.0, attach_timeout=20.0, transfer_timeout=20.0)
    assert client.wait_attached(20)
    return SplicedTransformers(model, client, naming, settings)


def own(model: PreTrainedModel, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1]


def answer(model: PreTrainedModel, ids: list[int], n: int = 12) -> list[int]:
    out = model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False)
    return [int(t) for t in out[0, len(ids) :]]


def continued(model: PreTrainedModel, ids: list[int], done: Prefilled, n: int = 12) -> list[int]:
    """Greedy tokens by the model's own forward behind a prefill."""
    out = [int(done.logits.argmax())]
    while len(out) < n:
        with torch.no_grad():
            logits = step(model, done.cache, torch.tensor(out[-1:]), done.tokens)
        done.tokens += 1
        out.append(int(logits.argmax()))
    return out
