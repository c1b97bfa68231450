"""Ring and Ling up to 2.5 (their classes are called Bailing): Lightning attention that rotates its
queries and keys, and full attention over grouped keys or latents.

transformers has no classes for these models; their code is distributed with the weights. The walk
finds the modules of that code by their names. The walk uses the arithmetic of vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spliced_connector.model import Attention, DType, Family, KeyMode, Kind, Linear, Rope
from spliced_connector.walk.attention import Latent, check_turn, head_gate
from spliced_connector.walk.base import Architecture, AttentionRows, LinearRows, Steps
from spliced_connector.walk.blocks import AttentionMixer, Blocks, LinearMixer, pre_norm
from spliced_connector.walk.naming import Naming
from spliced_connector.walk.reading import (
    UnsupportedError,
    child,
    flag,
    float_dtype,
    head_dim,
    layers,
    maybe_child,
    number,
    plain_weight,
    real,
    tensor,
)
from spliced_connector.walk.rope import Turn, latent_rope_of, rope_of, turn_of


@dataclass(frozen=True)
class Projection:
    """Queries, keys and values from one matrix. Queries and keys are normed per head if the module
    has norms, and rotated if `turn` is not None. If `silu` is set, SiLU follows the matrix."""

    module: nn.Module
    heads: int
    dim: int
    turn: Turn | None
    silu: bool = False

    @property
    def kv_heads(self) -> int:
        rows: int = plain_weight(self.module, "query_key_value").shape[0]
        return (rows // self.dim - self.heads) // 2

    def __call__(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat: Tensor = child(self.module, "query_key_value")(x)
        if self.silu:
            flat = nn.functional.silu(flat)
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = flat.unflatten(-1, (sum(sizes), self.dim)).split(sizes, 1)
        return self._placed("query", q, positions), self._placed("key", k, positions), v

    def _placed(self, name: str, rows: Tensor, positions: Tensor) -> Tensor:
        norm = maybe_child(self.module, f"{name}_layernorm")
        if norm is not None:
            rows = norm(rows)
        return rows if self.turn is None else self.turn(rows, positions)


@dataclass(frozen=True)
class Grouped:
    """Softmax attention over the results of a `Projection`."""

    project: Projection
    rope: Rope
    scale: float

    kind = Kind.FULL

    def __post_init__(self) -> None:
        check_turn(self.project.turn, self.rope)

    def describe(self, rows: DType) -> Attention:
        dim = self.project.dim
        return Attention(self.project.kv_heads, dim, dim, rows, KeyMode.AT_ZERO, self.rope)

    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows:
        return AttentionRows(*self.project(x, positions))

    def out(self, o: Tensor, rows: AttentionRows) -> Tensor:
        y: Tensor = child(self.project.module, "dense")(o.flatten(-2))
        return y


@dataclass(frozen=True)
class Lightning:
    """Decayed linear attention over rotated keys. So its state depends on the tokens' positions.

    The module's `slope` is the logarithm of each head's decay. It is read from the module, because
    engines compute it from the layer's number and do not number layers alike.
    """

    project: Projection
    rope: Rope

    def __post_init__(self) -> None:
        check_turn(self.project.turn, self.rope)
        if self.project.kv_heads != self.project.heads:
            raise UnsupportedError(
                f"Lightning attention has {self.project.kv_heads} heads of keys for"
                f" {self.project.heads} of queries"
            )
        slope = self._slope()
        if slope.shape[0] != self.project.heads or bool((slope > 0).any()):
            raise UnsupportedError("slope is not the logarithm of a decay for each head")

    @property
    def module(self) -> nn.Module:
        return self.project.module

    def describe(self, conv: DType, state: DType, transition: DType) -> Linear:
        heads, dim = self.project.heads, self.project.dim
        return Linear(
            family=Family.LIGHTNING,
            key_heads=heads,
            value_heads=heads,
            key_dim=dim,
            value_dim=dim,
            state_dtype=state,
            transition_dtype=DType.F32,
            rope=self.rope,
            slopes=tuple((-self._slope()).tolist()),
        )

    def _slope(self) -> Tensor:
        return tensor(self.project.module, "slope").flatten().float()

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        gate = child(self.project.module, "g_proj")(x)
        return LinearRows(None, (*self.project(x, positions), gate))

    def conv_weight(self) -> None:
        return None

    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps:
        q, k, v = (r if r.dtype == torch.float64 else r.float() for r in rows.rest[:3])
        decay = self._slope().expand(q.shape[0], -1)
        return Steps(q=q * self.project.dim**-0.5, k=k, v=v, decay=decay)

    def out(self, o: Tensor, rows: LinearRows) -> Tensor:
        gate = rows.rest[3]
        normed = child(self.project.module, "g_norm")(o.flatten(-2).to(gate.dtype))
        y: Tensor = child(self.project.module, "dense")(normed * gate.sigmoid())
        return y


def build(model: nn.Module, config: object, naming: Naming) -> Architecture:
    """Returns the walk over a `BailingMoeLinearV2ForCausalLM` or `BailingMoeV2_5ForCausalLM`."""
    body = child(model, "model")
    rotary = child(body, "rotary_emb")
    blocks = [
        pre_norm(
            i,
            _mixer(i, child(at, "attention"), rotary, config),
            child(at, "input_layernorm"),
            child(at, "post_attention_layernorm"),
            _mlp(child(at, "mlp")),
        )
        for i, at in enumerate(layers(body)[: number(config, "num_hidden_layers")])
    ]
    embedding, norm, head = (
        child(body, "word_embeddings"),
        child(body, "norm"),
        child(model, "lm_head"),
    )
    return Blocks(blocks, embedding, lambda h: head(norm(h)), float_dtype(embedding), naming)


def _mixer(
    i: int, module: nn.Module, rotary: nn.Module, config: object
) -> tuple[AttentionMixer | None, LinearMixer | None]:
    if maybe_child(module, "kv_a_proj_with_mqa") is not None:
        return _latent(module, rotary, config), None
    if maybe_child(module, "query_key_value") is None:
        raise UnsupportedError(f"layer {i} has a {type(module).__name__}, which no walk supports")
    heads, dim = number(config, "num_attention_heads"), head_dim(config)
    if maybe_child(module, "g_norm") is None:
        project = Projection(module, heads, dim, turn_of(rotary))
        return Grouped(project, rope_of(config, dim), dim**-0.5), None
    turned = flag(config, "linear_rope", True)
    silu = flag(config, "use_linear_silu", flag(config, "linear_silu"))
    project = Projection(module, heads, dim, turn_of(rotary) if turned else None, silu)
    return None, Lightning(project, rope_of(config, dim) if turned else Rope())


def _latent(module: nn.Module, rotary: nn.Module, config: object) -> Latent:
    if not flag(config, "rope_interleave", True):
        raise UnsupportedError("rope_interleave is off: latent attention turns pairs")
    heads, value = number(config, "num_attention_heads"), number(config, "v_head_dim")
    key = number(config, "qk_rope_head_dim")
    return Latent(
        module=module,
        heads=heads,
        rank=number(config, "kv_lora_rank"),
        nope=number(config, "qk_nope_head_dim"),
        key=key,
        value=value,
        scale=real(module, "scaling"),
        rope=latent_rope_of(config, key),
        turn=turn_of(rotary, interleaved=True),
        gate=head_gate(module, heads),
        last="dense",
    )


def _mlp(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns an MLP over plain rows. A mixture of experts needs a batch dimension, and returns
    the router's choice next to the rows; both are removed here."""

    def call(rows: Tensor) -> Tensor:
        given = module(rows[None])
        y: Tensor = given[0] if isinstance(given, tuple) else given
        return y[0]

    return call
