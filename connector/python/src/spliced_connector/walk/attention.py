"""Softmax attention of transformers' models: grouped queries, and latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from spliced_connector.model import Attention, DType, KeyMode, Kind, Rope, refused_window
from spliced_connector.walk.base import AttentionRows
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    head_dim,
    maybe_child,
    number,
    plain_weight,
)
from spliced_connector.walk.rope import Turn, rope_of, turn_of


@dataclass(frozen=True)
class Grouped:
    """Grouped-query attention with projections q_proj, k_proj, v_proj, o_proj.

    If the module has norms named q_norm and k_norm, they apply to each head, or to the whole row if
    `norm_rows` is set. `turn` rotates queries and keys; None: no rotation. `extra` maps "q", "k"
    or "v" to a module whose output is added to the output of that projection.
    """

    module: nn.Module
    heads: int
    kv_heads: int
    dim: int
    scale: float
    rope: Rope
    turn: Turn | None
    norm_rows: bool = False
    key_scale: float = 1.0
    extra: Mapping[str, nn.Module] = field(default_factory=dict)

    kind = Kind.FULL

    def __post_init__(self) -> None:
        check_turn(self.turn, self.rope)

    def describe(self, dtype: DType) -> Attention:
        return Attention(
            kv_heads=self.kv_heads,
            key_dim=self.dim,
            value_dim=self.dim,
            dtype=dtype,
            keys=KeyMode.AT_ZERO,
            rope=self.rope,
        )

    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows:
        q = self._project("q", x, self.heads)
        k = self._project("k", x, self.kv_heads)
        v = self._project("v", x, self.kv_heads)
        if self.key_scale != 1.0:
            k = k * self.key_scale
        if self.turn is not None:
            q, k = self.turn(q, positions), self.turn(k, positions)
        return AttentionRows(q=q, k=k, v=v)

    def _project(self, name: str, x: Tensor, heads: int) -> Tensor:
        flat: Tensor = child(self.module, f"{name}_proj")(x)
        if name in self.extra:
            flat = flat + self.extra[name](x)
        norm = maybe_child(self.module, f"{name}_norm")
        if norm is not None and self.norm_rows:
            flat = norm(flat)
        rows = flat.unflatten(-1, (heads, self.dim))
        if norm is not None and not self.norm_rows:
            rows = norm(rows)
        return rows

    def out(self, o: Tensor, rows: AttentionRows) -> Tensor:
        y: Tensor = child(self.module, "o_proj")(o.flatten(-2))
        return y


def grouped(
    config: object,
    module: nn.Module,
    embedding: nn.Module | None,
    *,
    wide: bool = False,
    norm_rows: bool = False,
    key_scale: float = 1.0,
    extra: Mapping[str, nn.Module] | None = None,
) -> Grouped:
    """Returns the mixer of one attention module.

    embedding: the rotary module, None for NoPE (no positions). Raises UnsupportedError for a
    sliding window.
    """
    dim = head_dim(config)
    if getattr(config, "sliding_window", None) is not None:
        raise UnsupportedError(refused_window())
    return Grouped(
        module=module,
        heads=number(config, "num_attention_heads"),
        kv_heads=number(config, "num_key_value_heads"),
        dim=dim,
        scale=float(getattr(module, "scaling", dim**-0.5)),
        rope=Rope() if embedding is None else rope_of(config, dim),
        turn=None if embedding is None else turn_of(embedding, wide),
        norm_rows=norm_rows,
        key_scale=key_scale,
        extra=extra or {},
    )


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (MLA) in its absorbed form.

    For each token the normalised latent is stored as V, and the key that all heads share as K.
    Queries are mapped into the space of the latents: q is [n, heads, rank + key]. So scores and
    weighted sums read the stored rows directly. `turn` rotates the `key` columns; None: no
    positions. The values [n, heads, value] are multiplied by the result of `gate`, [n, heads, 1
    or value].
    """

    module: nn.Module
    heads: int
    rank: int
    nope: int
    key: int
    value: int
    scale: float
    rope: Rope = field(default_factory=Rope)
    turn: Turn | None = None
    gate: Callable[[Tensor], Tensor] | None = None
    last: str = "o_proj"

    kind = Kind.MLA

    def __post_init__(self) -> None:
        check_turn(self.turn, self.rope)

    def describe(self, dtype: DType) -> Attention:
        return Attention(
            kv_heads=1,
            key_dim=self.key,
            value_dim=self.rank,
            dtype=dtype,
            keys=KeyMode.AT_ZERO,
            rope=self.rope,
        )

    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows:
        q = self._queries(x).unflatten(-1, (self.heads, self.nope + self.key))
        up, _ = self._expansion()
        absorbed = torch.einsum("nhd,hdr->nhr", q[..., : self.nope], up)
        kept: Tensor = child(self.module, "kv_a_proj_with_mqa")(x)
        latent = child(self.module, "kv_a_layernorm")(kept[..., : self.rank])
        asked, k = q[..., self.nope :], kept[:, None, self.rank :]
        if self.turn is not None:
            asked, k = self.turn(asked, positions), self.turn(k, positions)
        return AttentionRows(
            q=torch.cat((absorbed, asked), dim=-1),
            k=k,
            v=latent[:, None],
            rest=() if self.gate is None else (self.gate(x),),
        )

    def _queries(self, x: Tensor) -> Tensor:
        last = maybe_child(self.module, "q_proj")
        if last is None:
            x = child(self.module, "q_a_layernorm")(child(self.module, "q_a_proj")(x))
            last = child(self.module, "q_b_proj")
        q: Tensor = last(x)
        return q

    def _expansion(self) -> tuple[Tensor, Tensor]:
        """Returns two maps [heads, dim, rank], from a latent to each head's key and value."""
        weight = plain_weight(self.module, "kv_b_proj")
        both = weight.unflatten(0, (self.heads, self.nope + self.value))
        return both[:, : self.nope], both[:, self.nope :]

    def out(self, o: Tensor, rows: AttentionRows) -> Tensor:
        _, down = self._expansion()
        values = torch.einsum("nhr,hdr->nhd", o, down)
        if rows.rest:
            values = values * rows.rest[0]
        y: Tensor = child(self.module, self.last)(values.flatten(-2))
        return y


def head_gate(module: nn.Module, heads: int) -> Callable[[Tensor], Tensor] | None:
    """Returns a function from a mixer's input to the factors on its output: one per head, or one
    per value. Returns None if the module has no gate."""
    gate = maybe_child(module, "g_proj")
    if gate is None:
        return None

    def opened(x: Tensor) -> Tensor:
        each: Tensor = gate(x)
        wide = each if each.dtype == torch.float64 else each.float()
        return wide.sigmoid().to(each.dtype).unflatten(-1, (heads, -1))

    return opened


def check_turn(turn: Turn | None, rope: Rope) -> None:
    """Raises UnsupportedError if a module rotates another number of columns than its config says.

    turn: the module's rotation. rope: the rotation according to the config."""
    turned = 0 if turn is None else 2 * turn.inv_freq.shape[0]
    if turned != rope.dims:
        raise UnsupportedError(f"rope turns {turned} dimensions, its config says {rope.dims}")
