"""Converts segments to the form of each way."""

from __future__ import annotations

from dataclasses import replace

import torch
from forms import Kept, eight_bits, states, transitions
from torch import Tensor
from ways import Variant

from spliced_connector.walk import Captured, SegmentLayer


def apply(variant: Variant, part: Captured, whole: Captured | None) -> Captured:
    """Returns a segment in the form of this way. whole: the same segment with T and S of all its
    tokens; needed if `variant.whole` is set."""
    layers = list(part.layers)
    for i, layer in enumerate(layers):
        if layer.state is not None and variant.whole and whole is not None:
            source = whole.layers[i]
            layers[i] = replace(layer, transition=source.transition, state=source.state)
    return Captured(part.spec, tuple(_near_rows(variant, _stored(variant, layers))))


def kept(variant: Variant, transition: Tensor, state: Tensor) -> tuple[Kept, Kept]:
    """Returns transitions and end-states of heads in this way's form."""
    return (
        transitions(variant.stored, transition, variant.tau),
        states(variant.states or variant.stored, state, variant.tau),
    )


def _stored(variant: Variant, layers: list[SegmentLayer]) -> list[SegmentLayer]:
    """Returns layers with T and S in this way's form. The heads of all layers are converted in one
    call, because calls are slow; each head has its own form."""
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
    """Returns the transition that leaves a state unchanged, in the shape of the given one."""
    if transition.dim() == 3:
        return torch.eye(transition.shape[1]).expand_as(transition).contiguous()
    return torch.ones_like(transition)
