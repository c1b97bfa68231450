"""A GPU as this process sees it: driver, contexts, mapped memory, streams and launches.

The package does not know about the daemon. `client` uses it to map memory that the daemon lends,
and to run the kernels that come with this memory. It needs the standard library only, and
libcuda.so.1 once `load` is called. Calls that queue work on a stream return at once. Each object
documents who owns its memory, and frees its memory once no stream uses it.

The package uses ctypes, not NVIDIA's own `cuda-bindings`. With the bindings it would still need a
second way to the driver, because an engine may have no bindings, or bindings of another CUDA
version (torch 2.13 requires 13.x; torch 2.6, the oldest supported, requires none). The bindings
find libcuda.so.1 only by the system's search, while `DeviceOptions.library` names a file. They get
every call from `cuGetProcAddress`, which the simulated driver of our tests does not have (tried
with 13.5.0). They would replace the table of signatures and five structures, a quarter of `driver`,
but add 31 MB to an engine. They make no DLPack capsule of an address, so `dlpack` would stay.
"""

from spliced_connector.gpu.context import Context, find_device, refuse_capture, uuid_text
from spliced_connector.gpu.dlpack import CUDA, HOST, DeviceArray, arrays_alive
from spliced_connector.gpu.driver import LIBRARY, DevicePtr, Driver, Event, Stream, load
from spliced_connector.gpu.errors import CudaError, NoDriverError
from spliced_connector.gpu.kernels import Kernels
from spliced_connector.gpu.launch import Launch, RowTurns, Turn, turn_by
from spliced_connector.gpu.launches import (
    ATTEND_LEAST,
    AttendJob,
    AttendRows,
    AttendRun,
    BufferJob,
    BufferRows,
    ComposeJob,
    ComposeStep,
    RotateJob,
    RotateTarget,
    attend_launches,
    attend_scratch,
    buffer_launches,
    compose_launches,
    rotate_launches,
)
from spliced_connector.gpu.mapped import Mapped, Run, joined, map_descriptors, map_handles, quiet
from spliced_connector.gpu.order import MOST_WAITING, OrderPage, most_waiting
from spliced_connector.gpu.tensors import (
    Chunk,
    DeviceEngineMemory,
    DeviceLayer,
    Exported,
    export,
    layer_of,
    local,
)
from spliced_connector.gpu.threads import DeviceThread, DeviceThreads

__all__ = [
    "ATTEND_LEAST",
    "CUDA",
    "HOST",
    "LIBRARY",
    "MOST_WAITING",
    "AttendJob",
    "AttendRows",
    "AttendRun",
    "BufferJob",
    "BufferRows",
    "Chunk",
    "ComposeJob",
    "ComposeStep",
    "Context",
    "CudaError",
    "DeviceArray",
    "DeviceEngineMemory",
    "DeviceLayer",
    "DevicePtr",
    "DeviceThread",
    "DeviceThreads",
    "Driver",
    "Event",
    "Exported",
    "Kernels",
    "Launch",
    "Mapped",
    "NoDriverError",
    "OrderPage",
    "RotateJob",
    "RotateTarget",
    "RowTurns",
    "Run",
    "Stream",
    "Turn",
    "arrays_alive",
    "attend_launches",
    "attend_scratch",
    "buffer_launches",
    "compose_launches",
    "export",
    "find_device",
    "joined",
    "layer_of",
    "load",
    "local",
    "map_descriptors",
    "map_handles",
    "most_waiting",
    "quiet",
    "refuse_capture",
    "rotate_launches",
    "turn_by",
    "uuid_text",
]
