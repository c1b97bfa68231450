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

// job is a long request, or what is left of a request that waits (see rest). It
// is answered by whoever runs it, or takes it out of the queue.
//
// Handing work to another goroutine costs about 30 µs here (measured: compose of
// one small layer 45 µs through the queue, 14 µs without), which an engine that
// walks its layers pays once per layer. So the reader runs a job itself when the
// connection has no other and a worker is free. It must not become deaf: a
// poller is replaced at once, and takes over a connection that has a reader of its
// own when the job takes long, to hear cancels.
type job struct {
	conn     *conn
	header   wire.Header
	body     []byte     // its own copy; nil when only the rest of a request is a job
	received []int      // descriptors that came along; closed by finish
	send     []*os.File // to send along with the answer; closed by finish
	arrived  time.Time
	deadline time.Time
	queue    *queue.Queue[*job]
	lane     *queue.Lane[*job]
	place    queue.Place[*job]
	device   tier.DeviceID // that it may wait for; 0 = none
	ctx      context.Context
	cancel   context.CancelCauseFunc

	bytes      int64 // of the heap, held until it is finished
	tokenBytes int64 // the same of token ids

	late *time.Timer // of a job in the queue; nil = was never there

	waiters []waiter // guarded by conn.mu: cancellations that wait for the end
}

// errCancelled is the cause of contexts that a cancel request has ended.
var errCancelled = codes.Refuse(wire.Canceled, "canceled")

// longJob is how long nobody may receive. Shorter has no effect: the runtime's
// timers are that coarse when it is idle.
const longJob = time.Millisecond

// start puts a request into the queue, or returns the job for the caller to run.
func (c *conn) start(t *task, now time.Time) (*job, error) {
	n := c.flying.Add(1)
	if n > int64(c.server.config.MaxInFlight) {
		c.flying.Add(-1)
		return nil, codes.Refuse(wire.Busy, "%d requests are in flight, the most of a connection", n-1)
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
	// Before put: whoever takes the job stops it.
	j.late = time.AfterFunc(time.Until(j.deadline), func() { c.lateInQueue(j) })
	if !j.queue.Put(j.lane, j) {
		panic("daemon: the queue was closed before its connections")
	}
	return nil, nil
}

// newJob makes a job of a request and counts it in. flying has counted it, and its
// memory is held.
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

// mayNeedGPU is the device that a request may be carried out by; 0 = none. Which plans
// are is known only once they are read, so that all of a connection that has
// attached the device count: a driver that hangs must hold up nobody else, nor those
// who have attached another.
func (t *task) mayNeedGPU() tier.DeviceID {
	if l := t.at.gpu.Load(); l != nil {
		return l.gpu.ID
	}
	if t.header.Op != wire.OpAttachDevice {
		return 0
	}
	var m wire.AttachDeviceRequest
	if m.Decode(t.body) != nil {
		return 0 // refused before any device is asked
	}
	g, err := t.conn.server.gpuOf(m.UUID)
	if err != nil {
		return 0
	}
	return g.ID
}

// lateInQueue answers a job whose time is over before anybody began it. A timer
// that fires while put has not happened leaves the job to run, which then looks
// at the clock itself.
func (c *conn) lateInQueue(j *job) {
	if j.queue.Take(j.lane, j) {
		c.finish(j, nil, lateBy(j, time.Now()), &scratch{})
	}
}

func lateBy(j *job, now time.Time) error {
	return codes.Refuse(wire.Late, "waited %v in the queue", now.Sub(j.arrived).Round(time.Microsecond))
}

// runHere runs a job on the goroutine that has received it.
func (c *conn) runHere(j *job, s *scratch, now time.Time) next {
	if s.poller != nil {
		s.poller.replace(s)
		c.run(j, s, now)
		return replaced
	}
	c.server.polling.Add(1) // for what is done when it takes long
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

// work runs jobs of a queue until it is closed, or others do.
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

// run runs a job that has a place and leaves that before it answers: a client that does
// not read keeps nobody's. Work whose time has passed, or that was cancelled before it
// began, touches nothing.
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

// finish answers a job and then the cancellations that waited for it: in this
// order, so that a client has the answer of a request before it hears that the
// request is over.
func (c *conn) finish(j *job, reply wire.Message, err error, s *scratch) {
	if j.late != nil {
		j.late.Stop()
	}
	if err != nil && j.device != 0 {
		c.server.store.DeviceFailed(j.device, err)
	}
	// Before the answer: who has it may send the next request at once.
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

// countOut ends the count of those requests of which few may be in flight.
func (c *conn) countOut(op wire.Op) {
	if op == wire.OpRegisterDevice {
		c.attached.Load().registering.Add(-1)
	}
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
		if j.queue.Take(j.lane, j) {
			c.finish(j, nil, errPeerLeft, nil)
		}
	}
}
