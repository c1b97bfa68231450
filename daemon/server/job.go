package server

import (
	"context"
	"errors"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/queue"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A job is a long request. It needs a place among the running jobs of its queue.
//
// Handing work to another goroutine costs about 30 µs here (measured: compose of one small layer
// takes 45 µs through the queue, 14 µs without it). An engine that walks its layers pays that once
// per layer. So the reader runs a job itself when the connection has no other job and a worker is
// free. Cancel requests must be received meanwhile. A polling goroutine is therefore replaced at
// once. If a dedicated reader's job takes longer than longJob, the poller takes over its
// connection.

// errCancelled is the cause of contexts ended by a cancel request.
var errCancelled = codes.Refuse(wire.Canceled, "canceled")

// longJob is the time that a dedicated reader may run a job before another goroutine receives. A
// shorter time has no effect, because the timers of an idle Go runtime are not more precise.
const longJob = time.Millisecond

// start queues a long request. If the caller must run the request instead, start returns it.
func (t *task) start() (*task, error) {
	c := t.conn
	if n := c.flying.Load(); n >= int64(c.server.config.MaxInFlight) {
		return nil, codes.Refuse(wire.Busy, "%d requests are in flight, the maximum of a connection", n)
	}
	if err := c.server.hold(t.at.uid, jobCost(t.body)); err != nil {
		return nil, err
	}
	x := t.fly()
	if c.flying.Load() == 1 && x.queue.Enter(x.lane) {
		return x, nil
	}
	x.move(queued)
	// Before Put, since the goroutine that takes the request from the queue uses x.stay. Even if the
	// request is late already, the reader does not answer it: the client may not read.
	put := make(chan struct{})
	x.stay = context.AfterFunc(x.ctx, func() { <-put; x.dropQueued() })
	if !x.queue.Put(x.lane, x) {
		panic("daemon: the queue was closed before its connections")
	}
	close(put)
	return nil, nil
}

// dropQueued ends a request whose context ended while it was in the queue. It does nothing if the
// request is not in the queue, which the caller need not know.
func (t *task) dropQueued() {
	if t.queue.Take(t.lane, t) {
		t.scratch = &scratch{}
		t.end(nil, t.overdue(time.Now()))
	}
}

// overdue returns the reason why a request in flight must not start, or nil if it may.
func (t *task) overdue(now time.Time) error {
	err := t.ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) || err == nil && !now.Before(t.deadline) {
		return codes.Refuse(wire.Late, "waited %v in the queue", now.Sub(t.arrived).Round(time.Microsecond))
	}
	return context.Cause(t.ctx)
}

// mayNeedGPU returns the device that a request may have to wait for; 0 = none. A request whose
// connection has attached a device counts as one that may, since only decoding would show whether
// its plan uses the device. Jobs for a device have a separate queue, so a driver that hangs does
// not block connections without that device.
func (t *task) mayNeedGPU() tier.DeviceID {
	if l := t.at.gpu.Load(); l != nil {
		return l.gpu.ID
	}
	if t.header.Op != wire.OpAttachDevice {
		return 0
	}
	var m wire.AttachDeviceRequest
	if m.Decode(t.body) != nil {
		return 0 // the request is refused before any device is used
	}
	g, err := t.conn.server.gpuOf(m.UUID)
	if err != nil {
		return 0
	}
	return g.ID
}

// runHere runs a job on the goroutine that received it.
func (c *conn) runHere(t *task, s *scratch, now time.Time) next {
	if s.poller != nil {
		s.poller.replace(s)
		t.run(s, now)
		return replaced
	}
	c.server.polling.Add(1) // for the goroutine that takes over the connection if the job takes long
	long := time.AfterFunc(longJob, func() {
		defer c.server.polling.Done()
		c.goOn(readOn)
	})
	t.run(s, now)
	if !long.Stop() {
		return replaced
	}
	c.server.polling.Done()
	return readOn
}

// work is a worker: it runs jobs of a queue. It returns when the queue is closed, or when another
// goroutine has replaced it (see send).
func work(q *queue.Queue[*task]) {
	s := &scratch{worker: q}
	for s.worker != nil {
		t, ok := q.Next()
		if !ok {
			return
		}
		t.run(s, time.Now())
	}
}

// run runs a job that the queue has counted as started. A job that is late, or that was canceled
// before it started, does nothing.
func (t *task) run(s *scratch, now time.Time) {
	t.move(running)
	t.scratch, t.place = s, t.queue.Begin(t.lane, now, s.worker != nil)
	if err := t.overdue(now); err != nil {
		t.end(nil, err)
		return
	}
	t.answer()
}
