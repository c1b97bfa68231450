package server

import (
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
)

// cancellation is a cancel request that waits for running work. It is answered when none of the
// requests that it names can write to a destination any more. If its deadline passes first, it is
// answered as late, and the work still runs. It is not in flight as other requests are, so that a
// client whose requests have no room left can cancel them.
type cancellation struct {
	header wire.Header
	timer  *time.Timer
	bytes  int64 // heap bytes, reserved until the cancellation is over

	// Guarded by conn.mu.
	outcomes []uint8
	left     int
}

// waiter is one row of a cancellation: one request that it names.
type waiter struct {
	*cancellation
	row int
}

// cancelRequests begins a cancellation without waiting. The owner of each named request answers
// it. When the last one is answered, the cancellation is answered too.
func (c *conn) cancelRequests(t *task) error {
	m, err := decode[wire.CancelRequest](t)
	if err != nil {
		return err
	}
	w := &cancellation{header: t.header, outcomes: make([]uint8, len(m.Requests)), bytes: cancelBytes * int64(len(m.Requests))}
	if err := c.server.hold(t.at.uid, w.bytes); err != nil {
		return err
	}
	waits, err := c.enlist(w, m.Requests)
	if waits {
		return nil
	}
	c.server.held.GiveBack(c.peer.UID, w.bytes)
	if err == nil {
		c.reply(&w.header, &wire.CancelReply{Outcomes: w.outcomes}, nil, t.scratch)
	}
	return err
}

// enlist cancels the named requests that are in flight. If there are some, w waits for them.
func (c *conn) enlist(w *cancellation, requests []uint64) (waits bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if max(len(c.mu.cancels), c.mu.late) >= c.server.config.MaxInFlight {
		return false, codes.Refuse(wire.Busy, "%d cancels are waiting, the maximum of a connection", c.server.config.MaxInFlight)
	}
	for row, id := range requests {
		if t := c.mu.inFlight[id]; t != nil {
			t.waiters = append(t.waiters, waiter{w, row})
			w.left++
			t.cancel(errCancelled)
		}
	}
	if w.left == 0 {
		return false, nil
	}
	c.mu.cancels[w] = struct{}{}
	w.timer = time.AfterFunc(c.server.deadline(&w.header), func() { c.cancelLate(w) })
	return true, nil
}

// endCancelLocked ends a cancellation that waits, and releases its memory. It returns false if the
// cancellation is over already.
func (c *conn) endCancelLocked(w *cancellation) bool {
	if _, waits := c.mu.cancels[w]; !waits {
		return false
	}
	w.timer.Stop()
	delete(c.mu.cancels, w)
	c.server.held.GiveBack(c.peer.UID, w.bytes)
	return true
}

// settle removes a request that is over from those in flight, and answers the cancellations that
// waited for it only. The request is answered already, so that a client has the reply to a request
// before it learns that the request is over.
func (c *conn) settle(t *task, err error) {
	outcome := wire.CancelDrained
	if code, _ := codes.Of(err); code == wire.Canceled {
		outcome = wire.CancelStopped
	}
	var done []*cancellation
	c.mu.Lock()
	delete(c.mu.inFlight, t.header.Request)
	for _, w := range t.waiters {
		w.outcomes[w.row] = outcome
		if w.left--; w.left == 0 && c.endCancelLocked(w.cancellation) {
			done = append(done, w.cancellation)
		}
	}
	c.mu.Unlock()
	for _, w := range done {
		c.reply(&w.header, &wire.CancelReply{Outcomes: w.outcomes}, nil, t.scratch)
	}
}

// cancelLate answers a cancellation whose deadline has passed.
func (c *conn) cancelLate(w *cancellation) {
	c.mu.Lock()
	left, late := w.left, c.endCancelLocked(w)
	if late {
		c.mu.late++
	}
	for _, t := range c.mu.inFlight { // otherwise waiters would accumulate at a job that runs long
		t.waiters = slices.DeleteFunc(t.waiters, func(x waiter) bool { return x.cancellation == w })
	}
	c.mu.Unlock()
	if late {
		c.replyError(&w.header, codes.Refuse(wire.Late, "%d requests still run", left), &scratch{})
		c.mu.Lock()
		c.mu.late--
		c.mu.Unlock()
	}
}

// dropCancels discards the cancellations of a connection that ends.
func (c *conn) dropCancels() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.mu.cancels {
		c.endCancelLocked(w)
	}
}
