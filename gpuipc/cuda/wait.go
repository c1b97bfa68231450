package cuda

import (
	"context"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// spinFor is the time that the method wait polls before it sleeps: about as long as a small
// copy takes. A sleeping thread wakes up some 10 us late. A polling thread takes a core from
// others: with 50 us, on 2 cores that the fake driver's kernels need too, a compose took 45
// us longer.
const spinFor = 10 * time.Microsecond

// wait returns when the stream has passed the last record of e.
func (l *lane) wait(e driver.Event) error {
	api := l.dev.api
	for start := time.Now(); ; {
		if done, err := api.EventQuery(e); done || err != nil {
			return err
		}
		if time.Since(start) > spinFor {
			return api.EventSynchronize(e)
		}
	}
}

// drain returns when the lane has no work in flight.
func (l *lane) drain() error {
	if !l.busy {
		return nil
	}
	l.busy = false
	err := l.dev.api.EventRecord(l.done, l.stream)
	if err == nil {
		err = l.wait(l.done)
	}
	if err = l.dev.fail(err); err != nil && l.dev.gone() == nil {
		// No event can show when the work has ended, so wait for the stream itself.
		_ = l.dev.fail(l.dev.api.StreamSynchronize(l.stream))
	}
	return err
}

// pieces cuts n bytes into pieces of at most size bytes and keeps two pieces in flight. It
// calls issue to enqueue a piece. When a piece has ended, pieces calls the function done,
// if it is set; the calls are in order. Pieces use the slots 0 and 1 in turn. For each
// slot, the call of done for one piece returns before the call of issue for the next piece.
// The context is checked before each piece.
func (l *lane) pieces(ctx context.Context, n, size int64, issue, done func(slot int, off, n int64) error) error {
	finish := func(i int64) error {
		if err := l.wait(l.marks[i%2]); err != nil || done == nil {
			return err
		}
		return done(int(i%2), i*size, min(size, n-i*size))
	}
	count := (n + size - 1) / size
	for i := range count {
		if i >= 2 {
			if err := finish(i - 2); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		l.busy = true
		if err := issue(int(i%2), i*size, min(size, n-i*size)); err != nil {
			return err
		}
		if done == nil && i+2 >= count {
			continue // nothing waits for this mark
		}
		if err := l.dev.api.EventRecord(l.marks[i%2], l.stream); err != nil {
			return err
		}
	}
	if done == nil {
		return nil // later work on the stream, or drain, waits for these pieces
	}
	for i := max(0, count-2); i < count; i++ {
		if err := finish(i); err != nil {
			return err
		}
	}
	if count > 0 {
		l.busy = false // the last mark was recorded after all work
	}
	return nil
}
