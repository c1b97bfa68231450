package connector

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/spliced-kv/spliced/connector/internal/link"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Accept is a set of kinds of checkpoint that a request accepts, as bits.
type Accept uint8

// Exact checkpoints hold the states that a full prefill computes. Spliced checkpoints hold
// states that were composed from segments. Checkpoints of kind Rows are exact too, but hold rows
// instead of states: ReplayRows rebuilds the state at any of their tokens.
const (
	Exact   = Accept(wire.AcceptExact)
	Spliced = Accept(wire.AcceptSpliced)
	Rows    = Accept(wire.AcceptRows)
)

// known returns the kinds of k that the daemon supports.
func (k Accept) known(a *link.Attachment) Accept {
	if !a.HasRows {
		k &^= Rows
	}
	return k
}

// MatchQuery asks for the longest saved prefix and the status of segments, in
// one round trip for up to 1024 of each.
type MatchQuery struct {
	Accept    Accept               // 0 = no checkpoint wanted
	Positions []uint32             // ascending; tokens covered by each of Prefixes
	Prefixes  []profile.PrefixHash // as many as Positions
	Keys      []profile.SegmentKey
	// Others is empty, or has one key for each of Keys: the key of the same segment in its other
	// variant, with or without a primer; zero = no other variant. If a key misses, a daemon that
	// supports primers looks up the other variant.
	Others []profile.SegmentKey
	// Prompt asks which cached segments occur in these tokens; nil = do not search. It has at
	// most wire.MaxPrompt tokens. Found.Known then has the segments that begin at or after both
	// Begin and the end of the found prefix. A daemon that cannot search finds none. The search
	// runs once per call, with the first 1024 prefixes.
	Prompt []uint32
	Begin  int
	// SeamTokens is the seam width of segments of Prompt that do not begin at token 0.
	SeamTokens int
	// Primer is the preferred primer of segments of Prompt that begin at or after token
	// PrimedFrom; zero = no primer. For earlier segments, no primer is preferred. With Either,
	// the search also returns the variant that is not preferred if the preferred one is not
	// cached.
	Primer     profile.PrimerID
	PrimedFrom int
	Either     bool
}

// A KnownSegment is a cached segment that occurs in a prompt as tokens [Start, Start+Tokens).
type KnownSegment struct {
	Start, Tokens int
	Primed        bool // it was captured after the query's primer
	Key           profile.SegmentKey
	Tier          uint8 // wire.Tier…
	Interior      int   // tokens that are not recomputed
}

// Found is the result of a MatchQuery. It keeps its memory from one Match to the next.
type Found struct {
	PrefixTokens int    // 0 = no checkpoint
	PrefixIndex  int    // into Positions, when PrefixTokens > 0
	PrefixKind   Accept // kind of the checkpoint
	PrefixStates int    // tokens covered by its states; later ones are rows
	PrefixReason uint8  // wire.Reason…: why no longer prefix is a hit
	PrefixTier   uint8  // wire.Tier…: tier of the checkpoint
	Segments     []SegmentFound
	Known        []KnownSegment // ascending, without overlaps
	Untried      int            // positions at which not all segment lengths were tried, because too many segments begin alike
}

// SegmentFound is one row of Found. The fields hold numbers of package wire.
type SegmentFound struct {
	Status uint8 // wire.StatusMiss, StatusHit or StatusPending
	Tier   uint8 // wire.TierNone…
	Reason uint8 // wire.Reason…: why it is a miss
	Other  bool  // the row is a hit of Others[i], because Keys[i] missed
	Tokens int   // interior tokens of a hit; 0 = not known (only in wire.TierPeer)
	// Error bounds the difference between the stored, packed form of a hit and the published
	// form, relative to the norm of the published form; the error of transitions is absolute.
	// See profile.Packed; 0 = identical.
	Error float64
}

// Hit reports whether the segment can be acquired.
func (s SegmentFound) Hit() bool { return s.Status == wire.StatusHit }

// matchRows is the maximum number of keys, and of prefixes, in one request. 1024 keys and 1024
// prefixes with their positions fill little more than half a frame.
const matchRows = 1024

// Match looks up q. After an error found holds only misses, so that a caller may continue
// without checking the error. A call with few keys and a reused found does not allocate.
func (m *Model) Match(ctx context.Context, q *MatchQuery, found *Found) error {
	found.reset(len(q.Keys))
	if len(q.Positions) != len(q.Prefixes) {
		return invalid("match: %d positions, %d prefixes", len(q.Positions), len(q.Prefixes))
	}
	if len(q.Others) > 0 && len(q.Others) != len(q.Keys) {
		return invalid("match: %d other variants of %d keys", len(q.Others), len(q.Keys))
	}
	if n := len(q.Prompt); n > 0 && (n > wire.MaxPrompt || q.Begin < 0 || q.Begin > n || q.SeamTokens < 0 || q.SeamTokens > n || q.PrimedFrom < 0) {
		return invalid("match: from token %d on with seams of %d in a prompt of %d, at most %d", q.Begin, q.SeamTokens, n, wire.MaxPrompt)
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
		if keys == 0 && prefixes == 0 && r.a.HasKnown {
			part.Prompt, part.Begin, part.SeamTokens = q.Prompt, q.Begin, q.SeamTokens
			part.Primer, part.PrimedFrom, part.Either = q.Primer, q.PrimedFrom, q.Either
		}
		if r.a.HasPrimers && len(q.Others) > 0 {
			part.Others = q.Others[keys:k]
		}
		if err := m.match(ctx, r, &part, found, keys, prefixes); err != nil {
			found.reset(len(q.Keys))
			return err
		}
		keys, prefixes = k, p
		if keys == len(q.Keys) && prefixes == len(q.Prefixes) {
			found.Known = slices.DeleteFunc(found.Known, func(k KnownSegment) bool { return k.Start < found.PrefixTokens })
			return nil
		}
	}
}

// match requests one part of a query. key and prefix are the indices in the query's Keys and
// Prefixes at which the part begins.
func (m *Model) match(ctx context.Context, r *registration, q *MatchQuery, found *Found, key, prefix int) error {
	k := r.a.Get(ctx, wire.OpMatch, m.client.opt.Timeouts.Lookup)
	defer r.a.Put(k)
	k.Match = wire.MatchRequest{
		Profile: r.profile, Accept: uint8(q.Accept.known(r.a)),
		Positions: q.Positions, Prefixes: wireHashes(q.Prefixes), Keys: wireHashes(q.Keys),
	}
	if len(q.Prompt) > 0 {
		off, err := stageTokens(ctx, r.a, k, q.Prompt)
		if err != nil {
			return fmt.Errorf("match: %w", err)
		}
		k.Match.Prompt = wire.MatchPrompt{Present: true, Tokens: uint32(len(q.Prompt)), TokenOff: off}
		k.Match.Known = wire.MatchKnownQuery{Present: true, Begin: uint32(q.Begin), SeamTokens: uint32(q.SeamTokens)}
	}
	if r.a.HasPrimers && (len(q.Others) > 0 || q.Primer != profile.PrimerID{}) {
		k.Match.Primers = wire.MatchPrimersQuery{
			Present: true, Primer: q.Primer, PrimedFrom: uint32(min(q.PrimedFrom, wire.MaxPrompt)), Either: flag(q.Either), Others: wireHashes(q.Others),
		}
	}
	reply := &k.MatchReply
	err := r.ask(ctx, k, &k.Match, reply)
	k.Match = wire.MatchRequest{} // the pool must not keep the caller's memory
	if err != nil {
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
		if found.PrefixStates = found.PrefixTokens; reply.Rows.Present {
			found.PrefixStates = min(int(reply.Rows.PrefixStates), found.PrefixTokens)
		}
		found.PrefixKind, found.PrefixReason, found.PrefixTier = Accept(reply.PrefixFlags), reply.PrefixReason, reply.PrefixTier
	}
	if err := found.addKnown(r.a, reply, q); err != nil {
		return err
	}
	most := m.Profile().MaxError()
	for i := range reply.Status {
		row := SegmentFound{
			Status: reply.Status[i], Tier: reply.Tier[i], Reason: reply.Reason[i], Tokens: int(reply.Tokens[i]),
		}
		if reply.Primers.Present {
			row.Other = reply.Primers.Variants[i] != 0
		}
		if row.Other && (len(q.Others) == 0 || !row.Hit()) {
			return r.a.Malformed("match: key %d: another variant, which was not asked for", i)
		}
		if row.Hit() {
			row.Error = most
			if reply.Estimates.Present {
				row.Error = reply.Estimates.Error[i]
			}
		}
		found.Segments[key+i] = row
	}
	return nil
}

// addKnown stores the segments that were found in a prompt. A daemon without support for primers
// only finds segments without a primer; addKnown drops those that the query does not accept.
func (f *Found) addKnown(a *link.Attachment, reply *wire.MatchReply, q *MatchQuery) error {
	m := &reply.Known
	f.Untried += int(m.Untried)
	if n := len(reply.Primers.Primed); reply.Primers.Present && n != len(m.Starts) {
		return a.Malformed("match: %d variants of %d segments in the prompt", n, len(m.Starts))
	}
	at := int64(q.Begin)
	for i := range m.Starts {
		k := KnownSegment{
			Start: int(m.Starts[i]), Tokens: int(m.Lengths[i]), Key: m.Keys[i], Tier: m.Tiers[i], Interior: int(m.Interiors[i]),
			Primed: reply.Primers.Present && reply.Primers.Primed[i] != 0,
		}
		if int64(k.Start) < at || k.Tokens < 1 || int64(k.Start)+int64(k.Tokens) > int64(len(q.Prompt)) {
			return a.Malformed("match: segment [%d, +%d) after token %d of %d", k.Start, k.Tokens, at, len(q.Prompt))
		}
		at = int64(k.Start) + int64(k.Tokens)
		if wanted := k.Start > 0 && k.Start >= q.PrimedFrom; q.Primer != (profile.PrimerID{}) && wanted && !k.Primed && !q.Either {
			continue
		}
		f.Known = append(f.Known, k)
	}
	return nil
}

// reset sets f to n misses.
func (f *Found) reset(n int) {
	s := f.Segments[:0]
	if cap(s) < n {
		s = make([]SegmentFound, 0, n)
	}
	s = s[:n]
	clear(s)
	*f = Found{Segments: s, Known: f.Known[:0]}
}

// wireHashes returns v as the codec's type, without a copy.
func wireHashes[T ~[32]byte](v []T) [][32]byte {
	return unsafe.Slice((*[32]byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v))
}
