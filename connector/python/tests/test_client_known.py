"""Held segments are found by the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from client_samples import SMALL, Connect, fill, ids, key_of
from running import Daemon
from spliced_connector.client import KnownQuery, Model, NewSegment, Reason, Tier
from spliced_connector.client import known as finding
from spliced_connector.client.connection.flight import Call
from spliced_connector.client.known import MAX_PROMPT
from spliced_connector.client.registration import Registration
from spliced_connector.errors import Code, SplicedError
from spliced_connector.model import NOTHING, SegmentSpec
from spliced_connector.wire import MatchKnown

W = 4


def publish(model: Model, spec: SegmentSpec | None, tokens: Sequence[int]) -> bytes:
    """Publish a segment, and its key."""
    assert spec is not None
    new = NewSegment(spec, tokens, fill(model.profile.segment_layout(spec), 7))
    assert model.publish([new]) == [0]
    return key_of(model, new)


def test_segments_are_found_wherever_they_stand(daemon: Daemon, connect: Connect) -> None:
    model = connect(daemon.socket).model(SMALL, block_tokens=16)
    model.wait_attached(10)
    profile = model.profile
    first, one, two = ids(100, 1), ids(64, 2), ids(90, 3)
    keys = [
        publish(model, profile.first_spec(100), first),
        publish(model, profile.mid_spec(64, W), one),
        publish(model, profile.mid_spec(90, W), two),
    ]
    prompt = [*first, *two, 1, 2, 3, *one]
    found = model.match(known=KnownQuery(prompt, seam_tokens=W))
    assert found.trouble == ""
    assert [(k.start, k.tokens, k.key, k.tier) for k in found.known] == [
        (0, 100, keys[0], Tier.DRAM),
        (100, 90, keys[2], Tier.DRAM),
        (193, 64, keys[1], Tier.DRAM),
    ]
    assert [k.interior for k in found.known] == [
        100,
        *(profile.mid_spec(n, W).interior[1] for n in (90, 64)),  # type: ignore[union-attr]
    ]
    assert found.known_reason == Reason.NONE
    assert not model.match(known=KnownQuery(prompt, 101, W)).known[1:]
    assert not model.match(known=KnownQuery(prompt[1:], seam_tokens=W + 1)).known
    assert not model.match(keys=[NOTHING]).known
    together = model.match(keys=[keys[1], NOTHING], known=KnownQuery(prompt, seam_tokens=W))
    assert (together.hits, len(together.known)) == ([True, False], 3)


@pytest.mark.parametrize(
    "query", [KnownQuery([]), KnownQuery([1], 2), KnownQuery([1], seam_tokens=2)]
)
def test_a_question_that_makes_no_sense_finds_nothing(
    daemon: Daemon, connect: Connect, query: KnownQuery
) -> None:
    model = connect(daemon.socket).model(SMALL, block_tokens=16)
    model.wait_attached(10)
    found = model.match(keys=[NOTHING], known=query)
    assert "known: " in found.trouble
    assert (found.hits, list(found.known)) == ([False], [])
    nowhere, nothing = cast(Registration, None), cast(Call, None)
    with pytest.raises(SplicedError, match="want 1 to"):
        finding.stage(nowhere, nothing, KnownQuery(range(MAX_PROMPT + 1)))


class Exchange:
    """Takes what is no answer."""

    def garbage(self, text: str) -> SplicedError:
        return SplicedError(Code.UNAVAILABLE, text)


@pytest.mark.parametrize(
    "spans",
    [[(9, 20)], [(10, 0)], [(10, 41)], [(20, 11), (30, 5)], [(30, 5), (20, 5)], None],
)
def test_an_answer_beside_the_prompt_is_refused(spans: list[tuple[int, int]] | None) -> None:
    r = cast(Registration, SimpleNamespace(exchange=Exchange()))
    query = KnownQuery(range(50), 10)

    def answer(spans: list[tuple[int, int]]) -> MatchKnown:
        n = len(spans)
        starts, lengths = [start for start, _ in spans], [count for _, count in spans]
        return MatchKnown(0, 0, starts, lengths, [NOTHING] * n, bytes(n), [5] * n)

    assert len(finding.found(r, query, answer([(10, 20), (30, 20)]), None)) == 2
    with pytest.raises(SplicedError, match="match: "):
        finding.found(r, query, None if spans is None else answer(spans), None)


def test_a_daemon_that_knows_no_such_question_finds_nothing(
    daemon: Daemon, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(daemon.socket)
    model = client.model(SMALL, block_tokens=16)
    model.wait_attached(10)
    r = model._enrolment.registration
    assert isinstance(r, Registration)
    greeting = replace(r.attachment.greeting, known=False)
    monkeypatch.setattr(r.attachment, "greeting", greeting)
    found = model.match(known=KnownQuery(range(100)))
    assert (found.trouble, list(found.known)) == ("", [])
