"""Device memory as an array that other libraries take without a copy.

DLPack (its C structs are declared here) supports bfloat16; the CUDA array interface does not.
"""

from __future__ import annotations

import ctypes
import math
from ctypes import c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from dataclasses import dataclass

from spliced_connector.model import DType

CUDA = 2
"""DLPack's number for memory of a CUDA device."""

HOST = 1
"""DLPack's number for memory of the host."""

_FLOAT, _BFLOAT, _UNSIGNED = 2, 4, 1
_CODES = {DType.F32: (_FLOAT, 32), DType.F16: (_FLOAT, 16), DType.BF16: (_BFLOAT, 16)}
_BYTES = (_UNSIGNED, 8)
_TYPESTR = {DType.F32: "<f4", DType.F16: "<f2", DType.NONE: "|u1"}
_NAME = b"dltensor"  # a consumer renames the capsule to used_dltensor


class _Device(ctypes.Structure):
    _fields_ = (("type", c_int32), ("id", c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("dims", c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(ctypes.Structure):
    """A DLManagedTensor: the consumer of the capsule calls the deleter once."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", _Deleter))

# Arguments are plain pointers: a reference taken by a destructor would revive its object.
_Destructor = ctypes.PYFUNCTYPE(None, c_void_p)
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_capsule_valid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_alive: dict[int, tuple[object, ...]] = {}
"""Objects that must stay alive, by the address of a `_Managed`. Its consumer uses these objects
until it calls the deleter."""


def _forget(managed: ctypes._Pointer[_Managed]) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


def _unused(capsule: int) -> None:
    if _capsule_valid(capsule, _NAME):  # no consumer has taken it
        _alive.pop(_capsule_pointer(capsule, _NAME), None)


# These callbacks are kept until the process ends, because consumers may call them until then.
_delete = _Deleter(_forget)
_destroy = _Destructor(_unused)


@dataclass(frozen=True)
class DeviceArray:
    """Contiguous device memory of a shape and type. Consumers keep `owner` alive."""

    address: int
    shape: tuple[int, ...]
    dtype: DType
    """DType.NONE means plain bytes."""
    device: int
    """Number of the device among the visible devices."""
    owner: object
    kind: int = CUDA

    @property
    def nbytes(self) -> int:
        """Size of all elements."""
        return math.prod(self.shape) * (self.dtype.size or 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, self.device

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: object = None,
        dl_device: object = None,
        copy: bool | None = None,
    ) -> object:
        """Returns a capsule. Does not wait for queued work: the bytes of leases do not change."""
        if copy:
            raise BufferError("this memory is shown, not copied")
        shape = (c_int64 * len(self.shape))(*self.shape)
        code, bits = _CODES.get(self.dtype, _BYTES)
        tensor = _Tensor(
            self.address, _Device(self.kind, self.device), len(self.shape), _Type(code, bits, 1),
            shape, None, 0,
        )  # fmt: skip
        managed = _Managed(tensor, None, _delete)
        at = ctypes.addressof(managed)
        _alive[at] = managed, shape, self.owner
        return _capsule_new(at, _NAME, _destroy)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        typestr = _TYPESTR.get(self.dtype)
        if typestr is None:
            raise AttributeError("the CUDA array interface has no bfloat16")
        return {
            "shape": self.shape,
            "typestr": typestr,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


def arrays_alive() -> int:
    """Returns how many capsules and arrays made from them are alive."""
    return len(_alive)
