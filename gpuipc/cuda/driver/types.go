package driver

// DevicePtr is an address in the memory of a device, as this process maps it.
type DevicePtr uint64

// Device is a driver's ordinal of a device, which differs between processes.
type Device int32

// Context, Stream, Event, Module and Function are the driver's handles. The zero
// Stream is the legacy default stream, which waits for all others: nothing here
// should use it.
type (
	Context  uintptr
	Stream   uintptr
	Event    uintptr
	Module   uintptr
	Function uintptr
)

// Allocation is physical memory of the VMM calls (CUmemGenericAllocationHandle).
type Allocation uint64

// Attribute names a property of a device (CUdevice_attribute).
type Attribute int32

// The attributes in use, with the values in cuda.h of CUDA 12.
const (
	MaxBlockThreads      Attribute = 1
	MaxGridX             Attribute = 5
	MaxSharedPerBlock    Attribute = 8
	ClockKHz             Attribute = 13
	Multiprocessors      Attribute = 16
	ComputeMode          Attribute = 20
	MemoryClockKHz       Attribute = 36
	MemoryBusBits        Attribute = 37
	L2Bytes              Attribute = 38
	UnifiedAddressing    Attribute = 41
	CapabilityMajor      Attribute = 75
	CapabilityMinor      Attribute = 76
	MaxSharedOptIn       Attribute = 97
	HostRegisterSupport  Attribute = 99
	VirtualMemorySupport Attribute = 102
	DescriptorSupport    Attribute = 103
	StreamMemOps64       Attribute = 122
	IPCEventSupport      Attribute = 125
	// MPSEnabled is one that a driver of CUDA 11.8 does not know: InvalidValue.
	MPSEnabled Attribute = 133
)

// Compute modes, the values of ComputeMode.
const (
	ComputeDefault          = 0
	ComputeProhibited       = 2
	ComputeExclusiveProcess = 3
)

// EventFlags say what an event is for.
type EventFlags uint32

// EventBlocking makes a host wait sleep instead of spin; EventInterprocess needs
// EventNoTiming and makes an event that IPCEventHandle can name.
const (
	EventBlocking     EventFlags = 1
	EventNoTiming     EventFlags = 2
	EventInterprocess EventFlags = 4
)

// IPCHandleBytes is the size of the handles of memory and of events.
const IPCHandleBytes = 64

// MinDriverVersion is the oldest driver, as DriverVersion counts, that Load
// takes: CUDA 11.8, the first to read PTX 7.8.
const MinDriverVersion = 11080

// MaxLaunchBytes is the most bytes of arguments that Launch takes: the limit of
// every device and driver that Load accepts.
const MaxLaunchBytes = 4096
