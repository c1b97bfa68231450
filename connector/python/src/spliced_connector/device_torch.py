"""Tensors of torch over memory of the daemon's GPU, without a copy."""

from __future__ import annotations

import torch
from torch import Tensor

from spliced_connector.cuda_memory import Run
from spliced_connector.device import DeviceMemory
from spliced_connector.device_engine import DeviceLayer
from spliced_connector.dlpack import DeviceArray
from spliced_connector.errors import Code, SplicedError
from spliced_connector.identity import DType


def tensor(device: DeviceMemory, runs: list[Run], shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A tensor over bytes that lie in one run, such as a part of a `DeviceSegment`.

    It keeps the mapping, not the lease: its bytes count while that is held. Nobody keeps torch from
    writing to it, which would spoil what others read. Raises `SplicedError(INVALID)`.
    """
    if len(runs) != 1:
        raise SplicedError(Code.INVALID, f"{len(runs)} runs, want one: gather them first")
    address, nbytes = runs[0]
    array = DeviceArray(address, shape, dtype, device.gpu.context.device, device.keep())
    if array.nbytes != nbytes:
        raise SplicedError(Code.INVALID, f"a tensor of {array.nbytes} bytes over {nbytes}")
    return torch.from_dlpack(array)


def layer_of(layer: int, k: Tensor, v: Tensor) -> DeviceLayer:
    """Where keys and values [blocks, tokens, heads, dim] of a layer lie.

    They may be views in any order of a larger tensor, whose blocks are as far apart for keys as for
    values. Raises `SplicedError(INVALID)`.
    """
    if k.dim() != 4 or v.dim() != 4 or k.stride(3) != 1 or v.stride(3) != 1:
        raise SplicedError(Code.INVALID, "rows of keys or values are not contiguous")
    size = k.element_size()
    if k.stride(0) != v.stride(0) or v.element_size() != size:
        raise SplicedError(Code.INVALID, "blocks of keys and values differ in size")
    return DeviceLayer(
        layer, k.data_ptr(), v.data_ptr(), k.stride(0) * size,
        k.stride(1) * size, k.stride(2) * size, v.stride(1) * size, v.stride(2) * size,
    )  # fmt: skip
