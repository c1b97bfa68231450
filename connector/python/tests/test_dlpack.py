"""Arrays over device memory, as a library that takes DLPack capsules reads them."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest

from spliced_connector.gpu import DeviceArray, arrays_alive
from spliced_connector.gpu.dlpack import CUDA, _Managed
from spliced_connector.model import DType

_get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)


class Owner:
    """What keeps the memory."""


def take(capsule: object) -> _Managed:
    """What a consumer does."""
    managed = _Managed.from_address(_get(capsule, b"dltensor"))
    assert _rename(capsule, b"used_dltensor") == 0
    return managed


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [(DType.F32, 2, 32), (DType.F16, 2, 16), (DType.BF16, 4, 16), (DType.NONE, 1, 8)],
)
def test_a_capsule_says_where_and_what(dtype: DType, code: int, bits: int) -> None:
    array = DeviceArray(0x7F0000001000, (2, 3, 5), dtype, 1, None)
    assert array.__dlpack_device__() == (CUDA, 1)
    assert array.nbytes == 30 * bits // 8
    managed = take(array.__dlpack__(stream=1, max_version=(1, 0)))
    tensor = managed.tensor
    assert (tensor.data, tensor.dims, tensor.byte_offset) == (0x7F0000001000, 3, 0)
    assert (tensor.device.type, tensor.device.id) == (CUDA, 1)
    assert (tensor.type.code, tensor.type.bits, tensor.type.lanes) == (code, bits, 1)
    assert [tensor.shape[i] for i in range(3)] == [2, 3, 5]
    assert not tensor.strides  # rows follow each other
    managed.deleter(ctypes.byref(managed))
    assert arrays_alive() == 0


def test_the_owner_lives_as_long_as_what_was_made_of_it() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    array = DeviceArray(8, (4,), DType.F32, 0, owner)
    unused, used = array.__dlpack__(), array.__dlpack__()
    managed = take(used)
    del owner, array, used
    gc.collect()
    assert alive() is not None
    del unused  # nobody took it
    gc.collect()
    assert alive() is not None and arrays_alive() == 1
    managed.deleter(ctypes.byref(managed))
    gc.collect()
    assert alive() is None and arrays_alive() == 0


def test_a_copy_is_refused() -> None:
    with pytest.raises(BufferError, match="shown, not copied"):
        DeviceArray(8, (4,), DType.F32, 0, None).__dlpack__(copy=True)
    assert arrays_alive() == 0


def test_the_interface_of_cuda_arrays_has_all_types_but_one() -> None:
    array = DeviceArray(4096, (4, 2), DType.F16, 0, None)
    assert array.__cuda_array_interface__ == {
        "shape": (4, 2),
        "typestr": "<f2",
        "data": (4096, False),
        "strides": None,
        "version": 3,
    }
    assert not hasattr(DeviceArray(4096, (4,), DType.BF16, 0, None), "__cuda_array_interface__")
