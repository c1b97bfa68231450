package tier

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/errkind"
)

// The kinds of failure. Every error wraps one of them, and its message names the object and
// the numbers. The error of an operation whose context ended wraps the context's error
// instead.
var (
	ErrInvalid     = errors.New("invalid")     // the request can never be right
	ErrBusy        = errors.New("busy")        // a bound is met; try later
	ErrFull        = errors.New("full")        // no room after eviction
	ErrQuota       = errors.New("over quota")  // every byte of the tenant's quota is in use
	ErrGone        = errors.New("gone")        // the lease, reservation or object does not exist (any more)
	ErrExists      = errors.New("exists")      // already published, or this rank is already filling it
	ErrCorrupt     = errors.New("corrupt")     // bytes did not match their digest
	ErrUnavailable = errors.New("unavailable") // the store, a tier or a source cannot serve this now
	ErrWithheld    = errors.New("withheld")    // the key is available, but another key of an all-or-none request is not
)

// DeviceError wraps an error of a device in ErrInvalid or ErrUnavailable. The error of a
// context is kept as it is.
func DeviceError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ContextEnded(err):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, gpuipc.ErrInvalid):
		return errkind.With(fmt.Errorf("%s: %w", what, err), ErrInvalid)
	}
	return Unavailable(fmt.Errorf("%s: %w", what, err))
}

// Unavailable wraps an error in ErrUnavailable.
func Unavailable(err error) error {
	if errors.Is(err, gpuipc.ErrUnavailable) {
		return errkind.With(err, ErrUnavailable)
	}
	return fmt.Errorf("%w: %w", err, ErrUnavailable)
}

// ContextEnded reports whether an operation stopped because its context ended.
func ContextEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
