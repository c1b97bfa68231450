"""Lightning attention over turned keys: the walk against a model that multiplies all pairs of
tokens, and splices against states that are summed up from what the mixers have read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.ring_model import LING, RING, build
from spliced_connector.hf.cache import filled
from spliced_connector.model import (
    DEFAULT_TOLERANCE,
    Choice,
    DType,
    Family,
    Kind,
    Plan,
    Profile,
    Span,
    divide,
    from_config,
    identity_digest,
    make_plan,
)
from spliced_connector.walk import (
    Architecture,
    Captured,
    Context,
    LinearRows,
    Naming,
    UnsupportedError,
    architecture,
    capture,
    families,
    run,
)

pytestmark = pytest.mark.engine

WEIGHTS = b"\x04" * 32
CPU = torch.device("cpu")
MODELS = {"ring": RING, "ling_2.5": LING}


@pytest.fixture(scope="module", params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build(MODELS[request.param])


@pytest.fixture(scope="module")
def arch(model: nn.Module) -> Architecture:
    return architecture(model, Naming(WEIGHTS))


def tokens(n: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 96, (n,), generator=torch.Generator().manual_seed(seed))


def far(got: Tensor, want: Tensor) -> float:
    """The largest difference, next to the largest value."""
    assert got.shape == want.shape
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def forward(model: nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model(ids[None]).logits[0]
    return logits


def states(model: nn.Module, ids: Tensor) -> dict[int, Tensor]:
    """The state of every Lightning layer behind ids, as the model sums it up."""
    forward(model, ids)
    mixers = [layer.attention for layer in model.model.layers]
    return {i: at.state for i, at in enumerate(mixers) if hasattr(at, "slope")}


def logits(arch: Architecture, h: Tensor | None) -> Tensor:
    assert h is not None
    with torch.no_grad():
        return arch.logits(h)


def planned(arch: Architecture, ids: Tensor, cuts: Sequence[int], w: int) -> Plan:
    """All segments that have an interior are placed."""
    prompt = divide(Profile(arch.identity), b"", ids.tolist(), list(cuts), w)
    choices = [Choice.HIT if p.spec is not None else Choice.CONTEXT for p in prompt.pieces]
    return make_plan(prompt, 0, choices)


def captured(arch: Architecture, ids: Tensor, cuts: Sequence[int], w: int) -> dict[int, Captured]:
    prompt = divide(Profile(arch.identity), b"", ids.tolist(), list(cuts), w)
    return {
        p.index: capture(arch, ids[p.start : p.end], p.spec)
        for p in prompt.pieces
        if p.spec is not None
    }


def spliced(
    arch: Architecture,
    ids: Tensor,
    spans: Sequence[Span],
    segments: Mapping[int, Captured],
) -> tuple[Tensor, Context]:
    context = Context(arch, len(ids), CPU)
    return logits(arch, run.splice(arch, ids, spans, segments, context)), context


def test_prefill_gives_the_models_logits(model: nn.Module, arch: Architecture) -> None:
    ids, context = tokens(150), Context(arch, 150, CPU)
    first = run.prefill(arch, ids[:70], context)
    second = run.prefill(arch, ids, context)
    got = logits(arch, torch.cat((first, second)))
    assert far(got, forward(model, ids)) <= 1e-5
    for layer, state in states(model, ids).items():
        mine = context.layers[layer].state
        assert mine is not None
        assert far(mine, state) <= 1e-5


@pytest.mark.parametrize("name", sorted(MODELS))
def test_decoding_in_float64_is_exact(name: str) -> None:
    model = build(MODELS[name]).double()
    arch = architecture(model, Naming(WEIGHTS))
    ids, context = tokens(60, seed=2), Context(arch, 10, CPU)
    rows = [run.prefill(arch, ids[:40], context)]
    rows += [run.prefill(arch, ids[:n], context) for n in range(41, 61)]
    assert far(logits(arch, torch.cat(rows)), forward(model, ids)) <= 1e-9


def test_the_identity_is_that_of_the_config(model: nn.Module, arch: Architecture) -> None:
    config = model.config.to_dict()
    slopes = {
        i: (-at.attention.slope).tolist()
        for i, at in enumerate(model.model.layers)
        if hasattr(at.attention, "slope")
    }
    want = from_config(
        config,
        identity_digest(WEIGHTS, config, "float32"),
        kv=DType.F32,
        slopes=lambda layer, _: slopes[layer],
        tolerance=DEFAULT_TOLERANCE,
    )
    assert arch.identity == want
    linear = arch.identity.layers[0].linear
    assert (linear.family, linear.rope.dims, linear.conv.rows) == (Family.LIGHTNING, 8, 0)
    assert len(slopes) == sum(kind == Kind.LINEAR for kind in arch.layers) >= 2


def test_slopes_are_those_of_the_modules() -> None:
    one, other = build(RING), build(RING)
    other.model.layers[1].attention.slope *= 0.5
    ids = tokens(50)
    archs = [architecture(m, Naming(WEIGHTS)) for m in (one, other)]
    assert Profile(archs[0].identity).fingerprint != Profile(archs[1].identity).fingerprint
    got = logits(archs[1], run.prefill(archs[1], ids, Context(archs[1], 50, CPU)))
    assert far(got, forward(other, ids)) <= 1e-5
    assert far(got, forward(one, ids)) > 1e-3


def test_a_leading_segment_is_exact(model: nn.Module, arch: Architecture) -> None:
    ids = tokens(90, seed=3)
    plan = planned(arch, ids, [0, 70], 8)
    assert plan.reused_tokens == 70
    got, context = spliced(arch, ids, plan.spans, captured(arch, ids, [0, 70], 8))
    assert not context.spliced
    assert far(got, forward(model, ids)[-len(got) :]) <= 1e-5
    whole = capture(arch, ids, Profile(arch.identity).first_spec(90))
    for layer, state in states(model, ids).items():
        mine = whole.layers[layer].state
        assert mine is not None
        assert far(mine, state) <= 1e-5


@pytest.mark.parametrize("w", [30, 50])
def test_a_seam_as_wide_as_the_segments_is_a_full_prefill(
    model: nn.Module, arch: Architecture, w: int
) -> None:
    ids, cuts = tokens(140, seed=4), [10, 50, 90, 130]
    plan = planned(arch, ids, cuts, w)
    assert plan.reused_tokens == 0
    got, _ = spliced(arch, ids, plan.spans, {})
    assert far(got, forward(model, ids)[-len(got) :]) <= 1e-5


def test_the_first_layer_behind_a_splice_is_the_models(
    model: nn.Module, arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its inputs are the tokens themselves, so that turning and composing have to be exact."""
    ids, cuts = tokens(200, seed=5), [0, 60, 120, 180]
    plan, segments = planned(arch, ids, cuts, 8), captured(arch, ids, [0, 60, 120, 180], 8)
    assert plan.reused_tokens > 100
    want = states(model, ids)[0]
    for turned, bound in ((True, (0.0, 1e-5)), (False, (1e-2, torch.inf))):
        if not turned:
            monkeypatch.setattr(families, "rotate_state", lambda state, *_: state)
        state = spliced(arch, ids, plan.spans, segments)[1].layers[0].state
        assert state is not None
        assert bound[0] <= far(state, want) <= bound[1]


@dataclass
class Recorded:
    """An architecture that notes what its linear layers have read, and where."""

    arch: Architecture
    inputs: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.arch, name)

    def linear(self, layer: int, x: Tensor, positions: Tensor) -> LinearRows:
        self.inputs.setdefault(layer, []).append((positions, x))
        return self.arch.linear(layer, x, positions)


def summed(model: nn.Module, layer: int, read: Mapping[int, Tensor]) -> Tensor:
    """The state behind tokens by position, each of which the mixer has read as a row."""
    at = model.model.layers[layer].attention
    positions = torch.tensor(sorted(read))
    rows = torch.stack([read[int(p)] for p in positions])
    with torch.no_grad():
        _, k, v = at.split(rows, positions, model.model.rotary_emb.inv_freq)
        state: Tensor = at.behind(k, v)
    return state


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1)])
def test_segments_that_change_places_leave_what_their_rows_do(
    model: nn.Module, arch: Architecture, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer's state is the sum over the rows that its mixer has read: a segment's when it was
    run alone, the others' in the splice, all turned to where they stand in this prompt."""
    w, query, pieces = 8, tokens(12, seed=9), [tokens(n, seed=n) for n in (30, 41, 52)]
    alone = Recorded(arch)
    first = Profile(arch.identity).first_spec(30)
    specs = [first] + [Profile(arch.identity).mid_spec(len(p), w) for p in pieces[1:]]
    kept: list[Captured] = []
    read_alone: list[dict[int, Tensor]] = []
    for ids, spec in zip(pieces, specs, strict=True):
        assert spec is not None
        alone.inputs.clear()
        kept.append(capture(alone, ids, spec))
        read_alone.append({layer: x for layer, ((_, x),) in alone.inputs.items()})

    ids = torch.cat([pieces[i] for i in order] + [query])
    cuts = [0]
    for i in order:
        cuts.append(cuts[-1] + len(pieces[i]))
    spans = planned(arch, ids, cuts, w).spans
    seen = Recorded(arch)
    # Segments are numbered by where they stand.
    segments = {at: kept[i] for at, i in enumerate(order)}
    got = spliced(seen, ids, spans, segments)[1]

    for layer in alone.inputs:
        read: dict[int, Tensor] = {}
        for span in spans:
            if span.segment >= 0:
                head = segments[span.segment].spec.head
                rows = read_alone[order[span.segment]][layer][head : head + span.length]
                read |= {span.start + j: row for j, row in enumerate(rows)}
        ((positions, x),) = seen.inputs[layer]
        assert not set(positions.tolist()) & set(read)
        read |= dict(zip(positions.tolist(), x, strict=True))
        assert sorted(read) == list(range(len(ids)))
        state = got.layers[layer].state
        assert state is not None
        assert far(state, summed(model, layer, read)) <= 1e-5

    monkeypatch.setattr(families, "rotate_state", lambda state, *_: state)
    wrong = spliced(arch, ids, spans, segments)[1].layers[0].state
    right = got.layers[0].state
    assert wrong is not None
    assert right is not None
    assert far(wrong, right) > 1e-2


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("ring", {"partial_rotary_factor": 1.0}, "turns 8 dimensions, its config says 16"),
        ("ring", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'yarn' is not supported"),
        ("ling_2.5", {"rope_interleave": False}, "rope_interleave is off"),
    ],
)
def test_settings_without_arithmetic_here_are_refused(
    name: str, change: Mapping[str, object], text: str
) -> None:
    model = build(MODELS[name])
    for key, value in change.items():
        setattr(model.config, key, value)
    with pytest.raises(UnsupportedError, match=text):
        architecture(model, Naming(WEIGHTS))


def test_generate_cannot_be_handed_such_a_state() -> None:
    """What the published code keeps in the library's cache is not known here."""
    model = build(RING)
    arch = architecture(model, Naming(WEIGHTS))
    with pytest.raises(UnsupportedError, match="holds no Lightning state"):
        filled(model, arch, Context(arch, 0, CPU))


def test_slopes_that_are_no_decays_are_refused() -> None:
    model = build(RING)
    model.model.layers[0].attention.slope *= -1
    with pytest.raises(UnsupportedError, match="not the logarithm of a decay"):
        architecture(model, Naming(WEIGHTS))


def test_code_beside_weights_is_taken_for_types_with_a_walk_only() -> None:
    model = build(RING)
    model.config.model_type = "minimax"
    with pytest.raises(UnsupportedError, match="which no walk supports"):
        architecture(model, Naming(WEIGHTS))
    model = build(RING)
    model.lm_head = LowRank(model.lm_head)
    with pytest.raises(UnsupportedError, match="LowRank, which no walk supports"):
        architecture(model, Naming(WEIGHTS))


class LowRank(nn.Module):  # type: ignore[misc]
    """An adapter, which is not of the model's file."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
