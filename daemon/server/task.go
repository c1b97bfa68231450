package server

import (
	"context"
	"fmt"
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

// phase is the state of a request.
type phase uint8

const (
	received phase = iota // the reader has it; a request answered in this phase allocates nothing
	queued                // it waits for a worker
	running               // it has a place among the running jobs of its queue
	waiting               // its continuation waits, for example for a disk, and occupies no worker
	over                  // it is answered, or its connection has ended
	phases
)

func (p phase) String() string {
	return [phases]string{"received", "queued", "running", "waiting", "over"}[p]
}

// permitted[p][q] states that phase q may follow phase p. A request is in flight in the phases
// queued, running and waiting.
var permitted = [phases][phases]bool{
	received: {queued: true, running: true, waiting: true, over: true},
	queued:   {running: true, over: true},
	running:  {waiting: true, over: true},
	waiting:  {over: true},
	over:     {},
}

// task is one request, from its frame to its answer. It has one owner at a time, and only the owner
// uses it: the reader, the queue, the goroutine that runs it, or the goroutine of its continuation.
//
// A request that the reader answers itself stays in the reader's scratch. Every other request is
// put in flight: the method fly copies it and reserves what the request needs. The method end
// answers a request and releases all that it owns.
//
// The methods of task are those of every request. Each area's operations are methods of a type of
// their own, such as lookupOps (see dispatch.go).
type task struct {
	conn     *conn
	at       *attachment // nil during hello
	op       *operation
	header   wire.Header
	body     []byte // in the reader's buffer; a copy for a request in flight
	arrived  time.Time
	ctx      context.Context // in flight, it ends at the deadline and when the request is canceled
	phase    phase           // changed by move
	scratch  *scratch        // of the goroutine that uses the task
	decoded  bool            // the scratch has the decoded body (see decode)
	rest     rest            // continuation; set instead of a reply by an operation that must wait
	received []int           // received descriptors that nothing has taken over
	send     []*os.File      // files to send with the reply
	// registering states that the request is counted in attachment.registering.
	registering bool

	// Set by fly.
	deadline  time.Time
	cancel    context.CancelCauseFunc
	stopTimer context.CancelFunc // stops the timer of the deadline
	queue     *queue.Queue[*task]
	lane      *queue.Lane[*task]
	device    tier.DeviceID // device whose driver it may wait for; 0 = none
	waiters   []waiter      // cancellations that wait for it; guarded by conn.mu

	stay       func() bool // in the queue: stops the call of dropQueued that the end of ctx causes
	place      queue.Place[*task]
	tokenBytes int64 // heap bytes that it has reserved for token ids, besides jobCost
}

// rest is the continuation of a request that has to wait, for example for a disk. It runs in a
// separate goroutine and occupies no worker, so that waits of any number and length do not block
// requests that need no disk. Its task is in flight and has another scratch and another copy of
// the body than the operation that created the continuation. The operation's decoded message
// and reply are not valid in it.
type rest func(*task) (wire.Message, error)

// move is the only function that changes the phase of a request. It releases what only the
// previous phase needs, and returns that phase.
func (t *task) move(to phase) (from phase) {
	from = t.phase
	if !permitted[from][to] {
		panic(fmt.Sprintf("server: %v %d is %v and cannot be %v", t.header.Op, t.header.Request, from, to))
	}
	switch from {
	case queued:
		t.stay()
	case running:
		// Before the reply, so that a client that does not read does not block others.
		t.place.Leave()
	case waiting:
		t.conn.server.waiting.Add(-1)
	}
	if to == waiting {
		t.conn.server.waiting.Add(1)
	}
	t.phase = to
	return from
}

// mayWait reports whether a request may wait. A request in flight always may. Any other one may if
// one more request may be in flight; since the reader starts all requests, there is still room when
// this one is put in flight.
func (t *task) mayWait() bool {
	c := t.conn
	return t.phase != received || c.flying.Load() < int64(c.server.config.MaxInFlight) && c.server.held.Left(c.peer.UID) >= waitBytes
}

// fly puts a request in flight and returns it. The receiver is in the memory of the reader and is
// not used any more. The caller has reserved jobCost bytes.
func (t *task) fly() *task {
	x, c, s := *t, t.conn, t.conn.server
	x.body, x.decoded = slices.Clone(t.body), false
	x.deadline = t.arrived.Add(s.deadline(&t.header))
	x.ctx, x.cancel = context.WithCancelCause(c.ctx)
	x.ctx, x.stopTimer = context.WithDeadline(gpuipc.WithPause(x.ctx, x.giveWay), x.deadline)
	x.queue, x.lane = s.queue, &c.lane
	if x.device = t.mayNeedGPU(); x.device != 0 {
		x.queue, x.lane = s.deviceQueues[x.device-1], &c.deviceLanes[x.device-1]
	}
	c.flying.Add(1)
	c.work.Add(1)
	s.busy.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.inFlight[t.header.Request] = &x
	return &x
}

// giveWay lets other jobs run if the turn of this one is over. A request that is not a running job
// occupies no worker; giveWay does nothing for it.
func (t *task) giveWay() {
	if t.phase == running {
		t.place.GiveWay()
	}
}

// answer runs the operation of a request. It ends the request, or starts its continuation.
func (t *task) answer() {
	reply, err := t.op.run(t)
	if cap(t.scratch.tokens) > keptTokens {
		t.scratch.tokens = nil
	}
	if err == nil && t.rest != nil {
		t.wait()
		return
	}
	t.end(reply, err)
}

// wait starts the continuation of a request. For a request that is not in flight yet, mayWait must
// have returned true.
func (t *task) wait() {
	if t.phase == received {
		t.conn.server.held.Add(t.conn.peer.UID, jobCost(t.body))
		t = t.fly()
	}
	t.move(waiting)
	t.scratch, t.decoded = &scratch{}, false
	go func(t *task) { t.end(t.rest(t)) }(t)
}

// end answers a request and releases what it owns, in whatever way the request ends: with a reply,
// refused, late, canceled, or with its connection. Requests other than cancel end here, and once.
func (t *task) end(reply wire.Message, err error) {
	c := t.conn
	err, _ = codes.Ended(t.ctx, err)
	flew := t.move(over) != received
	if t.registering {
		t.at.registering.Add(-1)
	}
	if flew {
		if err != nil && t.device != 0 {
			c.server.store.DeviceFailed(t.device, err)
		}
		// Before the reply, since the client may send its next request as soon as it has the reply.
		c.flying.Add(-1)
	}
	seqpacket.CloseAll(t.received) // before the reply too, since a client that does not read would hold many
	switch {
	case flew && c.ctx.Err() != nil: // the connection answers no more requests
	case err != nil:
		c.replyError(&t.header, err, t.scratch)
	default:
		c.reply(&t.header, reply, descriptors(t.send), t.scratch)
	}
	for _, f := range t.send {
		f.Close()
	}
	if flew || err == nil {
		c.took(t.header.Op, time.Since(t.arrived))
	}
	if flew {
		t.cancel(nil)
		t.stopTimer()
		c.server.held.GiveBack(c.peer.UID, jobCost(t.body)+t.tokenBytes)
		c.settle(t, err)
		c.work.Done()
		c.server.landed()
	}
}
