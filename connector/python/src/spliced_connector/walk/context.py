"""The state and rows of a request's past tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spliced_connector.model import Kind
from spliced_connector.walk.base import Architecture
from spliced_connector.walk.paged import PagedRows, Pages


@dataclass(slots=True)
class LayerContext:
    """The state and rows of one layer.

    A linear layer has state [Hv, dk, dv] (float32, or float64 in a float64 model) and conv
    [k-1, C]. An attention layer has k [room, KV, dk] and v [room, KV, dv], with keys rotated to
    their positions; rows after the context's tokens are not set. An attention layer whose rows
    are read in place has `pages` instead of k and v."""

    state: Tensor | None = None
    conv: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    pages: PagedRows | None = None


class Context:
    """Everything that is needed to continue a prompt after its first `tokens` tokens.

    `spliced` is set once a segment in the middle of the prompt has gone into the context; it
    stays set.
    """

    def __init__(self, arch: Architecture, room: int, device: torch.device) -> None:
        self.tokens = 0
        self.spliced = False
        self.device = device
        self.layers = [LayerContext() for _ in arch.layers]
        wide = torch.float64 if arch.dtype == torch.float64 else torch.float32
        for at, described in zip(self.layers, arch.identity.layers, strict=True):
            if described.kind == Kind.LINEAR:
                d = described.linear
                shape = (d.value_heads, d.key_dim, d.value_dim)
                at.state = torch.zeros(shape, dtype=wide, device=device)
                if d.conv.rows:
                    tail = (d.conv.rows, sum(d.conv.channels))
                    at.conv = torch.zeros(tail, dtype=arch.dtype, device=device)
            elif described.kind != Kind.NONE:
                a = described.attention
                at.k = torch.empty((room, a.kv_heads, a.key_dim), dtype=arch.dtype, device=device)
                at.v = torch.empty((room, a.kv_heads, a.value_dim), dtype=arch.dtype, device=device)

    def reserve(self, room: int, spare: int = 0) -> None:
        """Makes room for the rows of `room` tokens. If memory must grow, it grows by `spare` more
        tokens, so that small steps do not copy every time. Existing views of rows stay valid.
        """
        for at in self.layers:
            if at.k is not None and at.v is not None and at.k.shape[0] < room:
                at.k, at.v = (_grown(x, room + spare, self.tokens) for x in (at.k, at.v))

    def page(self, arch: Architecture, pages: Pages) -> None:
        """Copies the rows of full-attention layers to pages, which hold them from now on."""
        for at, described in zip(self.layers, arch.identity.layers, strict=True):
            a = described.attention
            if described.kind != Kind.FULL or a.window or at.k is None or at.v is None:
                continue
            k, v = at.k[: self.tokens], at.v[: self.tokens]
            at.k, at.v, at.pages = None, None, PagedRows(pages, a.rope, k, v)

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Returns an attention layer's keys and values [tokens, KV, d]: views, or copies if the
        layer has pages."""
        at = self.layers[layer]
        if at.pages is not None:
            return at.pages.whole(self.tokens)
        if at.k is None or at.v is None:
            raise ValueError(f"layer {layer} keeps no rows")
        return at.k[: self.tokens], at.v[: self.tokens]

    def snapshot(self) -> Context:
        """Returns a copy that does not change when walks continue this context. Tensors are shared,
        because walks replace states and convolution inputs, and only append rows."""
        out = Context.__new__(Context)
        out.tokens, out.spliced, out.device = self.tokens, self.spliced, self.device
        out.layers = [LayerContext(a.state, a.conv, a.k, a.v, a.pages) for a in self.layers]
        return out


def _grown(x: Tensor, room: int, used: int) -> Tensor:
    out = x.new_empty((room, *x.shape[1:]))
    out[:used] = x[:used]
    return out
