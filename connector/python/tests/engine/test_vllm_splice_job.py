"""One spliced request without an engine: what is read when, and what is written in the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine.meeting import Meeting
from engine.walk_models import TINY
from spliced_connector.model import Choice, Layout, Piece, Profile, divide
from spliced_connector.serving import composing
from spliced_connector.serving import job as serving_job
from spliced_connector.serving.composing import Composer
from spliced_connector.serving.job import LostError, Means, Pace
from spliced_connector.serving.primers import Primers, lead_of
from spliced_connector.serving.ranks import Ranks
from spliced_connector.serving.settings import Compute
from spliced_connector.serving.splices import best_splice
from spliced_connector.vllm.caches import Caches
from spliced_connector.vllm.splice_job import SpliceJob
from spliced_connector.vllm.splice_plans import SpliceLoad
from spliced_connector.walk import (
    Architecture,
    Captured,
    Context,
    Naming,
    architecture,
    capture,
    capture_all,
    collect,
    pack,
    rounded,
    splice,
)

SEGMENT = 120
SEGMENTS = 3
FOREVER = 1e12


@pytest.fixture(scope="module")
def arch() -> Architecture:
    return architecture(TINY["bamba"].build(), Naming(bytes(31) + b"\1"))


@pytest.fixture(scope="module")
def narrow() -> Architecture:
    """In the type that convolution tails are stored in: reading one is no copy."""
    return architecture(TINY["bamba"].build().to(torch.bfloat16), Naming(bytes(31) + b"\1"))


class Leased:
    """A segment in memory that somebody else gets when it is released."""

    def __init__(self, layout: Layout, parts: Sequence[memoryview]) -> None:
        self.layout = layout
        self._parts = [bytearray(part) for part in parts]
        self.released = False

    def part(self, i: int) -> memoryview:
        return memoryview(self._parts[i]).toreadonly()

    def release(self) -> bool:
        self.released = True
        for part in self._parts:
            part[:] = b"\xff" * len(part)
        return True


@dataclass
class Model:
    """The client's model: has what it is given."""

    profile: Profile
    leased: dict[bytes, Leased] = field(default_factory=dict)
    attached: bool = True
    asked: int = 0

    def acquire(self, keys: Sequence[bytes], **_: object) -> list[Leased | None]:
        self.asked += 1
        return [self.leased.get(key) for key in keys]

    def assemble(self, *_: object, **__: object) -> None:
        """The daemon refuses."""


@dataclass
class Pages:
    """An engine's cache of one layer; parts: of a state."""

    parts: tuple[str, ...] = ("S", "conv")
    written: list[Any] = field(default_factory=list)

    def write(self, *what: Any) -> None:
        self.written.append([x.clone() if isinstance(x, Tensor) else x for x in what])


class Setup:
    """A request of three segments and everything around it."""

    def __init__(
        self,
        arch: Architecture,
        choices: Sequence[Choice],
        ranks: Ranks = Ranks(),  # noqa: B008  (frozen)
        twice: bool = False,
        away: Sequence[int] = (),
        patience: float = 0.0,
        compute: Compute = Compute.ENGINE,
        primer: tuple[int, ...] = (),
        read: tuple[int, ...] = (),
    ) -> None:
        """twice: the last two segments are equal. away: segments that others compute. primer: what
        segments but the first are named after; read: the one that this rank has."""
        self.arch = arch
        self.profile = Profile(arch.identity)
        ids = [(17 * i * i + 5 * i) % 96 for i in range(SEGMENTS * SEGMENT + 20)]
        if twice:
            ids[2 * SEGMENT : 3 * SEGMENT] = ids[SEGMENT : 2 * SEGMENT]
        cuts = [i * SEGMENT for i in range(SEGMENTS + 1)]
        prompt = divide(self.profile, b"", ids, cuts, 8, primer=lead_of(primer, 1))
        found = best_splice(prompt, choices)
        assert found is not None
        self.splice = found
        self.model = Model(self.profile)
        self.captured: dict[int, Captured] = {}
        for piece, choice in zip(prompt.pieces, choices, strict=True):
            assert piece.spec is not None
            assert piece.key is not None
            made = capture(arch, ids[piece.start : piece.end], piece.spec)
            self.captured[piece.index] = rounded(self.profile, made)
            if choice is Choice.HIT:
                parts = pack(self.profile, made)
                layout = self.profile.segment_layout(piece.spec)
                self.model.leased[piece.key] = Leased(layout, parts)
        self.rows = {i: Pages() for i in self.profile.attention_layers}
        self.states = {i: Pages() for i in self.profile.linear_layers}
        group = dict.fromkeys(self.rows, 1) | dict.fromkeys(self.states, 0)
        self.keys = [piece.key or b"" for piece in prompt.pieces]
        waits = frozenset(self.keys[i] for i in away)
        self.load = SpliceLoad("r", tuple(ids), self.splice, ((5,), (2, 3)), False, away=waits)
        self.published: list[int] = []
        caches = Caches(cast(Any, self.rows), cast(Any, self.states), group, (4096, 128))
        model = cast(Any, self.model)
        composer = Composer(arch, model, caches.copies, compute)
        self.composer = composer
        means = Means(
            composer, self._publish, patience, Primers(arch, caches.copies.device, read), ranks
        )
        self.job = SpliceJob(self.load, means, caches)

    def _publish(self, piece: Piece, ids: tuple[int, ...], made: Captured) -> Captured:
        assert len(ids) == piece.tokens
        self.published.append(piece.index)
        parts = pack(self.profile, made)
        layers = collect(
            len(made.layers), self.profile.segment_layout(made.spec), parts.__getitem__
        )
        return Captured(made.spec, layers)

    def want(self) -> Context:
        """By the library, from the same segments."""
        context = Context(self.arch, self.splice.tokens, torch.device("cpu"))
        splice(self.arch, list(self.load.ids), self.splice.spans, self.captured, context)
        return context

    def check(self) -> None:
        """Blocks hold what the library says, in one go or in many."""
        want = self.want()
        for layer, pages in self.rows.items():
            k, v = want.rows(layer)
            at = 0
            for table, begin, new_k, new_v in pages.written:
                assert table == (2, 3)
                assert begin == at
                at += len(new_k)
                assert torch.allclose(new_k, k[begin:at], atol=1e-4)
                assert torch.allclose(new_v, v[begin:at], atol=1e-4)
            assert at == self.splice.tokens
        for layer, pages in self.states.items():
            ((block, state, conv),) = pages.written
            assert block == 5
            assert torch.allclose(state, want.layers[layer].state, atol=1e-4)
            assert torch.equal(conv, want.layers[layer].conv)


@pytest.fixture(autouse=True)
def leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        serving_job, "release_all", lambda held: [segment.release() for segment in held]
    )


HIT, ALONE = Choice.HIT, Choice.ISOLATED


def test_what_is_written_outlives_the_leases(narrow: Architecture) -> None:
    setup = Setup(narrow, [HIT, HIT, HIT])
    assert setup.job.run(Pace(), FOREVER)
    assert all(segment.released for segment in setup.model.leased.values())
    setup.check()


def test_captures_come_before_leases(arch: Architecture) -> None:
    setup = Setup(arch, [HIT, ALONE, HIT])
    assert not setup.job.run(Pace(), -FOREVER)
    assert setup.published == [1]
    assert setup.job.run(Pace(), FOREVER)
    assert setup.model.asked == 1
    setup.check()


def test_segments_are_captured_together_while_there_is_time(
    arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    real = capture_all

    def noted(arch: Any, segments: Any, **rest: Any) -> Any:
        batches.append(len(segments))
        return real(arch, segments, **rest)

    monkeypatch.setattr(serving_job, "capture_all", noted)
    for until, want in ((FOREVER, [3]), (-FOREVER, [1, 1, 1])):
        setup = Setup(arch, [ALONE, ALONE, ALONE])
        batches.clear()
        assert any(setup.job.run(Pace(), until) for _ in range(200))
        assert batches == want
        setup.check()


def test_equal_segments_are_captured_once(arch: Architecture) -> None:
    setup = Setup(arch, [ALONE, ALONE, ALONE], twice=True)
    assert setup.job.run(Pace(), FOREVER)
    assert setup.published == [0, 1]
    setup.check()


def test_a_segment_that_another_request_has_captured_is_taken(arch: Architecture) -> None:
    one, two = (Setup(arch, [HIT, ALONE, ALONE]) for _ in range(2))
    assert not one.job.run(Pace(), -FOREVER)
    for key, captured in one.job.captured.items():
        two.job.take(key, captured)
    assert two.job.run(Pace(), FOREVER)
    assert one.published == [1]
    assert two.published == [2]
    two.check()


def test_what_others_compute_is_waited_for_behind_the_captures(arch: Architecture) -> None:
    setup = Setup(arch, [HIT, ALONE, HIT], away=[0, 2])
    job, none = setup.job, frozenset[bytes]()
    assert not job.waits, "it has captures"
    assert not job.run(Pace(), FOREVER)
    assert setup.published == [1]
    assert job.waits
    assert not job.run(Pace(), FOREVER)
    assert setup.model.asked == 0, "nothing is leased before all is there"
    job.hear(frozenset({setup.keys[2]}), none)
    assert job.waits
    assert not job.run(Pace(), FOREVER)
    job.hear(frozenset({setup.keys[0], b"of no segment"}), none)
    assert not job.waits
    assert job.run(Pace(), FOREVER)
    assert setup.published == [1]
    setup.check()


@pytest.mark.parametrize("twice", [False, True])
def test_what_others_do_not_compute_is_captured(arch: Architecture, twice: bool) -> None:
    setup = Setup(arch, [HIT, HIT, HIT], twice=twice, away=[1, 2])
    for i in (1, 2):
        setup.model.leased.pop(setup.keys[i], None)
    assert not setup.job.run(Pace(), FOREVER)
    lost = frozenset({setup.keys[1], setup.keys[2]})
    setup.job.hear(frozenset(), lost)
    assert not setup.job.waits
    assert setup.job.run(Pace(), FOREVER)
    assert setup.published == [1] if twice else [1, 2]
    setup.check()


def test_the_smallest_steps_lead_to_the_same(arch: Architecture) -> None:
    setup = Setup(arch, [HIT, HIT, HIT])
    steps = 1
    while not setup.job.run(Pace(), -FOREVER):
        steps += 1
        assert steps < 200
    assert steps > 2 * SEGMENTS
    setup.check()


class Noted(Pace):
    """Keeps what it learns from."""

    def __init__(self) -> None:
        super().__init__()
        self.learned: list[float] = []

    def learn(self, rows: float, seconds: float) -> None:
        self.learned.append(rows)
        super().learn(rows, seconds)


@pytest.mark.parametrize("compute", [Compute.ENGINE, Compute.DAEMON])
def test_a_walk_that_the_daemon_has_refused_teaches_no_pace(
    arch: Architecture, compute: Compute
) -> None:
    setup, pace, steps = Setup(arch, [HIT, HIT, HIT], compute=compute), Noted(), 1
    while not setup.job.run(pace, -FOREVER):
        steps += 1
        assert steps < 200
    refused = int(compute is Compute.DAEMON)
    assert setup.composer.count.refused == refused
    assert len(pace.learned) == steps - refused
    assert (setup.job.walked.seconds == 0) == bool(refused)
    setup.check()


def test_a_segment_that_is_gone_gives_the_others_back(arch: Architecture) -> None:
    setup = Setup(arch, [HIT, HIT, HIT])
    gone = setup.splice.prompt.pieces[1].key
    assert gone is not None
    del setup.model.leased[gone]
    with pytest.raises(LostError, match="1 of 3"):
        setup.job.run(Pace(), FOREVER)
    setup.job.close()
    assert all(segment.released for segment in setup.model.leased.values())
    assert not any(pages.written for pages in setup.states.values())


def test_leases_that_were_not_good_leave_the_states_alone(
    arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(arch, [HIT, HIT, HIT])
    monkeypatch.setattr(serving_job, "release_all", lambda held: [False for _ in held])
    with pytest.raises(LostError, match="cannot confirm the segments"):
        setup.job.run(Pace(), FOREVER)
    assert not any(pages.written for pages in setup.states.values())


def test_ranks_of_different_speed_walk_the_same_rows(
    arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting()
    walks: dict[int, list[list[int]]] = {}
    real = splice

    def noted(arch: Any, ids: Any, spans: Any, *rest: Any) -> Any:
        walks.setdefault(threading.get_ident(), []).append([s.end for s in spans])
        return real(arch, ids, spans, *rest)

    monkeypatch.setattr(composing, "splice", noted)
    setups = [Setup(arch, [HIT, ALONE, HIT], meeting.rank(i)) for i in range(2)]

    def run(i: int) -> bool:
        pace = Pace(seconds=(1e-9, 1.0)[i])  # one has time for all, one for a row
        until = FOREVER if i == 0 else -FOREVER
        return any(setups[i].job.run(pace, until) for _ in range(500))

    assert meeting.both(lambda: run(0), lambda: run(1)) == [True, True]
    one, two = walks.values()
    assert one == two
    assert len(one) > 2 * SEGMENTS
    for setup in setups:
        setup.check()


def test_what_one_rank_has_lost_no_rank_has(arch: Architecture) -> None:
    meeting = Meeting()
    setups = [Setup(arch, [HIT, HIT, HIT], meeting.rank(i)) for i in range(2)]
    gone = setups[1].splice.prompt.pieces[1].key
    assert gone is not None
    del setups[1].model.leased[gone]
    jobs = [setup.job for setup in setups]
    one, two = meeting.both(*(lambda job=job: job.run(Pace(), FOREVER) for job in jobs))
    assert isinstance(one, LostError)
    assert "another rank" in str(one)
    assert isinstance(two, LostError)
    assert "1 of 3" in str(two)
    for setup in setups:
        setup.job.close()
        assert all(segment.released for segment in setup.model.leased.values())
        assert not any(pages.written for pages in (*setup.rows.values(), *setup.states.values()))


def test_ranks_that_have_read_other_primers_capture_nothing(
    arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes on alone waits for the other one in its layers."""
    meeting = Meeting()
    walks: list[object] = []
    monkeypatch.setattr(serving_job, "capture_all", lambda *_, **__: walks.append(1))
    mine, theirs = (5, 6, 7), (5, 6, 8)
    setups = [
        Setup(arch, [ALONE, ALONE, ALONE], meeting.rank(i), primer=mine, read=read)
        for i, read in enumerate((mine, theirs))
    ]
    jobs = [setup.job for setup in setups]
    one, two = meeting.both(*(lambda job=job: job.run(Pace(1e-9), FOREVER) for job in jobs))
    assert isinstance(one, LostError)
    assert "another rank" in str(one)
    assert isinstance(two, LostError)
    assert "another primer" in str(two)
    assert not walks


def test_ranks_wait_for_the_slowest_disk(
    arch: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting()
    waits = [0.0, 60.0]
    setups = [Setup(arch, [HIT, HIT, HIT], meeting.rank(i), patience=waits[i]) for i in range(2)]
    late = setups[1]
    jobs = [setup.job for setup in setups]
    with monkeypatch.context() as patched:
        patched.setattr(late.model, "acquire", lambda keys, **_: [None] * len(keys))
        found = meeting.both(*(lambda job=job: job.run(Pace(), FOREVER) for job in jobs))
    assert found == [False, False]
    assert meeting.both(*(lambda job=job: job.run(Pace(), FOREVER) for job in jobs)) == [True, True]
    for setup in setups:
        setup.check()


def test_a_job_reports_its_walk_and_its_captures(narrow: Architecture) -> None:
    setup = Setup(narrow, [HIT, ALONE, HIT])
    assert setup.job.run(Pace(), FOREVER)
    walked, splice = setup.job.walked, setup.splice
    assert (walked.rows, walked.placed) == (splice.walked, splice.tokens - splice.walked)
    assert walked.captured == SEGMENT
    assert walked.seconds > 0
    assert walked.capture_seconds > 0
