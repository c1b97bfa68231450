package tier

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
)

// The kinds of failure. An error wraps one of them and names the object and the number.
// An operation ended by its context wraps the context's error instead.
var (
	ErrInvalid     = errors.New("tiering: invalid")     // the request can never be right
	ErrBusy        = errors.New("tiering: busy")        // a bound is met; try later
	ErrFull        = errors.New("tiering: full")        // no room after eviction
	ErrQuota       = errors.New("tiering: over quota")  // every byte of the tenant's quota is in use
	ErrGone        = errors.New("tiering: gone")        // no such lease or reservation, or no longer
	ErrExists      = errors.New("tiering: exists")      // already published, or this rank is already filling it
	ErrCorrupt     = errors.New("tiering: corrupt")     // bytes did not match their digest
	ErrUnavailable = errors.New("tiering: unavailable") // the store is closing
	ErrWithheld    = errors.New("tiering: withheld")    // available, but refused because another key of an all-or-none request is not
)

// DeviceError wraps a device's error in one of these kinds. A context error stays
// visible.
func DeviceError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ContextEnded(err):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, gpuipc.ErrInvalid):
		return fmt.Errorf("%s: %w: %w", what, ErrInvalid, err)
	}
	return fmt.Errorf("%s: %w: %w", what, ErrUnavailable, err)
}

// ContextEnded reports whether an operation stopped because its context ended.
func ContextEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
