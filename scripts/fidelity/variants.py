"""Segments as each way has them."""

from __future__ import annotations

from dataclasses import replace

import torch
from forms import Kept, eight_bits, states, transitions
from torch import Tensor
from ways import Variant

from spliced_connector.walk import Captured, SegmentLayer


def apply(variant: Variant, part: Captured, whole: Captured | None) -> Captured:
    """The segment as this way has it; `whole` is the same one with a tuple of all tokens."""
    layers = list(part.layers)
    for i, layer in enumerate(layers):
        if layer.state is not None and variant.whole and whole is not None:
            source = whole.layers[i]
            layers[i] = replace(layer, transition=source.transition, state=source.state)
    return Captured(part.spec, tuple(_near_rows(variant, _stored(variant, layers))))


def kept(variant: Variant, transition: Tensor, state: Tensor) -> tuple[Kept, Kept]:
    """Transitions and end-states of heads in this way's form."""
    return (
        transitions(variant.stored, transition, variant.tau),
        states(variant.states or variant.stored, state, variant.tau),
    )


def _stored(variant: Variant, layers: list[SegmentLayer]) -> list[SegmentLayer]:
    """The heads of all layers at once: forms are found head by head, and calls take their time."""
    where = [i for i, layer in enumerate(layers) if layer.state is not None]
    if not where:
        return layers
    transition, state = (
        torch.cat([getattr(layers[i], name) for i in where]) for name in ("transition", "state")
    )
    if variant.summed:
        transition = _identity(transition)
    t, s = (k.matrices.chunk(len(where)) for k in kept(variant, transition, state))
    for i, near_t, near_s in zip(where, t, s, strict=True):
        layers[i] = replace(layers[i], transition=near_t, state=near_s)
    return layers


def _near_rows(variant: Variant, layers: list[SegmentLayer]) -> list[SegmentLayer]:
    if not variant.row_tau:
        return layers
    return [
        layer
        if layer.k is None or layer.v is None
        else replace(
            layer,
            k=eight_bits(layer.k, variant.row_tau).matrices,
            v=eight_bits(layer.v, variant.row_tau).matrices,
        )
        for layer in layers
    ]


def _identity(transition: Tensor) -> Tensor:
    """What leaves a state as it is, in the shape of the given transition."""
    if transition.dim() == 3:
        return torch.eye(transition.shape[1]).expand_as(transition).contiguous()
    return torch.ones_like(transition)
