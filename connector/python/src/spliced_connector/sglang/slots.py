"""Rows and states of SGLang on its device, by slot.

Tokens and states have separate slots. The keys and values of a request's token t are in the slot
that entry t of the request's line in `req_to_token` names. The request's states are in one slot of
the state pool. "Canonical" is the layout of stored objects: rows are [n, KV heads, dim], a state is
[value heads, key dim, value dim] in float32, and a convolution's tail is [kernel - 1, channels],
the oldest input first. In the pool, a state is value-major (except for Lightning attention), and a
tail is channel-major. For latent attention a slot has the latent, which is the canonical value,
followed by the shared key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spliced_connector.model import Family, Kind, Profile
from spliced_connector.serving.inert import Inert
from spliced_connector.walk import Copies


@dataclass(frozen=True)
class RowSlots:
    """Keys and values of one attention layer, [slots, KV heads, dim]."""

    keys: Tensor
    values: Tensor

    def read(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Returns copies of keys and values [n, KV heads, dim]."""
        return self.keys.index_select(0, slots), self.values.index_select(0, slots)

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        self.keys.index_copy_(0, slots, k.to(self.keys))
        self.values.index_copy_(0, slots, v.to(self.values))


@dataclass(frozen=True)
class StateSlots:
    """States of one recurrent layer: states [slots, value heads, dv, dk], or dk before dv if
    key_major; tails [slots, C, k-1], None if the layer has no convolution."""

    states: Tensor
    tails: Tensor | None
    key_major: bool = False

    def read(self, slot: int) -> list[Tensor]:
        """Returns copies of the state and of the convolution's tail, canonical."""
        found = [self._canonical(slot).to(torch.float32, copy=True).contiguous()]
        if self.tails is not None:
            found.append(self.tails[slot].t().clone(memory_format=torch.contiguous_format))
        return found

    def write(self, slot: int, state: Tensor, tail: Tensor | None) -> None:
        self._canonical(slot).copy_(state)
        if self.tails is not None and tail is not None:
            self.tails[slot].copy_(tail.t())

    def _canonical(self, slot: int) -> Tensor:
        return self.states[slot] if self.key_major else self.states[slot].transpose(-1, -2)


@dataclass(frozen=True)
class Slots:
    """The engine's pools by the model's layer numbers."""

    rows: Mapping[int, RowSlots]
    states: Mapping[int, StateSlots]
    copies: Copies


def find_slots(profile: Profile, kv_pool: Any, request_pool: Any) -> Slots:
    """Returns the pools of an engine's model.

    kv_pool: the pool of the engine's token allocator. request_pool: the engine's table of requests,
    which contains the state pool. Raises Inert for pools that are unknown or do not fit.
    """
    rows = _rows(profile, kv_pool)
    states = _states(profile, request_pool)
    devices = {x.keys.device for x in rows.values()} | {x.states.device for x in states.values()}
    if len(devices) != 1:
        raise Inert(f"layers on {len(devices)} devices")
    return Slots(rows, states, Copies(devices.pop()))


def _rows(profile: Profile, kv_pool: Any) -> dict[int, RowSlots]:
    wanted = profile.attention_layers
    plain = getattr(kv_pool, "full_kv_pool", kv_pool)
    if wanted and all(profile.identity.layers[layer].kind is Kind.MLA for layer in wanted):
        return _latents(profile, plain)
    if type(plain).__name__ != "MHATokenToKVPool" or plain.store_dtype != plain.dtype:
        raise Inert(f"keys and values in a {type(plain).__name__} of {plain.dtype}")
    if len(plain.k_buffer) != len(wanted) or len(plain.v_buffer) != len(wanted):
        raise Inert(f"{len(plain.k_buffer)} layers of keys, the profile has {len(wanted)}")
    out = {}
    for layer, keys, values in zip(wanted, plain.k_buffer, plain.v_buffer, strict=True):
        described = profile.identity.layers[layer]
        if described.kind is not Kind.FULL or described.attention.window:
            raise Inert(f"layer {layer} is not plain attention")
        a, heads = described.attention, profile.rank_kv_heads(layer)
        shapes = tuple(keys.shape[1:]), tuple(values.shape[1:])
        if shapes != ((heads, a.key_dim), (heads, a.value_dim)):
            raise Inert(f"layer {layer} has rows of {shapes}")
        out[layer] = RowSlots(keys, values)
    return out


def _latents(profile: Profile, pool: Any) -> dict[int, RowSlots]:
    wanted = profile.attention_layers
    if type(pool).__name__ != "MLATokenToKVPool" or pool.use_dsa or pool.store_dtype != pool.dtype:
        raise Inert(f"latents in a {type(pool).__name__} of {pool.dtype}")
    if len(pool.kv_buffer) != len(wanted):
        raise Inert(f"{len(pool.kv_buffer)} layers of latents, the profile has {len(wanted)}")
    out = {}
    for layer, rows in zip(wanted, pool.kv_buffer, strict=True):
        a = profile.identity.layers[layer].attention
        if a.window or tuple(rows.shape[1:]) != (1, a.value_dim + a.key_dim):
            raise Inert(f"layer {layer} has latents of {tuple(rows.shape[1:])}")
        out[layer] = RowSlots(rows[..., a.value_dim :], rows[..., : a.value_dim])
    return out


def _states(profile: Profile, request_pool: Any) -> dict[int, StateSlots]:
    wanted = profile.linear_layers
    pool: Any = getattr(request_pool, "mamba_pool", None)
    if not wanted and pool is None:
        return {}
    kinds = type(request_pool).__name__, type(pool).__name__
    if kinds != ("HybridReqToTokenPool", "MambaPool"):
        raise Inert(f"states in a {kinds[1]} of a {kinds[0]}")
    if sorted(request_pool.mamba_map) != list(wanted):
        raise Inert(f"states of layers {sorted(request_pool.mamba_map)}, not {list(wanted)}")
    if getattr(pool, "_slot_siblings", ()) or request_pool.mamba_ckpt_pool is not None:
        raise Inert("slots that keep more than states")
    cache = pool.mamba_cache
    if len(cache.conv) > 1 or cache.replayssm_d is not None:
        raise Inert("states that are buffered, or more than one convolution")
    out = {}
    for layer in wanted:
        d, at = profile.identity.layers[layer].linear, request_pool.mamba_map[layer]
        tails = cache.conv[0][at] if d.conv.rows and cache.conv else None
        key_major = d.family is Family.LIGHTNING
        found = StateSlots(cache.temporal[at], tails, key_major)
        shapes = [tuple(x.shape[1:]) for x in (found.states, tails) if x is not None]
        inner = (d.key_dim, d.value_dim) if key_major else (d.value_dim, d.key_dim)
        shape = (profile.rank_heads(layer)[1], *inner)
        tail = (profile.rank_conv_channels(layer), d.conv.rows)
        if shapes != ([shape, tail] if d.conv.rows else [shape]):
            raise Inert(f"layer {layer} has states of {shapes}")
        out[layer] = found
    return out
