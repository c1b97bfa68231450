"""Decisions of mode prefix, with an engine and a daemon that are only remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spliced_connector.client import Accept, Advice, CheckpointAdvice, Match, Query, Sample, Way
from spliced_connector.model import (
    Attention,
    Conv,
    DType,
    Family,
    Identity,
    Kind,
    Layer,
    Linear,
    Profile,
)
from spliced_connector.serving.tally import EngineTally
from spliced_connector.vllm.plans import LoadPlan, Outcome, PrefixPlan
from spliced_connector.vllm.prefix_scheduler import PrefixScheduler
from spliced_connector.vllm.rounding import Rounding
from spliced_connector.vllm.scheduler import is_plain
from spliced_connector.vllm.session import Session, block_tokens
from spliced_connector.vllm.settings import Settings
from spliced_connector.vllm.support import Engine, Group, Inert

BLOCK = 256
FULL = Layer(Kind.FULL, attention=Attention(1, 64, 64, DType.BF16))
LINEAR = Layer(
    Kind.LINEAR,
    linear=Linear(
        Family.GDN, 1, 2, 64, 64, DType.F32, DType.F16, Conv(4, (64, 64, 128), DType.BF16)
    ),
)


@dataclass
class FakeModel:
    """A daemon that holds what a test puts into `held`, and advises `advice`."""

    profile: Profile
    salt: bytes | None = b"salt"
    held: set[bytes] = field(default_factory=set)
    advice: Sequence[int] = ()
    way: Way = Way.PREFIX
    seen: int = 0
    absent: bool = False
    looks_up: bool = True
    silent: bool = False
    queries: list[Query] = field(default_factory=list)
    matches: int = 0

    def match(
        self,
        positions: Sequence[int],
        prefixes: Sequence[bytes],
        keys: Sequence[bytes] = (),
        accept: Accept = Accept.EXACT,
        others: Sequence[bytes] = (),
    ) -> Match:
        self.matches += 1
        hits = [i for i, name in enumerate(prefixes) if name in self.held]
        if self.absent or not hits:
            return Match(trouble="gone" if self.absent else "")
        return Match(positions[hits[-1]], hits[-1], Accept.EXACT)

    def advise(self, query: Query) -> Advice | None:
        self.queries.append(query)
        if self.absent:
            return None
        rows = tuple(CheckpointAdvice(p, p > 0, 1, 1, 1.0) for p in self.advice)
        advice = Advice(self.seen, self.way, (1.0,) * 4, rows, ())
        if query.lookup is None:
            return advice
        return replace(advice, found=self.match(query.lookup.positions, query.lookup.prefixes))


def make_engine(hybrid: bool, cache_mode: str = "align", rows: int = BLOCK) -> Engine:
    layers = (LINEAR, FULL) if hybrid else (FULL,)
    groups = [Group(0, False, (len(layers) - 1,), ("a",), rows)]
    if hybrid:
        groups.append(Group(1, True, (0,), ("b",), BLOCK))
    identity = Identity("m", b"w" * 32, layers)
    return Engine("0.32.0", identity, tuple(groups), cache_mode, True, False, True, 4096)


def make(
    hybrid: bool = True, drafts: bool = False, rounds: bool = False, **model: Any
) -> tuple[PrefixScheduler, FakeModel]:
    engine = replace(make_engine(hybrid), drafts=drafts, rounds=rounds)
    fake = FakeModel(Profile(engine.identity), **model)
    session = Session(
        Settings(weights="ab" * 32), engine, cast(Any, fake), EngineTally(), block_tokens(engine)
    )
    if rounds:
        session = replace(session, rounding=Rounding(fake.profile, BLOCK))
    return PrefixScheduler(session), fake


def make_request(tokens: int, name: str = "r", **fields: Any) -> Any:
    ids = [i % 97 for i in range(tokens)]
    given = {
        "request_id": name,
        "prompt_token_ids": ids,
        "all_token_ids": list(ids),
        "cache_salt": None,
        "shared_prefix_boundary": 0,
        "kv_transfer_params": None,
        "sampling_params": SimpleNamespace(all_stop_token_ids=set()),
    }
    return SimpleNamespace(**(given | fields))


def decode(scheduler: PrefixScheduler, request: Any, tokens: int, late: bool = False) -> list[Any]:
    """One answer token a step behind the first `tokens` tokens; what every step stores.

    late: an engine that plans a step before it knows what the one before it has said.
    """
    saves: list[Any] = []
    while len(request.all_token_ids) < tokens:
        end = len(request.all_token_ids)
        if not late:
            request.all_token_ids.append(end % 97)
        plan = scheduler.plan(make_step(([1] * 9, [0, 2] * 5), **{request.request_id: (end, 1)}))
        if late:
            request.all_token_ids.append(end % 97)
        saves += plan.saves if plan else ()
    return saves


def make_step(blocks: tuple[list[int], ...], **scheduled: tuple[int, int]) -> Any:
    """A step that computes so many tokens behind so many, by request."""
    new = [SimpleNamespace(req_id=r, num_computed_tokens=c) for r, (c, _) in scheduled.items()]
    return SimpleNamespace(
        num_scheduled_tokens={r: n for r, (_, n) in scheduled.items()},
        scheduled_new_reqs=new,
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: blocks),
    )


def names(model: FakeModel, tokens: int, *positions: int, salt: bytes = b"salt") -> list[bytes]:
    from spliced_connector.model import prefix_hashes

    ids = [i % 97 for i in range(tokens)]
    return prefix_hashes(model.profile, salt, BLOCK, ids, positions)


def test_longest_prefix_is_claimed_behind_what_the_engine_has() -> None:
    scheduler, model = make()
    model.held = set(names(model, 1000, 256, 768))
    request = make_request(1000)
    for computed, claim in ((0, 768), (0, 768), (256, 512), (768, 0)):
        assert scheduler.match(request, computed) == (claim, claim > 0)
    assert scheduler.match(request, 256) == (512, True)
    scheduler.allocated(request, ((1, 2, 3), (0, 0, 4)), 512)
    scheduler.allocated(request, ((1, 2, 3, 5), (0, 0, 4, 6)), 0)  # behind the load
    plan = scheduler.plan(make_step(()))
    wanted = LoadPlan("r", names(model, 1000, 768)[0], 768, 256, ((1, 2, 3), (0, 0, 4)))
    assert plan == PrefixPlan(loads=(wanted,))
    assert scheduler.plan(make_step(())) is None


def test_last_token_is_left_to_the_engine() -> None:
    scheduler, model = make()
    model.held = set(names(model, 512, 256, 512))
    assert scheduler.match(make_request(512), 0) == (256, True)
    assert scheduler.match(make_request(513, "longer"), 0) == (512, True)


def test_daemon_is_asked_once_for_advice_and_seldom_for_matches() -> None:
    scheduler, model = make(advice=(512,))
    request = make_request(1000)
    for _ in range(50):
        scheduler.match(request, 0)
    assert len(model.queries) == 1
    assert model.matches < 50
    assert model.queries[0].tokens == request.prompt_token_ids


def test_engine_stops_at_every_advised_position_and_only_new_rows_are_stored() -> None:
    scheduler, model = make(advice=(256, 768))
    request = make_request(1000)
    scheduler.match(request, 0)
    assert request.shared_prefix_boundary == 256
    first = scheduler.plan(make_step(([1], [2]), r=(0, 256)))
    assert request.shared_prefix_boundary == 768
    assert scheduler.plan(make_step(([1, 3], [2, 4]), r=(256, 256))) is None
    last = scheduler.plan(make_step(([1, 3, 5], [0, 4, 6]), r=(512, 256)))
    low, high = names(model, 1000, 256, 768)
    assert isinstance(first, PrefixPlan)
    assert isinstance(last, PrefixPlan)
    (one,), (two,) = first.saves, last.saves
    assert (one.hash, one.tokens, one.parent_tokens) == (low, 256, 0)
    assert one.parent_hash == bytes(32)
    assert (two.hash, two.tokens, two.parent_hash, two.parent_tokens) == (high, 768, low, 256)
    assert two.blocks == ((1, 3, 5), (0, 4, 6))


def test_states_of_positions_that_were_passed_are_not_stored() -> None:
    scheduler, _ = make(advice=(256, 512))
    request = make_request(1000)
    scheduler.match(request, 0)
    plan = scheduler.plan(make_step(([1, 2], [0, 3]), r=(0, 512)))
    assert [save.tokens for save in plan.saves] == [512] if plan else False


def test_rows_without_states_are_stored_whenever_they_are_there() -> None:
    scheduler, _ = make(hybrid=False, advice=(256, 512))
    request = make_request(1000)
    scheduler.match(request, 0)
    plan = scheduler.plan(make_step(([1, 2, 3, 4],), r=(0, 1000)))
    assert isinstance(plan, PrefixPlan)
    assert [(save.tokens, save.parent_tokens) for save in plan.saves] == [(256, 0), (512, 256)]
    assert request.shared_prefix_boundary == 0


def test_engines_own_stop_before_ours_is_kept() -> None:
    scheduler, _ = make(advice=(768,))
    request = make_request(1000, shared_prefix_boundary=512)
    scheduler.match(request, 0)
    assert request.shared_prefix_boundary == 512
    scheduler.plan(make_step(([1, 2], [0, 3]), r=(0, 512)))
    assert request.shared_prefix_boundary == 768


def test_what_the_daemon_has_is_not_stored_again() -> None:
    scheduler, model = make(advice=(256, 512, 768))
    model.held = set(names(model, 1000, 512))
    request = make_request(1000)
    scheduler.match(request, 0)
    plan = scheduler.plan(make_step(([1, 2, 3], [0, 4, 5]), r=(512, 256)))
    assert isinstance(plan, PrefixPlan)
    (save,) = plan.saves
    assert (save.tokens, save.parent_tokens) == (768, 512)


@pytest.mark.parametrize("has", [False, True])
def test_the_end_of_a_prompt_is_stored_once_although_the_prompt_cannot_use_it(has: bool) -> None:
    """Where others go on behind it, say: a match names what comes before it alone."""
    scheduler, model = make(advice=(256, 512), seen=512)
    model.held = set(names(model, 512, 256, 512)[: 1 + has])
    request = make_request(512)
    assert scheduler.match(request, 0) == (256, True)
    plan = scheduler.plan(make_step(([1, 2], [0, 3]), r=(256, 256)))
    assert [save.tokens for save in (plan.saves if plan else ())] == [512] * (not has)


def test_failed_load_is_computed_and_is_no_parent() -> None:
    scheduler, model = make(advice=(512,))
    model.held = set(names(model, 1000, 256))
    request = make_request(1000)
    assert scheduler.match(request, 0) == (256, True)
    scheduler.allocated(request, ((1,), (2,)), 256)
    scheduler.plan(make_step(()))
    scheduler.settled(Outcome(frozenset("r"), frozenset("r")))
    scheduler._prompts["r"].asked = -1.0  # long ago
    assert scheduler.match(request, 0) == (0, False)
    plan = scheduler.plan(make_step(([1, 2], [0, 3]), r=(0, 512)))
    assert isinstance(plan, PrefixPlan)
    assert plan.saves[0].parent_tokens == 0


def test_slow_fetches_are_not_claimed() -> None:
    scheduler, model = make(way=Way.RECOMPUTE)
    model.held = set(names(model, 1000, 512))
    assert scheduler.match(make_request(1000), 0) == (0, False)
    assert scheduler._session.tally.snapshot() == {"not_worth_it": 1}


@pytest.mark.parametrize("absence", [{"salt": None}, {"absent": True}])
def test_without_a_daemon_nothing_is_claimed_or_stored(absence: dict[str, Any]) -> None:
    scheduler, _ = make(advice=(512,), **absence)
    request = make_request(1000)
    assert scheduler.match(request, 0) == (0, False)
    assert request.shared_prefix_boundary == 0
    assert scheduler.plan(make_step(([1, 2], [0, 3]), r=(0, 512))) is None


def test_salts_of_requests_are_part_of_names() -> None:
    scheduler, model = make()
    model.held = set(names(model, 1000, 512))
    assert scheduler.match(make_request(1000, "plain"), 0) == (512, True)
    for salt in ("", "a", "b"):
        assert scheduler.match(make_request(1000, f"salted {salt}", cache_salt=salt), 0)[0] == 0
    model.held |= set(scheduler._prompts["salted a"].names.values())
    assert scheduler.match(make_request(1000, "again", cache_salt="a"), 0) == (768, True)
    assert scheduler.match(make_request(1000, "other", cache_salt="b"), 0) == (0, False)


def test_short_prompts_cost_no_question() -> None:
    scheduler, model = make()
    assert scheduler.match(make_request(BLOCK - 1), 0) == (0, False)
    assert model.matches == len(model.queries) == 0


def test_finished_requests_are_forgotten() -> None:
    scheduler, _ = make(advice=(256,))
    request = make_request(1000)
    scheduler.match(request, 0)
    scheduler.finished(request)
    scheduler.finished(request)
    assert not scheduler._prompts
    assert scheduler.plan(make_step(([1], [2]), r=(0, 256))) is None
    scheduler.settled(Outcome(frozenset("r"), frozenset("r")))


def test_a_response_says_what_was_taken_over_and_stored() -> None:
    scheduler, model = make(advice=(256, 512))
    plain = make_request(700)
    scheduler.match(plain, 0)
    scheduler.plan(make_step(([1], [2]), r=(0, 256)))
    assert scheduler.finished(plain) == {"spliced": {"way": "engine", "stored": 1}}
    model.held = set(names(model, 1000, 768))
    for lost in (False, True):
        request = make_request(1000)
        assert scheduler.match(request, 128) == (640, True)
        scheduler.allocated(request, ((1,), (2,)), 640)
        scheduler.plan(make_step(([1], [2]), r=(0, 0)))
        scheduler.settled(Outcome(frozenset("r"), frozenset("r" if lost else "")))
        told = {"way": "recomputed"} if lost else {"way": "prefix", "tokens": 768}
        assert scheduler.finished(request) == {"spliced": {**told, "stored": 0}}
    assert scheduler.finished(request) is None


def test_prefills_are_measured_for_the_daemon() -> None:
    scheduler, model = make()
    scheduler.match(make_request(1000), 0)
    scheduler.plan(make_step(([1], [2]), r=(0, 512)))
    scheduler.settled(Outcome())
    scheduler.plan(make_step(([1], [2]), r=(512, 1)))  # a decode
    scheduler.settled(Outcome())
    scheduler.match(make_request(1000, "next"), 0)
    (sample,) = model.queries[-1].samples
    assert isinstance(sample, Sample)
    assert (sample.begin, sample.end) == (0, 512)
    assert sample.seconds > 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
def test_answers_are_stored_at_block_boundaries_that_the_daemon_wants(
    late: bool, hybrid: bool
) -> None:
    scheduler, model = make(hybrid, advice=(256, 512, 768))
    request = make_request(400)
    scheduler.match(request, 0)
    scheduler.plan(make_step(([1], [2]), r=(0, 256)))
    scheduler.plan(make_step(([1, 3], [2, 4]), r=(256, 144)))
    first, second = decode(scheduler, request, 800, late)
    low, middle, high = names(model, 800, 256, 512, 768)
    assert (first.hash, first.tokens, first.parent_hash) == (middle, 512, low)
    assert (second.hash, second.tokens, second.parent_hash) == (high, 768, middle)
    scheduler.finished(request)
    told = [(len(q.tokens), q.output, q.record) for q in model.queries]
    assert told == [(400, 0, True), (512, 112, False), (768, 368, False), (800, 400, True)]


@pytest.mark.parametrize("spliced", [False, True])
def test_what_decoding_rounds_is_stored_only_as_an_approximation(spliced: bool) -> None:
    """Behind segments it is one in any case."""
    scheduler, model = make(rounds=True, advice=(256, 512, 768))
    request = make_request(400)
    scheduler.match(request, 0)
    first = scheduler.plan(make_step(([1], [2]), r=(0, 256)))
    assert [save.tokens for save in (first.saves if first else ())] == [256], "it is a prefill's"
    if spliced:
        scheduler.replaced("r", 256, spliced=True)
    saves = decode(scheduler, request, 800)
    assert [(save.tokens, save.spliced) for save in saves] == [
        (at, True) for at in ((512, 768) if spliced else ())
    ]
    counts = scheduler._session.tally.snapshot()
    assert counts.get("rounded_states", 0) == (0 if spliced else 2)
    scheduler.finished(request)
    assert model.queries[-1].record, "the daemon hears of the answer all the same"


@pytest.mark.parametrize("behind", [False, True])
def test_nothing_is_stored_behind_what_decoding_has_rounded(behind: bool) -> None:
    """The engine's own cache gives the next turn the state of the answer before."""
    scheduler, _ = make(rounds=True, advice=(512, 768))
    rounding = scheduler._session.rounding
    assert rounding is not None
    answered = make_request(
        200 if behind else 256, "before", all_token_ids=[*make_request(256).all_token_ids]
    )
    rounding.matched(answered, 0)
    rounding.finished(answered)
    request = make_request(1000)
    rounding.matched(request, 256)
    scheduler.match(request, 256)
    plans = [scheduler.plan(make_step(([1] * 4, [2] * 4), r=(begin, 256))) for begin in (256, 512)]
    stored = [save.tokens for plan in plans for save in (plan.saves if plan else ())]
    assert stored == ([] if behind else [512, 768])


@pytest.mark.parametrize("hybrid", [True, False])
def test_beside_drafts_answers_are_stored_of_tokens_that_stay(hybrid: bool) -> None:
    """Steps of four tokens, of which three are drafts; two of the four stay."""
    scheduler, _ = make(hybrid, drafts=True, advice=(512,))
    request = make_request(509)
    scheduler.match(request, 0)
    scheduler.plan(make_step(([1] * 9, [0, 2] * 5), r=(0, 509)))
    stored: dict[int, int] = {}
    while len(request.all_token_ids) < 2 * BLOCK + 6:
        begin = len(request.all_token_ids)
        request.all_token_ids.append(7)
        plan = scheduler.plan(make_step(([1] * 9, [0, 2] * 5), r=(begin, 4)))
        stored |= {save.tokens: begin for save in (plan.saves if plan else ())}
        request.all_token_ids.append(8)
    # 511 tokens, then 513: the boundary lies inside of a step, and the state behind it is gone.
    assert stored == ({} if hybrid else {512: 513})


def test_beside_drafts_states_are_stored_where_a_step_begins() -> None:
    scheduler, _ = make(drafts=True, advice=(512,))
    request = make_request(511)
    scheduler.match(request, 0)
    scheduler.plan(make_step(([1] * 9, [0, 2] * 5), r=(0, 511)))
    request.all_token_ids.append(7)
    # The step may compute behind the boundary: whether it comes so far is not known yet.
    assert scheduler.plan(make_step(([1] * 9, [0, 2] * 5), r=(511, 4))) is None
    request.all_token_ids.append(8)
    plan = scheduler.plan(make_step(([1] * 9, [0, 2] * 5), r=(512, 4)))
    assert plan is not None
    assert [save.tokens for save in plan.saves] == [512]
    # An engine that counts drafts in before it knows is not believed.
    assert scheduler.plan(make_step(([1] * 9, [0, 2] * 5), r=(768, 4))) is None


def test_beside_drafts_prompts_are_stored_as_ever() -> None:
    scheduler, _ = make(drafts=True, advice=(256, 512))
    request = make_request(700)
    scheduler.match(request, 0)
    plans = [
        scheduler.plan(make_step(([1] * 9, [2] * 9), r=(begin, tokens)))
        for begin, tokens in ((0, 256), (256, 256), (512, 188))
    ]
    assert [[save.tokens for save in plan.saves] if plan else [] for plan in plans] == [
        [256],
        [512],
        [],
    ]


def test_answers_that_the_daemon_does_not_want_are_not_stored() -> None:
    scheduler, model = make()
    request = make_request(100)
    assert scheduler.match(request, 0) == (0, False)
    assert decode(scheduler, request, 500) == []
    model.absent = True
    assert decode(scheduler, request, 600) == []
    assert scheduler._session.tally.snapshot() == {"unadvised": 1}


def test_an_answer_that_reaches_no_boundary_costs_no_question() -> None:
    scheduler, model = make()
    request = make_request(400)
    scheduler.match(request, 0)
    assert decode(scheduler, request, 500) == []
    scheduler.finished(request)
    assert len(model.queries) == 1


def test_boundaries_are_those_of_the_application_or_of_turns() -> None:
    scheduler, model = make()
    ends = SimpleNamespace(all_stop_token_ids={50})  # every 97 tokens from 50 on
    params = {"spliced": {"v": 1, "cuts": [0, 300, 700]}}
    for name, fields, cuts in (
        ("plain", {}, ()),
        ("turns", {"sampling_params": ends}, (50, 923)),
        ("marked", {"sampling_params": ends, "kv_transfer_params": params}, (300, 700)),
        ("wrong", {"kv_transfer_params": {"spliced": {"v": 1, "cuts": [5, 3]}}}, ()),
    ):
        scheduler.match(make_request(1000, name, **fields), 0)
        assert model.queries[-1].cuts == cuts
    assert scheduler._session.tally.snapshot() == {"bad_cuts": 1}


def test_hybrids_need_states_at_block_boundaries() -> None:
    for engine in (make_engine(True, "none"), make_engine(True, "all"), make_engine(True, rows=64)):
        fake = FakeModel(Profile(engine.identity))
        settings = Settings(weights="ab" * 32)
        session = Session(settings, engine, cast(Any, fake), EngineTally(), block_tokens(engine))
        with pytest.raises(Inert):
            PrefixScheduler(session)


def test_names_are_not_finer_than_they_are_worth() -> None:
    assert block_tokens(make_engine(False, rows=16)) == 128
    assert block_tokens(make_engine(False, rows=640)) == 640
    assert block_tokens(make_engine(True, rows=BLOCK)) == BLOCK


@pytest.mark.parametrize(
    "given",
    [
        {"lora_request": object()},
        {"pooling_params": object()},
        {"prompt_embeds": object()},
        {"mm_features": [object()]},
        {"resumable": True},
        {"skip_reading_prefix_cache": True},
        {"prompt_token_ids": None},
        {"prompt_token_ids": []},
    ],
)
def test_requests_with_anything_but_tokens_are_left_alone(given: dict[str, Any]) -> None:
    plain = {
        "lora_request": None,
        "pooling_params": None,
        "prompt_embeds": None,
        "mm_features": [],
        "resumable": False,
        "skip_reading_prefix_cache": False,
        "prompt_token_ids": [1, 2],
    }
    assert is_plain(cast(Any, SimpleNamespace(**plain)))
    assert not is_plain(cast(Any, SimpleNamespace(**(plain | given))))
