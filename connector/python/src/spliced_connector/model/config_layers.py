"""Helpers of the config readers: element types, and layers that architectures share."""

from __future__ import annotations

from dataclasses import dataclass

from spliced_connector.model.family import Family
from spliced_connector.model.fields import Fields
from spliced_connector.model.identity import (
    Attention,
    Conv,
    DType,
    KeyMode,
    Kind,
    Layer,
    Linear,
    Rope,
)


@dataclass(frozen=True, slots=True)
class Types:
    """Settings that a config does not have: element types and the number of ranks."""

    kv: DType
    conv: DType
    state: DType
    transition: DType
    tp_size: int

    def spread(self, heads: int) -> int:
        """Returns the number of key heads or groups over all ranks. If there are fewer heads than
        ranks, the heads are replicated, one per rank."""
        return max(heads, self.tp_size)


def attention(f: Fields, t: Types, dim: int, rope: Rope) -> Layer:
    """Returns a layer with plain grouped-query attention."""
    heads = f.number_else("num_key_value_heads", lambda: f.number("num_attention_heads"))
    return Layer(Kind.FULL, Attention(heads, dim, dim, t.kv, KeyMode.AT_ZERO, rope))


def layer_names(linear: Layer, full: Layer) -> dict[str, Layer]:
    """Maps the names of layers in configs to layers. The shorter names are from before transformers
    5."""
    return {
        "linear_attention": linear,
        "mamba": linear,
        "full_attention": full,
        "attention": full,
    }


def linear_layer(linear: Linear) -> Layer:
    return Layer(Kind.LINEAR, linear=linear)


def delta(
    t: Types,
    family: Family,
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
) -> Layer:
    """Returns a layer with a delta rule after convolutions over q, k and v."""
    keys = t.spread(key_heads) * key_dim
    conv = Conv(kernel, (keys, keys, value_heads * value_dim), t.conv)
    sizes = (key_heads, value_heads, key_dim, value_dim)
    return linear_layer(Linear(family, *sizes, t.state, t.transition, conv))


def mamba1(t: Types, *, channels: int, state: int, kernel: int) -> Layer:
    """Returns a Mamba1 layer, with a head for every channel."""
    conv = Conv(kernel, (channels,), t.conv)
    return linear_layer(
        Linear(Family.MAMBA1, channels, channels, state, 1, t.state, t.transition, conv)
    )


def mamba2(t: Types, *, heads: int, dim: int, state: int, groups: int, kernel: int) -> Layer:
    """Returns a Mamba2 layer in terms of keys and values: B is the key of size `state`, x is the
    value of size `dim`, and the convolution runs over [x | B | C]."""
    inputs = t.spread(groups) * state
    conv = Conv(kernel, (heads * dim, inputs, inputs), t.conv)
    return linear_layer(Linear(Family.MAMBA2, groups, heads, state, dim, t.state, DType.F32, conv))
