"""Page hashes and contents for SGLang's pools."""

from __future__ import annotations

import hashlib

import torch

from spliced_connector.sglang.samples import Hosts


def randomise(pools: Hosts, seed: int) -> None:
    """Give every element of the host pools and of the device's states a value."""
    generator = torch.Generator().manual_seed(seed)
    cache = pools.mamba.mamba_cache
    for x in (
        pools.kv.kv_buffer,
        pools.states.temporal_buffer,
        *pools.states.conv_buffer,
        cache.temporal,
        *cache.conv,
    ):
        x.copy_(torch.randn(x.shape, generator=generator))


def clear(pools: Hosts) -> None:
    """Zero the host pools."""
    for x in (pools.kv.kv_buffer, pools.states.temporal_buffer, *pools.states.conv_buffer):
        x.zero_()


def chain(name: str, n: int) -> list[str]:
    """Page hashes as SGLang chains them: each names all pages up to its own."""
    hashes, last = [], b""
    for i in range(n):
        last = hashlib.sha256(last + f"{name}{i}".encode()).digest()
        hashes.append(last.hex())
    return hashes
