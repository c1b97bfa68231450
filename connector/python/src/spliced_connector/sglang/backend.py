"""SGLang's HiCache with the daemon as its storage tier (`--hicache-storage-backend dynamic`).

The tier has pages of keys and values, and recurrent states where tree nodes end (see `pages`).
SGLang calls it from its storage threads, not from the thread that runs the model.

It was run with the classes, host pools and allocators of SGLang 0.5.23 and a real daemon, but never
inside a running engine: HiCache pins host memory, for which SGLang needs a GPU's driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.runtime_context import get_server_args

from spliced_connector import __version__
from spliced_connector.client import Client, Options
from spliced_connector.model import DType, Identity
from spliced_connector.serving.inert import Inert
from spliced_connector.serving.parameters import Parameters
from spliced_connector.serving.weights import named_weights
from spliced_connector.sglang.pages import Pages, PageTally, log
from spliced_connector.sglang.pools import Pool, RowPool, StatePool, Unfit, conv_dtype, kv_dtype
from spliced_connector.sglang.settings import HiCacheSettings
from spliced_connector.sglang.support import loading_of
from spliced_connector.sglang.weights import engine_weights
from spliced_connector.walk import part_bytes


class SplicedHiCache(HiCacheStorage):  # type: ignore[misc]
    """Stores and finds pages of one rank.

    If the daemon is absent, slow or newly started, lookups miss. A pool of unknown form is not
    used, and a line in the log says why. Only the constructor raises errors.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: object = None) -> None:
        """Raises ValueError for invalid settings or an invalid model."""
        self._config = storage_config
        self._settings = HiCacheSettings.read(
            storage_config.extra_config, storage_config.model_name
        )
        self._refusal = _refusal(storage_config)
        self._weights = self._named()
        self._identity(DType.BF16)  # checks the config while an error still stops the start
        self.tally = PageTally()
        self.rows: Pages | None = None
        self.states: Pages | None = None
        self._warned = False
        self._watched: Parameters | None = None
        if not self._refusal:
            try:
                self._watched = engine_weights.watch()
            except Inert as err:
                self._refusal = str(err)
        if self._refusal:
            self._leave("everything", self._refusal)
        self.client = Client(
            Options(
                socket=self._settings.socket,
                name=f"sglang {sglang.__version__}",
                tenants=((self._settings.tenant, self._settings.token),),
                timeout=self._settings.timeout_ms / 1000,
            )
        )

    def register_mem_pool_host(self, mem_pool_host: object) -> None:
        """Registers the pool of keys and values."""
        super().register_mem_pool_host(mem_pool_host)
        self._take(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: object, host_pool_name: str) -> None:
        """Registers a pool of a hybrid model. Pools other than KV and MAMBA never have hits."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name == PoolName.MAMBA:
            self._take(PoolName.MAMBA, host_pool)

    def exists(self, key: str) -> bool:
        """Returns whether one page of keys and values is stored."""
        return self.batch_exists([key]) == 1

    def batch_exists(
        self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> int:
        """Returns how many leading pages of keys and values are stored."""
        return 0 if self.rows is None else self.rows.leading(keys, self._until("exists_ms"))

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """Returns the longest prefix that can be restored: all its pages, and a state at its end
        if `pool_transfers` asks for states."""
        until = self._until("exists_ms")
        held = 0 if self.rows is None else self.rows.leading(keys, until)
        hits = {PoolName.KV: held} if held else {}
        restorable = list(range(1, held + 1))
        for transfer in pool_transfers or []:
            ends = self._ends(transfer, keys[:held], extra_info, until)
            if ends:
                hits[transfer.name] = ends[-1]
            restorable = [n for n in restorable if n in ends]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def batch_get_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Fills pages of keys and values. Returns True for each filled page, and False from the
        first miss on."""
        return self._get(self.rows, keys, host_indices)

    def batch_set_v1(
        self,
        keys: list[str],
        host_indices: torch.Tensor,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> list[bool]:
        """Stores pages of keys and values."""
        if self.rows is None:
            return [False] * len(keys)
        return self._set(self.rows, keys, host_indices, [self.rows.pool.page_tokens] * len(keys))

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Fills pages of several pools."""
        return {
            transfer.name: self._get(
                self._pages(transfer.name), transfer.keys or [], transfer.host_indices
            )
            for transfer in transfers
        }

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Stores pages of several pools."""
        done: dict[str, list[bool]] = {}
        for transfer in transfers:
            keys = transfer.keys or []
            if transfer.name == PoolName.MAMBA:
                done[transfer.name] = self._set_states(transfer, extra_info)
            elif transfer.name == PoolName.KV and transfer.host_indices is not None:
                done[transfer.name] = self.batch_set_v1(keys, transfer.host_indices, extra_info)
            else:
                done[transfer.name] = [False] * len(keys)
        return done

    def get(
        self, key: str, target_location: object = None, target_sizes: object = None
    ) -> torch.Tensor | None:
        """Fills a flat page of keys and values, in the form of the pool's
        `get_dummy_flat_data_page`."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: object = None, target_sizes: object = None
    ) -> list[torch.Tensor | None]:
        """Does what `get` does, for several pages. Results are None from the first miss on."""
        pages = list(target_locations) if isinstance(target_locations, list | tuple) else []
        flat = self._flat(len(keys), pages)
        if self.rows is None or flat is None:
            return [None] * len(keys)
        done = self.rows.load(keys, flat, self._until("load_ms"))
        return [page if good else None for page, good in zip(pages, done, strict=True)]

    def set(
        self,
        key: str,
        value: object = None,
        target_location: object = None,
        target_sizes: object = None,
    ) -> bool:
        """Stores a flat page of keys and values, in the form of the pool's `get_data_page`."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: object = None,
        target_locations: object = None,
        target_sizes: object = None,
    ) -> bool:
        """Does what `set` does, for several pages. Returns whether all pages are stored."""
        pages = list(values) if isinstance(values, list | tuple) else []
        flat = self._flat(len(keys), pages)
        if self.rows is None or flat is None:
            return False
        size = self.rows.pool.page_tokens
        layout = self.rows.pool.profile.checkpoint_layout(size)
        return all(
            self.rows.save_parts(keys, [size] * len(keys), lambda i: part_bytes(layout, flat(i)))
        )

    def clear(self) -> bool:
        """Does nothing and returns False: the daemon's data is shared with other engines."""
        log.warning("spliced: the daemon keeps its pages, other engines may use them")
        return False

    def close(self) -> None:
        """Ends the connection."""
        self.client.close()

    def _named(self) -> bytes:
        """Returns the digest of the loaded weights. If these are not the weights that the settings
        name, nothing is stored."""
        try:
            args = get_server_args()
        except ValueError:  # there is no engine in this process
            return self._settings.digest()
        try:
            return named_weights(self._settings, loading_of(args))
        except Inert as err:
            self._refusal = self._refusal or str(err)
            return bytes(32)

    def _identity(self, dtype: DType) -> Identity:
        return self._settings.identity(self._weights, self._config.tp_size, dtype)

    def _take(self, name: str, host_pool: object) -> None:
        if self._refusal:
            return
        try:
            if name == PoolName.MAMBA:
                states = StatePool(host_pool, self._identity(conv_dtype(host_pool)))
                self.states = self._register(states)
            else:
                rows = RowPool(host_pool, self._identity(kv_dtype(host_pool)))
                self.rows = self._register(rows)
        except (Unfit, ValueError) as err:
            self._leave(f"pool {name}", str(err))

    def _register(self, pool: Pool) -> Pages:
        model = self.client.model(
            pool.profile.identity,
            tenant=self._settings.tenant,
            rank=self._config.tp_rank,
            connector=f"sglang {__version__}",
            engine=f"sglang {sglang.__version__}",
        )
        return Pages(model, pool, self.tally, self._shares)

    def _shares(self) -> bool:
        """Returns whether pages may be stored and found, which requires that the engine still has
        the weights that name the pages."""
        watched = self._watched
        if watched is None or self._refusal:
            return False
        if why := engine_weights.trouble(watched):
            self._refusal = f"its weights have changed ({why}): restart it"
            self._leave("everything", self._refusal)
        return not why and not engine_weights.released

    def _leave(self, what: str, why: str) -> None:
        self.tally.add("inert")
        log.warning("spliced: %s is left alone: %s", what, why)

    def _pages(self, name: str) -> Pages | None:
        return {PoolName.KV: self.rows, PoolName.MAMBA: self.states}.get(name)

    def _until(self, setting: str) -> float:
        return time.monotonic() + float(getattr(self._settings, setting)) / 1000

    def _ends(
        self,
        transfer: PoolTransfer,
        keys: list[str],
        extra_info: HiCacheStorageExtraInfo | None,
        until: float,
    ) -> list[int]:
        """Returns the numbers of leading pages after which a pool can be restored, ascending."""
        one = transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES and len(transfer.keys or "x") == 1
        if transfer.name != PoolName.MAMBA or not one or self.states is None or self.rows is None:
            return []
        before = len((extra_info.prefix_keys if extra_info else None) or ())
        size = self.rows.pool.page_tokens
        positions = [(before + i + 1) * size for i in range(len(keys))]
        ends = self.states.ends(keys, positions, until)
        if keys:
            self.tally.add("hit_states" if ends else "missed_states")
        return ends

    def _get(
        self, pages: Pages | None, keys: Sequence[str], indices: torch.Tensor | None
    ) -> list[bool]:
        starts = None if pages is None else _starts(pages, len(keys), indices)
        if pages is None or starts is None:
            return [False] * len(keys)
        pool = pages.pool
        return pages.load(keys, lambda i: pool.page(starts[i]), self._until("load_ms"))

    def _set(
        self,
        pages: Pages,
        keys: Sequence[str],
        indices: torch.Tensor | None,
        ends: Sequence[int],
    ) -> list[bool]:
        starts = _starts(pages, len(keys), indices)
        return [False] * len(keys) if starts is None else pages.save(keys, ends, starts)

    def _set_states(
        self, transfer: PoolTransfer, extra_info: HiCacheStorageExtraInfo | None
    ) -> list[bool]:
        keys = transfer.keys or []
        before = None if extra_info is None else extra_info.prefix_keys
        if before is None and not self._warned:
            self._warned = True
            log.warning(
                "spliced: no state is stored without "
                '"hicache_storage_pass_prefix_keys": true in the extra config'
            )
        if before is None or self.states is None or self.rows is None:
            self.tally.add("unplaced", len(keys))
            return [False] * len(keys)
        size = self.rows.pool.page_tokens
        ends = [(len(before) + i + 1) * size for i in range(len(keys))]
        return self._set(self.states, keys, transfer.host_indices, ends)

    def _flat(self, keys: int, pages: list[object]) -> Callable[[int], list[torch.Tensor]] | None:
        """Returns a function from a page's number to views of that flat page. Returns None if the
        pages have another form."""
        pool = None if self.rows is None else self.rows.pool
        if not isinstance(pool, RowPool) or len(pages) != keys:
            return None
        try:
            views = [pool.flat(page) for page in pages if isinstance(page, torch.Tensor)]
        except Unfit as err:
            self._leave("a page", str(err))
            return None
        return views.__getitem__ if len(views) == keys else None


def _refusal(config: HiCacheStorageConfig) -> str:
    """Returns why this engine's pages cannot be stored, empty if they can."""
    for is_so, what in (
        (config.pp_size > 1, "pipeline parallelism"),
        (config.attn_cp_size > 1 or config.dcp_size > 1, "context parallelism"),
        (config.is_mla_model, "MLA"),
        (config.should_split_heads, "heads split for another number of ranks"),
    ):
        if is_so:
            return f"{what} is not supported"
    return ""


def _starts(pages: Pages, keys: int, indices: torch.Tensor | None) -> list[int] | None:
    """Returns the first slot of each page; None if the number of slots does not fit the keys."""
    size = max(pages.pool.page_tokens, 1)
    if indices is None or indices.numel() != keys * size:
        return None
    return [int(i) for i in indices.flatten()[::size].tolist()]
