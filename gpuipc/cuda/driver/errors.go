package driver

import "fmt"

// Result is a CUresult. As an error it reads as its number and name.
type Result int32

// Error is the failure of one call of the driver. errors.Is(err, OutOfMemory)
// asks for its result.
type Error struct {
	Call   string // the driver's function, such as "cuMemAlloc_v2"
	Result Result
	Detail string // what the driver wrote about it, such as the log of its compiler
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Call + ": " + e.Result.Error()
	}
	return e.Call + ": " + e.Result.Error() + ": " + e.Detail
}

// Unwrap gives the result.
func (e *Error) Unwrap() error { return e.Result }

func (r Result) Error() string { return fmt.Sprintf("%d %s", int32(r), r.Name()) }

// Name is the driver's name of a result, or says that the table is older.
func (r Result) Name() string {
	if row, ok := results[r]; ok {
		return row.name
	}
	return "CUDA_ERROR (newer than CUDA 13.3)"
}

// Remedy is one sentence on what to do about a result; empty where there is
// nothing to say beyond its name.
func (r Result) Remedy() string { return results[r].remedy }

// Sticky reports whether the context is lost with this result when a call on
// memory of our own answers it: every later call in the process fails too, and
// only a new process helps.
func (r Result) Sticky() bool {
	switch r {
	case ECCUncorrectable, NVLinkUncorrectable, Contained,
		IllegalAddress, LaunchTimeout, HardwareStack, IllegalInstruction,
		MisalignedAddress, InvalidAddressSpace, InvalidPC, LaunchFailed,
		AssertFailed, TensorMemoryLeak, MPSServerGone, MPSClientTerminated, ContextDestroyed,
		ExternalDevice:
		return true
	}
	return false
}

// Doubtful reports whether the context may be lost with this result, or only this
// call failed: drivers answer these for both. The next harmless call tells.
func (r Result) Doubtful() bool { return r == DeviceUnavailable || r == Unknown }
