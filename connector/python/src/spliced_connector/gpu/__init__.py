"""A GPU as this process sees it: driver, contexts, mapped memory, streams and launches.

It does not know about the daemon: `client` uses it to map the memory that the daemon lends, and
to run the kernels that are provided with it. Needs the standard library, and libcuda.so.1 once
`load` is called. Calls that queue work on a stream return at once. Each object documents who owns
its memory and frees it once no stream uses it.

Why ctypes, and not NVIDIA's own `cuda-bindings`: the client needs no torch, so a second way to
the driver would be needed as well, for engines without the bindings or with those of another CUDA
(torch 2.13 requires 13.x; 2.6, the oldest that is supported, none). The bindings find
libcuda.so.1 only by the system's search, while `DeviceOptions.library` names one, and get every
call from `cuGetProcAddress`, which the simulated driver of our tests does not have (13.5.0,
tried). They would save the table of signatures and five structures, a quarter of `driver`, for
31 MB in an engine. They also make no DLPack capsule of an address, so `dlpack` would stay.
"""

from spliced_connector.gpu.context import Context, find_device, refuse_capture, uuid_text
from spliced_connector.gpu.dlpack import CUDA, HOST, DeviceArray, arrays_alive
from spliced_connector.gpu.driver import LIBRARY, DevicePtr, Driver, Event, Stream, load
from spliced_connector.gpu.errors import CudaError, NoDriverError
from spliced_connector.gpu.kernel_attend import (
    ATTEND_LEAST,
    AttendJob,
    AttendRows,
    AttendRun,
    attend_launches,
    attend_scratch,
)
from spliced_connector.gpu.kernel_buffer import BufferJob, BufferRows, buffer_launches
from spliced_connector.gpu.kernel_compose import ComposeJob, ComposeStep, compose_launches
from spliced_connector.gpu.kernel_rotate import RotateJob, RotateTarget, rotate_launches, turn_by
from spliced_connector.gpu.kernels import Kernels
from spliced_connector.gpu.launch import Launch, RowTurns, Turn
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
