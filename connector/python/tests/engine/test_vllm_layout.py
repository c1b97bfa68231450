"""Where rows lie, found out from functions that file them in every order there was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spliced_connector.model import Attention, DType, Identity, Kind, Layer, Profile
from spliced_connector.vllm.caches import RowPages, UnsupportedError
from spliced_connector.vllm.layout import rows as vllm_rows
from spliced_connector.vllm.layout.rows import find_rows

pytestmark = pytest.mark.engine

HEADS, DK, DV, STEP, BLOCKS = 3, 8, 4, 16, 6
PROFILE = Profile(
    Identity("m", b"w" * 32, (Layer(Kind.FULL, attention=Attention(HEADS, DK, DV, DType.BF16)),))
)
SQUARE = Profile(
    replace(
        PROFILE.identity,
        layers=(Layer(Kind.FULL, attention=Attention(HEADS, DK, DK, DType.BF16)),),
    )
)

File = Callable[[Tensor, Tensor, Tensor, Tensor], None]


class FakeLayer:
    """An attention layer of an engine that files rows by a function."""

    def __init__(self, cache: Tensor, file: File) -> None:
        self.kv_cache = cache
        self.impl = self
        self._file = file

    def do_kv_cache_update(
        self, layer: object, k: Tensor, v: Tensor, cache: Tensor, slots: Tensor
    ) -> None:
        assert layer is self
        self._file(k, v, cache, slots)


def split_in_front(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """[2, blocks, tokens, heads, dim]."""
    for side, rows in ((0, k), (1, v)):
        cache[side, slots // STEP, slots % STEP] = rows


def heads_first(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """[blocks, heads, tokens, keys then values]."""
    cache[slots // STEP, :, slots % STEP] = torch.cat((k, v), dim=-1)


def tokens_first(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """[blocks, tokens, heads, keys then values]."""
    cache[slots // STEP, slots % STEP] = torch.cat((k, v), dim=-1)


def packed(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Keys in columns and values by pairs of tokens, in memory that has the shape of the others."""
    blocks = cache.view(cache.shape[0], HEADS, STEP * 2, -1)
    keys, values = blocks.chunk(2, dim=2)
    for row, slot in enumerate(slots.tolist()):
        block, token = divmod(slot, STEP)
        keys[block].view(HEADS, DK, STEP)[:, :, token] = k[row]
        pairs = values[block].view(HEADS, STEP // 2, DK, 2)
        pairs[:, token // 2, :, token % 2] = v[row]


def holed(*shape: int) -> Tensor:
    """Blocks that are part of longer pages, behind something else."""
    inner = torch.Size(shape[1:]).numel()
    pages = torch.zeros(shape[0], inner + 37, dtype=torch.bfloat16)
    return pages.as_strided(shape, (inner + 37, *torch.empty(shape).stride()[1:]), 5)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


CASES = {
    "split in front": (_zeros(2, BLOCKS, STEP, HEADS, DK), split_in_front, SQUARE),
    "heads first": (_zeros(BLOCKS, HEADS, STEP, DK + DV), heads_first, PROFILE),
    "tokens first": (_zeros(BLOCKS, STEP, HEADS, DK + DV), tokens_first, PROFILE),
    "in pages": (holed(BLOCKS, HEADS, STEP, DK + DV), heads_first, PROFILE),
    "packed": (_zeros(BLOCKS, HEADS, STEP, 2 * DK), packed, SQUARE),
}


def rows_of(profile: Profile, n: int) -> tuple[Tensor, Tensor]:
    attention = profile.identity.layers[0].attention
    return tuple(
        torch.randn(n, HEADS, dim).bfloat16() for dim in (attention.key_dim, attention.value_dim)
    )


@pytest.mark.parametrize("case", CASES)
def test_rows_come_back_from_where_the_engine_files_them(case: str) -> None:
    torch.manual_seed(0)
    cache, file, profile = CASES[case]
    layer = FakeLayer(cache, file)
    pages = RowPages(layer, find_rows(layer, profile, 0), STEP)
    table = [4, 1, 3]
    k, v = rows_of(profile, 3 * STEP)
    slots = torch.cat([torch.arange(STEP) + block * STEP for block in table])
    file(k, v, cache, slots)
    for begin, end in ((0, 3 * STEP), (0, 1), (5, STEP), (STEP - 1, STEP + 1), (7, 3 * STEP - 2)):
        read = pages.read(table, begin, end)
        assert torch.equal(read[0], k[begin:end])
        assert torch.equal(read[1], v[begin:end])
    whole = cache.clone()
    cache.zero_()
    for begin, end in ((0, 5), (5, 2 * STEP + 1), (2 * STEP + 1, 3 * STEP)):
        pages.write(table, begin, k[begin:end], v[begin:end])
    assert torch.equal(cache, whole)


class LatentLayer:
    """Latent attention: a row is the latent, then the shared key."""

    kv_lora_rank, kv_cache_dtype, _k_scale = 8, "auto", None

    def __init__(self, cache: Tensor) -> None:
        self.kv_cache = cache
        self.impl = self

    def do_kv_cache_update(
        self, latent: Tensor, k: Tensor, cache: Tensor, slots: Tensor, dtype: str, scale: None
    ) -> None:
        cache[slots // STEP, slots % STEP] = torch.cat((latent, k.squeeze(1)), dim=-1)


class FusedLayer:
    """The same, filed while queries are prepared."""

    def __init__(self, cache: Tensor) -> None:
        self.kv_cache = cache

    def _decode_concat_cache(
        self,
        absorbed: Tensor,
        q: Tensor,
        latent: Tensor,
        k: Tensor,
        positions: Tensor | None,
        angles: Tensor | None,
        slots: Tensor,
    ) -> Tensor:
        assert positions is None
        assert angles is None
        self.kv_cache[slots // STEP, slots % STEP] = torch.cat((latent, k), dim=-1)
        return torch.cat((absorbed, q), dim=-1)


@pytest.mark.parametrize("kind", [LatentLayer, FusedLayer])
def test_latent_rows_come_back(kind: Callable[[Tensor], object]) -> None:
    latent = Layer(Kind.MLA, attention=Attention(1, 4, 8, DType.BF16))
    profile = Profile(replace(PROFILE.identity, layers=(latent,)))
    cache = _zeros(BLOCKS, STEP, 12)
    layer = kind(cache)
    pages = RowPages(layer, find_rows(layer, profile, 0), STEP)
    assert not cache.any()
    k, v = torch.randn(20, 1, 4).bfloat16(), torch.randn(20, 1, 8).bfloat16()
    pages.write([5, 2], 3, k, v)
    assert torch.equal(cache[5, 3:], torch.cat((v, k), dim=-1)[: STEP - 3, 0])
    read = pages.read([5, 2], 3, 23)
    assert torch.equal(read[0], k)
    assert torch.equal(read[1], v)


def test_blocks_of_kernels_may_be_smaller_than_those_of_tables() -> None:
    cache = torch.zeros(BLOCKS, HEADS, STEP, DK + DV).bfloat16()
    layer = FakeLayer(cache, heads_first)
    pages = RowPages(layer, find_rows(layer, PROFILE, 0), 2 * STEP)
    k, v = rows_of(PROFILE, 3 * STEP)
    pages.write([2, 0], 0, k, v)
    assert torch.equal(cache[4, 0, :, :DK], k[:STEP, 0])
    assert torch.equal(cache[5, 0, :, :DK], k[STEP : 2 * STEP, 0])
    assert torch.equal(cache[0, 2, :, DK:], v[2 * STEP :, 2])
    assert torch.equal(pages.read([2, 0], 3, 3 * STEP)[1], v[3:])


def rounding(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    heads_first(k / 8, v, cache, slots)


def elsewhere(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    heads_first(k, v, cache, slots - 1)


def first_head(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    cache[slots // STEP, 0, slots % STEP] = torch.cat((k, v), dim=-1)[:, 0]


def nothing(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    pass


@pytest.mark.parametrize("file", [rounding, elsewhere, first_head, nothing])
def test_what_does_not_come_back_is_refused(file: File) -> None:
    layer = FakeLayer(torch.zeros(BLOCKS, HEADS, STEP, DK + DV).bfloat16(), file)
    with pytest.raises(UnsupportedError):
        find_rows(layer, PROFILE, 0)


@pytest.mark.parametrize("shape", [(BLOCKS, STEP), (BLOCKS, HEADS, STEP, DK + DV + 1)])
def test_caches_of_another_size_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedError, match="cache"):
        find_rows(FakeLayer(torch.zeros(shape).bfloat16(), heads_first), PROFILE, 0)


def test_spread_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = torch.zeros(HEADS, 64, STEP, DK + DV).bfloat16().permute(1, 0, 2, 3)
    find_rows(FakeLayer(cache, heads_first), PROFILE, 0)
    monkeypatch.setattr(vllm_rows, "MOST_SCRATCH", cache.numel())
    with pytest.raises(UnsupportedError, match="spread"):
        find_rows(FakeLayer(cache, heads_first), PROFILE, 0)
