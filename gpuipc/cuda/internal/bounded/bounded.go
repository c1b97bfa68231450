// Package bounded runs driver calls that may never come back, each in a goroutine
// of its own: calls on memory of other processes, which those processes can make
// hang. A call that is not back by its deadline is left there; its caller goes on,
// and what it made is given back when it does come back.
package bounded

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Most bounds the goroutines, and with them threads, that may be in such calls,
// whether they get an answer or not.
const Most = 16

// Host is the device that calls run on.
type Host struct {
	Run     func(f func() error) error // runs f with the context current, unless the device is lost
	Release func(f func())             // runs f, which gives memory back, in any case
	Log     func(text string)
}

// Calls are the calls of one device. Any number of goroutines may use it.
type Calls struct {
	host    Host
	timeout time.Duration
	slots   chan struct{} // one token per call that has not returned
	stuck   atomic.Int64  // of them, those nobody waits for any more
	late    atomic.Int64  // all that ever were
}

// New bounds every call by timeout.
func New(h Host, timeout time.Duration) *Calls {
	return &Calls{host: h, timeout: timeout, slots: make(chan struct{}, Most)}
}

// Stuck is how many calls have not come back that nobody waits for any more.
func (c *Calls) Stuck() int64 { return c.stuck.Load() }

// Late is how many calls did not come back in time since New.
func (c *Calls) Late() int64 { return c.late.Load() }

// errLate is why a call is left whose time is over.
var errLate = errors.New("cuda: the driver took too long")

// states of a call
const (
	callWaited   int32 = iota // somebody waits for the answer
	callAnswered              // the answer came first
	callLeft                  // the deadline came first
)

// Call is one call.
type Call struct {
	What string       // for people
	Run  func() error // with the context current
	Undo func()       // when Run succeeded and nobody waits any more
	Last func()       // once, when Run has returned or never will be called
}

// Do runs k and waits for its answer, until ctx ends or the time is over: that is
// ErrUnavailable.
func (c *Calls) Do(ctx context.Context, k Call) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errLate)
	defer cancel()
	if err := c.slot(ctx, k.What); err != nil {
		k.Last()
		return err
	}
	answer := make(chan error, 1)
	var state atomic.Int32
	go func() {
		defer func() { <-c.slots }()
		err := c.host.Run(k.Run)
		k.Last()
		if state.CompareAndSwap(callWaited, callAnswered) {
			answer <- err
			return
		}
		if err == nil {
			c.host.Release(k.Undo)
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
		c.host.Log(fmt.Sprintf("cuda: %s: no answer of the driver within %v; %d such calls are under way", k.What, c.timeout, c.stuck.Load()))
	}
	return fmt.Errorf("cuda: %s: the driver did not answer in time (%w): %w", k.What, ctx.Err(), gpuipc.ErrUnavailable)
}

// leave gives a call up, unless it was answered meanwhile.
func (c *Calls) leave(state *atomic.Int32) bool {
	c.stuck.Add(1) // before it is left, so that the count is never too small
	if !state.CompareAndSwap(callWaited, callLeft) {
		c.stuck.Add(-1)
		return false
	}
	c.late.Add(1)
	return true
}

// Release runs f, which gives memory back, the same way. When there is no free
// goroutine for it, it waits for one behind the caller's back: memory must not be
// kept because others are stuck. Those waiting are bounded by what Do let in.
func (c *Calls) Release(what string, f func() error) error {
	answer := make(chan error, 1)
	var state atomic.Int32
	go func() {
		c.slots <- struct{}{}
		defer func() { <-c.slots }()
		var err error
		c.host.Release(func() { err = f() })
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
func (c *Calls) slot(ctx context.Context, what string) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cuda: %s: %d driver calls do not come back (%w): %w", what, cap(c.slots), ctx.Err(), gpuipc.ErrUnavailable)
	}
}

// Close refuses while calls are left behind: they run on the context.
func (c *Calls) Close() error {
	if n := c.stuck.Load(); n > 0 {
		return fmt.Errorf("cuda: close: %d driver calls on memory of other processes have not come back: %w", n, gpuipc.ErrUnavailable)
	}
	return nil
}
