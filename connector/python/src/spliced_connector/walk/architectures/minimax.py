"""MiniMax: Lightning attention without rope, and full attention with it.

The residual is the normalised input of a mixer or MLP, not the input before the norm. The residual
and the result of the mixer or MLP are multiplied by one constant each, then added.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from spliced_connector.model import DType, Family, Linear
from spliced_connector.walk.attention import grouped
from spliced_connector.walk.base import Architecture, LinearRows, Steps
from spliced_connector.walk.blocks import Block, Blocks, batched
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    float_dtype,
    head_dim,
    layers,
    names,
    number,
    real,
    tensor,
)


@dataclass(frozen=True)
class Lightning:
    """Decayed linear attention: every head decays at a fixed rate.

    The rates are read from the module, because engines compute them by different formulas.
    """

    module: nn.Module
    heads: int
    dim: int

    def describe(self, conv: DType, state: DType, transition: DType) -> Linear:
        return Linear(
            family=Family.LIGHTNING,
            key_heads=self.heads,
            value_heads=self.heads,
            key_dim=self.dim,
            value_dim=self.dim,
            state_dtype=state,
            transition_dtype=DType.F32,
            slopes=tuple(self._slopes().tolist()),
        )

    def _slopes(self) -> Tensor:
        return tensor(self.module, "slope_rate").flatten().float()

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        active = child(self.module, "act_fn")(child(self.module, "qkv_proj")(x))
        q, k, v = active.unflatten(-1, (self.heads, 3 * self.dim)).split(self.dim, dim=-1)
        return LinearRows(None, (q, k, v, child(self.module, "output_gate")(x)))

    def conv_weight(self) -> None:
        return None

    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps:
        q, k, v, _ = rows.rest
        decay = -self._slopes().expand(q.shape[0], -1)
        return Steps(q=q.float(), k=k.float(), v=v.float(), decay=decay)

    def out(self, o: Tensor, rows: LinearRows) -> Tensor:
        gate = rows.rest[3]
        normed = child(self.module, "norm")(o.flatten(-2).to(gate.dtype))
        y: Tensor = child(self.module, "out_proj")(gate.sigmoid() * normed)
        return y


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `MiniMaxForCausalLM`."""
    body = child(model, "model")
    types = names(config, "layer_types")
    blocks = [
        _block(i, kind, at, config, child(body, "rotary_emb"))
        for i, (kind, at) in enumerate(zip(types, layers(body), strict=True))
    ]
    embedding, norm, head = (
        child(body, "embed_tokens"),
        child(body, "norm"),
        child(model, "lm_head"),
    )
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)


def _block(i: int, kind: str, layer: nn.Module, config: object, rotary: nn.Module) -> Block:
    norm, mlp_norm = child(layer, "input_layernorm"), child(layer, "post_attention_layernorm")
    mlp, mixer = batched(child(layer, "mlp")), child(layer, "self_attn")
    name = {"linear_attention": "linear", "full_attention": "full"}.get(kind)
    if name is None:
        raise UnsupportedError(f"layer {i} is of type {kind!r}, want linear or full attention")
    keep, add = (real(config, f"{name}_attn_{f}_factor") for f in ("alpha", "beta"))
    mlp_keep, mlp_add = (real(config, f"mlp_{f}_factor") for f in ("alpha", "beta"))

    def after(h: Tensor, y: Tensor) -> Tensor:
        rows: Tensor = mlp_norm(norm(h) * keep + y * add)
        return rows * mlp_keep + mlp(rows) * mlp_add

    if name == "full":
        return Block(i, norm, after, softmax=grouped(config, mixer, rotary))
    heads = number(config, "num_attention_heads")
    return Block(i, norm, after, linear=Lightning(mixer, heads, head_dim(config)))
