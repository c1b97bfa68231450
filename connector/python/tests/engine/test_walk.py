"""The walk against transformers, and splices against what they must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.hybrids import MODELS, VOCABULARY, qwen35
from spliced_connector.model import (
    DEFAULT_TOLERANCE,
    Choice,
    DType,
    Kind,
    Plan,
    PlanError,
    Profile,
    Span,
    SpanKind,
    divide,
    from_config,
    identity_digest,
    make_plan,
)
from spliced_connector.walk import (
    Architecture,
    Captured,
    Context,
    Naming,
    architecture,
    capture,
    pack,
    rounded,
    run,
)
from spliced_connector.walk.run import alike

pytestmark = pytest.mark.engine

WEIGHTS = b"\x01" * 32
CPU = torch.device("cpu")


def walked(model: PreTrainedModel) -> Architecture:
    return architecture(model, Naming(WEIGHTS, transition=DType.F32))


def tokens(n: int, seed: int = 1) -> Tensor:
    return torch.randint(0, VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed))


def far(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def logits(arch: Architecture, h: Tensor | None) -> Tensor:
    assert h is not None
    with torch.no_grad():
        return arch.logits(h[-1:])[0]


def full(arch: Architecture, ids: Tensor) -> tuple[Tensor, Context]:
    context = Context(arch, len(ids), CPU)
    return logits(arch, run.prefill(arch, ids, context)), context


Change = Callable[[Captured], Captured]


def spliced(
    arch: Architecture, ids: Tensor, cuts: list[int], w: int, change: Change | None = None
) -> tuple[Tensor, Context, Plan]:
    """All segments that have an interior are captured alone and placed."""
    prompt = divide(Profile(arch.identity), b"", ids.tolist(), cuts, w)
    choices = [Choice.HIT if p.spec is not None else Choice.CONTEXT for p in prompt.pieces]
    plan = make_plan(prompt, 0, choices)
    segments = {}
    for p in prompt.pieces:
        if p.spec is not None:
            captured = capture(arch, ids[p.start : p.end], p.spec)
            segments[p.index] = captured if change is None else change(captured)
    context = Context(arch, len(ids), CPU)
    h = run.splice(arch, ids, plan.spans, segments, context)
    return logits(arch, h), context, plan


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def small() -> Architecture:
    return walked(qwen35())


def test_prefill_gives_the_models_logits(model: PreTrainedModel) -> None:
    arch, ids = walked(model), tokens(150)
    with torch.no_grad():
        want = model(ids[None]).logits[0]
        context = Context(arch, 150, CPU)
        # In two parts: the second continues what the first has left.
        first = arch.logits(run.prefill(arch, ids[:70], context))
        second = arch.logits(run.prefill(arch, ids, context))
    assert far(torch.cat((first, second)), want) <= 1e-4
    assert want.abs().max() > 1


def test_the_identity_is_that_of_the_config(model: PreTrainedModel) -> None:
    config = model.config.to_dict()
    digest = identity_digest(WEIGHTS, config, "float32")
    want = from_config(config, digest, kv=DType.F32, conv=DType.F32, transition=DType.F32)
    want = replace(want, tolerance=DEFAULT_TOLERANCE)
    assert Profile(walked(model).identity).fingerprint == Profile(want).fingerprint


def test_a_captured_leading_segment_is_the_models_own_cache(model: PreTrainedModel) -> None:
    arch, ids = walked(model), tokens(90)
    with torch.no_grad():
        cache = model(ids[None], use_cache=True).past_key_values
    segment = capture(arch, ids, Profile(arch.identity).first_spec(90))
    for layer, slot, kind in zip(segment.layers, arch.slots, arch.layers, strict=True):
        own = cache.layers[slot]
        if kind == Kind.LINEAR:
            assert layer.state is not None
            assert layer.conv is not None
            assert far(layer.state, own.recurrent_states[0][0]) <= 1e-5
            assert far(layer.conv, own.conv_states[0][0].t()[1:]) <= 2e-5
        else:
            assert layer.k is not None
            assert layer.v is not None
            assert far(layer.k, own.keys[0].transpose(0, 1)) <= 1e-4
            assert far(layer.v, own.values[0].transpose(0, 1)) <= 1e-4


def test_an_interior_moves_the_models_own_state(model: PreTrainedModel) -> None:
    arch, ids = walked(model), tokens(90)
    spec = Profile(arch.identity).mid_spec(90, 8)
    assert spec is not None
    segment = capture(arch, ids, spec)
    states = []
    for n in (8, 82):
        with torch.no_grad():
            cache = model(ids[None, :n], use_cache=True).past_key_values
        states.append([getattr(layer, "recurrent_states", {0: None})[0] for layer in cache.layers])
    for layer, before, after in zip(segment.layers, *states, strict=True):
        if before is not None:
            assert layer.transition is not None
            assert layer.state is not None
            assert far(layer.transition @ before[0] + layer.state, after[0]) <= 1e-5


def test_one_leading_segment_changes_nothing(model: PreTrainedModel) -> None:
    arch, ids = walked(model), tokens(130)
    want, whole = full(arch, ids)
    got, context, plan = spliced(arch, ids, [0, 110], 8)
    assert plan.recomputed_tokens == 20
    assert not context.spliced
    assert far(got, want) <= 1e-4
    for a, b in zip(context.layers, whole.layers, strict=True):
        if a.state is not None and b.state is not None:
            assert far(a.state, b.state) <= 1e-4


@pytest.mark.parametrize("w", [50, 64])
def test_a_seam_as_wide_as_the_segments_is_a_full_prefill(small: Architecture, w: int) -> None:
    ids = tokens(170)
    got, _, plan = spliced(small, ids, [10, 60, 110, 160], w)
    assert plan.reused_tokens == 0
    assert far(got, full(small, ids)[0]) <= 1e-5


def test_wider_seams_come_nearer_to_a_full_prefill(small: Architecture) -> None:
    ids = tokens(260, seed=3)
    want = full(small, ids)[0]
    error = {w: far(spliced(small, ids, [0, 60, 120, 180, 240], w)[0], want) for w in (0, 8, 24)}
    assert error[24] < error[0]
    assert 1e-6 < error[8] < want.abs().max() / 4


def first_layer_error(
    arch: Architecture, change: Change | None = None, drop: bool = False
) -> float:
    """How far the first layer's state before the last span is from a full prefill's.

    Its inputs do not depend on the context but for the convolution, so composition is exact there.
    """
    ids = tokens(200, seed=5)
    context = spliced(arch, ids, [0, 60, 120, 180], 8, change)[1]
    got, want = context.layers[0].state, full(arch, ids)[1].layers[0].state
    assert got is not None
    assert want is not None
    return far(got, want) / float(want.abs().max())


def on_tuples(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Change:
    def apply(c: Captured) -> Captured:
        layers = []
        for at in c.layers:
            if at.transition is not None and at.state is not None:
                t, s = change(at.transition, at.state)
                at = replace(at, transition=t, state=s)
            layers.append(at)
        return replace(c, layers=tuple(layers))

    return apply


def test_composition_is_exact_where_inputs_are(small: Architecture) -> None:
    assert first_layer_error(small) < 1e-5


def test_a_transposed_transition_shows(small: Architecture) -> None:
    wrong = on_tuples(lambda t, s: (t.transpose(1, 2), s))
    assert first_layer_error(small, wrong) > 1e-3


def test_tokens_that_are_counted_twice_show(small: Architecture) -> None:
    """Tuples of whole segments, beside ends that are computed again."""
    ids = tokens(200, seed=5)
    whole = {
        a: capture(small, ids[a : a + 60], Profile(small.identity).first_spec(60))
        for a in (60, 120)
    }

    def wrong(c: Captured) -> Captured:
        if c.spec.head == 0:
            return c
        first = min(whole.values(), key=lambda v: far_rows(c, v))
        layers = tuple(
            replace(a, transition=b.transition, state=b.state)
            for a, b in zip(c.layers, first.layers, strict=True)
        )
        return replace(c, layers=layers)

    assert first_layer_error(small, wrong) > 1e-3


def far_rows(interior: Captured, whole: Captured) -> float:
    """Between the rows of an interior and those of a whole segment at the same tokens."""
    begin, n = interior.spec.interior
    a, b = interior.layers[3].v, whole.layers[3].v
    assert a is not None
    assert b is not None
    return far(a, b[begin : begin + n])


def test_a_missing_convolution_tail_shows(small: Architecture) -> None:
    def wrong(c: Captured) -> Captured:
        layers = tuple(
            at if at.conv is None else replace(at, conv=torch.zeros_like(at.conv))
            for at in c.layers
        )
        return replace(c, layers=layers)

    assert first_layer_error(small, wrong) > 1e-3


@pytest.mark.parametrize("part", ["transition", "state", "conv", "k", "v"])
def test_a_segment_that_lacks_a_part_is_refused_and_nothing_changes(
    small: Architecture, part: str
) -> None:
    ids = tokens(60)
    spec = Profile(small.identity).mid_spec(40, 8)
    assert spec is not None
    good = capture(small, ids[10:50], spec)
    context = Context(small, 60, CPU)
    run.prefill(small, ids[:18], context)
    before = context.snapshot()
    spans = [Span(SpanKind.SEGMENT, 18, 24, 0), Span(SpanKind.RECOMPUTE, 42, 18)]
    for cut in (lambda x: None, lambda x: x[:-1]):
        layers = [
            at if getattr(at, part) is None else replace(at, **{part: cut(getattr(at, part))})
            for at in good.layers
        ]
        with pytest.raises(PlanError, match=part):
            run.splice(small, ids, spans, {0: replace(good, layers=tuple(layers))}, context)
    assert context.tokens == before.tokens == 18
    assert context.layers[0].state is before.layers[0].state
    assert run.splice(small, ids, spans, {0: good}, context) is not None


def test_a_plan_may_be_cut_anywhere(small: Architecture) -> None:
    ids = tokens(260, seed=3)
    want, whole, plan = spliced(small, ids, [0, 60, 120, 180, 240], 8)
    segments = {}
    for i, (a, b) in enumerate(((0, 60), (60, 120), (120, 180), (180, 240))):
        profile = Profile(small.identity)
        spec = profile.mid_spec(b - a, 8) if a else profile.first_spec(b - a)
        assert spec is not None
        segments[i] = capture(small, ids[a:b], spec)
    for at in range(1, len(plan.spans)):
        context = Context(small, 10, CPU)  # makes room by itself
        run.splice(small, ids, plan.spans[:at], segments, context)
        h = run.splice(small, ids, plan.spans[at:], segments, context)
        assert far(logits(small, h), want) <= 1e-5
        assert context.spliced == whole.spliced
        assert context.tokens == 260


def test_a_long_prefill_in_parts_is_the_same(
    small: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokens(150)
    want = full(small, ids)[0]
    monkeypatch.setattr(run, "PREFILL_ROWS", 41)
    assert far(full(small, ids)[0], want) <= 1e-5


def test_long_prompts_attend_span_by_span(
    small: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tokens(260, seed=3)
    want = spliced(small, ids, [0, 60, 120, 180, 240], 8)[0]
    monkeypatch.setattr("spliced_connector.walk.softmax.SCORES", 0)
    monkeypatch.setattr("spliced_connector.walk.softmax.ROWS", 7)
    for kept in (1 << 20, 0):
        monkeypatch.setattr("spliced_connector.walk.softmax.KEPT", kept)
        assert far(spliced(small, ids, [0, 60, 120, 180, 240], 8)[0], want) <= 1e-5


def test_stored_bytes_are_read_back_as_they_were(small: Architecture) -> None:
    profile = Profile(small.identity)
    spec = profile.mid_spec(40, 4)
    assert spec is not None
    captured = capture(small, tokens(40), spec)
    again = rounded(profile, captured)
    for a, b in zip(pack(profile, captured), pack(profile, again), strict=True):
        assert bytes(a) == bytes(b)
    layout = profile.segment_layout(spec)
    assert [len(p) for p in pack(profile, again)] == [p.nbytes for p in layout.parts]


def test_a_part_of_another_shape_is_not_published(small: Architecture) -> None:
    profile = Profile(small.identity)
    spec = profile.mid_spec(40, 4)
    assert spec is not None
    captured = capture(small, tokens(40), spec)
    with pytest.raises(ValueError, match="part"):
        pack(profile, replace(captured, spec=replace(spec, tokens=41)))


def test_double_precision_computes_in_double(small: Architecture) -> None:
    arch = walked(qwen35().double())
    ids = tokens(100)
    want, _ = full(arch, ids)
    assert want.dtype == torch.float64
    assert far(spliced(arch, ids, [0, 80], 8)[0], want) <= 1e-12
    assert 0 < far(full(small, ids)[0], want) <= 1e-4


def test_operands_from_memory_and_from_a_gpu_meet_on_one_device() -> None:
    there = torch.empty(2, 2, device="meta")
    parts = [torch.ones(2, 2, dtype=torch.float16), torch.empty(2, 2, device="meta")]
    for found in (parts, parts[:1], parts[1:]):
        for moved in alike(found, there):
            assert moved.device == there.device and moved.dtype == there.dtype
