package server

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/queue"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// job is a long request, or the continuation of a request that waits (see rest). It is answered by
// the goroutine that runs it, or by the goroutine that removes it from the queue.
//
// Handing work to another goroutine costs about 30 µs here (measured: compose of one small layer
// takes 45 µs through the queue, 14 µs without it). An engine that walks its layers pays that once
// per layer. So the reader runs a job itself when the connection has no other job and a worker is
// free. Cancel requests must be received meanwhile. A polling goroutine is therefore replaced at
// once. If a dedicated reader's job takes longer than longJob, the poller takes over its
// connection.
type job struct {
	conn     *conn
	header   wire.Header
	body     []byte     // a copy; nil if only the request's continuation is a job
	received []int      // descriptors received with it; closed by finish
	send     []*os.File // files to send with the reply; closed by finish
	arrived  time.Time
	deadline time.Time
	queue    *queue.Queue[*job]
	lane     *queue.Lane[*job]
	place    queue.Place[*job]
	device   tier.DeviceID // device whose driver it may wait for; 0 = none
	ctx      context.Context
	cancel   context.CancelCauseFunc

	bytes      int64 // heap bytes, reserved until it is finished
	tokenBytes int64 // heap bytes of token ids, reserved as well

	late *time.Timer // answers the job if it stays in the queue too long; nil = was never queued

	waiters []waiter // cancellations that wait for this job; guarded by conn.mu
}

// errCancelled is the cause of contexts ended by a cancel request.
var errCancelled = codes.Refuse(wire.Canceled, "canceled")

// longJob is the time that a dedicated reader may run a job before another goroutine receives. A
// shorter time has no effect, because the timers of an idle Go runtime are not more precise.
const longJob = time.Millisecond

// start queues a request as a job. If the caller must run the job instead, start returns it.
func (c *conn) start(t *task, now time.Time) (*job, error) {
	n := c.flying.Add(1)
	if n > int64(c.server.config.MaxInFlight) {
		c.flying.Add(-1)
		return nil, codes.Refuse(wire.Busy, "%d requests are in flight, the maximum of a connection", n-1)
	}
	if err := c.server.hold(t.at.uid, jobCost(t.body)); err != nil {
		c.flying.Add(-1)
		return nil, err
	}
	j := c.newJob(t, now)
	// The body is copied, because its buffer is used for the next frame.
	j.body = slices.Clone(t.body)
	j.received = t.received
	if n == 1 && j.queue.Enter(j.lane) {
		return j, nil
	}
	// The timer is set before Put, since the goroutine that takes the job stops the timer.
	j.late = time.AfterFunc(time.Until(j.deadline), func() { c.lateInQueue(j) })
	if !j.queue.Put(j.lane, j) {
		panic("daemon: the queue was closed before its connections")
	}
	return nil, nil
}

// newJob creates a job for a request and registers it. The caller has counted the job in the field
// flying and has reserved its memory.
func (c *conn) newJob(t *task, now time.Time) *job {
	j := &job{conn: c, header: t.header, arrived: now, queue: c.server.queue, lane: &c.lane, bytes: jobCost(t.body)}
	if id := t.mayNeedGPU(); id != 0 {
		j.device = id
		j.queue, j.lane = c.server.deviceQueues[id-1], &c.deviceLanes[id-1]
	}
	j.deadline = now.Add(c.server.deadline(&t.header))
	j.ctx, j.cancel = context.WithCancelCause(c.ctx)
	c.work.Add(1)
	c.server.busy.Add(1)
	c.mu.Lock()
	c.mu.jobs[t.header.Request] = j
	c.mu.Unlock()
	return j
}

// mayNeedGPU returns the device that a job may have to wait for; 0 = none. A job whose connection
// has attached a device counts as one that may, since only decoding would show whether its plan
// uses the device. Jobs for a device have a separate queue, so a driver that hangs does not block
// connections without that device.
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

// lateInQueue answers a job whose deadline passes before it is started. If the timer fires before
// Put, the job stays in the queue; perform then finds that it is late.
func (c *conn) lateInQueue(j *job) {
	if j.queue.Take(j.lane, j) {
		c.finish(j, nil, lateBy(j, time.Now()), &scratch{})
	}
}

func lateBy(j *job, now time.Time) error {
	return codes.Refuse(wire.Late, "waited %v in the queue", now.Sub(j.arrived).Round(time.Microsecond))
}

// runHere runs a job on the goroutine that received it.
func (c *conn) runHere(j *job, s *scratch, now time.Time) next {
	if s.poller != nil {
		s.poller.replace(s)
		c.run(j, s, now)
		return replaced
	}
	c.server.polling.Add(1) // for the goroutine that takes over the connection if the job takes long
	long := time.AfterFunc(longJob, func() {
		defer c.server.polling.Done()
		c.goOn(readOn)
	})
	c.run(j, s, now)
	if !long.Stop() {
		return replaced
	}
	c.server.polling.Done()
	return readOn
}

// work is a worker: it runs jobs of a queue. It returns when the queue is closed, or when another
// goroutine has replaced it (see send).
func work(q *queue.Queue[*job]) {
	s := &scratch{worker: q}
	for s.worker != nil {
		j, ok := q.Next()
		if !ok {
			return
		}
		j.conn.run(j, s, time.Now())
	}
}

// run runs a job that has a place in its queue. It frees the place before it replies, so that a
// client that does not read does not block others. A job that is late, or that was canceled before
// it started, does nothing.
func (c *conn) run(j *job, s *scratch, now time.Time) {
	j.place = j.queue.Begin(j.lane, now, s.worker != nil)
	reply, rest, err := c.perform(j, s, now)
	j.place.Leave()
	if rest != nil {
		c.runRest(j, rest)
		return
	}
	c.finish(j, reply, err, s)
}

func (c *conn) perform(j *job, s *scratch, now time.Time) (wire.Message, rest, error) {
	switch {
	case j.ctx.Err() != nil:
		return nil, nil, context.Cause(j.ctx)
	case !now.Before(j.deadline):
		return nil, nil, lateBy(j, now)
	}
	ctx, stop := context.WithDeadline(gpuipc.WithPause(j.ctx, j.place.GiveWay), j.deadline)
	defer stop()
	t := &s.task
	*t = task{
		conn: c, at: c.attached.Load(), header: j.header, body: j.body, ctx: ctx, deadline: j.deadline, place: &j.place,
		scratch: s, received: j.received, job: j,
	}
	reply, err := operations[j.header.Op].run(t)
	j.received, j.send = t.received, t.send
	if cap(s.tokens) > keptTokens {
		s.tokens = nil
	}
	if err != nil {
		err, _ = codes.Ended(ctx, err)
		return nil, nil, err
	}
	return reply, t.rest, nil
}

// finish answers a job, and then the cancellations that wait for it. In this order, a client has
// the reply to a request before it learns that the request is over.
func (c *conn) finish(j *job, reply wire.Message, err error, s *scratch) {
	if j.late != nil {
		j.late.Stop()
	}
	if err != nil && j.device != 0 {
		c.server.store.DeviceFailed(j.device, err)
	}
	// Before the reply, since the client may send its next request as soon as it has the reply.
	c.flying.Add(-1)
	c.countOut(j.header.Op)
	if !c.ending() {
		if err != nil {
			c.replyError(&j.header, err, s)
		} else {
			c.reply(&j.header, reply, descriptors(j.send), s)
		}
	}
	seqpacket.CloseAll(j.received)
	closeFiles(j.send)
	c.took(j.header.Op, time.Since(j.arrived))
	j.cancel(nil)
	c.server.letGo(c.peer.UID, j.bytes+j.tokenBytes)
	outcome := wire.CancelDrained
	if code, _ := codes.Of(err); code == wire.Canceled {
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
		c.endCancel(w)
		c.reply(&w.header, &wire.CancelReply{Outcomes: w.outcomes}, nil, s)
	}
	c.work.Done()
	c.server.jobDone()
}

// countOut undoes registerIsLong for a request that is over. No other operation has such a count.
func (c *conn) countOut(op wire.Op) {
	if op == wire.OpRegisterDevice {
		c.attached.Load().registering.Add(-1)
	}
}

// dropQueued removes the connection's jobs that no worker has started. They get no reply.
func (c *conn) dropQueued() {
	c.mu.Lock()
	waiting := make([]*job, 0, len(c.mu.jobs))
	for _, j := range c.mu.jobs {
		waiting = append(waiting, j)
	}
	c.mu.Unlock()
	for _, j := range waiting {
		if j.queue.Take(j.lane, j) {
			c.finish(j, nil, errPeerLeft, nil)
		}
	}
}
