package connector

import "github.com/spliced-kv/spliced/connector/internal/link"

// The kinds of failure, one for each code of the protocol. An engine handles all of them by
// computing the state itself. An error that the daemon reports wraps one of these errors and
// adds the daemon's text.
var (
	ErrMiss        = link.ErrMiss
	ErrInvalid     = link.ErrInvalid
	ErrBusy        = link.ErrBusy
	ErrFull        = link.ErrFull
	ErrGone        = link.ErrGone
	ErrCorrupt     = link.ErrCorrupt
	ErrUnavailable = link.ErrUnavailable
	ErrExists      = link.ErrExists
	ErrDenied      = link.ErrDenied
	ErrStale       = link.ErrStale
	ErrUnsupported = link.ErrUnsupported
	ErrCanceled    = link.ErrCanceled
	ErrLate        = link.ErrLate
	ErrQuota       = link.ErrQuota
)

// PendingWrite is the error of a Rotate or Assemble into engine memory that the client has
// abandoned while the daemon may still be writing. The engine must not use the blocks of the
// request until Wait returns nil. The channel Done is closed when Wait would not block.
//
//	var p *connector.PendingWrite
//	if errors.As(err, &p) {
//		hold(blocks)
//		go func() {
//			if p.Wait(ctx) == nil {
//				free(blocks)
//			}
//		}()
//	}
type PendingWrite = link.PendingWrite
