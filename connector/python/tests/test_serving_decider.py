"""What the deciding half of an adapter of a server asks, decides and logs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_samples import SMALL
from spliced_connector.client import (
    ANY_LOSS,
    PRIMED_DUE,
    PRIMED_KEY,
    Accept,
    Advice,
    LossAdvice,
    LossLimit,
    Match,
    Query,
    SegmentAdvice,
    SpliceWay,
    Splicing,
    Status,
    Verdict,
    Way,
)
from spliced_connector.client.match import misses
from spliced_connector.model import Choice, Lead, Profile
from spliced_connector.segments import Finder, Found
from spliced_connector.serving.cuts import Cuts
from spliced_connector.serving.decider import SHORT_TOKENS, Asked, Decider, Known, Named
from spliced_connector.serving.splices import Splice
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.settings import Settings


def test_prompts_without_segments_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model = cast(Any, SimpleNamespace())
    clock = cast(Any, SimpleNamespace())
    decider = Decider(model, Settings(weights="0" * 64), Finder(), EngineTally(), clock)
    caplog.set_level(logging.INFO, "spliced")
    decider.cuts(None, range(SHORT_TOKENS - 1))
    assert not caplog.messages, "too short to be missed"
    for _ in range(3):
        decider.cuts(None, range(SHORT_TOKENS))
    assert len(caplog.messages) == 1
    assert "no segments were found" in caplog.messages[0]


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("splice", [None, 0, 2])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("priced", [False, True])
def test_advice_says_how_many_segments_to_take(
    way: Way, splice: int | None, wanted: bool, priced: bool
) -> None:
    advice = Advice(0, way, (), (), (), splice)
    want: int | None
    if splice is not None and priced:
        want = splice if way is Way.SPLICE else 0
    else:
        want = None if wanted or way not in (Way.RECOMPUTE, Way.PREFIX) else 0
    assert advice.takes(wanted, priced) == want


@pytest.mark.parametrize(
    ("setting", "said", "end"),
    [
        (0.0, None, 1200),
        (0.0, 1e-10, 900),
        (0.2, None, 900),
        (0.2, 0.0, 1200),
        (0.0, 0.3, 600),
        (0.5, 1.0, None),
    ],
)
def test_the_last_segments_are_left_to_the_engine(
    setting: float, said: float | None, end: int | None
) -> None:
    """A request's own share comes before that of the settings."""
    settings = Settings(weights="0" * 64, refresh=setting)
    model, tally = cast(Any, SimpleNamespace()), EngineTally()
    decider = Decider(model, settings, Finder(), tally, cast(Any, SimpleNamespace()))
    asked = {"v": 1, "cuts": [0, 300, 600, 900, 1200]} | ({} if said is None else {"refresh": said})
    found = decider.cuts({"spliced": asked}, range(1250))
    assert found is not None
    assert (found.cuts[-1] if found.cuts else None) == end
    assert tally.snapshot()["refreshed_tokens"] == 1200 - (end or 0)


WITHIN = LossAdvice(Splicing.ASKED, 0.1)
CUTS = (0, 600, 900, 1200)
LEAD = Lead(b"p" * 32, 128)


class Answers:
    """A model at a daemon that has some segments, in the variants asked for, and says one thing of
    losses; None for no advice."""

    salt, attached, primers, looks_up, silent = b"salt", True, True, True, False
    profile = Profile(SMALL)

    def __init__(self, loss: LossAdvice | None, hits: Collection[int]) -> None:
        self.loss, self.hits = loss, hits
        self.limits: list[LossLimit | None] = []

    def match(
        self,
        positions: Sequence[int],
        names: Sequence[bytes],
        keys: Sequence[bytes],
        accept: Accept,
        others: Sequence[bytes] = (),
    ) -> Match:
        status = [Status.HIT if i in self.hits else Status.MISS for i in range(len(keys))]
        return replace(misses(len(keys), ""), status=status)

    def advise(self, query: Query) -> Advice | None:
        limit, found, lookup = query.limit, None, query.lookup
        if lookup is not None:
            found = self.match((), (), lookup.keys, lookup.accept, lookup.others)
            primed = any(n & PRIMED_KEY for n in lookup.primed)
            primed = primed and all(n & PRIMED_KEY for n in lookup.primed if n & PRIMED_DUE)
            assert limit is not None
            limit = replace(limit, way=replace(limit.way, primed=primed))
        self.limits.append(limit)
        if self.loss is None:
            return None
        rows = (SegmentAdvice(False, Verdict.NONE),) * len(query.segments)
        return Advice(0, Way.SPLICE, (), (), rows, None, self.loss, found)


UNKNOWN = "this splice is not known to be within max_loss 0.5: set fidelity"


class Decision:
    """What becomes of a request with the segments of CUTS."""

    def __init__(
        self,
        loss: LossAdvice | None,
        said: dict[str, object] | None = None,
        hits: Collection[int] = (0, 1, 2),
        lead: Lead | None = None,
        cuts: Cuts | None = None,
        setting: float = ANY_LOSS,
    ) -> None:
        self.model, self.tally = Answers(loss, hits), EngineTally()
        settings = Settings(weights="0" * 64, max_loss=setting)
        clock = cast(Any, SimpleNamespace(take=lambda: ()))
        model = cast(Any, self.model)
        self.decider = Decider(model, settings, Finder(), self.tally, clock, lead)
        ids = range(1250)
        asked = {"v": 1, "cuts": list(CUTS)} | (said or {})
        found = cuts or self.decider.cuts({"spliced": asked}, ids)
        assert found is not None
        self.asked: Asked = self.decider.ask(ids, found, Named(), prefixes=True)
        self.trouble = self.asked.trouble

    @property
    def known(self) -> Known:
        assert self.asked.known is not None
        return self.asked.known

    @property
    def splice(self) -> Splice | None:
        return self.decider.best(self.known, self.known.choices(0), 0, warming=False)

    @property
    def beyond(self) -> int:
        return self.tally.snapshot().get("beyond_max_loss", 0)


def test_a_way_within_the_limit_is_spliced() -> None:
    done = Decision(WITHIN, {"max_loss": 0.5}, lead=LEAD)
    assert done.model.limits == [LossLimit(0.5, SpliceWay(primed=True))]
    assert done.splice is not None
    assert (done.splice.way, done.splice.loss) == (SpliceWay(primed=True), 0.1)
    assert (done.trouble, done.beyond) == ("", 0)


def test_a_splice_of_another_way_than_was_judged_is_within_no_limit() -> None:
    """The segments after the primer are missing: what is left was not captured after it."""
    limited = Decision(WITHIN, {"max_loss": 0.5}, hits=[0], lead=LEAD)
    assert limited.model.limits == [LossLimit(0.5, SpliceWay(primed=True))]
    assert limited.splice is None
    assert (limited.trouble, limited.beyond) == (UNKNOWN, 1)
    free = Decision(WITHIN, hits=[0], lead=LEAD)
    assert free.splice is not None
    assert (free.splice.way, free.splice.loss) == (SpliceWay(), None)


def test_a_splice_that_becomes_of_another_way_is_left_to_the_engine() -> None:
    done = Decision(WITHIN, {"max_loss": 0.5}, lead=LEAD)
    lost = (Choice.HIT, Choice.CONTEXT, Choice.CONTEXT)
    assert done.decider.best(done.known, lost, 0, warming=False) is None


def test_a_splice_with_the_last_segment_in_context_keeps_the_way_that_was_judged() -> None:
    """The last segment is the only one that is preferred after the primer."""
    late = Lead(LEAD.digest, 900)
    refreshed = LossAdvice(Splicing.REFRESHED, 0.1)
    assert Decision(refreshed, {"max_loss": 0.5}, lead=late).splice is None
    done = Decision(refreshed, {"max_loss": 0.5})
    assert done.splice is not None
    assert done.splice.tokens == 900 - 8
    assert (done.splice.way, done.splice.loss) == (SpliceWay(refreshed=True), 0.1)


def test_the_loss_of_narrower_seams_is_not_known() -> None:
    limited = Decision(WITHIN, {"max_loss": 0.5, "w": 4})
    assert limited.splice is None
    assert (limited.trouble, limited.beyond) == (UNKNOWN, 1)
    free = Decision(WITHIN, {"w": 4})
    assert free.splice is not None
    assert free.splice.loss is None
    wide = Decision(WITHIN, {"max_loss": 0.5, "w": 16}).splice
    assert wide is not None
    assert wide.loss == 0.1


@pytest.mark.parametrize(
    ("said", "way"),
    [
        ({}, SpliceWay()),
        ({"w": 16}, None),
        ({"w": 4}, None),
        ({"max_error": 0.01}, None),
        ({"refresh": 1e-10}, SpliceWay(refreshed=True)),
        ({"refresh": 0.5}, None),
    ],
)
def test_the_canary_counts_what_others_are_judged_by(
    said: dict[str, object], way: SpliceWay | None
) -> None:
    splice = Decision(WITHIN, said).splice
    assert splice is not None
    assert splice.way == way


def test_a_prompt_that_warms_accepts_any_loss_unless_it_says_otherwise() -> None:
    cuts = Cuts(CUTS, 8, Found(CUTS, warming=True))
    done = Decision(WITHIN, cuts=cuts, setting=0.05)
    assert done.model.limits == [LossLimit(ANY_LOSS)]
    assert done.splice is not None
    assert done.splice.way is None, "the canary does not count it"
    own = Decision(LossAdvice(Splicing.NONE), cuts=replace(cuts, max_loss=0.05))
    assert own.model.limits == [LossLimit(0.05)]
    assert own.splice is None


def test_only_refusals_of_a_splice_count() -> None:
    none = LossAdvice(Splicing.NONE)
    known = Decision(replace(none, expected=0.625), {"max_loss": 0.5})
    assert known.trouble == "the expected loss 0.625 is not within max_loss 0.5"
    refused = Decision(none, {"max_loss": 0.5})
    assert (refused.trouble, refused.beyond) == (UNKNOWN, 1)
    assert Decision(none, {"max_loss": 0.5}, hits=[]).beyond == 0
    silent = Decision(None, {"max_loss": 0.5})
    assert (silent.trouble, silent.beyond) == ("the daemon did not answer", 0)
    assert silent.splice is None
