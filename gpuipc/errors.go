package gpuipc

import "errors"

// The kinds of failure. An error wraps one of them and names the object and the number in
// question. If a context ended an operation, the operation's error wraps the context's
// error instead.
var (
	// ErrInvalid: the request can never be valid.
	ErrInvalid = errors.New("gpuipc: invalid")
	// ErrFull: no room in the region, the device or the machine.
	ErrFull = errors.New("gpuipc: full")
	// ErrUnavailable: the device cannot do this here, or memory under a region
	// could not be reached.
	ErrUnavailable = errors.New("gpuipc: unavailable")
)
