"""What SGLang's cache decides and keeps, against a real daemon and without the engine."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from client_samples import SMALL, Connect, at_most, fill, wait_until
from prompt_samples import between_short_texts, prompts
from running import Daemon
from spliced_connector.client import UNADVISED, Accept, NewCheckpoint, NewSegment, Way
from spliced_connector.errors import Code
from spliced_connector.model import Choice, Profile, SegmentSpec, divide
from spliced_connector.segments import Finder
from spliced_connector.serving.decider import NEXT_TOKENS, Decider
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.parameters import Parameters
from spliced_connector.serving.prices import Clock
from spliced_connector.serving.settings import Mode
from spliced_connector.serving.storing import Taken
from spliced_connector.serving.tally import EngineTally
from spliced_connector.sglang.job import Prefix
from spliced_connector.sglang.requests import STEP, Requests, Tracked
from spliced_connector.sglang.reuse import Reuse
from spliced_connector.sglang.slots import Slots, find_slots
from spliced_connector.sglang.splice_settings import SpliceSettings
from spliced_connector.sglang.support import Engine
from spliced_connector.walk import Captured

pytestmark = pytest.mark.engine

SEGMENT = 200
N = 3 * SEGMENT + 20
CUTS = [0, 200, 400, 600]
END = 7
"""Ends a turn."""


def draw(seed: int, n: int = N) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(100, 10_000) for _ in range(n)]


def cut(*cuts: int) -> dict[str, object]:
    return {"spliced": {"v": 1, "cuts": list(cuts or CUTS)}}


class Half:
    """Requests of one engine, and what the daemon is given besides."""

    def __init__(
        self, connect: Connect, daemon: Daemon, known: bool = False, **settings: Any
    ) -> None:
        self.client = connect(daemon.socket, timeout=1.0)
        self.model = self.client.model(SMALL)
        assert self.model.wait_attached(10)
        given = SpliceSettings(**{"weights": "0" * 64, "mode": Mode.SPLICE, **settings})
        self.tally = EngineTally()
        decider = Decider(self.model, given, Finder(known=known), self.tally, Clock())
        self.requests = Requests(self.model, given, decider, self.tally, Clock())

    def open(
        self, ids: Sequence[int], said: dict[str, object] | None = None, *stops: int
    ) -> Tracked:
        return self.requests.open(ids, said, stops)

    def save(self, ids: Sequence[int], tokens: int, kind: Accept = Accept.EXACT) -> bytes:
        """Puts a prefix into the daemon, with bytes that mean nothing. Its name."""
        name = self.open(ids).names[tokens]
        parts = fill(self.model.profile.checkpoint_layout(tokens), 1)
        (code,) = self.model.save([NewCheckpoint(name, tokens, bytes(32), 0, kind, parts)])
        assert code == Code.OK
        return name

    def publish(self, ids: Sequence[int]) -> None:
        """Puts all segments of a prompt into the daemon, likewise."""
        assert self.model.salt is not None
        for piece in divide(self.model.profile, self.model.salt, ids, CUTS, 8).pieces:
            assert piece.spec is not None
            parts = fill(self.model.profile.segment_layout(piece.spec), piece.index)
            new = NewSegment(piece.spec, ids[piece.start : piece.end], parts)
            (code,) = self.model.publish([new])
            assert code in (Code.OK, Code.EXISTS)


@pytest.fixture
def half(connect: Connect, daemon: Daemon) -> Half:
    return Half(connect, daemon)


@pytest.mark.parametrize("mode", list(Mode))
def test_every_question_is_one_that_is_taken(connect: Connect, daemon: Daemon, mode: Mode) -> None:
    half = Half(connect, daemon, known=True, mode=mode)
    for i, (ids, said) in enumerate([between_short_texts(), *prompts(3, 120)]):
        told = half.open(ids, said, END).told()
        assert told.get("trouble") not in (UNADVISED, "the daemon did not answer"), (i, told)
    assert half.client.counters.invalid == 0
    assert not {"unadvised", "unanswered"} & set(half.tally.snapshot())


def test_the_state_behind_a_repeated_prompt_is_stored_once(half: Half) -> None:
    ids = draw(2)
    assert [N in half.open(ids).wanted for _ in range(2)] == [True, True], "nothing is stored yet"
    half.save(ids, N)
    assert N not in half.open(ids).wanted
    assert N in half.open([*ids[:-1], 1]).wanted, "another prompt"


def test_who_asked_is_told_that_there_is_no_advice(
    half: Half, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(half.model), "advise", lambda *_: None)
    for said in (None, cut()):
        assert half.open(draw(1), said).told()["trouble"] == UNADVISED


def test_an_exact_prefix_is_offered(half: Half) -> None:
    ids = draw(1)
    name = half.save(ids, 384)
    tracked = half.open(ids)
    offer = half.requests.offer(tracked, 0, N - 1)
    assert offer is not None
    assert (offer.base.tokens, offer.base.name, offer.composed) == (384, name, False)
    assert (offer.splice.begin, offer.splice.tokens, offer.splice.spans) == (384, 384, ())
    assert tracked.held == 384
    other = half.open([*ids[:383], 5, *ids[384:]])
    assert half.requests.offer(other, 0, N - 1) is None


def test_an_offer_is_more_than_the_tree_has_and_no_more_than_it_may_be(half: Half) -> None:
    ids = draw(2)
    half.save(ids, 384)
    tracked = half.open(ids)
    offers: dict[tuple[int, int], bool] = {
        (384 - NEXT_TOKENS, 384): True,
        (385 - NEXT_TOKENS, 384): False,  # to compute so few is no slower
        (384, N): False,
        (0, 383): False,
    }
    for (held, most), there in offers.items():
        assert (half.requests.offer(tracked, held, most) is not None) is there
    tracked.lost = True
    assert half.requests.offer(tracked, 0, N) is None


def test_a_prefix_of_a_splice_is_for_requests_with_cuts(half: Half) -> None:
    ids = draw(3)
    half.save(ids, 384, Accept.SPLICED)
    plain = half.open(ids)
    assert half.requests.offer(plain, 0, N - 1) is None
    assert (plain.found.prefix_tokens, plain.held) == (0, 0)
    named = half.open(ids, cut())
    assert named.known is not None
    assert (named.known.prefix, named.known.spliced) == (384, True)
    offer = half.requests.offer(named, 0, N - 1)
    assert offer is not None
    assert (offer.base.tokens, offer.base.spliced, offer.composed) == (384, True, True)
    assert named.held == 0, "what is computed behind it extends nothing exact"


def test_segments_that_are_held_are_offered(half: Half) -> None:
    ids = draw(4)
    half.publish(ids)
    assert half.requests.offer(half.open(ids), 0, N - 1) is None
    tracked = half.open(ids, cut())
    offer = half.requests.offer(tracked, 0, N - 1)
    assert offer is not None
    assert offer.composed
    assert offer.splice.choices == (Choice.HIT,) * 3
    assert offer.splice.tokens == 3 * SEGMENT - 8
    moved = [*ids[SEGMENT : 2 * SEGMENT], *ids[:SEGMENT], *ids[2 * SEGMENT :]]
    offer = half.requests.offer(half.open(moved, cut()), 0, N - 1)
    assert offer is not None
    # As the first of a prompt a segment is another one, for it has no seam there.
    assert offer.splice.choices[2] is Choice.HIT


@pytest.mark.parametrize("held", [N, N + 5])
def test_a_prompt_that_the_tree_has_is_offered_nothing(half: Half, held: int) -> None:
    """Of a request that gave way, which is matched with its answer."""
    ids = draw(27)
    half.publish(ids)
    tracked = half.open(ids, cut())
    assert half.requests.offer(tracked, 0, N + 9) is not None
    assert half.requests.offer(tracked, held, N + 9) is None


def test_a_prefix_mode_asks_for_no_segments(connect: Connect, daemon: Daemon) -> None:
    half = Half(connect, daemon, mode=Mode.PREFIX)
    ids = draw(5)
    half.publish(ids)
    half.save(ids, 384)
    tracked = half.open(ids, cut())
    assert tracked.known is None
    offer = half.requests.offer(tracked, 0, N - 1)
    assert offer is not None
    assert (offer.splice.tokens, offer.composed) == (384, False)


def test_a_prefix_that_takes_longer_to_fetch_is_computed(
    half: Half, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = draw(6)
    half.save(ids, 384)
    said = SimpleNamespace(
        way=Way.RECOMPUTE, checkpoints=(), predicted=(), seen_tokens=0, found=None
    )
    monkeypatch.setattr(type(half.model), "advise", lambda *_: said)
    tracked = half.open(ids)
    assert tracked.compute
    assert half.requests.offer(tracked, 0, N - 1) is None
    assert half.tally.snapshot()["not_worth_it"] == 1
    said.way = Way.PREFIX
    assert half.requests.offer(half.open(ids), 0, N - 1) is not None


@pytest.mark.parametrize("turns", [True, False])
def test_only_what_has_a_name_and_is_not_held_is_stored(
    connect: Connect, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, turns: bool
) -> None:
    half, ids = Half(connect, daemon, turns=turns), draw(7)
    half.save(ids, 256)
    wish = [(128, True), (256, True), (384, True), (450, True), (512, False)]
    points = [SimpleNamespace(tokens=tokens, save=save) for tokens, save in wish]
    said = SimpleNamespace(
        way=Way.PREFIX, checkpoints=points, predicted=(), seen_tokens=0, found=None
    )
    monkeypatch.setattr(type(half.model), "advise", lambda *_: said)
    assert half.open(ids).wanted == [384, *([N] if turns else [])]


def test_a_dead_daemon_costs_a_bounded_wait(half: Half, daemon: Daemon) -> None:
    ids = draw(8)
    half.save(ids, 384)
    half.publish(ids)
    daemon.kill()
    with at_most(2):
        for said in (None, cut()) * 10:
            tracked = half.open(ids, said)
            assert half.requests.offer(tracked, 0, N - 1) is None
            assert tracked.wanted == []
    assert tracked.told()["trouble"] == "no daemon"
    assert tracked.told()["way"] == "engine"
    daemon.start()
    wait_until(lambda: half.model.attached and half.open(ids).trouble == "")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (cut(0, 90, 80), "90 is followed by 80"),
        (cut(0, 9999), "want 0 to 619"),
        ({"spliced": {"v": 1, "cuts": [0, 100], "size": 3}}, "unknown size"),
        ({"spliced": {"v": 1, "find": ["chunks"]}}, "this server has none"),
        ({"spliced": 3}, "int, want an object"),
    ],
)
def test_bad_cuts_are_told_and_cost_no_prefix(
    half: Half, said: dict[str, object], text: str
) -> None:
    ids = draw(9)
    half.save(ids, 384)
    tracked = half.open(ids, said)
    assert text in str(tracked.told()["trouble"])
    assert half.tally.snapshot()["bad_cuts"] == 1
    offer = half.requests.offer(tracked, 0, N - 1)
    assert offer is not None
    assert (offer.splice.tokens, offer.composed) == (384, False)


def test_ends_of_turns_and_starts_of_answers_have_names(half: Half) -> None:
    asking = [END, 11, 12]
    ids = [*draw(10, 150), *asking, *draw(11, 77), END, *draw(12, 90), *asking]
    first, last = 150, len(ids) - 3
    tracked = half.open(ids, None, END)
    turns = {first, first + 3, 230, last, len(ids)}
    steps = set(range(STEP, len(ids), STEP))
    assert set(tracked.names) == turns | steps
    assert list(tracked.names) == sorted(tracked.names)
    assert set(half.open(ids).names) == steps | {len(ids)}
    # The next turn begins with the same tokens: what was stored is found again.
    half.save(ids, len(ids))
    longer = [*ids, *draw(13, 40), END, *draw(14, 30), *asking]
    offer = half.requests.offer(half.open(longer, None, END), 0, len(longer) - 1)
    assert offer is not None
    assert offer.splice.tokens == len(ids)


class MHATokenToKVPool:
    """As SGLang's: a tensor of each attention layer, by slot."""

    def __init__(self, slots: int, heads: int = 2, dim: int = 16) -> None:
        self.dtype = self.store_dtype = torch.bfloat16
        self.k_buffer = [torch.zeros(slots, heads, dim, dtype=self.dtype)]
        self.v_buffer = [torch.zeros(slots, heads, dim, dtype=self.dtype)]


class MambaPool:
    """States [layers, slots, heads, dv, dk] and tails [layers, slots, channels, k - 1]."""

    def __init__(self, slots: int) -> None:
        self.mamba_cache = SimpleNamespace(
            conv=[torch.zeros(1, slots, 128, 3, dtype=torch.bfloat16)],
            temporal=torch.zeros(1, slots, 4, 16, 16),
            replayssm_d=None,
        )


class HybridReqToTokenPool:
    """The table of requests, beside which the states are."""

    def __init__(self, slots: int) -> None:
        self.mamba_pool = MambaPool(slots)
        self.mamba_map = {0: 0}
        self.mamba_ckpt_pool = None


def pools(slots: int = 1024) -> tuple[Any, Any]:
    return MHATokenToKVPool(slots), HybridReqToTokenPool(8)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape).to(dtype)


def test_slots_give_back_what_was_written() -> None:
    kv, table = pools()
    slots = find_slots(Profile(SMALL), SimpleNamespace(full_kv_pool=kv), table)
    assert (list(slots.rows), list(slots.states)) == ([1], [0])
    at = torch.tensor([900, 3, 17])
    k, v = noise(3, 2, 16, dtype=torch.bfloat16), noise(3, 2, 16, dtype=torch.bfloat16)
    slots.rows[1].write(at, k, v)
    assert all(torch.equal(a, b) for a, b in zip(slots.rows[1].read(at), (k, v), strict=True))
    assert torch.equal(kv.k_buffer[0][17], k[2])
    assert not kv.v_buffer[0][[2, 4, 16, 18]].any()
    state, tail = noise(4, 16, 16), noise(3, 128, dtype=torch.bfloat16)
    slots.states[0].write(5, state, tail)
    read = slots.states[0].read(5)
    assert torch.equal(read[0], state)
    assert torch.equal(read[1], tail)
    # The engine's state is value-major, and its tail is channel-major.
    cache = table.mamba_pool.mamba_cache
    assert torch.equal(cache.temporal[0, 5, 1, 2], state[1, :, 2])
    assert torch.equal(cache.conv[0][0, 5, 9], tail[:, 9])
    cache.temporal.zero_()
    assert torch.equal(read[0], state), "a copy"
    assert not cache.conv[0][0, [4, 6]].any()


def broken(change: Callable[[Any, Any], None]) -> tuple[Any, Any]:
    kv, table = pools(16)
    change(kv, table)
    return kv, table


class MHATokenToKVPoolFP4(MHATokenToKVPool):
    """Of a kind that is not known."""


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((MHATokenToKVPoolFP4(16), HybridReqToTokenPool(8)), "in a MHATokenToKVPoolFP4"),
        ((MHATokenToKVPool(16, dim=8), HybridReqToTokenPool(8)), "layer 1 has rows of"),
        (broken(lambda kv, _: kv.v_buffer.clear()), "1 layers of keys"),
        (broken(lambda kv, _: setattr(kv, "store_dtype", torch.uint8)), "keys and values in"),
        (broken(lambda _, t: t.mamba_map.update({2: 1})), "states of layers"),
        (broken(lambda _, t: setattr(t, "mamba_ckpt_pool", 1)), "more than states"),
        (broken(lambda _, t: t.mamba_pool.mamba_cache.conv.append(0)), "more than one convolution"),
        (
            broken(
                lambda _, t: setattr(t.mamba_pool.mamba_cache, "temporal", torch.zeros(1, 8, 4))
            ),
            "layer 0 has states of",
        ),
    ],
)
def test_pools_that_are_not_known_are_refused(given: tuple[Any, Any], text: str) -> None:
    with pytest.raises(Inert, match=text):
        find_slots(Profile(SMALL), *given)


class Node:
    """An engine without a model: its pools, and what is reused in them."""

    def __init__(
        self, connect: Connect, daemon: Daemon, rounds: bool = False, **changes: Any
    ) -> None:
        self.kv, self.table = pools()
        self.slots: Slots = find_slots(Profile(SMALL), self.kv, self.table)
        settings = SpliceSettings(weights="0" * 64, **changes)
        client = connect(daemon.socket)
        engine = Engine("0", SMALL, 1, True, rounds)
        self.reuse = Reuse(engine, settings, client, None, self.slots, Finder(), Parameters())
        assert self.reuse.model.wait_attached(10)

    def compute(self, seed: int, at: Tensor, state: int) -> None:
        """Rows and states as a prefill leaves them; noise."""
        torch.manual_seed(seed)
        rows = [noise(len(at), 2, 16, dtype=torch.bfloat16) for _ in range(2)]
        self.slots.rows[1].write(at, *rows)
        self.slots.states[0].write(state, noise(4, 16, 16), noise(3, 128, dtype=torch.bfloat16))

    def kept(self, at: Tensor, state: int) -> list[Tensor]:
        return [*self.slots.rows[1].read(at), *self.slots.states[0].read(state)]


StartNode = Callable[..., Node]


@pytest.fixture
def start_node(connect: Connect, daemon: Daemon) -> Iterator[StartNode]:
    """Starts nodes of one daemon, with settings. All are closed at the end."""
    with contextlib.ExitStack() as running:

        def start(**changes: Any) -> Node:
            node = Node(connect, daemon, **changes)
            running.callback(node.reuse.close)
            return node

        yield start


def wanting(reuse: Reuse, ids: Sequence[int], *tokens: int) -> Tracked:
    """A request of which a state is wanted."""
    tracked = reuse.open("r", ids, None, ())
    tracked.wanted = list(tokens)
    return tracked


def test_a_prefix_comes_back_in_other_slots(start_node: StartNode) -> None:
    ids, tokens = draw(20), 384
    there, here = start_node(), start_node()
    tracked = wanting(there.reuse, ids, tokens)
    assert there.reuse.next_stop(tracked, 0) == tokens
    assert there.reuse.next_stop(tracked, tokens) == 0
    at, state = torch.randperm(1024)[:tokens], 3
    there.compute(1, at, state)
    asked: list[int] = []

    def row() -> tuple[Tensor, int]:
        asked.append(1)
        return at, state

    there.reuse.reached(tracked, ids, 300, row)
    assert asked == [], "the state is that of another token"
    there.reuse.reached(tracked, ids, tokens, row)
    assert (asked, tracked.stored, tracked.held, tracked.wanted) == ([1], 1, tokens, [])
    want = there.kept(at, state)
    there.compute(2, at, state)  # the slots are somebody else's by now
    assert there.reuse._saver.drain(10)
    assert there.reuse.tally.snapshot()["saves"] == 1

    found = here.reuse.open("x", ids, None, ())
    offer = here.reuse.offer(found, 0, N - 1)
    assert offer is not None
    assert offer.splice.tokens == tokens
    here.reuse.step(alone=True)
    wait_until(lambda: here.reuse.ready(found, None))
    assert found.way == "engine", "it has no slots yet"
    into = torch.arange(1000, 1000 - tokens, -1)
    here.reuse.write(found, into, 0, 6)
    assert all(torch.equal(a, b) for a, b in zip(here.kept(into, 6), want, strict=True))
    assert found.told()["way"] == "prefix"
    assert (found.told()["tokens"], found.spliced, found.job) == (tokens, False, None)


def test_behind_what_the_tree_has_only_the_rest_is_written(start_node: StartNode) -> None:
    ids, tokens, held = draw(21), 384, 128
    node = start_node()
    tracked = wanting(node.reuse, ids, tokens)
    at = torch.arange(tokens)
    node.compute(1, at, 3)
    node.reuse.reached(tracked, ids, tokens, lambda: (at, 3))
    want = node.kept(at[held:], 3)
    assert node.reuse._saver.drain(10)
    found = node.reuse.open("x", ids, None, ())
    assert node.reuse.offer(found, held, N - 1) is not None
    node.reuse.step(alone=True)
    wait_until(lambda: node.reuse.ready(found, Prefix(at[:held], 3)))
    into = torch.arange(600, 600 + tokens - held)
    node.reuse.write(found, into, held, 5)
    assert all(torch.equal(a, b) for a, b in zip(node.kept(into, 5), want, strict=True))
    assert not node.kv.k_buffer[0][600 + tokens - held :].any()


def test_a_prefix_that_went_is_lost_once(start_node: StartNode, daemon: Daemon) -> None:
    ids, tokens = draw(22), 384
    node = start_node()
    tracked = wanting(node.reuse, ids, tokens)
    node.reuse.reached(tracked, ids, tokens, lambda: (torch.arange(tokens), 3))
    assert node.reuse._saver.drain(10)
    found = node.reuse.open("x", ids, None, ())
    assert node.reuse.offer(found, 0, N - 1) is not None
    daemon.kill()
    node.reuse.step(alone=False)
    wait_until(lambda: node.reuse.ready(found, None))
    assert found.lost
    assert node.reuse.offer(found, 0, N - 1) is None
    assert found.told()["way"] == "recomputed"
    assert node.reuse.tally.snapshot()["load_failures"] == 1


@pytest.mark.parametrize("spliced", [False, True])
@pytest.mark.parametrize("rounds", [False, True])
def test_what_decoding_rounds_is_stored_only_as_an_approximation(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, rounds: bool, spliced: bool
) -> None:
    """Behind segments it is one in any case."""
    ids, prompt = draw(28), 256
    node = start_node(rounds=rounds)
    kinds: list[Accept] = []

    def put(taken: Taken) -> bool:
        kinds.append(taken.kind)
        return True

    monkeypatch.setattr(node.reuse._saver, "put", put)
    monkeypatch.setattr(node.reuse._requests, "answered", lambda *_: True)
    tracked = wanting(node.reuse, ids[:prompt], prompt)
    tracked.spliced = spliced
    for tokens in (prompt, 400):
        node.reuse.reached(tracked, ids, tokens, lambda: (torch.arange(400), 3))
    kind = Accept.SPLICED if spliced else Accept.EXACT
    assert kinds == [kind] * (1 if rounds and not spliced else 2)
    assert node.reuse.tally.snapshot().get("rounded_states", 0) == int(rounds and not spliced)


@pytest.mark.parametrize("spliced", [False, True])
def test_nothing_exact_is_stored_behind_what_decoding_has_rounded(
    start_node: StartNode, spliced: bool
) -> None:
    node, ids = start_node(rounds=True), draw(29)
    tracked = wanting(node.reuse, ids, 256, 384)
    tracked.rounded, tracked.spliced = True, spliced
    for tokens in (256, 384):
        node.reuse.reached(tracked, ids, tokens, lambda: (torch.arange(400), 3))
    assert tracked.stored == (2 if spliced else 0)
    assert tracked.wanted == []


def test_what_gave_way_is_stored_as_if_it_had_not_been_spliced(start_node: StartNode) -> None:
    """The daemon refuses what is exact behind a prefix that is not."""
    ids, tokens = draw(26), 256
    node = start_node(mode=Mode.SPLICE)
    reuse, model = node.reuse, node.reuse.model
    name = reuse.open("saved", ids, None, ()).names[tokens]
    parts = fill(model.profile.checkpoint_layout(tokens), 1)
    assert model.save([NewCheckpoint(name, tokens, bytes(32), 0, Accept.SPLICED, parts)]) == [0]
    found = reuse.open("x", ids, cut(), ())
    assert reuse.offer(found, 0, N - 1) is not None
    reuse.step(alone=True)
    wait_until(lambda: reuse.ready(found, None))
    reuse.write(found, torch.arange(tokens), 0, 5)
    assert (found.way, found.spliced, found.held) == ("splice", True, tokens)
    reuse.released(found)
    assert (found.way, found.spliced) == ("engine", False)
    found.wanted = [512]
    reuse.reached(found, ids, 512, lambda: (torch.arange(512), 3))
    assert reuse._saver.drain(10)
    assert reuse.tally.snapshot().get("save_failures", 0) == 0
    assert reuse.tally.snapshot()["saved_tokens"] == 512


def test_a_request_that_waits_is_worked_on_in_slices(start_node: StartNode) -> None:
    """The first piece of a step always runs; others wait once its time is over."""
    ids = draw(23)
    node = start_node(stall_ms=0.0)
    tracked = wanting(node.reuse, ids, 256)
    node.reuse.reached(tracked, ids, 256, lambda: (torch.arange(256), 3))
    assert node.reuse._saver.drain(10)
    both = [node.reuse.open(rid, ids, None, ()) for rid in ("a", "b")]
    assert all(node.reuse.offer(one, 0, N - 1) for one in both)
    done: list[list[bool]] = []
    for _ in range(2):
        node.reuse.step(alone=False)
        done.append([node.reuse.ready(one, None) for one in both])
        both = [one for one in both if one.job is None or one.job.context is None]
    assert done == [[True, False], [True]]


def test_requests_that_wait_take_what_another_has_captured(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that began to wait before it was captured, and those that begin behind it."""
    captured: list[int] = []

    def capture_all(
        _: object, wanted: Sequence[tuple[Tensor, SegmentSpec]], primers: object
    ) -> list[Captured]:
        captured.extend(len(ids) for ids, _ in wanted)
        return [Captured(spec, ()) for _, spec in wanted]

    def kept(captured: Captured, *_: object) -> Captured:
        return captured

    monkeypatch.setattr("spliced_connector.serving.job.capture_all", capture_all)
    monkeypatch.setattr(Decider, "_wanted", lambda *_: frozenset(range(len(CUTS) - 1)))
    node = start_node(mode=Mode.SPLICE, stall_ms=0.0, measured=False)
    monkeypatch.setattr(node.reuse._publisher, "capture", kept)
    first, second, third = (node.reuse.open(rid, draw(27), cut(), ()) for rid in "abc")
    waiting = [first, second]
    jobs = []
    for step in range(2):
        node.reuse.step(alone=False)
        for one in waiting:
            assert node.reuse.offer(one, 0, N - 1) is not None
            assert not node.reuse.ready(one, None)
        jobs.append([len(one.job.captured) for one in waiting if one.job is not None])
        if step == 0:
            waiting.append(third)
    assert captured == [SEGMENT, SEGMENT], "a piece in each step"
    assert jobs == [[1, 1], [2, 2, 2]]


def test_a_request_that_is_dropped_is_forgotten(start_node: StartNode) -> None:
    node = start_node()
    tracked = node.reuse.open("r", draw(24), None, ())
    assert node.reuse.open("r", draw(25), None, ()) is tracked
    node.reuse.drop("r")
    node.reuse.drop("r")
    assert node.reuse.of("r") is None
    assert node.reuse.open("r", draw(25), None, ()).ids == tuple(draw(25))
