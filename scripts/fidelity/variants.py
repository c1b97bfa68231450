"""Segments as each way has them."""

from __future__ import annotations

from dataclasses import replace

import torch
from forms import Kept, states, transitions
from torch import Tensor
from ways import Variant

from spliced_connector.walk import Captured, SegmentLayer


def apply(variant: Variant, part: Captured, whole: Captured | None) -> Captured:
    """The segment as this way has it; `whole` is the same one with a tuple of all tokens."""
    layers = []
    for i, layer in enumerate(part.layers):
        if layer.transition is None or layer.state is None:
            layers.append(layer)
            continue
        if variant.whole and whole is not None:
            source = whole.layers[i]
            layer = replace(layer, transition=source.transition, state=source.state)
        layers.append(_stored(variant, layer))
    return Captured(part.spec, tuple(layers))


def kept(variant: Variant, transition: Tensor, state: Tensor) -> tuple[Kept, Kept]:
    """Transitions and end-states of heads in this way's form."""
    return (
        transitions(variant.stored, transition, variant.tau),
        states(variant.states or variant.stored, state, variant.tau),
    )


def _stored(variant: Variant, layer: SegmentLayer) -> SegmentLayer:
    transition, state = layer.transition, layer.state
    if transition is None or state is None:
        return layer
    if variant.summed:
        transition = _identity(transition)
    t, s = kept(variant, transition, state)
    return replace(layer, transition=t.matrices, state=s.matrices)


def _identity(transition: Tensor) -> Tensor:
    """What leaves a state as it is, in the shape of the given transition."""
    if transition.dim() == 3:
        return torch.eye(transition.shape[1]).expand_as(transition).contiguous()
    return torch.ones_like(transition)
