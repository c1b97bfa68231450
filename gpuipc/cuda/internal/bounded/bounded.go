// Package bounded runs driver calls that may never return, each in its own goroutine. These
// are calls on memory of other processes, which can make such a call hang. A call whose
// deadline has passed is abandoned: the caller continues, and what the call made is
// released when it returns.
package bounded

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Most is the largest number of goroutines, and thus of threads, that are in such driver
// calls at once. Abandoned calls that have not returned count too.
const Most = 16

// Host is the device on which the calls run.
type Host struct {
	Run     func(f func() error) error // runs f with the context current; returns an error instead if the device is lost
	Release func(f func())             // runs f, which releases memory, even if the device is lost
	Log     func(text string)
}

// Calls runs the calls of one device. It is safe for concurrent use.
type Calls struct {
	host    Host
	timeout time.Duration
	slots   chan struct{} // one token per call that has not returned
	stuck   atomic.Int64  // number of abandoned calls that have not returned
	late    atomic.Int64  // number of calls ever abandoned
}

// New returns Calls in which every call has the same timeout.
func New(h Host, timeout time.Duration) *Calls {
	return &Calls{host: h, timeout: timeout, slots: make(chan struct{}, Most)}
}

// Stuck returns the number of abandoned calls that have not returned.
func (c *Calls) Stuck() int64 { return c.stuck.Load() }

// Late returns the number of calls abandoned since New.
func (c *Calls) Late() int64 { return c.late.Load() }

// errLate is the cause of a context whose timeout has passed.
var errLate = errors.New("cuda: the driver took too long")

// The states of a call.
const (
	callWaited   int32 = iota // the caller is waiting for the result
	callAnswered              // the call returned first
	callLeft                  // the caller stopped waiting first
)

// Call is one driver call to be run by Do.
type Call struct {
	What string       // description for people
	Run  func() error // runs with the context current
	Undo func()       // called if Run succeeded after the call was abandoned
	Last func()       // called once, when Run has returned or will never be called
}

// Do runs k and waits for its result. If ctx ends or the timeout passes before k returns,
// Do abandons the call and returns ErrUnavailable.
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
	if errors.Is(context.Cause(ctx), errLate) { // not because a client went away
		c.host.Log(fmt.Sprintf("cuda: %s: no answer of the driver within %v; %d such calls are under way", k.What, c.timeout, c.stuck.Load()))
	}
	return fmt.Errorf("cuda: %s: the driver did not answer in time (%w): %w", k.What, ctx.Err(), gpuipc.ErrUnavailable)
}

// leave abandons a call, unless it has returned meanwhile.
func (c *Calls) leave(state *atomic.Int32) bool {
	c.stuck.Add(1) // counted before the call is abandoned, so that the count is never too small
	if !state.CompareAndSwap(callWaited, callLeft) {
		c.stuck.Add(-1)
		return false
	}
	c.late.Add(1)
	return true
}

// Release runs f, which releases memory, with the same timeout. If all goroutines are busy,
// it waits for one in the background, because memory must not be kept only because other
// calls are stuck. The number of waiting calls is bounded, because only memory from calls
// that Do admitted is released.
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

// slot waits for a place for one more call.
func (c *Calls) slot(ctx context.Context, what string) error {
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cuda: %s: %d driver calls do not come back (%w): %w", what, cap(c.slots), ctx.Err(), gpuipc.ErrUnavailable)
	}
}

// Close returns an error while abandoned calls are running, because they still use the
// context.
func (c *Calls) Close() error {
	if n := c.stuck.Load(); n > 0 {
		return fmt.Errorf("cuda: close: %d driver calls on memory of other processes have not come back: %w", n, gpuipc.ErrUnavailable)
	}
	return nil
}
