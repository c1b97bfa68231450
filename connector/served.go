package connector

import (
	"context"
	"math"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Served is how one prompt was served: what of it came from where, and what that took.
// What is neither of the engine's, of the prefix nor of a segment was computed.
type Served struct {
	Way    uint8 // wire.Way…
	Tokens int   // of the prompt
	Engine int   // first tokens, from the engine's own cache
	Prefix int   // more, from a checkpoint
	// Of the checkpoint that was used, and why no longer one was, as Match answered.
	PrefixTier, PrefixReason uint8
	Segments                 []ServedSegment // that the prompt was cut into: ascending, apart
	Bytes                    int64           // of states and rows that were read or composed

	Match time.Duration // until it was decided how
	Wait  time.Duration // for bytes, from then on
	First time.Duration // from the request's arrival to its first token; 0 = not known
	// WayMicros is what Advise predicted, by way minus one; nil = not asked.
	WayMicros []float64

	Request string // the engine's name of it, for people; at most wire.MaxName bytes
	Trace   string // a traceparent of W3C Trace Context; empty = none
}

// ServedSegment is the tokens [Begin, Begin+Tokens) of a prompt, of which Reused from At
// on came from the segment of Key, and lie behind the prefix.
type ServedSegment struct {
	Begin, Tokens int
	At, Reused    int
	Key           profile.SegmentKey
	Tier, Reason  uint8 // as Match answered
}

// Served tells the daemon how a prompt was served, once its first token is there, and
// answers the number that it is listed under. Nothing that is computed waits for it.
func (m *Model) Served(ctx context.Context, s *Served) (number uint64, err error) {
	q := wire.ServedRequest{
		Way: s.Way, PrefixTier: s.PrefixTier, PrefixReason: s.PrefixReason, MatchMicros: microsOf(s.Match), WaitMicros: microsOf(s.Wait),
		FirstMicros: microsOf(s.First), WayMicros: s.WayMicros, Request: s.Request, Trace: s.Trace,
	}
	ok := len(s.Segments) <= wire.MaxKeys && len(s.Request) <= wire.MaxName && len(s.Trace) <= wire.MaxName && len(s.WayMicros) <= wire.MaxWays
	put := func(to *uint32, n int) { ok = ok && n >= 0 && n <= math.MaxUint32; *to = uint32(n) }
	put(&q.Tokens, s.Tokens)
	put(&q.Engine, s.Engine)
	put(&q.Prefix, s.Prefix)
	if ok = ok && s.Bytes >= 0; !ok {
		return 0, invalid("served: a prompt of %d tokens in %d segments, %d bytes of names", s.Tokens, len(s.Segments), len(s.Request)+len(s.Trace))
	}
	q.ReadBytes = uint64(s.Bytes)
	for i := range s.Segments {
		row := &s.Segments[i]
		var begin, count, at, reused uint32
		put(&begin, row.Begin)
		put(&count, row.Tokens)
		put(&at, row.At)
		put(&reused, row.Reused)
		q.Begins, q.Counts, q.At, q.Reused = append(q.Begins, begin), append(q.Counts, count), append(q.At, at), append(q.Reused, reused)
		q.Tiers, q.Reasons, q.Keys = append(q.Tiers, row.Tier), append(q.Reasons, row.Reason), append(q.Keys, row.Key)
	}
	if !ok {
		return 0, invalid("served: a negative number of tokens")
	}
	r, err := m.enter()
	if err != nil {
		return 0, err
	}
	defer r.a.Release()
	c := m.client
	k := c.calls.Get(ctx, c.opt.Timeouts.Lookup)
	defer c.calls.Put(k)
	k.Op, q.Profile = wire.OpServed, r.profile
	body, err := r.a.Do(ctx, k, r.tenant, &q, nil)
	if err != nil {
		return 0, err
	}
	var reply wire.ServedReply
	if err := r.a.Decode(wire.OpServed, &reply, body); err != nil {
		return 0, err
	}
	return reply.Number, nil
}

// microsOf is a time in microseconds, at least 1 of what took any.
func microsOf(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min(max(d.Microseconds(), 1), math.MaxUint32))
}
