package driver

import "fmt"

// Result is a CUresult. Its error text is its number and name.
type Result int32

// Error is the failure of one call of the driver. errors.Is(err, OutOfMemory) compares its
// result.
type Error struct {
	Call   string // the driver's function, such as "cuMemAlloc_v2"
	Result Result
	Detail string // more text of the driver, such as the log of its compiler
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Call + ": " + e.Result.Error()
	}
	return e.Call + ": " + e.Result.Error() + ": " + e.Detail
}

// Unwrap returns the result.
func (e *Error) Unwrap() error { return e.Result }

func (r Result) Error() string { return fmt.Sprintf("%d %s", int32(r), r.Name()) }

// Name returns the driver's name of a result, or a text that says that the result is newer
// than the table.
func (r Result) Name() string {
	if row, ok := results[r]; ok {
		return row.name
	}
	return "CUDA_ERROR (newer than CUDA 13.3)"
}

// Remedy returns one sentence about what to do; "" if the name says enough.
func (r Result) Remedy() string { return results[r].remedy }

// Sticky reports whether the context is lost if a call on our own memory returns r. Then
// every later call in the process fails too, and only a new process helps.
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

// Doubtful reports whether r may mean that the context is lost, or only that this call
// failed. Drivers return these results in both cases. The next harmless call shows which it
// was.
func (r Result) Doubtful() bool { return r == DeviceUnavailable || r == Unknown }
