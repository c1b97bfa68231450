"""SGLang's own radix cache and pools with a daemon behind them. No engine runs here."""

from __future__ import annotations

import contextlib
import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang", reason="SGLang is not installed here, see `make test-sglang`")

from sglang.srt.managers.schedule_batch import Req  # noqa: E402
from sglang.srt.managers.schedule_policy import AddReqResult  # noqa: E402
from sglang.srt.mem_cache import registry  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

from client_samples import FULL, SMALL, Connect, fill, wait_until  # noqa: E402
from running import Daemon  # noqa: E402
from spliced_connector.client import Accept, NewCheckpoint  # noqa: E402
from spliced_connector.errors import Code  # noqa: E402
from spliced_connector.model import Kind, Layer, Profile  # noqa: E402
from spliced_connector.segments import Finder  # noqa: E402
from spliced_connector.serving.parameters import Parameters  # noqa: E402
from spliced_connector.serving.settings import Mode  # noqa: E402
from spliced_connector.sglang import plugin, radix  # noqa: E402
from spliced_connector.sglang.radix import TOLD, SplicedRadixCache  # noqa: E402
from spliced_connector.sglang.reuse import Reuse  # noqa: E402
from spliced_connector.sglang.slots import find_slots  # noqa: E402
from spliced_connector.sglang.splice_settings import SpliceSettings  # noqa: E402
from spliced_connector.sglang.support import Engine  # noqa: E402

DENSE = replace(SMALL, model="small-dense", layers=(Layer(Kind.FULL, attention=FULL),))
SLOTS, N, PREFIX = 2048, 500, 384
CUTS: dict[str, object] = {"spliced": {"v": 1, "cuts": [0, 200, 400]}}


def draw(seed: int, n: int = N) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(100, 10_000) for _ in range(n)]


def ask(rid: str, ids: Sequence[int], said: dict[str, object] | None = None) -> Req:
    params = SamplingParams(max_new_tokens=4, custom_params=said)
    return Req(rid, "", array("q", ids), params, eos_token_ids={1})


@dataclass
class Node:
    """A cache in pools of its own, and what is reused in it."""

    cache: SplicedRadixCache
    reuse: Reuse
    allocator: Any
    table: Any
    model: Any

    def save(self, ids: Sequence[int], kind: Accept = Accept.EXACT) -> None:
        """Puts a prefix into the daemon, with bytes that mean nothing."""
        name = self.reuse.open("saved", ids, None, ()).names[PREFIX]
        self.reuse.drop("saved")
        parts = fill(Profile(DENSE).checkpoint_layout(PREFIX), 1)
        new = NewCheckpoint(name, PREFIX, bytes(32), 0, kind, parts)
        assert self.reuse.model.save([new]) == [Code.OK]

    def load(self, req: Req) -> None:
        """What the scheduler does until a request is admitted."""
        req.init_next_round_input(self.cache)
        assert (req.prefix_len, req.host_hit_length) == (0, PREFIX)
        self.cache.step(alone=True)
        wait_until(lambda: self.cache.admit(req))
        params = InitLoadBackParams(
            best_match_node=req.best_match_node, host_hit_length=req.host_hit_length, req=req
        )
        loaded = self.cache.init_load_back(params)
        assert loaded is not None
        req.host_loaded_length, req.last_node = loaded
        assert req.host_loaded_length == PREFIX
        assert not self.cache.load_back_is_cache_owned()
        req.prefix_len += PREFIX

    def compute(self, req: Req) -> None:
        """The rest of the prompt gets rows, as if it had been computed."""
        self.table.alloc([req])
        new = self.allocator.alloc(N - req.prefix_len)
        rows = torch.cat([self.cache.prefix_device_indices(req), new])
        self.table.req_to_token[req.kv.req_pool_idx, :N] = rows.to(torch.int32)
        req.extend_end = req.kv.kv_committed_len = req.kv.kv_allocated_len = N
        req.lock = self.cache.lock(req.last_node)
        self.cache.checkpoint(req, up_to=N)

    def seen(self, ids: Sequence[int]) -> int:
        """Tokens of a prompt that the tree has."""
        self.cache.turn_off("it is asked what the tree has")
        req = ask("seen", ids)
        req.init_next_round_input(self.cache)
        return int(req.prefix_len)


StartNode = Callable[..., Node]


@pytest.fixture
def start_node(connect: Connect, daemon: Daemon) -> Iterator[StartNode]:
    """Makes nodes: `start_node(states=False, rounds=False, **settings)`. All are ended."""
    with contextlib.ExitStack() as running:

        def start(states: bool = False, rounds: bool = False, **settings: Any) -> Node:
            kv = MHATokenToKVPool(
                SLOTS, 1, torch.bfloat16, 2, 16, 1, "cpu", enable_memory_saver=False
            )
            table = ReqToTokenPool(8, 1024, "cpu", enable_memory_saver=False)
            allocator = TokenToKVPoolAllocator(SLOTS, torch.bfloat16, "cpu", kv, False)
            params = CacheInitParams(
                disable=False,
                req_to_token_pool=table,
                token_to_kv_pool_allocator=allocator,
                page_size=1,
                tree_components=(ComponentType.FULL,),
            )
            given = SpliceSettings(**{"weights": "0" * 64, "mode": Mode.SPLICE, **settings})
            slots = find_slots(Profile(DENSE), kv, table)
            engine = Engine("0", DENSE, 1, states, rounds)
            model = torch.nn.Linear(4, 4)
            weights = Parameters(model)
            reuse = Reuse(engine, given, connect(daemon.socket), None, slots, Finder(), weights)
            running.callback(reuse.close)
            assert reuse.model.wait_attached(10)
            cache = SplicedRadixCache(params)
            cache.attach(reuse)
            return Node(cache, reuse, allocator, table, model)

        yield start


def test_an_exact_prefix_joins_the_tree_with_what_is_computed_behind_it(
    start_node: StartNode,
) -> None:
    node, ids = start_node(), draw(1)
    node.save(ids)
    req = ask("r", ids)
    node.load(req)
    assert len(set(node.cache.prefix_device_indices(req).tolist())) == PREFIX
    node.compute(req)
    assert req.customized_info[TOLD][0]["way"] == "prefix"
    assert node.seen(ids) == N - 1


@pytest.mark.parametrize("kind", [Accept.EXACT, Accept.SPLICED])
def test_an_exact_state_takes_the_place_of_one_that_decoding_had_rounded(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch, kind: Accept
) -> None:
    node, ids = start_node(rounds=True), draw(1)
    node.save(ids, kind)
    req = ask("r", ids, CUTS if kind == Accept.SPLICED else None)
    write = Reuse.write

    def rounded(reuse: Reuse, tracked: Any, *given: Any) -> None:
        tracked.rounded = True
        node.cache._rounded.add("r")
        write(reuse, tracked, *given)

    monkeypatch.setattr(Reuse, "write", rounded)
    node.load(req)
    tracked = node.reuse.of("r")
    assert tracked is not None
    assert tracked.rounded == ("r" in node.cache._rounded) == (kind == Accept.SPLICED)


def test_rows_behind_segments_stay_out_of_the_tree(start_node: StartNode) -> None:
    node, ids = start_node(), draw(2)
    node.save(ids, Accept.SPLICED)
    req = ask("r", ids, CUTS)
    node.load(req)
    node.compute(req)
    assert req.customized_info[TOLD][0]["way"] == "splice"
    assert node.seen(ids) == 0


def test_they_stay_out_when_nothing_is_reused_any_more(start_node: StartNode) -> None:
    node, ids = start_node(), draw(3)
    node.save(ids, Accept.SPLICED)
    req = ask("r", ids, CUTS)
    node.load(req)
    node.cache.turn_off("weights were replaced")
    node.compute(req)
    assert node.seen(ids) == 0


def test_slots_stay_a_requests_own_when_nothing_is_reused_any_more(
    start_node: StartNode,
) -> None:
    """Another request of the same batch may be what fails."""
    node, ids = start_node(), draw(4)
    node.save(ids)
    req = ask("r", ids)
    node.load(req)
    before = node.cache.prefix_device_indices(req)
    node.cache.turn_off("an error")
    assert torch.equal(node.cache.prefix_device_indices(req), before)
    node.compute(req)
    assert node.seen(ids) == N - 1


def adder(node: Node, tokens: int | None = 256) -> Any:
    return SimpleNamespace(
        tree_cache=node.cache, rem_chunk_tokens=tokens, can_run_list=[], new_chunked_req=None
    )


def test_a_chunk_ends_where_a_state_is_wanted(start_node: StartNode) -> None:
    node, ids = start_node(states=True), draw(5)
    req, other = ask("r", ids), ask("other", ids)
    node.reuse.open("r", ids, None, ()).wanted = [128, 400]
    given = adder(node)
    for computed, inside in ((100, 28), (128, 256), (200, 200), (400, 256)):
        with node.cache.stopping(given, req, computed):
            assert given.rem_chunk_tokens == inside
        assert given.rem_chunk_tokens == 256, "it was not admitted"
    with node.cache.stopping(given, other, 100):
        assert given.rem_chunk_tokens == 256
    with node.cache.stopping(given, req, 100):
        given.can_run_list.append(req)
        given.rem_chunk_tokens -= 28
    assert given.rem_chunk_tokens == 0, "nothing else fits into a batch that stops here"
    endless = adder(node, None)
    with node.cache.stopping(endless, req, 100):
        assert endless.rem_chunk_tokens is None


def test_a_request_is_passed_over_until_its_prefix_is_there(start_node: StartNode) -> None:
    node, ids = start_node(stall_ms=0.0), draw(6)
    node.save(ids)
    first, second, other = ask("a", ids), ask("b", ids), ask("c", draw(7))
    for req in (first, second, other):
        req.init_next_round_input(node.cache)
    node.cache.step(alone=False)
    added: list[Req] = []

    def original(_: Any, req: Req, *more: Any) -> Any:
        assert more == (False, None)
        added.append(req)
        return AddReqResult.NO_TOKEN

    results = [
        plugin.add(original, adder(node), req, False, None) for req in (first, second, other)
    ]
    want = [AddReqResult.NO_TOKEN, AddReqResult.CONTINUE, AddReqResult.NO_TOKEN]
    assert (results, added) == (want, [first, other])
    node.cache.step(alone=False)
    second.init_next_round_input(node.cache)
    assert plugin.add(original, adder(node), second, False, None) is AddReqResult.NO_TOKEN


def test_a_prefix_that_is_lost_is_not_promised_again(start_node: StartNode, daemon: Daemon) -> None:
    node, ids = start_node(load_ms=1.0), draw(8)
    node.save(ids)
    req = ask("r", ids)
    req.init_next_round_input(node.cache)
    assert req.host_hit_length == PREFIX
    daemon.kill()
    node.cache.step(alone=True)
    wait_until(lambda: node.cache.admit(req))
    assert (req.prefix_len, req.host_hit_length) == (0, 0)
    assert node.cache.inert == ""


@pytest.mark.parametrize("rounds", [False, True])
def test_turns_behind_what_decoding_has_rounded_are_known(
    start_node: StartNode, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those behind them: the tree has states that are none of a prefill."""
    node, ids = start_node(rounds=rounds), draw(15, 3 * N)

    def turn(rid: str, prompt: int, end: int) -> Req:
        """Its prompt and its answer are computed, as far as the tree does not have them."""
        req = ask(rid, ids[:prompt])
        req.init_next_round_input(node.cache)
        node.table.alloc([req])
        req.output_ids.extend(ids[prompt:end])
        req.full_untruncated_fill_ids = array("q", ids[:end])
        new = node.allocator.alloc(end - req.prefix_len)
        rows = torch.cat([node.cache.prefix_device_indices(req), new])
        req.lock = node.cache.lock(req.last_node)
        node.table.req_to_token[req.kv.req_pool_idx, :end] = rows.to(torch.int32)
        for at in (prompt, end):
            req.extend_end = req.kv.kv_committed_len = req.kv.kv_allocated_len = at
            node.cache.checkpoint(req, up_to=at)
        return req

    def rounded(rid: str) -> bool:
        tracked = node.reuse.of(rid)
        assert tracked is not None
        return tracked.rounded

    turn("first", 200, 300)
    assert not rounded("first")
    assert turn("second", 400, 400).prefix_len == 300
    assert rounded("second") == rounds
    assert turn("third", 500, 500).prefix_len == 400
    assert rounded("third") == rounds
    beside = ask("beside", [*ids[:200], *draw(16, 100)])
    beside.init_next_round_input(node.cache)
    assert beside.prefix_len == 200
    assert not rounded("beside"), "the end of the first prompt is a prefill's"
    built: list[Req] = []
    ids_of = radix._ids

    def listed(req: Req) -> list[int]:
        built.append(req)
        return ids_of(req)

    monkeypatch.setattr(radix, "_ids", listed)
    for _ in range(3):
        beside.init_next_round_input(node.cache)
    assert not built, "a request that waits is named once"
    node.cache.on_release(beside, checkpointed=False)
    assert node.cache._rounded == ({"second", "third"} if rounds else set())


def test_an_error_of_ours_ends_the_reuse_and_not_the_engine(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, ids = start_node(), draw(9)
    node.save(ids)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("of a test")

    monkeypatch.setattr(node.reuse, "offer", broken)
    req = ask("r", ids)
    req.init_next_round_input(node.cache)
    assert (req.prefix_len, req.host_hit_length) == (0, 0)
    assert node.cache.inert == "ZeroDivisionError: of a test"
    assert node.cache.reuse is None
    assert node.cache.admit(req)


def test_a_prefix_that_was_promised_before_the_weights_changed_is_not_loaded(
    start_node: StartNode,
) -> None:
    node, ids = start_node(), draw(11)
    node.save(ids)
    req = ask("r", ids)
    req.init_next_round_input(node.cache)
    assert req.host_hit_length == PREFIX
    node.model.weight.data.zero_()
    node.cache.step(alone=True)
    assert node.cache.admit(req)
    assert (req.prefix_len, req.host_hit_length) == (0, 0)
    assert "weight has other values" in node.cache.inert
    assert node.reuse.tally.snapshot()["inert"] == 1


def test_a_prefix_that_is_ready_when_the_weights_change_is_not_loaded(
    start_node: StartNode,
) -> None:
    node, ids = start_node(), draw(12)
    node.save(ids)
    req = ask("r", ids)
    req.init_next_round_input(node.cache)
    node.cache.step(alone=True)
    wait_until(lambda: node.cache.admit(req))
    assert req.host_hit_length == PREFIX
    node.model.weight.data.zero_()
    params = InitLoadBackParams(
        best_match_node=req.best_match_node, host_hit_length=req.host_hit_length, req=req
    )
    assert node.cache.init_load_back(params) == (0, req.last_node)
    assert "weight has other values" in node.cache.inert
    assert node.allocator.available_size() == SLOTS


def test_what_other_weights_have_computed_is_not_stored(start_node: StartNode) -> None:
    node = start_node()
    before, after = ask("before", draw(13)), ask("after", draw(14))
    before.init_next_round_input(node.cache)
    after.init_next_round_input(node.cache)
    node.compute(before)
    assert node.reuse._saver.drain(30)
    saves = node.reuse.tally.snapshot()["saves"]
    node.model.weight.data.zero_()
    node.compute(after)
    assert "weight has other values" in node.cache.inert
    assert node.reuse.tally.snapshot()["saves"] == saves
    assert node.cache.reuse is None


@pytest.mark.parametrize("field", ["extra_key", "cache_salt", "lora_id", "input_embeds"])
def test_requests_that_are_more_than_tokens_are_left_alone(
    start_node: StartNode, field: str
) -> None:
    node, ids = start_node(), draw(10)
    node.save(ids)
    req = ask("r", ids)
    setattr(req, field, "x")
    req.init_next_round_input(node.cache)
    assert (req.host_hit_length, node.reuse.of("r")) == (0, None)
    assert node.allocator.available_size() == SLOTS


def test_the_plugin_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RADIX_CACHE_REGISTRY", {})
    hooks: dict[str, list[Any]] = defaultdict(list)
    monkeypatch.setattr(HookRegistry, "_hooks", hooks)
    plugin.register()
    plugin.register()
    assert registry.get_radix_cache_factory(plugin.BACKEND) is plugin.build
    assert len(hooks) == 14
    assert {len(found) for found in hooks.values()} == {1}
    assert plugin.is_told(lambda *_: False, None, TOLD)
    assert not plugin.is_told(lambda *_: False, None, "other")
    assert plugin.is_told(lambda *_: True, None, "other")
