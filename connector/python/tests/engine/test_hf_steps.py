"""Steps of one token by the library: which of them leave the states that a prefill does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from client_samples import Connect
from engine.hf_requests import engine, own, tokens
from engine.walk_models import TINY
from running import Daemon
from spliced_connector.hf.forward import cache_name
from spliced_connector.hf.steps import unlike_prefill
from spliced_connector.walk import Naming, UnsupportedError, architecture

pytestmark = pytest.mark.engine

BOUNDED = {name for name, tiny in TINY.items() if "time_step_limit" in tiny.settings}
FLOORED = {"nemotron", "zamba2"}
"""Their forward has a least time step, by which float32 is off by 1e-3 and bf16 by less than it
rounds."""
END = 0


def said(n: int, seed: int) -> list[int]:
    """Tokens that every tiny model has, without an end."""
    return [t % 93 + 3 for t in tokens(n, seed)]


def built(
    name: str, dtype: torch.dtype = torch.float32, *, bounded: bool = False
) -> PreTrainedModel:
    tiny = TINY[name]
    if name in BOUNDED:
        limit = (0.05, 0.1) if bounded else (0.0, math.inf)
        tiny = replace(tiny, settings={**tiny.settings, "time_step_limit": limit})
    model = tiny.build().to(dtype)
    model.generation_config.eos_token_id = END
    return model


def differs(model: PreTrainedModel) -> str:
    return unlike_prefill(model, architecture(model, Naming(b"\x01" * 32)))


CASES = [(name, dtype) for name in sorted(TINY) for dtype in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype"), [*CASES, ("minimax", torch.float16)], ids=str)
def test_steps_that_only_round_their_inputs_leave_the_states_of_a_prefill(
    name: str, dtype: torch.dtype
) -> None:
    why = differs(built(name, dtype))
    if name == "minimax" and dtype != torch.float32:  # it rounds its state at each token
        assert why.startswith("the state of layer")
    elif name not in FLOORED:
        assert why == ""
    elif dtype == torch.float32:
        assert why.startswith("the state of layer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(BOUNDED))
def test_steps_without_the_bound_of_the_forward_do_not(name: str, dtype: torch.dtype) -> None:
    assert differs(built(name, dtype, bounded=True)).startswith("the state of layer")


def test_a_state_of_one_head_shows_among_many() -> None:
    from spliced_connector.hf.steps import apart

    generator = torch.Generator().manual_seed(1)
    want = torch.randn(64, 8, 8, generator=generator)
    want[5] *= 1e-3  # in the norm of the whole state it would be lost
    got = want.clone()
    got[5] *= 1.5
    assert apart(got, want) == pytest.approx(0.5 / 8, rel=1e-3)
    got[5] = math.nan
    assert not apart(got, want) <= 1


@pytest.mark.parametrize(
    ("name", "dtype", "bounded", "kept"),
    [
        ("granite", torch.float32, False, True),
        ("qwen35_moe", torch.bfloat16, False, True),
        ("kimi", torch.bfloat16, False, True),
        ("minimax", torch.float32, False, True),
        ("minimax", torch.bfloat16, False, False),
        ("granite", torch.float32, True, False),
        ("falcon", torch.bfloat16, True, False),
        ("bamba", torch.float32, True, False),
    ],
)
def test_only_states_that_a_prefill_gives_are_kept_behind_answers(
    name: str, dtype: torch.dtype, bounded: bool, kept: bool, connect: Connect, daemon: Daemon
) -> None:
    e = engine(built(name, dtype, bounded=bounded), connect, daemon)
    first = said(37, 3)
    turn = e.generate(first, (), "prefix", max_new_tokens=12, min_new_tokens=12, do_sample=False)
    ids = [*turn[0, :-1].tolist(), END, *said(21, 4)]
    done = e.prefill(ids, (), "prefix")
    assert not done.approximate
    assert done.reused == (len(turn[0]) - 1 if kept else 32)  # or the last block of the prompt
    assert bool(e.steps_differ) is not kept
    if not kept:
        want = e.prefill(ids, (), "none").logits
        bound = 1e-4 if dtype == torch.float32 else 0.1
        assert (done.logits - want).norm() <= bound * want.norm()


@pytest.mark.parametrize("name", sorted(TINY))
def test_advancing_behind_a_prefill_gives_the_logits_of_a_whole_forward(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    model = built(name)
    e = engine(model, connect, daemon)
    ids = said(60, 5)
    for behind in (1, 10):
        done = e.prefill(ids[:-behind], (), "prefix")
        if name in FLOORED:
            with pytest.raises(UnsupportedError, match="prefill the tokens"):
                e.advance(done, ids[-behind:])
            continue
        got = e.advance(done, ids[-behind:])
        want = own(model, ids)
        assert float((got - want).norm() / want.norm()) <= 1e-5
        assert done.tokens == len(ids)


@pytest.mark.parametrize("name", ["bamba", "mamba", "jamba"])
def test_advancing_behind_the_models_own_forward(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    """Mode none, and a model that is served without reuse."""
    model = built(name)
    e = engine(model, connect, daemon)
    ids = said(60, 5)
    want = own(model, ids)
    for reason in ("", "switched off by a test"):
        if reason:
            e._reuse, e.inert = None, reason
        done = e.prefill(ids[:-4], (), "none")
        assert float((e.advance(done, ids[-4:]) - want).norm() / want.norm()) <= 1e-5


def test_advancing_is_refused_where_a_step_is_not_the_forward(
    connect: Connect, daemon: Daemon
) -> None:
    e = engine(built("granite", bounded=True), connect, daemon)
    done = e.prefill(said(40, 6), (), "prefix")
    with pytest.raises(UnsupportedError, match="prefill the tokens"):
        e.advance(done, [5])


@pytest.mark.parametrize("name", ["cache", "past_key_values", "cache_params"])
def test_a_cache_of_the_callers_is_left_to_the_library(
    name: str, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.24 calls `cache` what releases before it call `past_key_values`."""
    model = built("llama")
    e = engine(model, connect, daemon)
    handed: list[set[str]] = []

    def generate(line: torch.Tensor, **options: object) -> torch.Tensor:
        handed.append(set(options))
        return line

    monkeypatch.setattr(model, "generate", generate)
    theirs = DynamicCache(config=model.config)
    e.generate(said(40, 6), (), "prefix", **{name: theirs})
    e.generate(said(40, 6), (), "prefix")
    assert handed == [{"attention_mask", name}, {"attention_mask", cache_name(model)}]


def test_the_name_of_a_cache_is_the_one_that_the_forward_has() -> None:
    class Newer:
        def forward(self, input_ids: object, cache: object = None) -> None: ...

    class Older:
        def forward(self, input_ids: object, past_key_values: object = None) -> None: ...

    assert cache_name(Newer()) == "cache"
    assert cache_name(Older()) == "past_key_values"
