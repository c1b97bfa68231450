package tier

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
)

// The kinds of failure. Errors wrap one of them with the object and the number;
// an operation that its context ended wraps the context's error instead.
var (
	ErrInvalid     = errors.New("tiering: invalid")     // the request can never be right
	ErrBusy        = errors.New("tiering: busy")        // a bound is met; try later
	ErrFull        = errors.New("tiering: full")        // no room after eviction
	ErrQuota       = errors.New("tiering: over quota")  // the tenant's bytes are all in use
	ErrGone        = errors.New("tiering: gone")        // no such lease or reservation, or not any more
	ErrExists      = errors.New("tiering: exists")      // published, or being filled by this rank
	ErrCorrupt     = errors.New("tiering: corrupt")     // bytes did not match their digest
	ErrUnavailable = errors.New("tiering: unavailable") // the store is closing
	ErrWithheld    = errors.New("tiering: withheld")    // it could be had, but was wanted only together with what could not
)

// DeviceError gives an error of a device one of these kinds; what ended the context
// stays visible.
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

// ContextEnded tells an operation that stopped because it was told to from one
// that failed.
func ContextEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
