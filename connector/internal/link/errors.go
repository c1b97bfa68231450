package link

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/connector/wire"
)

// The kinds of failure, one for each code of the protocol. An engine handles all of them by
// computing the state itself. An error that the daemon reports wraps one of these errors and
// adds the daemon's text.
var (
	ErrMiss        = errors.New("miss")
	ErrInvalid     = errors.New("invalid")
	ErrBusy        = errors.New("busy")
	ErrFull        = errors.New("full")
	ErrGone        = errors.New("gone")
	ErrCorrupt     = errors.New("corrupt")
	ErrUnavailable = errors.New("unavailable")
	ErrExists      = errors.New("exists")
	ErrDenied      = errors.New("denied")
	ErrStale       = errors.New("stale")
	ErrUnsupported = errors.New("unsupported")
	ErrCanceled    = errors.New("canceled")
	ErrLate        = errors.New("late")
	ErrQuota       = errors.New("quota")
)

// kinds maps codes to sentinels, one to one.
var kinds = [...]error{
	wire.OK: nil, wire.Miss: ErrMiss, wire.Invalid: ErrInvalid, wire.Busy: ErrBusy,
	wire.Full: ErrFull, wire.Gone: ErrGone, wire.Corrupt: ErrCorrupt,
	wire.Unavailable: ErrUnavailable, wire.Exists: ErrExists, wire.Denied: ErrDenied,
	wire.Stale: ErrStale, wire.Unsupported: ErrUnsupported, wire.Canceled: ErrCanceled,
	wire.Late: ErrLate, wire.Quota: ErrQuota,
}

// Kind returns the sentinel of a code. Unknown codes, of later versions, are ErrUnsupported.
func Kind(code wire.Code) error {
	if int(code) < len(kinds) {
		return kinds[code]
	}
	return ErrUnsupported
}

// Refusal returns the error for a reply with an error code and a text.
func Refusal(op wire.Op, code wire.Code, body []byte) error {
	if text := wire.ErrorText(body); text != "" {
		return fmt.Errorf("%s: %s: %w", op, text, Kind(code))
	}
	return fmt.Errorf("%s: %w", op, Kind(code))
}
