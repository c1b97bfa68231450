package link

import (
	"context"
	"fmt"
	"sync"
)

// PendingWrite is the error of a Rotate or Assemble into engine memory that was
// given up while the daemon may still be writing. The blocks it named must stay
// out of use until Wait returns nil.
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

// Error says why the call was given up.
func (p *PendingWrite) Error() string { return p.cause.Error() + "; the daemon may still be writing" }

// Unwrap returns why the call was given up: ErrLate, ErrCanceled or
// ErrUnavailable.
func (p *PendingWrite) Unwrap() error { return p.cause }

// Done is closed when Wait would not block.
func (p *PendingWrite) Done() <-chan struct{} { return p.done }

// Wait blocks until the daemon cannot touch the destination any more: it
// answered the request, acknowledged the cancel, or is gone. Any error means
// that this is not known; ErrUnavailable that it cannot become known, because
// the client was closed first.
func (p *PendingWrite) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("write of request %d may go on: %w", p.id, context.Cause(ctx))
	}
}

func (p *PendingWrite) resolve(err error) {
	p.once.Do(func() {
		p.err = err
		close(p.done)
	})
}
