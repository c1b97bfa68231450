"""The Mamba1 mixer of transformers' models.

Every channel is a separate head, with a state of N numbers that each decay at their own rate,
A[channel, i] * dt[channel]. B and C, the equivalents of keys and queries, are common to the
channels of a group. A group is all channels, or in Zamba the channels of one head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spliced_connector.model import Conv, DType, Family, Linear
from spliced_connector.walk.base import LinearRows, Steps
from spliced_connector.walk.reading import child, conv_weight, maybe_child, plain_weight, tensor


@dataclass(frozen=True)
class Selection:
    """Values computed from the convolution's output: dt [n, channels], B and C [n, groups, N]."""

    dt: Tensor
    b: Tensor
    c: Tensor


@dataclass(frozen=True)
class Mamba1:
    """A mixer with in_proj, conv1d, A_log, D and out_proj.

    `split` cuts the projected row into the convolution's input and the gate.
    """

    module: nn.Module
    select: Callable[[Tensor], Selection]
    split: Callable[[Tensor], tuple[Tensor, Tensor]]

    def describe(self, conv: DType, state: DType, transition: DType) -> Linear:
        channels, kernel = self.conv_weight()[0].shape
        return Linear(
            family=Family.MAMBA1,
            key_heads=channels,
            value_heads=channels,
            key_dim=tensor(self.module, "A_log").shape[-1],
            value_dim=1,
            state_dtype=state,
            transition_dtype=transition,
            conv=Conv(kernel=kernel, channels=(channels,), dtype=conv),
        )

    def rows(self, x: Tensor, positions: Tensor) -> LinearRows:
        conv, gate = self.split(child(self.module, "in_proj")(x))
        return LinearRows(conv, (gate,))

    def conv_weight(self) -> tuple[Tensor, Tensor | None]:
        return conv_weight(child(self.module, "conv1d"))

    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps:
        if conv_out is None:
            raise ValueError("a Mamba1 mixer needs its convolution's output")
        read, x = self.select(conv_out), conv_out.float()
        rate = -torch.exp(tensor(self.module, "A_log").float().flatten(0, -2))
        step = functional.softplus(read.dt)
        return Steps(
            q=read.c.float(),
            k=read.b.float(),
            v=(x * step)[..., None],
            decay=rate * step[..., None],
            skip=(x * tensor(self.module, "D").float().flatten())[..., None],
        )

    def out(self, o: Tensor, rows: LinearRows) -> Tensor:
        gate = rows.rest[0]
        gated = o.flatten(-2) * functional.silu(gate)
        y: Tensor = child(self.module, "out_proj")(gated.to(gate.dtype))
        return y


def halves(projected: Tensor) -> tuple[Tensor, Tensor]:
    """Splits a projected row into two halves: the convolution's input, then the gate."""
    conv, gate = projected.chunk(2, dim=-1)
    return conv, gate


def selection(module: nn.Module, rank: int, state: int) -> Callable[[Tensor], Selection]:
    """Returns a function that computes a `Selection` with x_proj and dt_proj, and with norms on dt,
    B and C if the module has them."""
    read, widen = child(module, "x_proj"), plain_weight(module, "dt_proj")
    bias = tensor(child(module, "dt_proj"), "bias")
    norms = [maybe_child(module, f"{name}_layernorm") for name in ("dt", "b", "c")]

    def select(conv_out: Tensor) -> Selection:
        parts = read(conv_out).split([rank, state, state], dim=-1)
        dt, b, c = (p if n is None else n(p) for p, n in zip(parts, norms, strict=True))
        wide = functional.linear(dt, widen) + bias.float()  # added in float32, as in the engine
        return Selection(wide, b[:, None], c[:, None])

    return select


def grouped_selection(module: nn.Module, rank: int, state: int) -> Callable[[Tensor], Selection]:
    """Returns a function that computes a `Selection` with separate matrices for each group."""
    read, widen = tensor(module, "x_proj_weight"), tensor(module, "dt_proj_weight")
    bias = tensor(module, "dt_proj_bias").flatten()

    def select(conv_out: Tensor) -> Selection:
        x = conv_out.unflatten(-1, (read.shape[0], read.shape[2]))
        parts = torch.einsum("nhd,hrd->nhr", x, read)
        dt, b, c = parts.split([rank, state, state], dim=-1)
        wide = torch.einsum("nhr,hdr->nhd", dt, widen).flatten(-2)
        return Selection(wide + bias.float(), b, c)

    return select
