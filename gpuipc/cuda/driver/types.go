package driver

// DevicePtr is an address in the memory of a device, as this process maps it.
type DevicePtr uint64

// Device is the driver's number of a device. The same device may have other numbers in
// other processes.
type Device int32

// Context, Stream, Event, Module and Function are handles of the driver. The zero Stream is
// the legacy default stream, which waits for all other streams; our code does not use it.
type (
	Context  uintptr
	Stream   uintptr
	Event    uintptr
	Module   uintptr
	Function uintptr
)

// Allocation is physical memory of CUDA's virtual memory management, or VMM
// (CUmemGenericAllocationHandle).
type Allocation uint64

// Attribute names a property of a device (CUdevice_attribute).
type Attribute int32

// The attributes that our code uses, with their values in cuda.h of CUDA 12.
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
	// MPSEnabled is unknown to a driver of CUDA 11.8, which returns InvalidValue.
	MPSEnabled Attribute = 133
)

// The compute modes, which are the values of ComputeMode.
const (
	ComputeDefault          = 0
	ComputeProhibited       = 2
	ComputeExclusiveProcess = 3
)

// EventFlags are properties of an event.
type EventFlags uint32

// With EventBlocking, a wait on the host sleeps instead of spinning. EventInterprocess
// makes an event for which IPCEventHandle works, and needs EventNoTiming.
const (
	EventBlocking     EventFlags = 1
	EventNoTiming     EventFlags = 2
	EventInterprocess EventFlags = 4
)

// IPCHandleBytes is the size of the handles of memory and of events, in bytes.
const IPCHandleBytes = 64

// MinDriverVersion is the oldest driver that Load accepts, in the form of DriverVersion:
// CUDA 11.8, the first that can read PTX 7.8.
const MinDriverVersion = 11080

// MaxLaunchBytes is the most bytes of arguments that Launch accepts. Every device and
// driver that Load accepts has this limit.
const MaxLaunchBytes = 4096
