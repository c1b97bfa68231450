package link

import (
	"context"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// A Call is one request and its reply. Calls are pooled, so that their buffers and messages are
// reused: see Attachment.Get and Put.
type Call struct {
	Op       wire.Op
	id       uint64
	Deadline time.Time
	Late     Late

	out []byte // the request's frame

	// Guarded by flight.mu until done is signalled or answered was seen true.
	answered bool
	reply    []byte // the reply's frame
	err      error  // set if the connection failed instead

	abandoned bool // the caller has returned; the resources listed in Late no longer belong to the caller

	done  chan struct{} // signalled once per answer, unless the caller read it itself
	timer *time.Timer   // nil until the caller first waits for another reader

	// Messages of the paths that must not allocate.
	Match      wire.MatchRequest
	MatchReply wire.MatchReply
	Acquire    wire.AcquireRequest
	Acquired   wire.AcquireReply
}

// calls keeps the calls that are not in use.
var calls = sync.Pool{New: func() any { return &Call{done: make(chan struct{}, 1)} }}

// Get prepares a call with the given timeout, shortened by the deadline of ctx.
func (a *Attachment) Get(ctx context.Context, op wire.Op, timeout time.Duration) *Call {
	k := calls.Get().(*Call)
	k.Op = op
	k.Arm(ctx, timeout)
	return k
}

// Put ends the use of a call. It frees the call's staging; a call without an answer keeps its
// staging until its reply (see Late). Invariant: nothing refers to the call any more, because it
// was answered or was detached from its entry in the flight table.
func (a *Attachment) Put(k *Call) {
	if !k.abandoned {
		a.Staging.Free(k.Late.Staged...)
	}
	if invariants { // whoever still reads the reply finds nonsense
		for i := range k.reply {
			k.reply[i] = 0xa5
		}
	}
	k.id, k.answered, k.abandoned, k.err, k.Late = 0, false, false, nil, Late{}
	calls.Put(k)
}

// Stage allocates n bytes of staging for the call's request. It waits for room until the call's
// deadline.
func (a *Attachment) Stage(ctx context.Context, k *Call, n int64) (mem []byte, off uint64, err error) {
	e, err := a.Staging.Alloc(ctx, n, k.Deadline)
	if err != nil {
		return nil, 0, err
	}
	k.Late.Staged = append(k.Late.Staged, e)
	return a.Staging.Bytes(e), uint64(e.Off), nil
}

// Arm sets the deadline.
func (k *Call) Arm(ctx context.Context, timeout time.Duration) {
	k.Deadline = time.Now().Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(k.Deadline) {
		k.Deadline = d
	}
}

// Late lists what to do when a reply arrives after its caller has returned.
type Late struct {
	tenant   uint32
	GiveBack bool            // leases or reservations in the reply must be returned
	Cancel   bool            // the daemon must be told to stop
	Staged   []gpuipc.Extent // staging that the request uses
	Memory   bool            // the request writes into engine memory

	// Set when the caller has returned.
	pending *PendingWrite // waits for this reply
	asked   bool          // a cancel request has been sent; guarded by flight.mu

	// Set for requests that the attachment sends itself.
	own     bool
	cancels uint64        // the request that this one cancels
	stops   *PendingWrite // write whose end the reply to this cancel confirms

	returns []uint64 // leases or reservations that the request returns
}

// header returns the parsed reply. The frame was checked when it arrived.
func (k *Call) header() (wire.Header, []byte) {
	h, body, err := wire.ParseHeader(k.reply)
	if err != nil {
		return wire.Header{Code: wire.Invalid}, nil
	}
	return h, body
}
