"""Plans cover a prompt exactly once, or are refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spliced_connector.model import (
    NOTHING,
    Attention,
    Choice,
    Conv,
    DType,
    Family,
    Identity,
    Kind,
    Layer,
    Lead,
    Linear,
    Piece,
    Plan,
    PlanError,
    Profile,
    Prompt,
    Role,
    SegmentSpec,
    Span,
    SpanKind,
    all_primed,
    choose,
    divide,
    keep_for_reuse,
    make_plan,
    primer_digest,
    segment_key,
)

HIT, ALONE, CONTEXT, PREFIX = Choice.HIT, Choice.ISOLATED, Choice.CONTEXT, Choice.PREFIX
LINEAR = Linear(Family.GDN, 2, 4, 8, 8, DType.F32, DType.F16, Conv(4, (16, 16, 32), DType.BF16))
LAYERS = (
    Layer(Kind.LINEAR, linear=LINEAR),
    Layer(Kind.FULL, attention=Attention(2, 8, 8, DType.BF16)),
)
PROFILE = Profile(Identity("m", b"\x01" * 32, LAYERS))


def prompt(tokens: int, cuts: list[int], w: int = 8) -> Prompt:
    return divide(PROFILE, b"salt", range(tokens), cuts, w)


def shown(plan: Plan) -> list[tuple[int, int, int]]:
    return [(s.start, s.end, s.segment) for s in plan.spans]


def test_joins_are_one_span_and_a_leading_segment_keeps_its_ends() -> None:
    plan = make_plan(prompt(230, [0, 100, 200]), 0, [HIT, HIT])
    assert shown(plan) == [(0, 100, 0), (100, 108, -1), (108, 192, 1), (192, 230, -1)]
    assert (plan.reused_tokens, plan.recomputed_tokens) == (184, 46)
    assert plan.approximate


def test_a_leading_segment_alone_is_exact() -> None:
    assert not make_plan(prompt(120, [0, 100]), 0, [HIT]).approximate


def test_segments_behind_a_prefix_are_no_leading_ones() -> None:
    asked = prompt(260, [40, 140, 240])
    assert [p.spec.role for p in asked.pieces if p.spec] == [Role.MID, Role.MID]
    spans = [(40, 48, -1), (48, 132, 0), (132, 148, -1), (148, 232, 1), (232, 260, -1)]
    assert shown(make_plan(asked, 40, [HIT, HIT])) == spans
    spans[0] = (0, 48, -1)
    assert shown(make_plan(asked, 0, [HIT, ALONE])) == spans


def test_what_is_computed_in_context_melts_into_its_neighbours() -> None:
    asked = prompt(430, [0, 100, 200, 300, 400])
    assert shown(make_plan(asked, 0, [HIT, CONTEXT, HIT, CONTEXT])) == [
        (0, 100, 0),
        (100, 208, -1),
        (208, 292, 2),
        (292, 430, -1),
    ]


def test_a_seam_of_nothing_still_warms_the_convolution_up() -> None:
    plan = make_plan(prompt(310, [0, 100, 200, 300], w=0), 0, [HIT] * 3)
    assert shown(plan)[1:3] == [(100, 103, -1), (103, 200, 1)]


def test_segments_too_short_for_an_interior_have_no_key() -> None:
    asked = prompt(60, [0, 4, 22, 41, 50])
    assert [p.key is None for p in asked.pieces] == [False, True, False, True]
    assert [len(k) for k in asked.keys] == [32, 32]
    assert choose(asked, 0, [True] * 4, [True] * 4) == (HIT, CONTEXT, HIT, CONTEXT)


def test_keys_are_of_the_segments_tokens_and_the_salt() -> None:
    asked = prompt(230, [0, 100, 200])
    spec = asked.pieces[1].spec
    assert spec is not None
    assert asked.pieces[1].key == segment_key(PROFILE, b"salt", spec, range(100, 200))
    assert asked.keys[0] != divide(PROFILE, b"other", range(230), [0, 100, 200], 8).keys[0]


def test_segments_further_on_are_named_after_the_primer() -> None:
    lead = Lead(primer_digest(range(7)), 150)
    ids, cuts = range(330), [0, 100, 200, 204, 300]
    plain, asked = prompt(330, cuts), divide(PROFILE, b"salt", ids, cuts, 8, primer=lead)
    first, second, short, third = asked.pieces
    assert (first, short) == (plain.pieces[0], plain.pieces[2])
    assert first.other is None
    assert (second.spec, second.key) == (plain.pieces[1].spec, plain.pieces[1].key)
    assert plain.pieces[3].spec is not None
    primed = replace(plain.pieces[3].spec, primer=lead.digest)
    assert (third.spec, third.key) == (
        primed,
        segment_key(PROFILE, b"salt", primed, ids[204:300]),
    )
    assert third.exchanged.exchanged == third
    assert replace(third.exchanged, other=None) == plain.pieces[3]
    assert asked.others == [NOTHING, second.exchanged.key, third.exchanged.key]
    assert plain.others == []


@pytest.mark.parametrize(
    ("refresh", "kept"),
    [
        (0.0, (10, 110, 210, 310, 410)),
        (1e-10, (10, 110, 210, 310)),
        (0.15, (10, 110, 210, 310)),
        (0.25, (10, 110, 210, 310)),
        (0.26, (10, 110, 210)),
        (0.75, (10, 110)),
        (0.8, ()),
        (1.0, ()),
    ],
)
def test_the_last_segments_are_computed_in_context(refresh: float, kept: tuple[int, ...]) -> None:
    assert keep_for_reuse([10, 110, 210, 310, 410], refresh) == kept
    assert keep_for_reuse((), refresh) == ()
    with pytest.raises(PlanError, match="20 is followed by 10"):
        keep_for_reuse([0, 20, 10, 30], refresh)


def test_a_prompt_takes_the_variants_that_a_match_answers() -> None:
    lead = Lead(primer_digest(range(7)), 150)
    asked = divide(PROFILE, b"salt", range(330), [0, 100, 200, 204, 300], 8, primer=lead)
    assert asked.resolved(()) is asked
    assert asked.resolved([0, 0, 0]) is asked
    first, second, short, third = asked.pieces
    assert asked.resolved([0, 1, 1]).pieces == (first, second.exchanged, short, third.exchanged)
    assert asked.resolved([0, 0, 1]).keys == [first.key, second.key, third.exchanged.key]
    with pytest.raises(PlanError, match="segment 0 has one variant"):
        asked.resolved([1, 0, 0])


@pytest.mark.parametrize(
    ("begin", "want"),
    [
        (0, (HIT, ALONE, CONTEXT)),
        (60, (CONTEXT, ALONE, CONTEXT)),  # the prefix ends inside of the first
        (100, (PREFIX, ALONE, CONTEXT)),
        (320, (PREFIX, PREFIX, PREFIX)),
    ],
)
def test_choices_follow_the_prefix(begin: int, want: tuple[Choice, ...]) -> None:
    asked = prompt(330, [0, 100, 200, 300])
    assert choose(asked, begin, [True, False, False], [False, True, False]) == want
    plan = make_plan(asked, begin, want)
    assert (plan.begin, plan.end) == (begin, 330)


@pytest.mark.parametrize("seed", range(200))
def test_any_plan_covers_what_is_not_in_place_once(seed: int) -> None:
    r = random.Random(seed)
    n = r.randint(2, 400)
    cuts = sorted(r.sample(range(n), min(n - 1, r.randint(1, 8))))
    asked = prompt(n, cuts, r.choice([0, 1, 4, 8, 16]))
    begin = r.choice([0, r.randrange(n), r.choice(cuts)])
    flags = [[r.random() < 0.7 for _ in asked.pieces] for _ in "hw"]
    plan = make_plan(asked, begin, choose(asked, begin, *flags))
    covered = [t for s in plan.spans for t in range(s.start, s.end)]
    assert covered == list(range(begin, n))
    assert plan.spans[-1].kind is SpanKind.RECOMPUTE
    for s in plan.spans:
        if s.segment >= 0:
            piece = asked.pieces[s.segment]
            assert piece.spec is not None
            assert s.start == piece.start + piece.spec.head
            assert s.length == piece.spec.interior[1]


@pytest.mark.parametrize("cuts", [[0, 0], [10, 5], [-1, 5], [0, 30], [31]])
def test_cuts_that_cannot_be_right_are_refused(cuts: list[int]) -> None:
    with pytest.raises(PlanError):
        prompt(30, cuts)


def test_what_cannot_be_planned_is_refused() -> None:
    asked = prompt(230, [0, 100, 200])
    for begin, choices in (
        (230, [PREFIX, PREFIX]),  # no query
        (-1, [HIT, HIT]),
        (0, [HIT]),
        (50, [HIT, HIT]),  # counted twice
        (50, [PREFIX, HIT]),  # left out
    ):
        with pytest.raises(PlanError):
            make_plan(asked, begin, choices)
    with pytest.raises(PlanError):
        choose(asked, 0, [True], [True, True])
    with pytest.raises(PlanError):
        divide(PROFILE, b"", range(230), [0, 100], -1)


def test_a_plan_with_a_gap_or_an_overlap_is_refused() -> None:
    first, last = Span(SpanKind.SEGMENT, 0, 10, 0), Span(SpanKind.RECOMPUTE, 10, 5)
    Plan(0, 15, (first, last)).check()
    for spans in (
        (first, Span(SpanKind.RECOMPUTE, 9, 6)),
        (first, Span(SpanKind.RECOMPUTE, 11, 4)),
        (first,),
        (last,),
        (),
        (Span(SpanKind.RECOMPUTE, 0, 10), last),
        (Span(SpanKind.SEGMENT, 0, 10), last),
        (Span(SpanKind.RECOMPUTE, 0, 0), Span(SpanKind.RECOMPUTE, 0, 15)),
    ):
        with pytest.raises(PlanError):
            Plan(0, 15, spans).check()


def test_segments_count_as_primed_if_none_lacks_the_primer() -> None:
    lead = Lead(b"p" * 32, 100)
    plain = SegmentSpec(Role.MID, 50, 8, 8)
    primed = replace(plain, primer=lead.digest)

    def piece(start: int, spec: SegmentSpec | None) -> Piece:
        return Piece(0, start, 50, spec, b"k" if spec else None)

    near, far, lacks = piece(50, plain), piece(100, primed), piece(150, plain)
    assert all_primed([near, far], lead)
    assert all_primed([piece(0, plain), far, piece(150, None)], Lead(lead.digest, 1))
    assert not all_primed([near, far, lacks], lead)
    assert not all_primed([near], lead), "none was captured after it"
    assert not all_primed([far], None)
    assert not all_primed([], lead)
