"""The storage tier of SGLang against its own pools and a real daemon. No engine runs here."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang", reason="SGLang is not installed here, see `make test-sglang`")

from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

from engine.sglang_hosts import chain, clear, randomise  # noqa: E402
from running import Daemon  # noqa: E402
from spliced_connector.serving.parameters import Parameters  # noqa: E402
from spliced_connector.sglang import SplicedHiCache  # noqa: E402
from spliced_connector.sglang import backend as sglang_backend  # noqa: E402
from spliced_connector.sglang.pages import page_name  # noqa: E402
from spliced_connector.sglang.samples import CONFIG, PAGE, Hosts, hosts  # noqa: E402
from spliced_connector.sglang.weights import EngineWeights  # noqa: E402
from spliced_connector.walk import tensor_over  # noqa: E402

WEIGHTS = "11" * 32
Make = Callable[..., SplicedHiCache]


class Runner:
    """As SGLang's that has loaded a model."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 4)


@pytest.fixture(autouse=True)
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    made, weights = Runner(), EngineWeights()
    weights.keep(made)
    monkeypatch.setattr(sglang_backend, "engine_weights", weights)
    return made


def weights_of() -> EngineWeights:
    found = vars(sglang_backend)["engine_weights"]
    assert isinstance(found, EngineWeights)
    return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes backends through SGLang's own factory: `make(socket, hosts, **settings)`."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    made: list[SplicedHiCache] = []

    def build(
        socket: str,
        pools: Hosts,
        *,
        tp_rank: int = 0,
        tp_size: int = 1,
        pp_size: int = 1,
        wait: bool = True,
        **settings: Any,
    ) -> SplicedHiCache:
        extra = {
            "backend_name": "spliced",
            "module_path": "spliced_connector.sglang",
            "class_name": "SplicedHiCache",
            "interface_v1": 1,
            "socket": socket,
            "weights": WEIGHTS,
            "timeout_ms": 2000.0,
            "exists_ms": 10_000.0,
            **settings,
        }
        config = HiCacheStorageConfig(
            tp_rank=tp_rank,
            tp_size=tp_size,
            pp_rank=0,
            pp_size=pp_size,
            attn_cp_rank=0,
            attn_cp_size=1,
            is_mla_model=False,
            enable_storage_metrics=False,
            is_page_first_layout=True,
            model_name=str(tmp_path),
            extra_config=extra,
        )
        backend = StorageBackendFactory.create_backend("dynamic", config, pools.kv)
        assert isinstance(backend, SplicedHiCache)
        made.append(backend)
        backend.register_mem_pool_host(pools.kv)
        backend.register_mem_host_pool_v2(pools.kv, PoolName.KV)
        backend.register_mem_host_pool_v2(pools.states, PoolName.MAMBA)
        backend.on_host_pools_registered()
        for pages in (backend.rows, backend.states):
            if wait and pages is not None:
                assert pages._model.wait_attached(10), pages._model.refused
        return backend

    yield build
    for backend in made:
        backend.close()


def info(prefix: list[str]) -> HiCacheStorageExtraInfo:
    return HiCacheStorageExtraInfo(prefix_keys=prefix)


def slots(*pages: int) -> Any:
    """Host indices of pages of keys and values."""
    return torch.cat([torch.arange(p * PAGE, (p + 1) * PAGE) for p in pages])


def state(key: str, slot: int) -> PoolTransfer:
    return PoolTransfer(
        PoolName.MAMBA,
        host_indices=torch.tensor([slot]),
        keys=[key],
        hit_policy=PoolHitPolicy.TRAILING_PAGES,
    )


def wanted() -> list[PoolTransfer]:
    """What a look-up asks for beside keys and values."""
    return [
        PoolTransfer(
            PoolName.MAMBA, keys=["__placeholder__"], hit_policy=PoolHitPolicy.TRAILING_PAGES
        )
    ]


def store(backend: SplicedHiCache, keys: list[str], before: int = 0, slot: int = 1) -> None:
    """Back up a tree node of pages [before, end), as SGLang does: the state first."""
    prefix, own = keys[:before], keys[before:]
    assert backend.batch_set_v2([state(own[-1], slot)], info(keys[:-1])) == {"mamba": [True]}
    pages = slots(*range(before, len(keys)))
    assert backend.batch_set_v1(own, pages, info(prefix)) == [True] * len(own)


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct", "page_head"])
def test_pages_come_back_bit_for_bit(daemon: Daemon, make: Make, layout: str) -> None:
    pools = hosts(layout)
    randomise(pools, 1)
    backend = make(daemon.socket, pools)
    keys = chain(layout, 3)
    store(backend, keys)
    rows = [pools.kv.get_data_page(p * PAGE).clone() for p in range(3)]
    slot = pools.states.get_data_page(1).clone()
    clear(pools)

    found = backend.batch_exists_v2(keys, wanted(), info([]))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (3, [3])
    assert backend.batch_get_v1(keys, slots(5, 6, 7), info([])) == [True] * 3
    assert backend.batch_get_v2([state(keys[-1], 4)], info(keys[:-1])) == {"mamba": [True]}
    for i in range(3):
        assert torch.equal(pools.kv.get_data_page((5 + i) * PAGE), rows[i])
    assert torch.equal(pools.states.get_data_page(4), slot)
    assert pools.states.get_data_page(1).count_nonzero() == 0


def test_a_page_is_kept_in_canonical_form(daemon: Daemon, make: Make) -> None:
    pools = hosts("page_head")
    randomise(pools, 2)
    cache = pools.mamba.mamba_cache
    # SGLang's own copy from the device into slot 3 of the host.
    pools.states.backup_from_device_all_layer(
        None, torch.tensor([3]), torch.tensor([5]), io_backend="kernel_ascend"
    )
    backend = make(daemon.socket, pools)
    (key,) = chain("canonical", 1)
    store(backend, [key], slot=3)

    assert backend.states is not None and backend.rows is not None
    held = backend.states._model.load(backend.states.names([key])[0], wait=5)
    assert held is not None and held.tokens == PAGE
    parts = [
        tensor_over(held.part(0, i), part.dtype, part.shape)
        for i, part in enumerate(held.layouts[0].parts)
    ]
    for layer in range(2):
        assert torch.equal(parts[2 * layer], cache.temporal[layer, 5].transpose(-1, -2))
        assert torch.equal(parts[2 * layer + 1], cache.conv[0][layer, 5].transpose(-1, -2))
    assert held.release()

    held = backend.rows._model.load(backend.rows.names([key])[0], wait=5)
    assert held is not None
    block = pools.kv.kv_buffer[:, 0]  # [2, heads, page, layers, dim]
    for i, part in enumerate(held.layouts[0].parts):
        rows = tensor_over(held.part(0, i), part.dtype, part.shape)
        assert part.shape == (PAGE, 4, 16)
        assert torch.equal(rows, block[i % 2, :, :, i // 2].transpose(0, 1))
    assert held.release()


def test_a_prefix_ends_where_a_state_is_held(daemon: Daemon, make: Make) -> None:
    pools = hosts()
    randomise(pools, 3)
    backend = make(daemon.socket, pools)
    keys = chain("a", 6)
    store(backend, keys[:2])
    store(backend, keys[:5], before=2)
    found = backend.batch_exists_v2(keys, wanted(), info([]))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [2, 5])
    assert found.extra_pool_hit_pages == {"kv": 5, "mamba": 5}
    # Behind what the engine has itself, and where the longest has pages but no state.
    assert backend.batch_exists_v2(keys[2:], wanted(), info(keys[:2])).kv_hit_pages == 3
    found = backend.batch_exists_v2(keys[:4], wanted(), info([]))
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (2, {"kv": 4, "mamba": 2})
    # Another branch behind page 2 has its own pages and no state: the shared one counts.
    branch = keys[:2] + chain("b", 2)
    assert backend.batch_set_v1(branch[2:], slots(8, 9), info(keys[:2])) == [True, True]
    assert backend.batch_exists_v2(branch, wanted(), info([])).kv_hit_pages == 2
    assert backend.batch_exists(branch) == 4  # keys and values alone


def test_other_pools_never_have_hits(daemon: Daemon, make: Make) -> None:
    pools = hosts()
    backend = make(daemon.socket, pools)
    keys = chain("a", 2)
    store(backend, keys)
    window = PoolTransfer(PoolName.SWA, keys=["x"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert backend.batch_exists_v2(keys, [window], info([])).kv_hit_pages == 0
    two = PoolTransfer(PoolName.MAMBA, keys=["x", "y"], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    assert backend.batch_exists_v2(keys, [two], info([])).kv_hit_pages == 0
    assert backend.batch_set_v2([window], info([])) == {"swa": [False]}
    assert backend.batch_get_v2([window], info([])) == {"swa": [False]}


def test_flat_pages_without_interface_v1(daemon: Daemon, make: Make) -> None:
    pools = hosts("page_head")
    randomise(pools, 4)
    backend = make(daemon.socket, pools)
    keys = chain("flat", 2)
    pages = [pools.kv.get_data_page(0), pools.kv.get_data_page(PAGE)]
    assert backend.batch_set(keys, pages)
    assert backend.set(keys[0], pages[0])
    assert backend.exists(keys[0]) and not backend.exists("00")
    dummies = [pools.kv.get_dummy_flat_data_page() for _ in keys]
    back = backend.batch_get(keys, dummies)
    assert all(torch.equal(a, b) for a, b in zip(back, pages, strict=True))
    # The same bytes as the other way reads them.
    assert backend.batch_get_v1(keys, slots(4, 5)) == [True, True]
    assert torch.equal(pools.kv.get_data_page(4 * PAGE), pages[0])
    assert backend.get("00", pools.kv.get_dummy_flat_data_page()) is None
    assert not backend.set(keys[0], torch.zeros(3))


def test_narrow_states_lose_nothing(daemon: Daemon, make: Make) -> None:
    pools = hosts(states=torch.bfloat16)
    randomise(pools, 5)
    backend = make(daemon.socket, pools)
    (key,) = chain("narrow", 1)
    store(backend, [key], slot=2)
    want = pools.states.get_data_page(2).clone()
    clear(pools)
    assert backend.batch_get_v2([state(key, 6)], info([])) == {"mamba": [True]}
    assert torch.equal(pools.states.get_data_page(6), want)


def test_states_need_their_place(
    daemon: Daemon, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    backend = make(daemon.socket, hosts())
    nowhere = HiCacheStorageExtraInfo()
    with caplog.at_level(logging.WARNING, logger="spliced.sglang"):
        for _ in range(2):
            assert backend.batch_set_v2([state("aa", 1)], nowhere) == {"mamba": [False]}
    assert [r.getMessage() for r in caplog.records if "pass_prefix_keys" in r.getMessage()] == [
        'spliced: no state is stored without "hicache_storage_pass_prefix_keys": true '
        "in the extra config"
    ]
    assert backend.tally.snapshot()["unplaced"] == 2


def test_another_model_layout_or_rank_finds_nothing(daemon: Daemon, make: Make) -> None:
    pools = hosts()
    randomise(pools, 6)
    keys = chain("a", 1)
    store(make(daemon.socket, pools), keys)
    assert make(daemon.socket, hosts()).batch_exists(keys) == 1
    for what in (
        {"weights": "22" * 32},
        {"adapter": "lora-1"},
        {"tenant": "blue", "token": "blue-token"},
    ):
        assert make(daemon.socket, hosts(), **what).batch_exists(keys) == 0
    assert make(daemon.socket, hosts(kv=torch.float16)).batch_exists(keys) == 0


def test_one_rank_of_two_is_no_page(daemon: Daemon, make: Make, tmp_path: Path) -> None:
    """Ranks have half the heads: here each is given the pools of a model twice as wide."""
    pools = hosts()
    randomise(pools, 7)
    wide = {**CONFIG, "num_attention_heads": 8, "num_key_value_heads": 8}
    wide |= {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    left = make(daemon.socket, pools)
    (tmp_path / "config.json").write_text(json.dumps(wide))
    left = make(daemon.socket, pools, tp_size=2, tp_rank=0)
    right = make(daemon.socket, pools, tp_size=2, tp_rank=1)
    (key,) = chain("tp", 1)
    assert left.batch_set_v1([key], slots(0)) == [True]
    assert left.batch_exists([key]) == right.batch_exists([key]) == 0
    assert right.batch_set_v1([key], slots(1)) == [True]
    assert left.batch_exists([key]) == right.batch_exists([key]) == 1
    first, second = (pools.kv.get_data_page(p * PAGE).clone() for p in (0, 1))
    assert left.batch_get_v1([key], slots(3)) == right.batch_get_v1([key], slots(4)) == [True]
    assert torch.equal(pools.kv.get_data_page(3 * PAGE), first)
    assert torch.equal(pools.kv.get_data_page(4 * PAGE), second)


def test_a_daemon_that_is_away_is_a_miss(
    daemon: Daemon, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    pools = hosts()
    backend = make(daemon.socket, pools, timeout_ms=50.0, load_ms=100.0)
    keys = chain("a", 4)
    store(backend, keys)
    daemon.pause()
    began = time.monotonic()
    assert backend.batch_exists(keys) == 0
    assert backend.batch_get_v1(keys, slots(4, 5, 6, 7)) == [False] * 4
    assert time.monotonic() - began < 3
    daemon.resume()
    daemon.kill()
    began = time.monotonic()
    assert backend.batch_exists_v2(keys, wanted(), info([])).kv_hit_pages == 0
    assert backend.batch_set_v1(keys, slots(0, 1, 2, 3)) == [False] * 4
    assert backend.batch_get_v2([state(keys[-1], 1)], info(keys[:-1])) == {"mamba": [False]}
    assert time.monotonic() - began < 3
    counts = backend.tally.snapshot()
    assert counts["load_failures"] >= 5 and counts["save_failures"] == 4


def test_pages_survive_both_restarts(start_daemon: Any, make: Make) -> None:
    daemon = start_daemon("-ack-level=synced", disk=True)
    pools = hosts()
    randomise(pools, 8)
    keys = chain("a", 2)
    store(make(daemon.socket, pools), keys)
    want = [pools.kv.get_data_page(p * PAGE).clone() for p in (0, 1)]
    daemon.stop()
    daemon.start()
    other = hosts("layer_first")
    backend = make(daemon.socket, other, load_ms=20_000.0)
    found = backend.batch_exists_v2(keys, wanted(), info([]))
    assert found.kv_hit_pages == 2
    assert backend.batch_get_v1(keys, slots(2, 3)) == [True, True]
    assert backend.batch_get_v2([state(keys[-1], 1)], info(keys[:-1])) == {"mamba": [True]}
    got = [other.kv.kv_buffer[:, :, p * PAGE : (p + 1) * PAGE] for p in (2, 3)]
    flat = [x.transpose(1, 2).flatten() for x in got]  # as page_first has it
    assert all(torch.equal(a, b) for a, b in zip(flat, want, strict=True))


def test_what_does_not_fit_is_left_alone(
    daemon: Daemon, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="spliced.sglang"):
        piped = make(daemon.socket, hosts(), pp_size=2)
        pools = hosts()
        pools.kv.kv_buffer = pools.kv.kv_buffer[..., :8]
        pools.states.temporal_buffer = pools.states.temporal_buffer.transpose(-1, -2)
        odd = make(daemon.socket, pools)
    for backend in (piped, odd):
        assert backend.rows is None and backend.states is None
        assert backend.batch_exists(["aa"]) == 0
        assert backend.batch_exists_v2(["aa"], wanted(), info([])).kv_hit_pages == 0
        assert backend.batch_set_v1(["aa"], slots(0)) == [False]
        assert backend.batch_get_v2([state("aa", 1)], info([])) == {"mamba": [False]}
        assert backend.tally.snapshot()["inert"] >= 1
    said = " ".join(r.getMessage() for r in caplog.records)
    assert "pipeline parallelism" in said and "KV pool of shape" in said
    assert "MAMBA pool of shapes" in said


WRITES: dict[str, Callable[[Runner], object]] = {
    "an update": lambda _: weights_of().replace(),
    "bytes": lambda r: r.model.weight.data.zero_(),
    "another parameter": lambda r: setattr(
        r.model, "weight", torch.nn.Parameter(torch.zeros(4, 4))
    ),
}


@pytest.mark.parametrize("way", WRITES)
def test_pages_of_other_weights_are_neither_stored_nor_found(
    daemon: Daemon, make: Make, runner: Runner, way: str
) -> None:
    backend = make(daemon.socket, hosts())
    assert backend.batch_set_v1(["aa"], slots(0)) == [True]
    assert backend.batch_exists(["aa"]) == 1
    WRITES[way](runner)
    assert backend.batch_exists(["aa"]) == 0
    assert backend.batch_get_v1(["aa"], slots(1)) == [False]
    assert backend.batch_set_v1(["bb"], slots(1)) == [False]
    assert backend.tally.snapshot()["inert"] == 1
    if way == "an update":
        return
    with torch.no_grad():
        runner.model.weight.zero_()
    assert backend.batch_exists(["aa"]) == 0, "it is for good"


def test_weights_that_change_while_a_page_is_read(
    daemon: Daemon, make: Make, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make(daemon.socket, hosts())
    assert backend.batch_set_v1(["aa"], slots(0)) == [True]
    pages = backend.rows
    assert pages is not None
    copy = pages._copy

    def copied(*given: Any) -> bool:
        weights_of().replace()
        return copy(*given)

    monkeypatch.setattr(pages, "_copy", copied)
    assert backend.batch_get_v1(["aa"], slots(1)) == [False]


def test_weights_whose_memory_is_released_are_not_read(
    daemon: Daemon, make: Make, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make(daemon.socket, hosts())
    assert backend.batch_set_v1(["aa"], slots(0)) == [True]
    weights_of().release()

    def read(_: Parameters) -> str:
        raise AssertionError("weights are read")

    with monkeypatch.context() as gone:
        gone.setattr(Parameters, "changed", read)
        assert backend.batch_exists(["aa"]) == 0
        assert backend.batch_set_v1(["bb"], slots(1)) == [False]
    weights_of().resume()
    assert backend.batch_exists(["aa"]) == 1, "the same weights have come back"
    weights_of().release()
    runner.model.bias.data.fill_(7)
    weights_of().resume()
    assert backend.batch_exists(["aa"]) == 0


def test_without_a_model_to_watch_nothing_is_kept(
    daemon: Daemon, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_backend, "engine_weights", EngineWeights())
    backend = make(daemon.socket, hosts())
    assert backend.rows is None
    assert backend.batch_set_v1(["aa"], slots(0)) == [False]
    assert backend.tally.snapshot()["inert"] == 1


@pytest.mark.parametrize(
    ("load_format", "why"), [("npcache", "load_format 'npcache'"), ("auto", "safetensors: none in")]
)
def test_files_that_do_not_name_the_weights_are_left_alone(
    daemon: Daemon,
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    load_format: str,
    why: str,
) -> None:
    args = SimpleNamespace(
        model_path=str(tmp_path), load_format=load_format, revision=None, download_dir=None
    )
    monkeypatch.setattr(sglang_backend, "get_server_args", lambda: args)
    with caplog.at_level(logging.WARNING, logger="spliced.sglang"):
        backend = make(daemon.socket, hosts())
    assert backend.rows is None
    assert why in caplog.text
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    args.load_format = "safetensors"
    assert make(daemon.socket, hosts()).rows is not None


def test_settings_that_are_wrong_end_the_start(make: Make, tmp_path: Path) -> None:
    pools = hosts()
    with pytest.raises(ValueError, match=r"tiemout_ms: unknown.*load_ms: 0, want"):
        make("/nowhere", pools, wait=False, tiemout_ms=5, load_ms=0)
    with pytest.raises(ValueError, match="no safetensors"):
        make("/nowhere", pools, wait=False, weights="")
    with pytest.raises(ValueError, match="No such file"):
        make("/nowhere", pools, wait=False, model=str(tmp_path / "none"))


def test_names_tell_pages_apart() -> None:
    names = {
        page_name(b"f" * 32, b"s", 8, "aa"),
        page_name(b"g" * 32, b"s", 8, "aa"),
        page_name(b"f" * 32, b"t", 8, "aa"),
        page_name(b"f" * 32, b"s", 0, "aa"),
        page_name(b"f" * 32, b"s", 8, "ab"),
    }
    assert len(names) == 5
