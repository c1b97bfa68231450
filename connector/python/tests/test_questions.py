"""Every question that vLLM's scheduler makes of a request is one that the client and the daemon
take. The other adapters' are in `engine`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from client_samples import SMALL, Connect, fill
from prompt_samples import BLOCK, between_short_texts, prompts
from running import Daemon
from spliced_connector import model as models
from spliced_connector.client import (
    UNADVISED,
    Client,
    KnownQuery,
    Match,
    Missing,
    Model,
    NewSegment,
    plannable,
    seam_tokens,
)
from spliced_connector.client.keeper import WRONG_SECONDS
from spliced_connector.errors import Code
from spliced_connector.model import PlanError, divide
from spliced_connector.segments import MOST_CUTS, Finder
from spliced_connector.serving.finding import held_in
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.prefix_scheduler import PrefixScheduler
from spliced_connector.vllm.session import Session
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.splice_scheduler import SpliceScheduler
from spliced_connector.wire.numbers import MAX_KEYS, MAX_PLAN_ROWS, MAX_PROMPT
from test_vllm_splice_scheduler import ALIGNED, Asked

if TYPE_CHECKING:
    from vllm.v1.request import Request


SILENT = (UNADVISED, "the daemon did not answer", "no daemon")
"""Reported for a request whose question was not answered."""


def session(connect: Connect, socket: str) -> tuple[Client, Session]:
    client = connect(socket, timeout=10.0)
    model = client.model(SMALL, block_tokens=BLOCK)
    assert model.wait_attached(10)
    settings = Settings(weights="0" * 64)
    return client, Session(
        settings, ALIGNED, model, EngineTally(), BLOCK, finder=Finder(known=True)
    )


def publish(model: Model, ids: Sequence[int], cuts: Sequence[int], w: int) -> None:
    """Puts every third segment of a prompt into the daemon, with bytes that mean nothing."""
    assert model.salt is not None
    for piece in divide(model.profile, model.salt, ids, cuts, w).pieces[::3]:
        if piece.spec is not None:
            parts = fill(model.profile.segment_layout(piece.spec), piece.index)
            (code,) = model.publish([NewSegment(piece.spec, ids[piece.start : piece.end], parts)])
            assert code in (Code.OK, Code.EXISTS)


def test_every_question_of_mode_splice_is_taken(connect: Connect, daemon: Daemon) -> None:
    client, half = session(connect, daemon.socket)
    scheduler = SpliceScheduler(half)
    for i, (ids, said) in enumerate([between_short_texts(), *prompts(1, 150)]):
        request = cast("Request", Asked(f"r{i}", ids, said))
        if said is not None and i % 2:
            named = cast("dict[str, Any]", said["spliced"])
            publish(half.model, ids, named["cuts"], named["w"])
        scheduler.match(request, 0)
        told = cast("dict[str, Any]", scheduler.finished(request) or {"spliced": {}})["spliced"]
        assert told.get("trouble") not in SILENT, (i, told)
    counts = half.tally.snapshot()
    assert client.counters.invalid == 0
    assert not {"unadvised", "unanswered", "no_daemon"} & set(counts)
    assert counts["held_segments"] > 50
    assert counts["missing_segments"] > 50


def test_every_question_of_mode_prefix_is_taken(connect: Connect, daemon: Daemon) -> None:
    client, half = session(connect, daemon.socket)
    for turns in (False, True):
        scheduler = PrefixScheduler(half, turns)
        for i, (ids, said) in enumerate(prompts(2, 80)):
            request = cast("Request", Asked(f"r{i}", ids, said))
            scheduler.match(request, 0)
            told = cast("dict[str, Any]", scheduler.finished(request))["spliced"]
            assert "trouble" not in told, (i, told)
    assert client.counters.invalid == 0
    assert not {"unadvised", "unanswered"} & set(half.tally.snapshot())


def test_documents_between_short_texts_are_wanted(connect: Connect, daemon: Daemon) -> None:
    _, half = session(connect, daemon.socket)
    scheduler = SpliceScheduler(half)
    ids, said = between_short_texts()
    request = cast("Request", Asked("r", ids, said))
    scheduler.match(request, 0)
    asked = scheduler._requests["r"].asked
    assert asked.known is not None
    assert asked.advice is not None
    named = [piece.tokens for piece in asked.known.prompt.pieces if piece.key is not None]
    assert named == [400, 400]
    assert all(segment.publish for segment in asked.advice.segments)


def test_seams_are_those_of_the_segments_that_were_found(connect: Connect, daemon: Daemon) -> None:
    _, half = session(connect, daemon.socket)
    salt = half.model.salt
    assert salt is not None
    prompt = divide(half.model.profile, salt, range(1000), [0, 300, 310, 600, 900], 8)
    pieces = [piece for piece in prompt.pieces if piece.key is not None]
    assert [piece.seam_tokens for piece in prompt.pieces] == [0, 0, 16, 16]
    assert seam_tokens(pieces, Match(status=bytes([1, 0, 1]))) == 16
    assert seam_tokens(pieces, Match(status=bytes([1, 1, 1]))) == 32
    assert seam_tokens(pieces, Match(status=bytes(3))) == 32, "those of all, were they captured"


@pytest.mark.parametrize("w", [0, 1, 8, 4096])
def test_prompts_that_no_segment_fits_into_are_not_asked_for(
    connect: Connect, daemon: Daemon, w: int
) -> None:
    client, half = session(connect, daemon.socket)
    for n in (0, 1, 2, w, w + 1, w + 2, w + 100):
        assert held_in(half.model, half.tally, list(range(n)), w) is not None
    assert client.counters.invalid == 0


def test_a_plan_names_the_first_segments_that_are_missing(connect: Connect, daemon: Daemon) -> None:
    _, half = session(connect, daemon.socket)
    mid = half.model.profile.mid_spec(100, 8, None)
    assert mid is not None
    many = [Missing(mid, range(i, i + 100)) for i in range(MAX_PLAN_ROWS + 44)]
    assert plannable(many) == many[:MAX_PLAN_ROWS]
    long = replace(mid, tokens=MAX_PROMPT // 3)
    assert len(plannable([Missing(long, ())] * 5)) == 3


def test_no_prompt_has_more_cuts_than_the_daemon_is_asked_for() -> None:
    assert MOST_CUTS == models.MOST_CUTS == MAX_KEYS
    profile = models.Profile(SMALL)
    assert len(divide(profile, b"", range(5000), range(MOST_CUTS), 0).pieces) == MOST_CUTS - 1
    with pytest.raises(PlanError, match="2049 cuts, at most 2048"):
        divide(profile, b"", range(5000), range(MOST_CUTS + 1), 0)


@dataclass
class Refusing:
    """A daemon that gives no advice."""

    model: Model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def advise(self, query: object) -> None:
        return None


def test_who_asked_is_told_of_a_question_that_was_refused(connect: Connect, daemon: Daemon) -> None:
    _, half = session(connect, daemon.socket)
    half = replace(half, model=cast("Model", Refusing(half.model)))
    ids, said = between_short_texts()
    request = cast("Request", Asked("r", ids, said))
    for scheduler in (SpliceScheduler(half), PrefixScheduler(half)):
        scheduler.match(request, 0)
        told = cast("dict[str, Any]", scheduler.finished(request))["spliced"]
        assert told["trouble"] == UNADVISED


def test_wrong_questions_are_logged_at_a_rate(
    connect: Connect, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    client, half = session(connect, daemon.socket)
    now = 1000.0
    half.model._keeper._now = lambda: now
    with caplog.at_level(logging.ERROR):
        for n in range(20):
            ask_wrongly(half.model, n)
        now += WRONG_SECONDS
        ask_wrongly(half.model, 30)
    assert client.counters.invalid == 21
    first, second = [record.getMessage() for record in caplog.records]
    assert "seams of 2, of 1" in first
    assert second.endswith("(19 more were not logged)")


def ask_wrongly(model: Model, n: int) -> None:
    model.match(known=KnownQuery([n], 0, n + 2))
