"""Errors of the CUDA driver, by name and with remedies."""

from __future__ import annotations

from spliced_connector.errors import Code, SplicedError

OUT_OF_MEMORY = 2
INVALID_VALUE = 1
INVALID_CONTEXT = 201
NOT_READY = 600

# Values of CUresult in cuda.h.
_NAMES = {
    1: "INVALID_VALUE",
    2: "OUT_OF_MEMORY",
    3: "NOT_INITIALIZED",
    4: "DEINITIALIZED",
    34: "STUB_LIBRARY",
    46: "DEVICE_UNAVAILABLE",
    100: "NO_DEVICE",
    101: "INVALID_DEVICE",
    200: "INVALID_IMAGE",
    201: "INVALID_CONTEXT",
    205: "MAP_FAILED",
    206: "UNMAP_FAILED",
    208: "ALREADY_MAPPED",
    209: "NO_BINARY_FOR_GPU",
    214: "ECC_UNCORRECTABLE",
    217: "PEER_ACCESS_UNSUPPORTED",
    218: "INVALID_PTX",
    221: "JIT_COMPILER_NOT_FOUND",
    222: "UNSUPPORTED_PTX_VERSION",
    304: "OPERATING_SYSTEM",
    400: "INVALID_HANDLE",
    401: "ILLEGAL_STATE",
    500: "NOT_FOUND",
    600: "NOT_READY",
    700: "ILLEGAL_ADDRESS",
    701: "LAUNCH_OUT_OF_RESOURCES",
    702: "LAUNCH_TIMEOUT",
    709: "CONTEXT_IS_DESTROYED",
    710: "ASSERT",
    714: "HARDWARE_STACK_ERROR",
    715: "ILLEGAL_INSTRUCTION",
    716: "MISALIGNED_ADDRESS",
    718: "INVALID_PC",
    719: "LAUNCH_FAILED",
    800: "NOT_PERMITTED",
    801: "NOT_SUPPORTED",
    802: "SYSTEM_NOT_READY",
    803: "SYSTEM_DRIVER_MISMATCH",
    805: "MPS_CONNECTION_FAILED",
    900: "STREAM_CAPTURE_UNSUPPORTED",
    901: "STREAM_CAPTURE_INVALIDATED",
    904: "STREAM_CAPTURE_UNJOINED",
    906: "STREAM_CAPTURE_IMPLICIT",
    907: "CAPTURED_EVENT",
    999: "UNKNOWN",
}

_SAME_PID = (
    "this process and the exporting one have the same PID value, each in a PID namespace of its "
    "own: share the namespace (shareProcessNamespace: true), or set hbm-share to descriptor"
)
_NOT_CUDAMALLOC = (
    "memory that has no IPC handle, such as PyTorch's expandable segments: "
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False, and leave vLLM's sleep mode off"
)

_GONE = (
    "the exporting process has ended, or the two do not share what this way needs: the same GPU "
    "and driver, and for handles the IPC namespace; see docs/gpu.md"
)

# Remedies by call and result. If the call is "", the remedy is for the result of any call.
_REMEDIES: dict[tuple[str, int], str] = {
    ("cuIpcOpenMemHandle_v2", INVALID_CONTEXT): _SAME_PID,
    # These results are not documented for these calls, but were reported for failed imports.
    **{
        (call, result): _GONE
        for call in ("cuIpcOpenMemHandle_v2", "cuMemImportFromShareableHandle")
        for result in (205, 304, 999)
    },
    ("cuIpcGetMemHandle", INVALID_VALUE): _NOT_CUDAMALLOC,
    ("", 34): "this is the stub library of a toolkit: use the driver's libcuda.so.1",
    ("", 46): "another process has the GPU for itself (compute mode), or it has failed",
    ("", 100): "no GPU is visible here: see NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES",
    ("", 222): "the driver is older than CUDA 11.8: a newer one is needed",
    ("", 803): "the kernel module and libcuda.so.1 are of different releases",
    ("", 805): "the MPS server does not answer: see CUDA_MPS_PIPE_DIRECTORY",
}


def result_name(result: int) -> str:
    """Returns CUDA_ERROR_... of a result, or its number."""
    name = _NAMES.get(result)
    return f"{result} CUDA_ERROR_{name}" if name else f"{result}"


def remedy(call: str, result: int) -> str:
    """Returns the remedy, empty if none is known."""
    return _REMEDIES.get((call, result)) or _REMEDIES.get(("", result), "")


class CudaError(SplicedError):
    """A failed driver call: `FULL` for no memory, else `UNAVAILABLE`."""

    def __init__(self, call: str, result: int, detail: str = "") -> None:
        parts = (f"{call}: {result_name(result)}", detail, remedy(call, result))
        code = Code.FULL if result == OUT_OF_MEMORY else Code.UNAVAILABLE
        super().__init__(code, "; ".join(filter(None, parts)))
        self.call = call
        self.result = result


class NoDriverError(SplicedError):
    """There is no driver, it lacks a required function, or the device does not exist."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.UNAVAILABLE, text)
