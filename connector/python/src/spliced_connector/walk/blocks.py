"""An architecture as a list of blocks: a mixer and the arithmetic around it.

Models differ in their mixers and in the norms, multipliers and MLPs around them; everything else
is common and implemented here. A decoder layer that runs two mixers on the same input becomes two
blocks. The first block passes its result in extra columns of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from spliced_connector.model import Attention, DType, Identity, Kind, Layer, Linear
from spliced_connector.walk.base import AttentionRows, LinearRows, Steps
from spliced_connector.walk.naming import Naming, stored
from spliced_connector.walk.reading import UnsupportedError


class AttentionMixer(Protocol):
    """Softmax attention; see `base.Architecture` for inputs and outputs."""

    @property
    def kind(self) -> Kind: ...
    @property
    def scale(self) -> float: ...
    def describe(self, rows: DType) -> Attention: ...
    def rows(self, x: Tensor, positions: Tensor) -> AttentionRows: ...
    def out(self, o: Tensor, rows: AttentionRows) -> Tensor: ...


class LinearMixer(Protocol):
    """Linear attention; see `base.Architecture` for inputs and outputs."""

    @property
    def module(self) -> nn.Module: ...
    def describe(self, conv: DType, state: DType, transition: DType) -> Linear: ...
    def rows(self, x: Tensor, positions: Tensor) -> LinearRows: ...
    def conv_weight(self) -> tuple[Tensor, Tensor | None] | None: ...
    def steps(self, conv_out: Tensor | None, rows: LinearRows, positions: Tensor) -> Steps: ...
    def out(self, o: Tensor, rows: LinearRows) -> Tensor: ...


@dataclass(frozen=True)
class Block:
    """One layer: at most one of the mixers, and the arithmetic around it.

    `slot` is the number of the layer of the engine's cache that contains the mixer's state. The
    function `before` maps the hidden rows to the mixer's input. The function `after` maps the
    hidden rows and the mixer's result to new hidden rows.
    """

    slot: int
    before: Callable[[Tensor], Tensor]
    after: Callable[[Tensor, Tensor], Tensor]
    softmax: AttentionMixer | None = None
    linear: LinearMixer | None = None

    @property
    def kind(self) -> Kind:
        if self.softmax is not None:
            return self.softmax.kind
        return Kind.NONE if self.linear is None else Kind.LINEAR

    def describe(self, rows: DType, naming: Naming) -> Layer:
        if self.softmax is not None:
            return Layer(kind=self.kind, attention=self.softmax.describe(rows))
        if self.linear is not None:
            linear = self.linear.describe(rows, naming.state, naming.transition)
            return Layer(kind=Kind.LINEAR, linear=linear)
        return Layer()


class Blocks:
    """An `Architecture` made of blocks, an embedding and a head."""

    def __init__(
        self,
        blocks: Sequence[Block],
        embed: Callable[[Tensor], Tensor],
        head: Callable[[Tensor], Tensor],
        dtype: torch.dtype,
        naming: Naming,
    ) -> None:
        self._blocks = tuple(blocks)
        self._embed = embed
        self._head = head
        self.dtype = dtype
        self.kernels = None
        self.layers = tuple(b.kind for b in self._blocks)
        self.slots = tuple(b.slot for b in self._blocks)
        self.identity = Identity(
            model=naming.model,
            weights=naming.weights,
            layers=tuple(b.describe(stored(dtype), naming) for b in self._blocks),
            adapter=naming.adapter,
            tokenizer=naming.tokenizer,
            tolerance=naming.tolerance,
            row_tolerance=naming.row_tolerance,
        )

    def embed(self, ids: Tensor) -> Tensor:
        return self._embed(ids)

    def logits(self, h: Tensor) -> Tensor:
        return self._head(h)

    def norm(self, layer: int, h: Tensor) -> Tensor:
        return self._blocks[layer].before(h)

    def mix(self, layer: int, h: Tensor, y: Tensor) -> Tensor:
        return self._blocks[layer].after(h, y)

    def attention(self, layer: int, x: Tensor, positions: Tensor) -> AttentionRows:
        return self._softmax(layer).rows(x, positions)

    def scale(self, layer: int) -> float:
        return self._softmax(layer).scale

    def attention_out(self, layer: int, o: Tensor, rows: AttentionRows) -> Tensor:
        return self._softmax(layer).out(o.to(self.dtype), rows)

    def linear(self, layer: int, x: Tensor, positions: Tensor) -> LinearRows:
        return self._linear(layer).rows(x, positions)

    def conv_weight(self, layer: int) -> tuple[Tensor, Tensor | None] | None:
        return self._linear(layer).conv_weight()

    def steps(
        self, layer: int, conv_out: Tensor | None, rows: LinearRows, positions: Tensor
    ) -> Steps:
        return self._linear(layer).steps(conv_out, rows, positions)

    def linear_out(self, layer: int, o: Tensor, rows: LinearRows) -> Tensor:
        return self._linear(layer).out(o, rows)

    @property
    def linear_modules(self) -> dict[int, nn.Module]:
        """The model's own mixer of each linear layer; it reads the rows that `linear` reads."""
        return {i: b.linear.module for i, b in enumerate(self._blocks) if b.linear is not None}

    def _softmax(self, layer: int) -> AttentionMixer:
        mixer = self._blocks[layer].softmax
        if mixer is None:
            raise UnsupportedError(f"layer {layer} has no softmax attention")
        return mixer

    def _linear(self, layer: int) -> LinearMixer:
        mixer = self._blocks[layer].linear
        if mixer is None:
            raise UnsupportedError(f"layer {layer} has no linear attention")
        return mixer


def pre_norm(
    slot: int,
    mixer: tuple[AttentionMixer | None, LinearMixer | None],
    norm: nn.Module,
    mlp_norm: nn.Module,
    mlp: Callable[[Tensor], Tensor],
    residual: float = 1.0,
) -> Block:
    """The usual decoder layer: norm, mixer, residual, norm, MLP, residual."""

    def after(h: Tensor, y: Tensor) -> Tensor:
        h = h + y * residual
        return h + mlp(mlp_norm(h)) * residual

    return Block(slot, norm, after, *mixer)


def batched(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """Returns a function of plain rows [n, width]. It calls a module that needs a batch dimension,
    such as a mixture of experts."""

    def call(rows: Tensor) -> Tensor:
        y: Tensor = module(rows[None])
        return y[0]

    return call
