package cuda

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// foreignCalls bounds the goroutines, and with them threads, that may stand in
// the driver over memory of other processes, whether they get an answer or not.
const foreignCalls = 16

// foreign runs driver calls on memory of other processes, each in a goroutine of
// its own. A call that is not back by its deadline is left there; its caller goes
// on, and what it made is given back when it does come back.
type foreign struct {
	dev     *device
	timeout time.Duration
	slots   chan struct{} // one token per call that has not returned
	stuck   atomic.Int64  // of them, those nobody waits for any more
	late    atomic.Int64  // all that ever were
}

func newForeign(d *device, timeout time.Duration) *foreign {
	return &foreign{dev: d, timeout: timeout, slots: make(chan struct{}, foreignCalls)}
}

// errLate is why a call is left whose time is over.
var errLate = errors.New("cuda: the driver took too long")

// states of a call
const (
	callWaited   int32 = iota // somebody waits for the answer
	callAnswered              // the answer came first
	callLeft                  // the deadline came first
)

// call is one call.
type call struct {
	what string
	run  func() error // with the context current
	undo func()       // when run succeeded and nobody waits any more
	last func()       // once, when run has returned or never will be called
}

// start runs k and waits for its answer, until ctx ends or the time is over: that
// is ErrUnavailable.
func (c *foreign) start(ctx context.Context, k call) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errLate)
	defer cancel()
	if err := c.slot(ctx, k.what); err != nil {
		k.last()
		return err
	}
	answer := make(chan error, 1)
	var state atomic.Int32
	go func() {
		defer func() { <-c.slots }()
		err := c.onThread(k.run)
		k.last()
		if state.CompareAndSwap(callWaited, callAnswered) {
			answer <- err
			return
		}
		if err == nil {
			c.dev.release(k.undo)
		}
		c.stuck.Add(-1)
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
	}
	if !c.leave(&state) {
		return <-answer
	}
	if errors.Is(context.Cause(ctx), errLate) { // and not because a client went away
		c.dev.options.Log(fmt.Sprintf("cuda: %s: no answer of the driver within %v; %d such calls are under way", k.what, c.timeout, c.stuck.Load()))
	}
	return fmt.Errorf("cuda: %s: the driver did not answer in time (%w): %w", k.what, ctx.Err(), gpuipc.ErrUnavailable)
}

// leave gives a call up, unless it was answered meanwhile.
func (c *foreign) leave(state *atomic.Int32) bool {
	c.stuck.Add(1) // before it is left, so that the count is never too small
	if !state.CompareAndSwap(callWaited, callLeft) {
		c.stuck.Add(-1)
		return false
	}
	c.late.Add(1)
	return true
}

// finish runs f, which gives memory back, the same way. When there is no free
// goroutine for it, it waits for one behind the caller's back: memory must not be
// kept because others are stuck. Those waiting are bounded by what start let in.
func (c *foreign) finish(what string, f func() error) error {
	answer := make(chan error, 1)
	var state atomic.Int32
	go func() {
		c.slots <- struct{}{}
		defer func() { <-c.slots }()
		var err error
		c.dev.release(func() { err = f() })
		if state.CompareAndSwap(callWaited, callAnswered) {
			answer <- err
			return
		}
		c.stuck.Add(-1)
	}()
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-timer.C:
	}
	if !c.leave(&state) {
		return <-answer
	}
	return fmt.Errorf("cuda: %s: the driver did not answer within %v: %w", what, c.timeout, gpuipc.ErrUnavailable)
}

// slot waits for the right to one more call.
func (c *foreign) slot(ctx context.Context, what string) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cuda: %s: %d driver calls do not come back (%w): %w", what, cap(c.slots), ctx.Err(), gpuipc.ErrUnavailable)
	}
}

func (c *foreign) onThread(f func() error) error {
	if err := c.dev.enter(); err != nil {
		return err
	}
	defer runtime.UnlockOSThread()
	return f()
}

// close refuses while calls are left behind: they run on the context.
func (c *foreign) close() error {
	if n := c.stuck.Load(); n > 0 {
		return fmt.Errorf("cuda: close: %d driver calls on memory of other processes have not come back: %w", n, gpuipc.ErrUnavailable)
	}
	return nil
}
