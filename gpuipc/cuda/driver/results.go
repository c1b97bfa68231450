package driver

// Results that our code uses by name.
const (
	Success             Result = 0
	InvalidValue        Result = 1
	OutOfMemory         Result = 2
	NotInitialized      Result = 3
	Deinitialized       Result = 4
	StubLibrary         Result = 34
	DeviceUnavailable   Result = 46
	NoDevice            Result = 100
	InvalidDevice       Result = 101
	InvalidImage        Result = 200
	InvalidContext      Result = 201
	MapFailed           Result = 205
	NoBinary            Result = 209
	ECCUncorrectable    Result = 214
	InvalidPTX          Result = 218
	NVLinkUncorrectable Result = 220
	NoCompiler          Result = 221
	UnsupportedPTX      Result = 222
	Contained           Result = 226
	OperatingSystem     Result = 304
	InvalidHandle       Result = 400
	NotFound            Result = 500
	NotReady            Result = 600
	IllegalAddress      Result = 700
	OutOfResources      Result = 701
	LaunchTimeout       Result = 702
	ContextDestroyed    Result = 709
	AssertFailed        Result = 710
	AlreadyRegistered   Result = 712
	NotRegistered       Result = 713
	HardwareStack       Result = 714
	IllegalInstruction  Result = 715
	MisalignedAddress   Result = 716
	InvalidAddressSpace Result = 717
	InvalidPC           Result = 718
	LaunchFailed        Result = 719
	TensorMemoryLeak    Result = 721
	NotPermitted        Result = 800
	NotSupported        Result = 801
	SystemNotReady      Result = 802
	DriverMismatch      Result = 803
	MPSServerGone       Result = 806
	MPSClientTerminated Result = 810
	ExternalDevice      Result = 911
	Unknown             Result = 999
)

type resultRow struct {
	name   string
	remedy string
}

// newProcess is the end of the remedies of results after which the context is lost.
const newProcess = " Everything this process had on the device is lost: restart it."

// results has every CUresult of cuda.h up to CUDA 13.3. Remedies are for people who run the
// daemon or an engine; docs/gpu.md explains more.
var results = map[Result]resultRow{
	0: {"CUDA_SUCCESS", ""},
	1: {"CUDA_ERROR_INVALID_VALUE", "An argument is out of range; from cuIpcGetMemHandle: the memory was made by the VMM calls (expandable segments, sleep mode) and can only leave as a descriptor."},
	2: {"CUDA_ERROR_OUT_OF_MEMORY", "The device has no room: make hbm-public and hbm-private smaller, or the engine's share of memory."},
	3: {"CUDA_ERROR_NOT_INITIALIZED", "The driver was not started in this process, or it was forked after the start: start the process anew, with spawn and not fork."},
	4: {"CUDA_ERROR_DEINITIALIZED", "The driver is shutting down with the process."},
	5: {"CUDA_ERROR_PROFILER_DISABLED", ""},
	6: {"CUDA_ERROR_PROFILER_NOT_INITIALIZED", ""},
	7: {"CUDA_ERROR_PROFILER_ALREADY_STARTED", ""},
	8: {"CUDA_ERROR_PROFILER_ALREADY_STOPPED", ""},

	34: {"CUDA_ERROR_STUB_LIBRARY", "The library found is the linker's stub: take lib64/stubs out of LD_LIBRARY_PATH or name the driver's own library."},
	46: {"CUDA_ERROR_DEVICE_UNAVAILABLE", "Another process has the device for itself (compute mode exclusive) or it was lost: look at nvidia-smi -q -d COMPUTE and dmesg."},

	100: {"CUDA_ERROR_NO_DEVICE", "No device is visible: the container needs the NVIDIA runtime with NVIDIA_VISIBLE_DEVICES, or a CDI or DRA device, and CUDA_VISIBLE_DEVICES must not hide it."},
	101: {"CUDA_ERROR_INVALID_DEVICE", "There is no such device: name it by its UUID (nvidia-smi -L)."},
	102: {"CUDA_ERROR_DEVICE_NOT_LICENSED", "A virtual GPU without a licence: look at nvidia-smi -q under vGPU."},

	200: {"CUDA_ERROR_INVALID_IMAGE", "The kernels could not be read: the binary is damaged, or the driver older than CUDA 11.8."},
	201: {"CUDA_ERROR_INVALID_CONTEXT", "No context on this thread; from cuIpcOpenMemHandle: both processes have the same PID in namespaces of their own: set shareProcessNamespace, or share by descriptors."},
	202: {"CUDA_ERROR_CONTEXT_ALREADY_CURRENT", ""},
	205: {"CUDA_ERROR_MAP_FAILED", "The memory could not be mapped here: both containers need the same device, and descriptors the same driver; see docs/gpu.md on CDI and DRA."},
	206: {"CUDA_ERROR_UNMAP_FAILED", ""},
	207: {"CUDA_ERROR_ARRAY_IS_MAPPED", ""},
	208: {"CUDA_ERROR_ALREADY_MAPPED", "The memory is open in this process already."},
	209: {"CUDA_ERROR_NO_BINARY_FOR_GPU", "The device is older than compute capability 8.0 (Ampere), the first that the kernels run on."},
	210: {"CUDA_ERROR_ALREADY_ACQUIRED", ""},
	211: {"CUDA_ERROR_NOT_MAPPED", ""},
	212: {"CUDA_ERROR_NOT_MAPPED_AS_ARRAY", ""},
	213: {"CUDA_ERROR_NOT_MAPPED_AS_POINTER", ""},
	214: {"CUDA_ERROR_ECC_UNCORRECTABLE", "The device's memory has a fault that could not be corrected: drain the node and look at nvidia-smi -q -d ECC." + newProcess},
	215: {"CUDA_ERROR_UNSUPPORTED_LIMIT", ""},
	216: {"CUDA_ERROR_CONTEXT_ALREADY_IN_USE", ""},
	217: {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "The two devices cannot reach each other; sharing works within one device."},
	218: {"CUDA_ERROR_INVALID_PTX", "The driver's compiler refused the kernels; its log is in the error."},
	219: {"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", ""},
	220: {"CUDA_ERROR_NVLINK_UNCORRECTABLE", "A link between devices failed: drain the node." + newProcess},
	221: {"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "libnvidia-ptxjitcompiler.so.1 is missing: the container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility."},
	222: {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "The driver is older than CUDA 11.8 (520): take a newer one."},
	223: {"CUDA_ERROR_JIT_COMPILATION_DISABLED", "CUDA_DISABLE_PTX_JIT is set: unset it."},
	224: {"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", ""},
	225: {"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", ""},
	226: {"CUDA_ERROR_CONTAINED", "A fault of the memory was contained to this process." + newProcess},

	300: {"CUDA_ERROR_INVALID_SOURCE", ""},
	301: {"CUDA_ERROR_FILE_NOT_FOUND", ""},
	302: {"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", ""},
	303: {"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", ""},
	304: {"CUDA_ERROR_OPERATING_SYSTEM", "A system call of the driver failed: look at the limits of descriptors and of locked memory, at /dev/nvidia* in the container, and for events at a shared /dev/shm."},

	400: {"CUDA_ERROR_INVALID_HANDLE", "Something was used after it was closed, or a handle is of another device or of an ended process."},
	401: {"CUDA_ERROR_ILLEGAL_STATE", ""},
	402: {"CUDA_ERROR_LOSSY_QUERY", ""},
	500: {"CUDA_ERROR_NOT_FOUND", "The kernels loaded are not those of this version."},
	600: {"CUDA_ERROR_NOT_READY", ""},

	700: {"CUDA_ERROR_ILLEGAL_ADDRESS", "A kernel touched memory that was not mapped: its owner freed or moved it while it was registered. Every later call fails." + newProcess},
	701: {"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "A kernel wants more registers or shared memory than the device has."},
	702: {"CUDA_ERROR_LAUNCH_TIMEOUT", "A kernel ran longer than the display's limit: take a device that drives no display." + newProcess},
	703: {"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", ""},
	704: {"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", ""},
	705: {"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", ""},
	708: {"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", ""},
	709: {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "Something in this process reset the device." + newProcess},
	710: {"CUDA_ERROR_ASSERT", "A kernel of this process stopped itself." + newProcess},
	711: {"CUDA_ERROR_TOO_MANY_PEERS", ""},
	712: {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "The host memory is pinned already by another user in this process."},
	713: {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", ""},
	714: {"CUDA_ERROR_HARDWARE_STACK_ERROR", "A kernel overran its stack." + newProcess},
	715: {"CUDA_ERROR_ILLEGAL_INSTRUCTION", "A kernel met an instruction it cannot run." + newProcess},
	716: {"CUDA_ERROR_MISALIGNED_ADDRESS", "A kernel was given an address that is not aligned." + newProcess},
	717: {"CUDA_ERROR_INVALID_ADDRESS_SPACE", "A kernel mixed kinds of memory." + newProcess},
	718: {"CUDA_ERROR_INVALID_PC", "A kernel ran off its code." + newProcess},
	719: {"CUDA_ERROR_LAUNCH_FAILED", "A kernel failed on the device; dmesg has the Xid." + newProcess},
	720: {"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", ""},
	721: {"CUDA_ERROR_TENSOR_MEMORY_LEAK", "A kernel of this process kept tensor memory." + newProcess},

	800: {"CUDA_ERROR_NOT_PERMITTED", "The driver was not allowed to: a call in a stream capture, or pidfd_getfd without the right to trace (expandable segments across containers); share by the daemon's descriptors instead."},
	801: {"CUDA_ERROR_NOT_SUPPORTED", "The device or the system cannot do this: virtual GPUs and WSL lack IPC and parts of the VMM; see splicectl doctor."},
	802: {"CUDA_ERROR_SYSTEM_NOT_READY", "The fabric manager does not run yet: start nvidia-fabricmanager, of the driver's version."},
	803: {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "The library in the container is of another version than the kernel module: restart the container after a driver update, and bring no libcuda.so.1 in the image."},
	804: {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "A compatibility library of CUDA is loaded on a device that has no such thing: take /usr/local/cuda/compat out of LD_LIBRARY_PATH."},
	805: {"CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS is wanted but its control daemon cannot be reached: share its pipe directory with the container and run as the same user."},
	806: {"CUDA_ERROR_MPS_RPC_FAILURE", "The MPS server went away." + newProcess},
	807: {"CUDA_ERROR_MPS_SERVER_NOT_READY", "The MPS server restarts: try again in a moment."},
	808: {"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "MPS has as many clients as it takes."},
	809: {"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "MPS has as many connections as the device takes."},
	810: {"CUDA_ERROR_MPS_CLIENT_TERMINATED", "The MPS server ended this client, often for the fault of another." + newProcess},
	811: {"CUDA_ERROR_CDP_NOT_SUPPORTED", ""},
	812: {"CUDA_ERROR_CDP_VERSION_MISMATCH", ""},

	900: {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "Calls of this kind cannot be captured in a graph: load and order outside of the engine's captures."},
	901: {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", ""},
	902: {"CUDA_ERROR_STREAM_CAPTURE_MERGE", ""},
	903: {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", ""},
	904: {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", ""},
	905: {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", ""},
	906: {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "A capture in this process uses the legacy stream."},
	907: {"CUDA_ERROR_CAPTURED_EVENT", ""},
	908: {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", ""},
	909: {"CUDA_ERROR_TIMEOUT", ""},
	910: {"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", ""},
	911: {"CUDA_ERROR_EXTERNAL_DEVICE", "A device outside of CUDA failed." + newProcess},
	912: {"CUDA_ERROR_INVALID_CLUSTER_SIZE", ""},
	913: {"CUDA_ERROR_FUNCTION_NOT_LOADED", ""},
	914: {"CUDA_ERROR_INVALID_RESOURCE_TYPE", ""},
	915: {"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", ""},
	916: {"CUDA_ERROR_KEY_ROTATION", ""},
	917: {"CUDA_ERROR_STREAM_DETACHED", ""},
	918: {"CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", ""},
	999: {"CUDA_ERROR_UNKNOWN", "The driver has no word for it: often a device that fell off the bus or a module that was reloaded; dmesg has the Xid." + newProcess},
}
