"""Pools of SGLang for one small hybrid model, built on the CPU.

The drift check records their layout, and tests read and write them. Two recurrent and two
attention layers; all sizes of a tensor differ, so that transposed dimensions show in its shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MambaPool
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

PAGE = 8
"""Tokens of a page."""

CONFIG: dict[str, object] = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
    "vocab_size": 128,
    "max_position_embeddings": 4096,
}
"""The model's config.json."""

_SLOTS = 8
_TOKENS = 128


@dataclass(frozen=True)
class Hosts:
    """Device and host pools, as with `--enable-hierarchical-cache`."""

    mamba: MambaPool
    device: HybridLinearKVPool
    kv: Any
    states: Any


def mamba_pool(states: torch.dtype = torch.float32) -> MambaPool:
    """Returns states of the recurrent layers."""
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=32,
        n_groups=2,
        num_heads=4,
        head_dim=8,
        state_size=16,
        conv_kernel=4,
    )
    types = Mamba2StateDType(conv=torch.bfloat16, temporal=states)
    return MambaPool(
        size=_SLOTS,
        spec_state_size=0,
        cache_params=Mamba2CacheParams(shape=shape, layers=[0, 1], dtype=types),
        mamba_layer_ids=[0, 1],
        device="cpu",
    )


def hosts(
    layout: str = "page_first",
    kv: torch.dtype = torch.bfloat16,
    states: torch.dtype = torch.float32,
) -> Hosts:
    """Returns all pools; `layout` is the layout of keys and values in the host."""
    mamba = mamba_pool(states)
    device = HybridLinearKVPool(
        size=_TOKENS,
        dtype=kv,
        page_size=PAGE,
        head_num=4,
        head_dim=16,
        full_attention_layer_ids=[2, 3],
        device="cpu",
        mamba_pool=mamba,
    )
    (rows,) = device.full_kv_pool.get_device_pool_infos()
    (slots,) = mamba.get_device_pool_infos()
    host = MHATokenToKVPoolHost(
        rows.buffer_info,
        1.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        device_capacity_tokens=_TOKENS,
        start_layer=0,
        end_layer=2,
    )
    state_host = MambaPoolHost(
        slots.buffer_info, 1.0, 0, device_capacity=_SLOTS, pin_memory=False, layout="page_first"
    )
    return Hosts(mamba, device, host, state_host)


class PoolShapes:
    """Shapes and types of the pools' tensors, for the drift check."""

    @staticmethod
    def rows(layout: str) -> str:
        """Returns shapes of keys and values in the host."""
        return _describe(hosts(layout).kv.kv_buffer)

    @staticmethod
    def states() -> str:
        """Returns shapes of states in the host: recurrent, then convolution tails."""
        pool = hosts().states
        return ", ".join(_describe(x) for x in (pool.temporal_buffer, *pool.conv_buffer))

    @staticmethod
    def device() -> str:
        """Returns shapes of the device's pools: K and V of a layer, recurrent states, convolution
        tails."""
        pools = hosts()
        full, cache = pools.device.full_kv_pool, pools.mamba.mamba_cache
        tensors = (full.k_buffer[0], full.v_buffer[0], cache.temporal, *cache.conv)
        return ", ".join(_describe(x) for x in tensors)


def _describe(x: torch.Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
