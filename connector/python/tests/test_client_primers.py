"""Segments that were captured after a primer, and their other variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from client_samples import SMALL, Connect, fill, ids, key_of, spec_of
from fake_daemon import FakeDaemon
from running import Daemon
from spliced_connector.client import KnownQuery, Missing, Model, NewSegment, Status
from spliced_connector.client.registration import Registration
from spliced_connector.errors import Code
from spliced_connector.model import NOTHING, primer_digest
from spliced_connector.wire import (
    MatchKnown,
    MatchPrimers,
    MatchReply,
    MatchRequest,
    Op,
    PlanReply,
    PlanRequest,
    WatchPrimers,
    WatchReply,
    WatchRequest,
)
from spliced_connector.wire.numbers import MAX_PRIMERS, Feature

PRIMER = primer_digest([5, 6, 7])


def variants(model: Model, tokens: int, seed: int) -> tuple[NewSegment, NewSegment]:
    """A segment without a primer, and after it, of other bytes."""
    spec = spec_of(model, tokens)
    layout = model.profile.segment_layout(spec)
    text = ids(tokens, seed)
    plain = NewSegment(spec, text, fill(layout, seed))
    return plain, NewSegment(replace(spec, primer=PRIMER), text, fill(layout, seed + 1))


@pytest.fixture
def model(daemon: Daemon, connect: Connect) -> Model:
    model = connect(daemon.socket).model(SMALL, block_tokens=16)
    assert model.wait_attached(10)
    return model


@pytest.fixture
def old(model: Model, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    """As attached to a daemon that knows no primers."""
    r = model._enrolment.registration
    assert isinstance(r, Registration)
    with monkeypatch.context() as patch:
        patch.setattr(r.attachment, "greeting", replace(r.attachment.greeting, primers=False))
        yield model


def test_both_variants_are_published_and_read(model: Model) -> None:
    assert model.primers
    both = variants(model, 64, 1)
    assert model.publish(both) == [Code.OK] * 2
    assert model.publish(both) == [Code.EXISTS] * 2
    keys = [key_of(model, new) for new in both]
    assert keys[0] != keys[1]
    for new, segment in zip(both, model.acquire(keys), strict=True):
        assert segment is not None
        assert [segment.part(i) for i in range(len(new.parts))] == list(new.parts)
        assert segment.release()


def test_a_leading_segment_has_no_primer(model: Model) -> None:
    spec = replace(model.profile.first_spec(40), primer=PRIMER)
    parts = fill(model.profile.segment_layout(spec), 1)
    assert model.publish([NewSegment(spec, ids(40), parts)]) == [Code.INVALID]


def test_a_row_is_about_the_first_variant_that_hits(model: Model) -> None:
    (a, a2), (b, b2), (c, c2) = (variants(model, n, n) for n in (64, 80, 96))
    assert model.publish([a, a2, b2]) == [Code.OK] * 3
    keys = [key_of(model, new) for new in (a, a2, b, c)]
    others = [*(key_of(model, new) for new in (a2, a, b2)), NOTHING]
    found = model.match(keys=keys, others=others)
    assert found.trouble == ""
    assert found.hits == [True, True, True, False]
    assert list(found.variant) == [0, 0, 1, 0]
    assert found.tokens[2] == b.spec.interior[1]
    assert list(model.match(keys=keys).status) == [Status.HIT, Status.HIT, Status.MISS, Status.MISS]
    assert not any(model.match(keys=keys).variant)
    assert "1 other variants of 2 keys" in model.match(keys=keys[:2], others=others[:1]).trouble
    assert model.publish([c2]) == [Code.OK]
    many = model.match(keys=keys * 600, others=[*others[:3], key_of(model, c2)] * 600)
    assert list(many.variant) == [0, 0, 1, 1] * 600
    assert all(many.hits)


def test_known_prefers_the_variant_of_the_place(model: Model) -> None:
    (a, a2), (b, _), (_, c2) = (variants(model, n, n) for n in (64, 80, 96))
    assert model.publish([a, a2, b, c2]) == [Code.OK] * 4
    prompt = [1, *a.tokens, *b.tokens, *a.tokens, *c2.tokens]

    def listed(either: bool, primer: bytes = PRIMER) -> list[tuple[int, bool, bytes]]:
        query = KnownQuery(prompt, 0, 4, primer, 60, either)
        return [(k.start, k.primed, k.key) for k in model.match(known=query).known]

    rows = [
        (1, False, key_of(model, a)),
        (65, False, key_of(model, b)),
        (145, True, key_of(model, a2)),
        (209, True, key_of(model, c2)),
    ]
    assert listed(either=True) == rows
    assert listed(either=False) == [rows[0], *rows[2:]]
    assert listed(either=True, primer=b"") == [*rows[:2], (145, False, key_of(model, a))]
    query = KnownQuery(prompt, primer=b"short")
    assert "primer of 5 bytes" in model.match(known=query).trouble


def test_a_daemon_without_primers_is_told_of_none(old: Model) -> None:
    assert not old.primers
    plain, primed = variants(old, 64, 3)
    assert old.publish([plain, primed]) == [Code.OK, Code.UNSUPPORTED]
    keys = [key_of(old, new) for new in (primed, plain)]
    found = old.match(keys=keys, others=keys[::-1])
    assert (found.trouble, found.hits, list(found.variant)) == ("", [False, True], [0, 0])
    for either, starts in ((True, [1]), (False, [])):
        query = KnownQuery([9, *plain.tokens], 0, 4, PRIMER, 0, either)
        assert [k.start for k in old.match(known=query).known] == starts
    assert old.plan([Missing(primed.spec, primed.tokens)]) is None


def test_a_worker_does_not_name_primers_to_a_daemon_that_knows_none(
    fake: FakeDaemon, connect: Connect
) -> None:
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    fake.on(Op.WATCH, lambda request: request.reply(WatchReply()))
    assert model.jobs(1, 0.0, primers=[PRIMER]) is not None
    watch = fake.next(Op.WATCH).message
    assert isinstance(watch, WatchRequest)
    assert watch.primers is None


def fake_model(fake: FakeDaemon, connect: Connect) -> Model:
    features = int(Feature.PRIMERS | Feature.PROMPT | Feature.KNOWN)
    fake.hello = replace(fake.hello, features=features)
    model = connect(fake.socket).model(SMALL)
    assert model.wait_attached(10)
    return model


def test_plans_and_jobs_name_primers(fake: FakeDaemon, connect: Connect) -> None:
    model = fake_model(fake, connect)
    plain, primed = variants(model, 64, 1)
    reply = PlanReply(0, 2, 200, 200, [0, 0], [1, 2], [0, 1], [0, 0], [64, 64])
    fake.on(Op.PLAN, lambda request: request.reply(reply))
    missing = [Missing(new.spec, new.tokens) for new in (plain, primed)]
    assert model.plan(missing, wait=10.0) is not None
    request = fake.next(Op.PLAN).message
    assert isinstance(request, PlanRequest)
    assert request.primers is not None
    assert [bytes(key) for key in request.keys] == [key_of(model, new) for new in (plain, primed)]
    assert [bytes(digest) for digest in request.primers.ids] == [NOTHING, PRIMER]
    alone = PlanReply(0, 2, 200, 200, [0], [1], [0], [0], [64])
    fake.on(Op.PLAN, lambda request: request.reply(alone))
    assert model.plan(missing[:1], wait=10.0) is not None
    request = fake.next(Op.PLAN).message
    assert isinstance(request, PlanRequest)
    assert request.primers is None

    jobs = WatchReply(
        jobs=[1, 2],
        keys=[NOTHING] * 2,
        roles=bytes([2, 2]),
        heads=[4, 4],
        tails=[4, 4],
        begins=[0, 0],
        lefts=[NOTHING] * 2,
        micros=[9, 9],
        tokens=[1, 2],
        ids=[1, 2, 3],
        primers=WatchPrimers([PRIMER, NOTHING]),
    )
    fake.on(Op.WATCH, lambda request: request.reply(jobs))
    news = model.jobs(2, 0.0, primers=[PRIMER])
    assert news is not None
    assert [job.spec.primer for job in news.jobs] == [PRIMER, b""]
    watch = fake.next(Op.WATCH).message
    assert isinstance(watch, WatchRequest)
    assert watch.primers is not None
    assert [bytes(digest) for digest in watch.primers.ids] == [PRIMER]
    assert model.jobs(2, 0.0, primers=[PRIMER] * (MAX_PRIMERS + 1)) is None
    assert model.jobs(2, 0.0, primers=[b"short"]) is None


@pytest.mark.parametrize(
    ("status", "variants", "starts", "primed"),
    [
        ([Status.MISS], [1], [], []),
        ([Status.HIT], [0], [5], []),
        ([Status.HIT], [0], [], [1]),
    ],
)
def test_an_answer_of_other_variants_than_asked_for_is_refused(
    fake: FakeDaemon,
    connect: Connect,
    status: list[int],
    variants: list[int],
    starts: list[int],
    primed: list[int],
) -> None:
    model = fake_model(fake, connect)
    n = len(starts)
    reply = MatchReply(
        status=bytes(status),
        tier=bytes(1),
        reason=bytes(1),
        tokens=[0],
        known=MatchKnown(0, 0, starts, [40] * n, [NOTHING] * n, bytes(n), [30] * n),
        primers=MatchPrimers(bytes(variants), bytes(primed)),
    )
    fake.on(Op.MATCH, lambda request: request.reply(reply))
    query = KnownQuery(ids(100), 0, 4, PRIMER)
    found = model.match(keys=[NOTHING], others=[PRIMER], known=query)
    assert "variant" in found.trouble
    request = fake.next(Op.MATCH).message
    assert isinstance(request, MatchRequest)
    assert request.primers is not None
    assert bytes(request.primers.primer) == PRIMER
