"""The CUDA driver, by ctypes: nothing is loaded before `load` is called.

Calls need a context that is current on the calling thread. An engine may have its own context
there: `Context.current` makes ours current for one block, then restores the engine's. A call
releases the interpreter's lock, so that other threads continue.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import NewType

from spliced_connector.gpu.errors import NOT_READY, CudaError, NoDriverError

DevicePtr = NewType("DevicePtr", int)
Stream = NewType("Stream", int)
"""A CUstream, the value of `torch.cuda.current_stream().cuda_stream`. 0 is the legacy default
stream."""
Event = NewType("Event", int)
Module = NewType("Module", int)
Function = NewType("Function", int)
Allocation = NewType("Allocation", int)
"""Physical memory that is not mapped yet, a CUmemGenericAllocationHandle."""

LIBRARY = "libcuda.so.1"
OLDEST = 11080
"""Oldest supported version of the driver: CUDA 11.8, which PTX ISA 7.8 requires."""

HANDLE_BYTES = 64

_STREAM_NON_BLOCKING = 1
_EVENT_FLAGS = 1 | 2  # waits sleep, no timing
_CAPTURE_RELAXED = 2
_MAX_THREADS = 0
_WAIT_GEQ = 0
_POSIX_FD = 1
_PINNED = 1
_DEVICE = 1
_READ_WRITE = 3
_IPC_LAZY_PEER_ACCESS = 1
_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES = 5, 6
_JIT_LOG_BYTES = 8192
_MAX_DYNAMIC_SHARED = 8
_LAUNCH_END, _LAUNCH_BUFFER, _LAUNCH_SIZE = 0, 1, 2


class _Handle(ctypes.Structure):
    """A CUipcMemHandle, which is passed by value."""

    _fields_ = (("words", c_uint64 * 8),)


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


class _Properties(ctypes.Structure):
    """A CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * 16),)


_U64P = POINTER(c_uint64)
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (POINTER(_Uuid), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxGetCurrent": (POINTER(c_void_p),),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (_U64P, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetAddressRange_v2": (_U64P, POINTER(c_size_t), c_uint64),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuIpcGetMemHandle": (POINTER(_Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (_U64P, _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_Properties), c_int),
    "cuMemImportFromShareableHandle": (_U64P, c_void_p, c_int),
    "cuMemRelease": (c_uint64,),
    "cuMemAddressReserve": (_U64P, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuCtxGetStreamPriorityRange": (POINTER(c_int), POINTER(c_int)),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamCreateWithPriority": (POINTER(c_void_p), c_uint, c_int),
    "cuStreamIsCapturing": (c_void_p, POINTER(c_int)),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamWriteValue64_v2": (c_void_p, c_uint64, c_uint64, c_uint),
    "cuStreamWaitValue64_v2": (c_void_p, c_uint64, c_uint64, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuModuleLoadDataEx": (
        POINTER(c_void_p), c_void_p, c_uint, POINTER(c_int), POINTER(c_void_p),
    ),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (
        c_void_p, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_void_p,
        POINTER(c_void_p), POINTER(c_void_p),
    ),
}  # fmt: skip


@cache
def load(library: str = LIBRARY) -> Driver:
    """Returns the driver, loaded and initialised once per process. Raises `NoDriverError`,
    `CudaError`."""
    return Driver(library)


class Driver:
    """Calls of the driver. All raise `CudaError`; any thread may make them."""

    def __init__(self, library: str) -> None:
        """Raises `NoDriverError` if there is no library, it lacks a function, or it is too old."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as err:
            raise NoDriverError(f"no CUDA driver: {err}") from err
        for name, types in _SIGNATURES.items():
            try:
                function = getattr(self._library, name)
            except AttributeError as err:
                raise NoDriverError(f"{library} has no {name}") from err
            function.argtypes, function.restype = types, c_int
        self.imports: dict[tuple[int, bytes], tuple[DevicePtr, int]] = {}
        """The address and the number of users of each mapped allocation, by context and handle."""
        self._call("cuInit", 0)
        self.version = self._int("cuDriverGetVersion")
        """The CUDA version of the driver: 12040 for CUDA 12.4."""
        if self.version < OLDEST:
            raise NoDriverError(f"the driver is of CUDA {self.version}, want {OLDEST} at least")

    def _call(self, name: str, *args: object) -> None:
        result = getattr(self._library, name)(*args)
        if result:
            raise CudaError(name, result)

    def _int(self, name: str, *args: object) -> int:
        value = c_int()
        self._call(name, byref(value), *args)
        return value.value

    def _u64(self, name: str, *args: object) -> int:
        value = c_uint64()
        self._call(name, byref(value), *args)
        return value.value

    def _handle(self, name: str, *args: object) -> int:
        value = c_void_p()
        self._call(name, byref(value), *args)
        return value.value or 0

    # Devices and contexts.

    def devices(self) -> list[tuple[int, bytes]]:
        """Returns the visible devices, and the UUID of each."""
        found = []
        for ordinal in range(self._int("cuDeviceGetCount")):
            device = self._int("cuDeviceGet", ordinal)
            uuid = _Uuid()
            self._call("cuDeviceGetUuid_v2", byref(uuid), device)
            found.append((device, bytes(uuid.bytes)))
        return found

    def retain_primary(self, device: int) -> int:
        """Retains the primary context of a device; torch uses the primary context."""
        return self._handle("cuDevicePrimaryCtxRetain", device)

    def release_primary(self, device: int) -> None:
        """Undoes `retain_primary`."""
        self._call("cuDevicePrimaryCtxRelease_v2", device)

    def current_context(self) -> int:
        """Returns the context of this thread, 0 for none."""
        return self._handle("cuCtxGetCurrent")

    def push_context(self, context: int) -> None:
        """Makes a context current on this thread."""
        self._call("cuCtxPushCurrent_v2", context)

    def pop_context(self) -> None:
        """Undoes `push_context`."""
        self._handle("cuCtxPopCurrent_v2")

    def synchronize_all(self) -> None:
        """Waits for everything that is queued in the current context."""
        self._call("cuCtxSynchronize")

    # Memory.

    def alloc(self, nbytes: int) -> DevicePtr:
        """Allocates device memory."""
        return DevicePtr(self._u64("cuMemAlloc_v2", nbytes))

    def free(self, address: DevicePtr) -> None:
        """Undoes `alloc`."""
        self._call("cuMemFree_v2", address)

    def lock_pages(self, address: int, nbytes: int) -> None:
        """Pins host memory, so that copies read it without staging."""
        self._call("cuMemHostRegister_v2", address, nbytes, 0)

    def unlock_pages(self, address: int) -> None:
        """Undoes `lock_pages`."""
        self._call("cuMemHostUnregister", address)

    def address_range(self, address: DevicePtr) -> tuple[DevicePtr, int]:
        """Returns base and size of the allocation that contains an address."""
        base, size = c_uint64(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(size), address)
        return DevicePtr(base.value), size.value

    def ipc_handle(self, base: DevicePtr) -> bytes:
        """Returns 64 bytes with which another process opens a whole allocation."""
        handle = _Handle()
        self._call("cuIpcGetMemHandle", byref(handle), base)
        return bytes(handle)

    def ipc_open(self, handle: bytes) -> DevicePtr:
        """Maps an allocation of another process. A process may open an allocation only once."""
        if len(handle) != HANDLE_BYTES:
            raise ValueError(f"a handle of {len(handle)} bytes")
        value = _Handle.from_buffer_copy(handle)
        return DevicePtr(self._u64("cuIpcOpenMemHandle_v2", value, _IPC_LAZY_PEER_ACCESS))

    def ipc_close(self, address: DevicePtr) -> None:
        """Undoes `ipc_open`."""
        self._call("cuIpcCloseMemHandle", address)

    def granularity(self, device: int) -> int:
        """Returns the granularity of mapped memory: its size in bytes must be a multiple."""
        properties = _Properties(_PINNED, _POSIX_FD, _Location(_DEVICE, device))
        size = c_size_t()
        self._call("cuMemGetAllocationGranularity", byref(size), byref(properties), 0)
        return size.value

    def import_descriptor(self, descriptor: int) -> Allocation:
        """Imports physical memory from a descriptor, which stays the caller's."""
        return Allocation(
            self._u64("cuMemImportFromShareableHandle", c_void_p(descriptor), _POSIX_FD)
        )

    def release(self, allocation: Allocation) -> None:
        """Releases a handle; mappings keep the memory."""
        self._call("cuMemRelease", allocation)

    def reserve(self, nbytes: int) -> DevicePtr:
        """Reserves addresses without memory."""
        return DevicePtr(self._u64("cuMemAddressReserve", nbytes, 0, 0, 0))

    def unreserve(self, address: DevicePtr, nbytes: int) -> None:
        """Undoes `reserve`."""
        self._call("cuMemAddressFree", address, nbytes)

    def map(self, address: DevicePtr, nbytes: int, allocation: Allocation, device: int) -> None:
        """Maps memory at reserved addresses, for reading and writing by a device."""
        self._call("cuMemMap", address, nbytes, 0, allocation, 0)
        access = _Access(_Location(_DEVICE, device), _READ_WRITE)
        try:
            self._call("cuMemSetAccess", address, nbytes, byref(access), 1)
        except CudaError:
            self.unmap(address, nbytes)
            raise

    def unmap(self, address: DevicePtr, nbytes: int) -> None:
        """Undoes `map`."""
        self._call("cuMemUnmap", address, nbytes)

    # Streams and events.

    def stream(self) -> Stream:
        """Creates a stream that does not wait for the default one."""
        return Stream(self._handle("cuStreamCreate", _STREAM_NON_BLOCKING))

    def priorities(self) -> tuple[int, int]:
        """Returns the least and the greatest priority of streams; a greater priority is a smaller
        number."""
        least, greatest = c_int(), c_int()
        self._call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
        return least.value, greatest.value

    def stream_with_priority(self, priority: int) -> Stream:
        """Creates a stream as `stream` does, but with this priority instead of 0."""
        handle = self._handle("cuStreamCreateWithPriority", _STREAM_NON_BLOCKING, priority)
        return Stream(handle)

    def captures(self, stream: Stream) -> bool:
        """Returns whether work queued on a stream is captured in a graph instead of run."""
        status = c_int()
        self._call("cuStreamIsCapturing", stream, byref(status))
        return status.value != 0

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """For one block, allows this thread calls that are forbidden while another thread captures
        a graph.

        The calls do not affect the capture. Outside such a block they fail, and so does the
        capture.
        """
        mode = c_int(_CAPTURE_RELAXED)
        self._call("cuThreadExchangeStreamCaptureMode", byref(mode))
        try:
            yield
        finally:
            self._call("cuThreadExchangeStreamCaptureMode", byref(mode))

    def destroy_stream(self, stream: Stream) -> None:
        """Undoes `stream`; queued work still runs."""
        self._call("cuStreamDestroy_v2", stream)

    def synchronize(self, stream: Stream) -> None:
        """Waits until a stream has finished all its work."""
        self._call("cuStreamSynchronize", stream)

    def idle(self, stream: Stream) -> bool:
        """Returns whether a stream has finished all its work."""
        return self._done("cuStreamQuery", stream)

    def event(self) -> Event:
        """Creates an event."""
        return Event(self._handle("cuEventCreate", _EVENT_FLAGS))

    def destroy_event(self, event: Event) -> None:
        """Undoes `event`."""
        self._call("cuEventDestroy_v2", event)

    def record(self, event: Event, stream: Stream) -> None:
        """Records an event after all queued work."""
        self._call("cuEventRecord", event, stream)

    def passed(self, event: Event) -> bool:
        """Returns whether the stream has passed the event. True if it was never recorded."""
        return self._done("cuEventQuery", event)

    def wait_event(self, event: Event) -> None:
        """Waits until the stream has passed the event."""
        self._call("cuEventSynchronize", event)

    def follow(self, stream: Stream, event: Event) -> None:
        """Makes a stream wait for the last recording of an event."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def _done(self, name: str, handle: int) -> bool:
        try:
            self._call(name, handle)
        except CudaError as err:
            if err.result == NOT_READY:
                return False
            raise
        return True

    def write_value(self, stream: Stream, address: DevicePtr, value: int) -> None:
        """Queues a write of 8 bytes, after all queued work."""
        self._call("cuStreamWriteValue64_v2", stream, address, value, 0)

    def wait_value(self, stream: Stream, address: DevicePtr, value: int) -> None:
        """Makes a stream wait until 8 bytes are at least `value`."""
        self._call("cuStreamWaitValue64_v2", stream, address, value, _WAIT_GEQ)

    def copy_to_device(self, to: DevicePtr, source: int, nbytes: int, stream: Stream) -> None:
        """Queues a copy from a host address, which must stay valid until it is done."""
        self._call("cuMemcpyHtoDAsync_v2", to, source, nbytes, stream)

    def copy_to_host(self, to: int, source: DevicePtr, nbytes: int, stream: Stream) -> None:
        """Queues a copy to a host address, which must stay valid until it is done."""
        self._call("cuMemcpyDtoHAsync_v2", to, source, nbytes, stream)

    def copy(self, to: DevicePtr, source: DevicePtr, nbytes: int, stream: Stream) -> None:
        """Queues a copy within a device."""
        self._call("cuMemcpyDtoDAsync_v2", to, source, nbytes, stream)

    # Kernels.

    def load_module(self, image: bytes) -> Module:
        """Compiles PTX for the device. The compiler's messages are in the `CudaError`."""
        image += b"\0"  # terminates the text
        log = ctypes.create_string_buffer(_JIT_LOG_BYTES)
        options = (c_int * 2)(_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _JIT_LOG_BYTES)
        try:
            return Module(
                self._handle("cuModuleLoadDataEx", ctypes.c_char_p(image), 2, options, values)
            )
        except CudaError as err:
            raise CudaError(err.call, err.result, log.value.decode("utf-8", "replace")) from err

    def unload_module(self, module: Module) -> None:
        """Undoes `load_module`."""
        self._call("cuModuleUnload", module)

    def function(self, module: Module, name: str) -> Function:
        """Returns a kernel of a module."""
        try:
            return Function(self._handle("cuModuleGetFunction", module, name.encode()))
        except CudaError as err:
            raise CudaError(err.call, err.result, f"kernel {name}") from err

    def preload(self, function: Function) -> None:
        """Loads a kernel now. A driver that loads lazily does it at the first launch."""
        self._int("cuFuncGetAttribute", _MAX_THREADS, function)

    def allow_shared(self, function: Function, nbytes: int) -> None:
        """Allows a kernel `nbytes` of shared memory at launch."""
        self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, nbytes)

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: Stream,
        arguments: bytes,
    ) -> None:
        """Queues a kernel. The driver copies the arguments before it returns."""
        raw = ctypes.create_string_buffer(arguments, len(arguments))
        size = c_size_t(len(arguments))
        extra = (c_void_p * 5)(
            _LAUNCH_BUFFER, ctypes.addressof(raw), _LAUNCH_SIZE, ctypes.addressof(size), _LAUNCH_END
        )
        self._call("cuLaunchKernel", function, *grid, *block, shared, stream, None, extra)
