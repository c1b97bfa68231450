package link

import "sync/atomic"

// Counters counts what attachments see; see connector.Counters for each.
type Counters struct {
	Malformed, Calls, Late, Canceled, Stalled atomic.Uint64
	LateReplies, Unknown, GaveBack, Corrupt   atomic.Uint64
}
