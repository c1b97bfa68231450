package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
)

// job is a long request: it waits in the queue, runs on a worker, and is
// answered by whoever takes it out of the queue.
type job struct {
	conn     *conn
	header   wire.Header
	body     []byte // its own copy
	arrived  time.Time
	deadline time.Time
	ctx      context.Context
	cancel   context.CancelCauseFunc

	waiters []waiter // guarded by conn.mu: cancellations that wait for the end
}

// errCancelled is the cause of contexts that a cancel request has ended.
var errCancelled error = &refusal{code: wire.Canceled, text: "canceled"}

// start puts a request into the queue. The body is copied: the reader's buffer
// is used for the next frame.
func (c *conn) start(h *wire.Header, body []byte, arrived time.Time) error {
	if n := c.flying.Add(1); n > int64(c.server.config.MaxInFlight) {
		c.flying.Add(-1)
		return refuse(wire.Busy, "%d requests are in flight, the most of a connection", n-1)
	}
	j := &job{conn: c, header: *h, body: slices.Clone(body), arrived: arrived}
	j.deadline = arrived.Add(c.server.deadline(h))
	j.ctx, j.cancel = context.WithCancelCause(c.ctx)
	c.work.Add(1)
	c.server.busy.Add(1)
	c.mu.Lock()
	c.mu.jobs[h.Request] = j
	c.mu.Unlock()
	if !c.server.queue.put(&c.lane, j) {
		panic("daemon: the queue was closed before its connections")
	}
	return nil
}

// run is called by a worker. Work whose time has passed, or that was cancelled
// before it began, touches nothing.
func (c *conn) run(j *job, s *scratch, now time.Time) {
	switch {
	case j.ctx.Err() != nil:
		c.finish(j, nil, context.Cause(j.ctx), s)
		return
	case !now.Before(j.deadline):
		c.finish(j, nil, refuse(wire.Late, "waited %v in the queue", now.Sub(j.arrived).Round(time.Microsecond)), s)
		return
	}
	ctx, stop := context.WithDeadline(j.ctx, j.deadline)
	t := &s.task
	*t = task{conn: c, at: c.attached.Load(), header: j.header, body: j.body, ctx: ctx, scratch: s}
	reply, err := operations[j.header.Op].run(t)
	if err != nil {
		err, _ = ended(ctx, err)
	}
	stop()
	c.finish(j, reply, err, s)
}

// finish answers a job and then the cancellations that waited for it: in this
// order, so that a client has the answer of a request before it hears that the
// request is over.
func (c *conn) finish(j *job, reply wire.Message, err error, s *scratch) {
	// Before the answer: who has it may send the next request at once.
	c.flying.Add(-1)
	if !c.ending.Load() {
		if err != nil {
			c.replyError(&j.header, err, s)
		} else {
			c.reply(&j.header, reply, nil, s)
		}
	}
	c.server.counts.took(j.header.Op, time.Since(j.arrived))
	j.cancel(nil)
	outcome := wire.CancelDrained
	if code, _ := codeOf(err); code == wire.Canceled {
		outcome = wire.CancelStopped
	}
	var done []*cancellation
	c.mu.Lock()
	delete(c.mu.jobs, j.header.Request)
	for _, w := range j.waiters {
		if w.settleLocked(outcome) {
			done = append(done, w.cancellation)
			delete(c.mu.cancels, w.cancellation)
		}
	}
	c.mu.Unlock()
	for _, w := range done {
		w.timer.Stop()
		c.reply(&w.header, &wire.CancelReply{Outcomes: w.outcomes}, nil, s)
	}
	c.work.Done()
	c.server.jobDone()
}

// dropQueued ends what no worker has begun, without answers.
func (c *conn) dropQueued() {
	c.mu.Lock()
	waiting := make([]*job, 0, len(c.mu.jobs))
	for _, j := range c.mu.jobs {
		waiting = append(waiting, j)
	}
	c.mu.Unlock()
	for _, j := range waiting {
		if c.server.queue.take(&c.lane, j) {
			c.finish(j, nil, errPeerLeft, nil)
		}
	}
}
