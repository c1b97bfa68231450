"""What transformers' own cache holds after one forward pass, in canonical form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spliced_connector.model import Family, Kind
from spliced_connector.walk import Architecture, SegmentLayer


def forward(model: nn.Module, ids: list[int]) -> tuple[Tensor, Any]:
    """Logits [n, vocabulary] and the cache of a pass over ids alone."""
    with torch.no_grad():
        out = model(torch.tensor([ids]), use_cache=True)
    return out.logits[0], out["cache_params" if "cache_params" in out else "past_key_values"]


def canonical(arch: Architecture, cache: Any, layer: int) -> SegmentLayer:
    """One layer of ours, read out of the cache. transition is None: transformers has none."""
    described, slot = arch.identity.layers[layer], arch.slots[layer]
    if described.kind == Kind.NONE:
        return SegmentLayer()
    if described.kind == Kind.LINEAR:
        if described.linear.family == Family.LIGHTNING:
            return SegmentLayer(state=cache.get_linear_cache(slot)[0])
        at = cache.layers[slot]
        state = _state(described.linear.family, at.recurrent_states[0][0])
        tail = described.linear.conv.rows
        return SegmentLayer(state=state, conv=at.conv_states[0][0].T[-tail:])
    at = cache.layers[slot]
    k, v = at.keys[0].transpose(0, 1), at.values[0].transpose(0, 1)
    if described.kind == Kind.MLA:
        k, v = v, k  # it files the latent under keys and the shared key under values
        if described.attention.rope.interleaved:  # turned in pairs, filed as halves
            half = k.shape[-1] // 2
            k = k[..., [i // 2 + half * (i % 2) for i in range(2 * half)]]
    return SegmentLayer(k=k, v=v)


def _state(family: Family, held: Tensor) -> Tensor:
    """[Hv, dk, dv] of what a cache layer holds."""
    if family == Family.MAMBA2:
        return held.transpose(-1, -2)  # [heads, dim, N]
    if family == Family.MAMBA1:
        return held.flatten(0, -2).unsqueeze(-1)  # [channels, N] or [heads, channels, N]
    return held
