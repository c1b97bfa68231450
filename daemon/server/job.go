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

// job is a long request, or the continuation of a request that waits (see rest). The
// goroutine that runs it, or removes it from the queue, answers it.
//
// Handing work to another goroutine costs about 30 µs here (measured: compose of one small
// layer takes 45 µs through the queue, 14 µs without it). An engine that walks its layers
// pays that once per layer. So the reader runs a job itself when the connection has no
// other job and a worker is free. It must still notice cancels: a poller is replaced at
// once, and takes over a connection with a dedicated reader when its job takes long.
type job struct {
	conn     *conn
	header   wire.Header
	body     []byte     // a copy; nil if only the continuation of a request is a job
	received []int      // descriptors received with it; closed by finish
	send     []*os.File // files to send with the reply; closed by finish
	arrived  time.Time
	deadline time.Time
	queue    *queue.Queue[*job]
	lane     *queue.Lane[*job]
	place    queue.Place[*job]
	device   tier.DeviceID // whose driver it may wait for; 0 = none
	ctx      context.Context
	cancel   context.CancelCauseFunc

	bytes      int64 // of the heap, reserved until it is finished
	tokenBytes int64 // the same, of token ids

	late *time.Timer // of a job in the queue; nil = was never queued

	waiters []waiter // guarded by conn.mu: cancellations waiting for its end
}

// errCancelled is the cause of contexts ended by a cancel request.
var errCancelled = codes.Refuse(wire.Canceled, "canceled")

// longJob is the longest time without a receiver. A shorter value has no effect: the timers
// of an idle runtime are that coarse.
const longJob = time.Millisecond

// start queues a request, or returns the job for the caller to run.
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
	// The body is copied: its buffer is used for the next frame.
	j.body = slices.Clone(t.body)
	j.received = t.received
	if n == 1 && j.queue.Enter(j.lane) {
		return j, nil
	}
	// Before put: the goroutine that takes the job stops the timer.
	j.late = time.AfterFunc(time.Until(j.deadline), func() { c.lateInQueue(j) })
	if !j.queue.Put(j.lane, j) {
		panic("daemon: the queue was closed before its connections")
	}
	return nil, nil
}

// newJob creates a job for a request and registers it. flying counts it already, and its
// memory is reserved.
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

// mayNeedGPU returns the device that may execute a request; 0 = none. Which plans do is known
// only after decoding, so all plans of a connection that has attached the device count: a hanging
// driver must not block other connections, nor those that attached another device.
func (t *task) mayNeedGPU() tier.DeviceID {
	if l := t.at.gpu.Load(); l != nil {
		return l.gpu.ID
	}
	if t.header.Op != wire.OpAttachDevice {
		return 0
	}
	var m wire.AttachDeviceRequest
	if m.Decode(t.body) != nil {
		return 0 // refused before any device is used
	}
	g, err := t.conn.server.gpuOf(m.UUID)
	if err != nil {
		return 0
	}
	return g.ID
}

// lateInQueue answers a job whose deadline passes before it is started. If the timer fires
// before put, the job stays and checks the clock when it runs.
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
	c.server.polling.Add(1) // for the takeover if it takes long
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

// work runs jobs of a queue until the queue is closed or others run them.
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

// run runs a job that has a place, and frees the place before it replies: a client that
// does not read must not block others. A job that is late, or was canceled before it
// started, touches nothing.
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

// finish answers a job and then the cancellations that wait for it. In this order, a client
// has the reply to a request before it learns that the request is over.
func (c *conn) finish(j *job, reply wire.Message, err error, s *scratch) {
	if j.late != nil {
		j.late.Stop()
	}
	if err != nil && j.device != 0 {
		c.server.store.DeviceFailed(j.device, err)
	}
	// Before the reply: the client may send the next request as soon as it has it.
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

// countOut decrements the count of an operation with a low limit on requests in flight.
func (c *conn) countOut(op wire.Op) {
	if op == wire.OpRegisterDevice {
		c.attached.Load().registering.Add(-1)
	}
}

// dropQueued removes jobs that no worker has started, without replies.
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
