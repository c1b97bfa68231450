package connector

import (
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
)

// call is one request and its reply. Calls are pooled: buffers and messages keep
// their memory.
type call struct {
	op       wire.Op
	id       uint64
	deadline time.Time
	late     late

	out []byte // the request's frame

	// Guarded by flight.mu until done is signalled or answered was seen true.
	answered bool
	reply    []byte // the reply's frame
	err      error  // the connection failed instead

	abandoned bool // its caller has left; what late names is not the caller's any more

	done  chan struct{} // signalled once per answer, unless the caller read it itself
	timer *time.Timer   // nil until the caller first has to wait for another reader

	// Messages of the paths that must not allocate.
	match      wire.MatchRequest
	matchReply wire.MatchReply
	acquire    wire.AcquireRequest
	acquired   wire.AcquireReply
}

func newCall() *call { return &call{done: make(chan struct{}, 1)} }

// late is what has to happen when the reply comes after its caller left.
type late struct {
	tenant   uint32
	giveBack bool            // leases or reservations in the reply are to be returned
	cancel   bool            // the daemon is to be told to stop
	staged   []gpuipc.Extent // staging that the request names
	memory   bool            // the request writes into engine memory

	// Set when the caller has left.
	pending *PendingWrite // waits for this reply
	asked   bool          // cancel has been sent; guarded by flight.mu

	// Set for requests of the attachment itself.
	own     bool
	cancels uint64        // the request that this one cancels
	stops   *PendingWrite // waits for the reply to this cancel

	returns []uint64 // leases or reservations that the request gives back
}

// header returns the parsed reply. The frame was checked when it arrived.
func (k *call) header() (wire.Header, []byte) {
	h, body, err := wire.ParseHeader(k.reply)
	if err != nil {
		return wire.Header{Code: wire.Invalid}, nil
	}
	return h, body
}
