package link

import (
	"context"
	"fmt"
	"sync"
)

// PendingWrite is the error of a Rotate or Assemble into engine memory that the client has
// abandoned while the daemon may still be writing. The engine must not use the blocks of the
// request until Wait returns nil.
type PendingWrite struct {
	cause error
	id    uint64
	done  chan struct{}

	once sync.Once
	err  error // set before done is closed
}

func newPendingWrite(cause error, id uint64) *PendingWrite {
	return &PendingWrite{cause: cause, id: id, done: make(chan struct{})}
}

// Error returns why the call was abandoned.
func (p *PendingWrite) Error() string { return p.cause.Error() + "; the daemon may still be writing" }

// Unwrap returns why the call was abandoned: ErrLate, ErrCanceled or ErrUnavailable.
func (p *PendingWrite) Unwrap() error { return p.cause }

// Done returns a channel that is closed when Wait would not block.
func (p *PendingWrite) Done() <-chan struct{} { return p.done }

// Wait blocks until the daemon can no longer write to the destination: it answered the request,
// acknowledged the cancel, or is gone. After an error the daemon may still write.
// ErrUnavailable: this can no longer be found out, because the client was closed first.
func (p *PendingWrite) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("write of request %d may be unfinished: %w", p.id, context.Cause(ctx))
	}
}

func (p *PendingWrite) resolve(err error) {
	p.once.Do(func() {
		p.err = err
		close(p.done)
	})
}
