"""Turns that are resumed inside: the next prompt goes on at the token where it parts from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from client_samples import Connect
from engine.hf_requests import answer, engine, far, own
from engine.hybrids import MODELS as GDN
from engine.hybrids import qwen35
from engine.test_hf_steps import END, built, said
from engine.test_hf_turns import speaking, turn
from running import Daemon
from spliced_connector.client import Accept, Advice, Model, Query, Way
from spliced_connector.errors import Code
from spliced_connector.hf import HFSettings, SplicedTransformers
from spliced_connector.hf.steps import apart, bound
from spliced_connector.hf.turns import MARGIN, base_of, most_rows
from spliced_connector.model import Profile
from spliced_connector.walk import Context, TurnRows, at_once, prefill, tensor_over

pytestmark = pytest.mark.engine

ROWS = 60
"""Of a turn. Tiny models have states of so few bytes that hardly a row would be kept."""

PROMPT, ANSWER = 50, 14

BASE = (PROMPT - 1 - MARGIN) // 16 * 16

BLOCK = PROMPT // 16 * 16
"""The end of the prompt's last block."""


def resuming(
    model: PreTrainedModel, connect: Connect, daemon: Daemon, most: int = ROWS, **settings: Any
) -> SplicedTransformers:
    e = engine(model, connect, daemon, settings=HFSettings(keep_all=True, **settings))
    assert e._reuse is not None
    if e._reuse.turns.most:
        e._reuse.turns.most = most
    return e


def parted(ids: list[int], at: int, n: int = 9) -> list[int]:
    """A prompt that has the first tokens of another, then others."""
    return [*ids[:at], 3 + ids[at] % 90, *said(n, at)]


def exact(e: SplicedTransformers, ids: list[int]) -> Context:
    """What a prefill of the walk gives in front of the last token."""
    assert e._reuse is not None
    context = Context(e._reuse.arch, len(ids), e._reuse.device)
    with torch.no_grad():
        prefill(e._reuse.arch, ids, context)
    return context


FAMILIES = ["qwen3_next", "olmo", "kimi", "bamba", "granite", "falcon", "minimax"]


def a_model(name: str) -> PreTrainedModel:
    if name in GDN:
        return speaking(GDN[name]())
    return built(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_prompt_goes_on_where_it_parts_from_the_last_turn(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    model = a_model(name)
    e = resuming(model, connect, daemon)
    ids = turn(e, said(PROMPT, 3), n=ANSWER)
    reuse = e._reuse
    assert reuse is not None
    assert reuse.turns.most == ROWS, "replayed states differ from those behind the answer"
    assert not e.steps_differ
    for at in (BASE + 1, PROMPT - 2, PROMPT, PROMPT + 5, PROMPT + ANSWER - 2):
        other = parted(ids, at)
        done = e.prefill(other, (), "prefix", keep=False)
        assert (done.reused, done.computed) == (at, len(other) - at)
        assert not done.approximate
        assert not done.trouble
        assert far(done.logits, own(model, other)) <= 1e-4
        said_so = daemon.request(way="prefix", prefix_tokens=at)
        assert said_so["computed_tokens"] == len(other) - at
        # The states are those of a prefill, to rounding.
        found = reuse.model.prefix_hashes(ids, [at])
        assert found is not None
        held = reuse.model.load(found[0], Accept.ROWS)
        assert held is not None
        assert (held.states, held.tokens) == (BASE, at)
        slot = reuse.model.replay_rows(held, at)
        assert slot is not None
        want = exact(e, ids[:at])
        for p in reuse.profile.checkpoint_layout(0).parts:
            tensor = {"S": want.layers[p.layer].state, "conv": want.layers[p.layer].conv}.get(
                p.kind
            )
            if tensor is not None:
                view = slot.view()[p.offset : p.offset + p.nbytes]
                error = apart(tensor_over(view, p.dtype, p.shape), tensor)
                assert error <= bound(reuse.arch.dtype), (p.kind, p.layer)
        assert slot.release()
        assert held.release()


@pytest.mark.parametrize("name", ["qwen3_next", "kimi", "granite"])
def test_rows_of_sixteen_bits_give_the_states_behind_the_answer(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    """To the rounding that the steps of such a model have: the first turn is compared."""
    model = GDN[name]().to(torch.bfloat16) if name in GDN else built(name, torch.bfloat16)
    e = resuming(speaking(model), connect, daemon)
    ids = turn(e, said(PROMPT, 3), n=ANSWER)
    assert e._reuse is not None
    assert e._reuse.turns.most == ROWS
    assert kept_rows(daemon) == PROMPT + ANSWER - 1 - BASE
    for at in (PROMPT - 2, PROMPT + 5):
        done = e.prefill(parted(ids, at), (), "prefix", keep=False)
        assert done.reused == at


@pytest.mark.parametrize("name", ["jamba", "zamba"])
def test_rows_that_are_no_smaller_than_states_are_not_kept(
    name: str, connect: Connect, daemon: Daemon
) -> None:
    """A row of Mamba1 has a decay for each number of the state."""
    e = engine(a_model(name), connect, daemon, settings=HFSettings(keep_all=True))
    assert e._reuse is not None
    assert most_rows(e._reuse.profile) == 0
    ids = turn(e, said(PROMPT, 3), n=ANSWER)
    assert e.prefill(parted(ids, PROMPT + 5), (), "prefix", keep=False).reused == 48


def test_rows_are_bounded_by_the_bytes_of_one_state(connect: Connect, daemon: Daemon) -> None:
    """A head of 128 by 128 takes as much as some 80 rows of 128 keys and 128 values."""
    wide = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    e = engine(speaking(qwen35(**wide)), connect, daemon)
    reuse = e._reuse
    assert reuse is not None
    most, profile = reuse.turns.most, reuse.profile
    state = profile.checkpoint_layout(0).nbytes
    assert profile.buffer_layout(most).nbytes <= state < profile.buffer_layout(most + 2).nbytes
    ids = turn(e, said(PROMPT, 3), n=most + 20)
    for at in (BASE + most - 1, BASE + most):
        done = e.prefill(parted(ids, at), (), "prefix", keep=False)
        assert done.reused == at
    behind = e.prefill(parted(ids, BASE + most + 3), (), "prefix", keep=False)
    assert behind.reused == BASE + most, "rows of one state and no more"


def test_a_setting_switches_it_off(connect: Connect, daemon: Daemon) -> None:
    model = speaking(qwen35())
    e = resuming(model, connect, daemon, resume=False)
    ids = turn(e, said(PROMPT, 3), n=ANSWER)
    assert e.prefill(parted(ids, PROMPT + 5), (), "prefix", keep=False).reused == 48
    assert not kept_rows(daemon)


def kept_rows(daemon: Daemon) -> int:
    """Checkpoints that the daemon keeps as rows."""
    return sum(c["kind"] == "rows" for c in daemon.checkpoints())


def test_answers_that_were_decoded_with_drafts_are_resumed_inside(
    connect: Connect, daemon: Daemon
) -> None:
    model = speaking(qwen35())
    e = resuming(model, connect, daemon)
    ids = said(PROMPT, 3)
    right = answer(model, ids, ANSWER)

    def guess(tokens: Sequence[int]) -> Sequence[int]:
        """Three drafts, the last of them wrong."""
        at = len(tokens) - PROMPT
        return [*right[at : at + 2], 3 + (right[-1] + at) % 90]

    out = e.generate(ids, (), "prefix", max_new_tokens=ANSWER, drafter=guess)[0].tolist()
    assert out[PROMPT:] == right
    assert e.drafted is not None
    assert e.drafted.right > 0
    for at in (PROMPT - 4, PROMPT + 1, PROMPT + 7, PROMPT + ANSWER - 2):
        other = parted(out, at)
        done = e.prefill(other, (), "prefix", keep=False)
        assert done.reused == at
        assert far(done.logits, own(model, other)) <= 1e-4


def test_a_turn_begins_where_the_one_before_it_ended(connect: Connect, daemon: Daemon) -> None:
    """That is a position at which every prompt looks, whatever its blocks."""
    e = resuming(speaking(qwen35()), connect, daemon, block_tokens=256)
    first = [*said(PROMPT - 6, 3), END, *said(5, 4)]
    ids = turn(e, first, n=ANSWER)
    for at in (PROMPT - 3, PROMPT + 5):
        assert e.prefill(parted(ids, at), (), "prefix", keep=False).reused == at
    assert e.prefill(parted(ids, PROMPT - 8), (), "prefix", keep=False).reused == 0


def test_the_turn_behind_one_that_was_resumed_is_resumed(connect: Connect, daemon: Daemon) -> None:
    model = speaking(qwen35())
    e = resuming(model, connect, daemon)
    ids = said(PROMPT, 3)
    for seed in (4, 5, 6):
        out = turn(e, ids, n=ANSWER)
        at = len(ids) + ANSWER // 2  # the template cuts each answer short
        ids = [*out[:at], END, *said(20, seed)]
        done = e.prefill(ids, (), "prefix", keep=False)
        assert done.reused == at
        assert far(done.logits, own(model, ids)) <= 1e-4
    again = turn(e, ids, n=ANSWER)
    assert again[len(ids) :] == answer(model, ids, ANSWER)


def test_what_is_read_of_a_prompt_alone_is_kept(connect: Connect, daemon: Daemon) -> None:
    """Prompts without an answer, as of clients that only warm the cache."""
    model = speaking(qwen35())
    e = resuming(model, connect, daemon)
    ids = said(PROMPT, 3)
    e.prefill(ids, (), "prefix")
    for at in (PROMPT - 1, PROMPT - 4):
        other = parted(ids, at)
        done = e.prefill(other, (), "prefix", keep=False)
        assert done.reused == at
        assert far(done.logits, own(model, other)) <= 1e-4


def test_rows_that_are_gone_cost_the_tokens_behind_the_state(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = speaking(qwen35())
    e = resuming(model, connect, daemon)
    ids = turn(e, said(PROMPT, 3), n=ANSWER)
    other = parted(ids, PROMPT + 5)
    for name in ("replay_rows", "load"):
        with monkeypatch.context() as patch:
            whole = Model.load

            def load(m: Model, digest: bytes, accept: Accept, whole: Any = whole) -> Any:
                return None if accept == Accept.ROWS else whole(m, digest, accept)

            patch.setattr(Model, name, load if name == "load" else lambda *_: None)
            done = e.prefill(other, (), "prefix", keep=False)
            assert done.reused == BASE
            assert far(done.logits, own(model, other)) <= 1e-4
    assert e.prefill(other, (), "prefix", keep=False).reused == PROMPT + 5


@pytest.mark.parametrize("name", ["open_buffer", "append", "accept", "replay"])
def test_a_daemon_that_takes_no_rows_costs_nothing_but_them(
    name: str, connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = speaking(qwen35())
    e = resuming(model, connect, daemon)
    refused = {"append": Code.FULL, "accept": Code.LATE}.get(name)
    monkeypatch.setattr(Model, name, lambda *_, **__: refused)
    first = said(PROMPT, 3)
    ids = turn(e, first, n=ANSWER)
    assert ids[PROMPT:] == answer(model, first, ANSWER)
    assert not kept_rows(daemon)
    done = e.prefill(parted(ids, PROMPT + 5), (), "prefix", keep=False)
    assert done.reused == BLOCK > BASE, "the checkpoint that the rows were to replace"
    assert far(done.logits, own(model, parted(ids, PROMPT + 5))) <= 1e-4
    behind = e.prefill([*ids[:-1], END, *said(9, 5)], (), "prefix", keep=False)
    assert behind.reused == len(ids) - 1, "the state behind the answer is there"


def test_rows_that_give_other_states_are_not_kept(
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    e = resuming(speaking(qwen35()), connect, daemon)
    packed = TurnRows.packed

    def other(rows: TurnRows, profile: Profile, begin: int, end: int) -> bytearray:
        out = packed(rows, profile, begin, end)
        for p in profile.buffer_layout(end - begin).parts:
            if p.kind == "V" and p.layer == profile.linear_layers[-1]:
                out[p.offset : p.offset + p.nbytes] = bytes(p.nbytes)
        return out

    monkeypatch.setattr(TurnRows, "packed", other)
    ids = turn(e, said(PROMPT, 3), n=ANSWER)
    assert "turns are not resumed inside" in caplog.text
    assert not kept_rows(daemon)
    assert e.prefill(parted(ids, PROMPT + 5), (), "prefix", keep=False).reused == BLOCK
    turn(e, said(PROMPT, 7), n=ANSWER)
    assert not kept_rows(daemon), "nor later ones"


def test_clients_that_accept_no_exact_states_are_not_given_any(
    connect: Connect, daemon: Daemon
) -> None:
    e = resuming(speaking(qwen35()), connect, daemon)
    ids = turn(e, said(PROMPT, 3), n=ANSWER)
    other = parted(ids, PROMPT + 5)
    assert e.prefill(other, (), "prefix", keep=False, accept=Accept.SPLICED).reused == 0


def test_a_turn_begins_near_the_end_of_its_prompt() -> None:
    def base(upto: int, begin: int = 0, ends: tuple[int, ...] = (), **more: Any) -> int | None:
        ids = [END if i in ends else 1 for i in range(upto)]
        given = {"whole": True, "most": 60} | more
        return base_of(ids, upto, begin, given["whole"], frozenset([END]), 16, given["most"])

    assert base(100) == 80, "a block, MARGIN tokens before the end at least"
    assert base(104) == 96
    assert base(100, ends=(40, 94)) == 94, "the end of the last turn"
    assert base(100, ends=(40,)) == 80, "which is too far"
    assert base(100, most=30) is None, "half of the rows are the answer's"
    assert base(100, begin=75) == 75, "the state that was continued from"
    assert base(100, begin=60) == 80, "which is too far"
    assert base(100, begin=85, whole=False) is None, "and has to be one"
    assert base(20) == 0, "a short prompt has rows alone"


@pytest.mark.parametrize(
    ("way", "reused"),
    [(Way.REPLAY, PROMPT + 5), (Way.PREFIX, BASE), (Way.RECOMPUTE, 0)],
    ids=["replay", "prefix", "recompute"],
)
def test_the_daemon_decides_whether_a_turn_is_replayed(
    way: Way,
    reused: int,
    connect: Connect,
    daemon: Daemon,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = speaking(qwen35())
    ids = turn(resuming(model, connect, daemon), said(PROMPT, 3), n=ANSWER)
    later = engine(model, connect, daemon, settings=HFSettings())
    assert later._reuse is not None
    later._reuse.turns.most = ROWS
    asked: list[int] = []
    advise = Model.advise

    def advised(m: Model, query: Query) -> Advice | None:
        if query.match is not None:
            asked.append(query.match.prefix_tokens)
        advice = advise(m, query)
        assert advice is not None
        assert advice.predicted[Way.REPLAY - 1] < float("inf"), "it knows what a replay takes"
        return replace(advice, way=way)

    monkeypatch.setattr(Model, "advise", advised)
    done = later.prefill(parted(ids, PROMPT + 5), (), "prefix", keep=False)
    assert (done.reused, asked) == (reused, [PROMPT + 5])


def test_rows_leave_a_device_by_one_copy() -> None:
    types = (torch.bfloat16, torch.float32, torch.float64, torch.bfloat16)
    sent = [torch.randn(3, 5 + i).to(dtype).t() for i, dtype in enumerate(types)]
    came = at_once(sent)
    assert len({x.untyped_storage().data_ptr() for x in came}) == 1
    for a, b in zip(came, sent, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)
    assert at_once([]) == []
