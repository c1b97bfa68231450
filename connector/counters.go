package connector

import (
	"sync/atomic"

	"github.com/spliced-kv/spliced/connector/internal/link"
)

// Counters are counts of a client since Open.
type Counters struct {
	Attached    uint64 // times a daemon was found
	Lost        uint64 // times it went away or broke the protocol
	Malformed   uint64 // frames that broke the protocol
	Calls       uint64 // requests that were sent for callers
	Late        uint64 // calls abandoned at their deadline
	Canceled    uint64 // calls abandoned because their context ended
	LateReplies uint64 // replies that arrived after their caller had returned
	Unknown     uint64 // replies to no request of ours
	Stalled     uint64 // calls that failed at once because the daemon had stopped answering
	GaveBack    uint64 // leases and reservations returned later: they arrived late, or the daemon refused the first return
	Corrupt     uint64 // chunks whose digest did not match when they were read
	Advised     uint64 // successful calls of Advise
	Unadvised   uint64 // calls of Advise without a daemon or without a reply in time
}

type counters struct {
	attached, lost, advised, unadvised atomic.Uint64

	link.Counters // of all attachments
}

// Counters returns the current counts.
func (c *Client) Counters() Counters {
	n := &c.counters
	return Counters{
		Attached: n.attached.Load(), Lost: n.lost.Load(), Malformed: n.Malformed.Load(),
		Calls: n.Calls.Load(), Late: n.Late.Load(), Canceled: n.Canceled.Load(), Stalled: n.Stalled.Load(), LateReplies: n.LateReplies.Load(), Unknown: n.Unknown.Load(),
		GaveBack: n.GaveBack.Load(), Corrupt: n.Corrupt.Load(), Advised: n.advised.Load(), Unadvised: n.unadvised.Load(),
	}
}
