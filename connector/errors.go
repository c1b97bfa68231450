package connector

import "github.com/spliced-kv/spliced/connector/internal/link"

// The kinds of failure, one for each code of the protocol. An engine handles all of them by
// computing the state itself. Errors that the daemon reports wrap them with its text.
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

// PendingWrite is the error of a Rotate or Assemble into engine memory that was abandoned
// while the daemon may still be writing. The named blocks must not be used until its Wait
// returns nil; Done is closed when Wait would not block.
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
