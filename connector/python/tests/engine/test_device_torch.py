"""Tensors of torch over mapped memory. On a GPU only behind the marker `gpu`."""

from __future__ import annotations

import ctypes
import gc

import pytest
import torch

from spliced_connector.errors import SplicedError
from spliced_connector.gpu import (
    Context,
    DeviceArray,
    arrays_alive,
    export,
    find_device,
    layer_of,
    load,
)
from spliced_connector.model import DType

_CPU = 1  # DLPack's number for memory of the host


def test_a_tensor_shows_the_memory_and_keeps_its_owner() -> None:
    words = (ctypes.c_uint16 * 24)(*range(24))
    array = DeviceArray(ctypes.addressof(words), (2, 3, 4), DType.BF16, 0, words, kind=_CPU)
    tensor = torch.from_dlpack(array)
    assert tensor.shape == (2, 3, 4) and tensor.dtype == torch.bfloat16
    assert tensor.data_ptr() == ctypes.addressof(words)
    words[5] = 77
    assert tensor.view(torch.int16).flatten()[5] == 77
    assert arrays_alive() == 1
    part = tensor[1]
    del tensor, array
    gc.collect()
    assert arrays_alive() == 1
    del part
    gc.collect()
    assert arrays_alive() == 0


def test_layers_are_described_by_the_strides_of_their_tensors() -> None:
    cache = torch.zeros(2, 5, 16, 4, 8, dtype=torch.bfloat16)  # K and V apart
    layer = layer_of(3, cache[0], cache[1])
    assert layer.v_address - layer.k_address == cache.stride(0) * 2
    assert (layer.layer, layer.block_stride) == (3, 16 * 4 * 8 * 2)
    assert (layer.k_token_stride, layer.k_head_stride) == (4 * 8 * 2, 8 * 2)
    heads_first = torch.zeros(5, 4, 16, 2 * 8)  # K and V side by side, head by head
    layer = layer_of(0, heads_first[..., :8].transpose(1, 2), heads_first[..., 8:].transpose(1, 2))
    assert layer.v_address - layer.k_address == 8 * 4
    assert (layer.block_stride, layer.k_token_stride) == (4 * 16 * 16 * 4, 16 * 4)
    assert layer.k_head_stride == layer.v_head_stride == 16 * 16 * 4
    for k, v in (
        (cache[0].transpose(2, 3), cache[1].transpose(2, 3).transpose(1, 3)),
        (cache[0], cache[1].float()),
        (cache[0], cache[1][:, ::2].as_strided((5, 8, 4, 8), (7, 1, 1, 1))),
    ):
        with pytest.raises(SplicedError):
            layer_of(0, k, v)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_gpu_are_exported_and_shown() -> None:
    tensors = [torch.zeros(1 << 22, device="cuda") for _ in range(3)]
    driver = load()
    context = Context(driver, find_device(driver, b""))
    exported = export(context, [*tensors, tensors[0][5:]])
    assert exported.nbytes >= 3 * (1 << 24)
    for tensor in tensors:
        assert exported.room(tensor.data_ptr()) >= 1 << 24
    at = tensors[1].data_ptr()
    array = DeviceArray(at, (1 << 22,), DType.F32, torch.cuda.current_device(), tensors)
    shown = torch.from_dlpack(array)
    shown.fill_(7)
    assert tensors[1].eq(7).all() and tensors[0].eq(0).all()
    context.close()
