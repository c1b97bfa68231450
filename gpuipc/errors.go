package gpuipc

import "errors"

// These are the kinds of failure. An error wraps one of them and names the object and the
// number that are wrong. If a context ended an operation, the operation's error wraps the
// context's error instead.
var (
	// ErrInvalid means that the request can never be valid.
	ErrInvalid = errors.New("invalid")
	// ErrFull means that there is no room in the region, the device or the machine.
	ErrFull = errors.New("full")
	// ErrUnavailable means that the device cannot do this here, or that memory under a
	// region could not be reached.
	ErrUnavailable = errors.New("unavailable")
)
