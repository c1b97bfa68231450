package server

import (
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// cancellation is a cancel request that waits for running work. It is answered when none of the
// requests that it names can write to a destination any more. If its deadline passes first, it is
// answered as late, and the work still runs.
type cancellation struct {
	header wire.Header
	timer  *time.Timer
	bytes  int64 // heap bytes, reserved until the cancellation is over

	// Guarded by conn.mu.
	outcomes []uint8
	left     int
	over     bool // answered, or its connection has ended
}

// waiter is one row of a cancellation: one request that it names.
type waiter struct {
	*cancellation
	row int
}

// settleLocked records the outcome of one row. It reports whether the cancellation must now be
// answered: this was the last row, and the cancellation is not over.
func (w waiter) settleLocked(outcome uint8) bool {
	w.outcomes[w.row] = outcome
	w.left--
	if w.left > 0 || w.over {
		return false
	}
	w.over = true
	return true
}

// cancelRequests begins a cancellation without waiting. It answers each named job that has not
// started; a worker answers a running job. When the last named job is answered, the cancellation is
// answered too.
func (c *conn) cancelRequests(t *task) error {
	m := &t.scratch.cancel
	if err := m.Decode(t.body); err != nil {
		return err
	}
	w := &cancellation{header: t.header, outcomes: make([]uint8, len(m.Requests)), bytes: cancelBytes * int64(len(m.Requests))}
	if err := c.server.hold(t.at.uid, w.bytes); err != nil {
		return err
	}
	var named []*job
	c.mu.Lock()
	if len(c.mu.cancels) >= c.server.config.MaxInFlight {
		c.mu.Unlock()
		c.endCancel(w)
		return codes.Refuse(wire.Busy, "%d cancels are waiting, the maximum of a connection", c.server.config.MaxInFlight)
	}
	for row, id := range m.Requests {
		if j := c.mu.jobs[id]; j != nil {
			j.waiters = append(j.waiters, waiter{w, row})
			named = append(named, j)
			w.left++
		}
	}
	if w.left > 0 {
		c.mu.cancels[w] = struct{}{}
		// Set under the lock: finish stops the timer, after it has taken the lock.
		w.timer = time.AfterFunc(c.server.deadline(&w.header), func() { c.cancelLate(w) })
	}
	c.mu.Unlock()
	if len(named) == 0 {
		c.endCancel(w)
		c.reply(&w.header, &wire.CancelReply{Outcomes: w.outcomes}, nil, t.scratch)
		return nil
	}
	for _, j := range named {
		j.cancel(errCancelled)
		if j.queue.Take(j.lane, j) {
			c.finish(j, nil, errCancelled, t.scratch)
		}
	}
	return nil
}

// cancelLate answers a cancellation whose deadline has passed.
func (c *conn) cancelLate(w *cancellation) {
	c.mu.Lock()
	left, over := w.left, w.over
	w.over = true
	delete(c.mu.cancels, w)
	for _, j := range c.mu.jobs { // otherwise waiters would accumulate at a job that runs long
		j.waiters = slices.DeleteFunc(j.waiters, func(x waiter) bool { return x.cancellation == w })
	}
	c.mu.Unlock()
	if !over {
		c.endCancel(w)
		c.replyError(&w.header, codes.Refuse(wire.Late, "%d requests still run", left), &scratch{})
	}
}

// endCancel releases the memory of a cancellation that is over or never began.
func (c *conn) endCancel(w *cancellation) { c.server.letGo(c.peer.UID, w.bytes) }

// dropCancels discards the cancellations of a connection that ends.
func (c *conn) dropCancels() {
	c.mu.Lock()
	for w := range c.mu.cancels {
		w.over = true
		w.timer.Stop()
		c.endCancel(w)
	}
	clear(c.mu.cancels)
	c.mu.Unlock()
}
