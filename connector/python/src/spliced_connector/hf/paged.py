"""Attention of transformers' models over pages: layers of a cache without copies of segments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, cast

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from spliced_connector.hf.forward import step
from spliced_connector.model import Kind
from spliced_connector.walk import Architecture, Context, GoneError, PagedRows, Pages, Stretch

NAME = "spliced_pages"

LIFE = 300.0
"""Lifetime of leases of segments that are read in place, in seconds; copies are made after half
of it. A daemon with a lower max-lease-ttl refuses such leases, and rows are copied as usual."""


class Leased(Protocol):
    """A lease of a segment, in host memory or on the GPU."""

    @property
    def valid(self) -> bool: ...


class Loan:
    """Leased segments that a request reads in place."""

    def __init__(
        self, segments: Sequence[Leased], taken: float, release: Callable[[], bool]
    ) -> None:
        """taken: when the leases were requested, by time.monotonic. release: releases the leases,
        and returns whether they were valid until then."""
        self._segments = list(segments)  # dropped with this object, they release themselves
        self._release = release
        self._rows: list[PagedRows] = []
        self._until = taken + LIFE
        self._good = True
        self._copied = not segments

    def reads(self, rows: Sequence[PagedRows]) -> None:
        """Records rows that are read, so that `extend` finds them."""
        self._rows += rows

    @property
    def good(self) -> bool:
        """Whether all that was read until now was valid, as far as the client knows."""
        if not self._segments:
            return self._good
        return all(s.valid for s in self._segments) and time.monotonic() < self._until

    @property
    def readable(self) -> bool:
        """Whether the rows can still be read. If True after a use, the data that was used is
        valid."""
        return self._good if self._copied else bool(self._segments) and self.good

    def extend(self) -> None:
        """Keeps the rows available: copies are made after half of the leases' life. Raises
        `GoneError` if they are gone."""
        if self._segments and time.monotonic() > self._until - LIFE / 2:
            for rows in self._rows:
                rows.copy()
            self._copied = self.end()
        if not self.readable:
            raise GoneError("the leases of rows that are read in place have ended")

    def end(self) -> bool:
        """Releases the leases. Returns whether all that was read was valid."""
        segments, self._segments, self._rows = self._segments, [], []
        if segments:
            in_time = time.monotonic() < self._until
            self._good = self._release() and in_time
        return self._good


class PagedLayer(DynamicLayer):  # type: ignore[misc, unused-ignore]
    """A layer of a cache whose rows are in pages; a batch of one."""

    def __init__(self, rows: PagedRows, tokens: int, loan: Loan | None) -> None:
        super().__init__()
        self.rows = rows
        self.is_initialized = True
        self._length = tokens
        self._loan = loan
        if loan is not None:
            loan.reads([rows])

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Adds rows. Returns the new keys, which tell `attend_pages` where all rows are, and the
        new values."""
        if len(key_states) != 1:
            raise ValueError(f"rows in pages are of one line, these of {len(key_states)}")
        if self._loan is not None:
            self._loan.extend()
        new = [(self._length, key_states.shape[-2])]
        self.rows.put(new, *(x[0].transpose(0, 1) for x in (key_states, value_states)))
        self._length = sum(new[0])
        keys = key_states.view_as(key_states)
        keys.spliced_pages = (self.rows, new)  # type: ignore[attr-defined, unused-ignore]
        return keys, value_states

    def get_seq_length(self) -> int:
        return self._length

    def crop(self, tokens_to_remove: int) -> None:
        """As in `DynamicLayer`: a negative number removes that many last rows, a positive number
        keeps that many first rows. Later rows replace the removed rows."""
        if tokens_to_remove > 0:
            self._length = min(self._length, tokens_to_remove)
        else:
            self._length = max(0, self._length + tokens_to_remove)

    def reset(self) -> None:
        raise NotImplementedError("rows in pages belong to one prompt")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise NotImplementedError("rows in pages are of one line")

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise NotImplementedError("rows in pages are of one line")

    def batch_select_indices(self, indices: Tensor) -> None:
        raise NotImplementedError("rows in pages are of one line")


def held_bytes(caches: Iterable[Cache]) -> int:
    """Returns the bytes of keys and values of all requests; a segment that is read in place
    counts once."""
    own = 0
    shared: dict[int, int] = {}  # by address
    for cache in caches:
        for layer in cache.layers:
            if isinstance(layer, PagedLayer):
                own += layer.rows.own_bytes
                shared.update({x.data_ptr(): x.nbytes for x in layer.rows.segments()})
            elif getattr(layer, "keys", None) is not None:
                own += layer.keys.nbytes + layer.values.nbytes
    return own + sum(shared.values())


def attend_pages(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """An attention function for transformers. It attends over pages if the keys come from a
    `PagedLayer`, and otherwise as "sdpa" does."""
    found = getattr(key, "spliced_pages", None)
    if found is None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return out, None
    rows, new = cast("tuple[PagedRows, list[Stretch]]", found)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return rows.attend(query[0].transpose(0, 1), new, scale)[None], None


AttentionInterface.register(NAME, attend_pages)
AttentionMaskInterface.register(NAME, sdpa_mask)


def why_not(model: PreTrainedModel, arch: Architecture) -> str:
    """Returns why rows of this model cannot be read in place; empty if they can. Tries it with
    three tokens."""
    slots = [
        slot
        for slot, described in zip(arch.slots, arch.identity.layers, strict=True)
        if described.kind == Kind.FULL and not described.attention.window
    ]
    if not slots:
        return "no layer of full attention"
    before = model.config._attn_implementation
    if before not in ("sdpa", NAME):
        return f"its attention is {before}, not sdpa"
    line = torch.tensor([[3, 1, 2]], device=model.device)
    try:
        with torch.no_grad():
            want = model(line, use_cache=False).logits
            context = Context(arch, 0, model.device)
            context.page(arch, Pages(model.device))
            cache = DynamicCache(config=model.config)
            for slot, at in zip(arch.slots, context.layers, strict=True):
                if at.pages is not None:
                    cache.layers[slot] = PagedLayer(at.pages, 0, None)
            model.set_attn_implementation(NAME)
            step(model, cache, line[0, :2], 0)
            got = step(model, cache, line[0, 2:], 2)
    except Exception as err:  # a model's own code may raise anything for an unknown cache
        return f"{type(err).__name__}: {err}"
    finally:
        model.set_attn_implementation(before)
    spread = float(want.std()) or 1.0
    far = float((got - want[0, -1]).abs().max()) / spread
    # attention over wrong rows is off by 1 and more
    bound = 0.05 if arch.dtype.itemsize > 2 else 0.5
    return (
        "" if far < bound else f"its attention does not go through AttentionInterface ({far:.2g})"
    )
