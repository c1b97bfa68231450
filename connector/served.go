package connector

import (
	"context"
	"math"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Served reports how one prompt was served: the origin of its tokens, and the time that it took.
// Tokens that came from neither the engine's cache, nor a checkpoint, nor a segment, were
// computed.
type Served struct {
	Way    uint8 // wire.Way…
	Tokens int   // of the prompt
	Engine int   // leading tokens from the engine's own cache
	Prefix int   // further tokens, from a checkpoint
	// PrefixTier is the tier of the checkpoint that was used, and PrefixReason says why no
	// longer checkpoint was a hit. Both are copied from Found.
	PrefixTier, PrefixReason uint8
	Segments                 []ServedSegment // segments of the prompt: ascending, without overlaps
	Bytes                    int64           // size of states and rows that were read or composed

	Match time.Duration // until the way was chosen
	Wait  time.Duration // after that, wait for bytes
	First time.Duration // from the request's arrival to its first token; 0 = not known
	// WayMicros[w-1] is the time in microseconds that Advise predicted for way w; nil = Advise
	// was not called.
	WayMicros []float64

	Request string // the engine's name of the request, shown to people; at most wire.MaxName bytes
	Trace   string // a traceparent of W3C Trace Context; empty = none
}

// ServedSegment describes the tokens [Begin, Begin+Tokens) of a prompt. Of these, the tokens
// [At, At+Reused) came from the cached segment Key; they lie after the reused prefix.
type ServedSegment struct {
	Begin, Tokens int
	At, Reused    int
	Key           profile.SegmentKey
	Tier, Reason  uint8 // as Match returned them
}

// Served reports to the daemon how a prompt was served, and returns the number under which the
// daemon lists the report. Call it after the first token is computed, so that the report does
// not delay computation.
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
	r, k, err := m.begin(ctx, wire.OpServed, m.client.opt.Timeouts.Lookup)
	if err != nil {
		return 0, err
	}
	defer r.end(k)
	q.Profile = r.profile
	var reply wire.ServedReply
	if err := r.ask(ctx, k, &q, &reply); err != nil {
		return 0, err
	}
	return reply.Number, nil
}

// microsOf returns a duration in microseconds, at least 1 for any positive one.
func microsOf(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min(max(d.Microseconds(), 1), math.MaxUint32))
}
