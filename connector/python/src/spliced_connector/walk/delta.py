"""Gated delta rules over one convolution of queries, keys and values: GDN, KDA and GDN-2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spliced_connector.model import Conv, DType, Family, Linear
from spliced_connector.walk.base import LinearRows, Steps
from spliced_connector.walk.reading import child, conv_weight


@dataclass(frozen=True)
class DeltaSizes:
    """Heads and their sizes; value heads are a multiple of the key heads."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def channels(self) -> tuple[int, int, int]:
        """Convolution channels of queries, keys and values."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim


@dataclass(frozen=True)
class Delta:
    """A mixer with q_proj, k_proj, v_proj, conv1d, o_norm and o_proj.

    `forget` returns the logarithm of the decay, [n, heads] or [n, heads, key_dim]. `write` returns
    the share of the correction that is written, [n, heads]. `gate` returns the gate of the normed
    output. If `erase` is given, it returns [n, key_heads, key_dim], `write` returns [n, heads,
    value_dim], and gates are per channel (arXiv 2605.22791):
    S = (I - k (erase * k)^T) exp(forget) S + k (write * v)^T.
    """

    module: nn.Module
    family: Family
    sizes: DeltaSizes
    forget: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]
    gate: Callable[[Tensor], Tensor]
    erase: Callable[[Tensor], Tensor] | None = None

    def describe(self, conv: DType, state: DType, transition: DType) -> Linear:
        s = self.sizes
        kernel = self.conv_weight()[0].shape[1]
        return Linear(
            family=self.family,
            key_heads=s.key_heads,
            value_heads=s.value_heads,
            key_dim=s.key_dim,
            value_dim=s.value_dim,
            state_dtype=state,
            transition_dtype=transition,
            conv=Conv(kernel=kernel, channels=s.channels, dtype=conv),
        )

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        projected = [child(self.module, f"{name}_proj")(x) for name in "qkv"]
        gates = [self.forget(x), self.write(x), self.gate(x)]
        if self.erase is not None:
            gates.append(self.erase(x))
        return LinearRows(torch.cat(projected, dim=-1), tuple(gates))

    def conv_weight(self) -> tuple[Tensor, Tensor | None]:
        return conv_weight(child(self.module, "conv1d"))

    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps:
        if conv_out is None:
            raise ValueError("a delta rule needs its convolution's output")
        s, (decay, write, _, *erase) = self.sizes, rows.rest
        q, k, v = conv_out.float().split(list(s.channels), dim=-1)
        q = _unit(q.unflatten(-1, (s.key_heads, s.key_dim))) * s.key_dim**-0.5
        k = _unit(k.unflatten(-1, (s.key_heads, s.key_dim)))
        v = v.unflatten(-1, (s.value_heads, s.value_dim))
        if not erase:
            return Steps(q, k, v, decay.float(), beta=write.float())
        reader = (erase[0].float() * k).repeat_interleave(s.value_heads // s.key_heads, 1)
        return Steps(q, k, v * write.float(), decay.float(), erase=reader)

    def out(self, o: Tensor, rows: LinearRows) -> Tensor:
        gate = rows.rest[2].unflatten(-1, (self.sizes.value_heads, self.sizes.value_dim))
        normed = child(self.module, "o_norm")(o.to(gate.dtype), gate)
        y: Tensor = child(self.module, "o_proj")(normed.flatten(-2))
        return y


def _unit(rows: Tensor) -> Tensor:
    """Normalises rows to length one; the added constant keeps zero rows finite."""
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + 1e-6)
