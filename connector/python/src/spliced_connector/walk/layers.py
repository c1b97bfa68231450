"""One pass of rows through all layers, and the operations between their projections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from spliced_connector.model import Kind
from spliced_connector.walk import families
from spliced_connector.walk.base import Architecture, LinearRows, Recurrence
from spliced_connector.walk.rows import Rows
from spliced_connector.walk.softmax import attend

R = TypeVar("R", bound=Rows)


class Pass(ABC, Generic[R]):
    """One pass. Subclasses define the mixers, and use the operations of this class for them."""

    def __init__(self, arch: Architecture, rows: R) -> None:
        self.arch = arch
        self.rows = rows

    def run(self) -> Tensor | None:
        """Returns the hidden rows after the last layer, None if no row is computed."""
        h = self.arch.embed(self.rows.ids) if self.rows.count else None
        for layer, kind in enumerate(self.arch.layers):
            x = None if h is None else self.arch.norm(layer, h)
            if kind == Kind.LINEAR:
                y = self.linear(layer, x)
            elif kind == Kind.NONE:
                y = x
            else:
                y = self.attention(layer, x)
            if h is not None and y is not None:
                h = self.arch.mix(layer, h, y)
        return h

    @abstractmethod
    def attention(self, layer: int, x: Tensor | None) -> Tensor | None:
        """Returns the result of a softmax-attention mixer for its input x. If x is None, no row is
        computed, and only segments are added to the context."""

    @abstractmethod
    def linear(self, layer: int, x: Tensor | None) -> Tensor | None:
        """Returns the result of a linear-attention mixer for its input x. If x is None, no row is
        computed, and only segments are added to the context."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns the attention of all rows over the keys and values that their sights name."""
        described = self.arch.identity.layers[layer]
        if self.arch.kernels is not None:
            return self.arch.kernels.attend(layer, q, k, v, self.rows)
        if described.kind == Kind.MLA:
            k = torch.cat((v, k), -1)
        blocks = self.rows.blocks(described.attention.window)
        return attend(q, k, v, blocks, self.arch.scale(layer))

    def convolve(self, layer: int, inputs: Tensor, lefts: Tensor) -> Tensor | None:
        """Returns the convolution's outputs after SiLU, [n, C]; None in a layer without a
        convolution.

        lefts [sequences, k-1, C]: the inputs before each sequence.
        """
        if self.arch.kernels is not None:
            return self.arch.kernels.convolve(layer, inputs, lefts, self.rows)
        weight = self.arch.conv_weight(layer)
        if weight is None:
            return None
        taps, bias = weight
        line = torch.cat((lefts.flatten(0, 1), inputs))
        where = self.rows.conv(taps.shape[1] - 1)
        if where.order is not None:
            line = line.index_select(0, where.order)
        out = causal_convolution(line, taps, bias)
        return out if where.valid is None else out.index_select(0, where.valid)

    def recurrence(self, layer: int, conv_out: Tensor | None, rows: LinearRows) -> Recurrence:
        """Returns the recurrence of all rows; conv_out is the result of `convolve`."""
        if self.arch.kernels is not None and conv_out is not None:
            return self.arch.kernels.recurrence(layer, conv_out, rows, self.rows)
        steps = self.arch.steps(layer, conv_out, rows, self.rows.positions)
        return families.Scan(steps, self.rows.runs(families.chunk_length(steps)))


def causal_convolution(line: Tensor, taps: Tensor, bias: Tensor | None) -> Tensor:
    """Returns SiLU of a depthwise convolution: [m, C] from the inputs `line` [m + k - 1, C]. It is
    computed in float32 or wider."""
    m = line.shape[0] - taps.shape[1] + 1
    wide = line if line.dtype == torch.float64 else line.float()
    each = taps.to(wide.dtype).unbind(1)
    out = wide[:m] * each[0]
    if bias is not None:
        out = out + bias.to(wide.dtype)
    for j in range(1, taps.shape[1]):
        out = torch.addcmul(out, wide[j : j + m], each[j])
    return torch.nn.functional.silu(out).to(line.dtype)
