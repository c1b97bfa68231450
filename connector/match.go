package connector

import (
	"context"
	"unsafe"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Accept says which kinds of checkpoint a request takes, as bits.
type Accept uint8

// Exact checkpoints are what full prefill gives; Spliced ones went through the
// composition of segments.
const (
	Exact   = Accept(wire.AcceptExact)
	Spliced = Accept(wire.AcceptSpliced)
)

// MatchQuery asks for the longest saved prefix and the status of segments, in
// one round trip for up to 1024 of each.
type MatchQuery struct {
	Accept    Accept               // 0 = no checkpoint wanted
	Positions []uint32             // ascending; tokens covered by each of Prefixes
	Prefixes  []profile.PrefixHash // as many as Positions
	Keys      []profile.SegmentKey
}

// Found answers a MatchQuery. It keeps its memory from one Match to the next.
type Found struct {
	PrefixTokens int    // 0 = no checkpoint
	PrefixIndex  int    // into Positions, when PrefixTokens > 0
	PrefixKind   Accept // what it is
	PrefixReason uint8  // wire.Reason…: why no longer position hit
	PrefixTier   uint8  // wire.Tier…: where it lies
	Segments     []SegmentFound
}

// SegmentFound is one row of Found. The fields hold numbers of package wire.
type SegmentFound struct {
	Status uint8 // wire.StatusMiss, StatusHit or StatusPending
	Tier   uint8 // wire.TierNone…
	Reason uint8 // wire.Reason…: why it is a miss
	Tokens int   // interior tokens of a hit
}

// Hit reports whether the segment can be acquired.
func (s SegmentFound) Hit() bool { return s.Status == wire.StatusHit }

// matchRows is how many keys and how many prefixes one request carries: twice
// 1024 hashes with their positions fill little more than half a frame.
const matchRows = 1024

// Match looks up q. After an error found holds only misses, so that a caller may
// go on without looking at it. A call with few keys and a warm found does not
// allocate.
func (m *Model) Match(ctx context.Context, q *MatchQuery, found *Found) error {
	found.reset(len(q.Keys))
	if len(q.Positions) != len(q.Prefixes) {
		return invalid("match: %d positions, %d prefixes", len(q.Positions), len(q.Prefixes))
	}
	r, err := m.enter()
	if err != nil {
		return err
	}
	defer r.a.Release()
	for keys, prefixes := 0, 0; ; {
		k := min(keys+matchRows, len(q.Keys))
		p := min(prefixes+matchRows, len(q.Prefixes))
		part := MatchQuery{Accept: q.Accept, Positions: q.Positions[prefixes:p], Prefixes: q.Prefixes[prefixes:p], Keys: q.Keys[keys:k]}
		if err := m.match(ctx, r, &part, found, keys, prefixes); err != nil {
			found.reset(len(q.Keys))
			return err
		}
		keys, prefixes = k, p
		if keys == len(q.Keys) && prefixes == len(q.Prefixes) {
			return nil
		}
	}
}

// match asks for one part of a query, whose rows begin at key and prefix.
func (m *Model) match(ctx context.Context, r *registration, q *MatchQuery, found *Found, key, prefix int) error {
	c := m.client
	k := c.calls.Get(ctx, c.opt.Timeouts.Lookup)
	defer c.calls.Put(k)
	k.Op = wire.OpMatch
	k.Match = wire.MatchRequest{
		Profile: r.profile, Accept: uint8(q.Accept),
		Positions: q.Positions, Prefixes: wireHashes(q.Prefixes), Keys: wireHashes(q.Keys),
	}
	body, err := r.a.Do(ctx, k, r.tenant, &k.Match, nil)
	k.Match = wire.MatchRequest{} // the pool must not keep the caller's memory
	if err != nil {
		return err
	}
	reply := &k.MatchReply
	if err := r.a.Decode(wire.OpMatch, reply, body); err != nil {
		return err
	}
	if err := r.a.CheckRows(wire.OpMatch, len(reply.Status), len(q.Keys)); err != nil {
		return err
	}
	if reply.PrefixTokens > 0 && int64(reply.PrefixIndex) >= int64(len(q.Positions)) {
		return r.a.CheckRows(wire.OpMatch, int(reply.PrefixIndex), len(q.Positions))
	}
	if int(reply.PrefixTokens) > found.PrefixTokens || prefix == 0 {
		found.PrefixTokens, found.PrefixIndex = int(reply.PrefixTokens), prefix+int(reply.PrefixIndex)
		found.PrefixKind, found.PrefixReason, found.PrefixTier = Accept(reply.PrefixFlags), reply.PrefixReason, reply.PrefixTier
	}
	for i := range reply.Status {
		found.Segments[key+i] = SegmentFound{
			Status: reply.Status[i], Tier: reply.Tier[i], Reason: reply.Reason[i], Tokens: int(reply.Tokens[i]),
		}
	}
	return nil
}

// reset makes f n misses.
func (f *Found) reset(n int) {
	s := f.Segments[:0]
	if cap(s) < n {
		s = make([]SegmentFound, 0, n)
	}
	s = s[:n]
	clear(s)
	*f = Found{Segments: s}
}

// wireHashes is the same memory under the codec's type.
func wireHashes[T ~[32]byte](v []T) [][32]byte {
	return unsafe.Slice((*[32]byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v))
}
