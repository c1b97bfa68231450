package server

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// scope returns the profile and tenant of a request about cached state.
func (t *task) scope(profileID uint32) (tier.ProfileID, tier.TenantID, error) {
	id, err := t.at.use(profileID)
	return id, tier.TenantID(t.header.Tenant), err
}

// lookupOps has the operations that look a prompt up: match, and advise (see advise.go).
type lookupOps struct{ *task }

// lookupQuery returns the store's query for a lookup of a prompt by this connection.
func (t lookupOps) lookupQuery(profileID uint32, accept uint8, positions []uint32, prefixes, keys, others [][32]byte) (q tiering.MatchQuery, err error) {
	q = tiering.MatchQuery{
		Accept: tier.CheckpointKind(accept), Positions: positions, Prefixes: prefixes, Keys: keys, Others: others,
		Device: t.at.reads(), Local: !t.at.has(wire.FeatureEstimates),
	}
	if q.Profile, q.Tenant, err = t.scope(profileID); err != nil {
		return q, err
	}
	return q, t.knowsKinds(q.Accept)
}

func (t lookupOps) match(m *wire.MatchRequest) (wire.Message, error) {
	r, out := &t.scratch.matchResult, &t.scratch.matchReply
	if err := t.needs(wire.FeaturePrimers, m.Primers.Present, "primers"); err != nil {
		return nil, err
	}
	q, err := t.lookupQuery(m.Profile, m.Accept, m.Positions, m.Prefixes, m.Keys, m.Primers.Others)
	if err != nil {
		return nil, err
	}
	off, waits, err := t.lookUp(&q)
	if err != nil || waits {
		return nil, err
	}
	n := len(r.Segments)
	status, places, reasons, tokens := column(out.Status, n), column(out.Tier, n), column(out.Reason, n), column(out.Tokens, n)
	*out = wire.MatchReply{
		PrefixTokens: r.PrefixTokens, PrefixIndex: uint32(r.PrefixIndex),
		PrefixFlags: uint8(r.PrefixKind), PrefixReason: uint8(r.PrefixReason), PrefixTier: uint8(r.PrefixPlace),
		Status: status, Tier: places, Reason: reasons, Tokens: tokens,
		Estimates: estimates(&out.Estimates, r, t.at.has(wire.FeatureEstimates)),
		Known:     noneKnown(&out.Known), Rows: wire.MatchRows{Present: t.at.has(wire.FeatureRows), PrefixStates: r.PrefixStates},
		Primers: wire.MatchPrimers{Present: m.Primers.Present, Variants: out.Primers.Variants[:0], Primed: out.Primers.Primed[:0]},
	}
	for i := range r.Segments {
		row := &r.Segments[i]
		status[i], places[i], reasons[i], tokens[i] = uint8(row.Status), uint8(row.Place), uint8(row.Reason), row.Tokens
		if m.Primers.Present {
			out.Primers.Variants = append(out.Primers.Variants, oneIf(row.Other))
		}
	}
	if m.Known.Present {
		if err := t.findKnown(m, out, off); err != nil {
			return nil, err // the client receives no part of the answer
		}
	}
	t.at.claims.matched(&q, r, &out.Known)
	return out, nil
}

// column returns n elements, to be overwritten, in the memory of an earlier column if it is large
// enough.
func column[T any](earlier []T, n int) []T { return slices.Grow(earlier[:0], n)[:n] }

// knowsKinds refuses kinds of checkpoints that the connection did not negotiate.
func (t *task) knowsKinds(kinds tier.CheckpointKind) error {
	if kinds&tier.Rows != 0 && !t.at.has(wire.FeatureRows) {
		return codes.Refuse(wire.Invalid, "accept or kind: checkpoints kept as rows, without the feature rows")
	}
	return nil
}

// lookUp looks a prompt up in the store. The result off reports that splicing is switched off for
// the profile; all segments are then misses. The result waits reports that a remote lookup of the
// prompt must come first. In that case the operation runs again, as its own continuation.
//
// A remote lookup helps for a while after a start, when the hints in memory are incomplete. A match
// that runs as a job is answered without it.
func (t lookupOps) lookUp(q *tiering.MatchQuery) (off, waits bool, err error) {
	store, keys, r := t.conn.server.store, len(q.Keys), &t.scratch.matchResult
	switch {
	case t.phase == waiting:
		ctx, stop := t.patience(0)
		store.Learn(ctx, q)
		stop()
	case t.phase == received && !q.Local && store.Learning() && t.mayWait():
		t.rest = t.op.run
		return false, true, nil
	}
	if off = t.switchedOff(q.Profile); off {
		q.Accept &^= tier.Spliced
		q.Keys, q.Others = nil, nil
	}
	if err := store.Match(q, r); err != nil || !off {
		return off, false, err
	}
	t.conn.server.canary.Withhold(keys)
	for range keys {
		r.Segments = append(r.Segments, tiering.SegmentStatus{Status: tier.StatusMiss, Reason: tier.Reason(wire.ReasonOff)})
	}
	return off, false, nil
}

// leaseOps has the operations that lease cached state and release it: acquire, load, their forms for
// device memory (see leasing.go), and release.
type leaseOps struct{ *task }

// acquireRowBytes is the size in bytes of a row without its extents and digests. acquireFixed is
// the most that the counts and padding of fourteen columns and the header of a section take.
const (
	acquireRowBytes = 2 + 8 + 8 + 4 + 4 + 4 + 4 + 4
	acquireFixed    = 14*(8+7) + 16
)

// room is the space left in a reply frame for extents, digests and packed layouts.
type room struct{ bytes, extents, digests, packed int }

func newRoom(rows int) room {
	return room{wire.MaxBody - acquireFixed - rows*acquireRowBytes, wire.MaxExtents, wire.MaxDigests, wire.MaxPacked}
}

// take reserves the space of a row and reports whether there was enough.
func (r *room) take(row *tiering.Acquired) bool {
	extents, digests, packed := len(row.Extents), len(row.Digests), len(row.Packed)
	bytes := 16*extents + 8*digests + packed
	if bytes > r.bytes || extents > r.extents || digests > r.digests || packed > r.packed {
		return false
	}
	*r = room{r.bytes - bytes, r.extents - extents, r.digests - digests, r.packed - packed}
	return true
}

// lifeOf returns the requested lease time, 0 for the default. It refuses a time above the maximum
// instead of shortening it, since a client relies on the time that it requested.
func (t leaseOps) lifeOf(ms uint32) (time.Duration, error) {
	ttl, most := milliseconds(ms), t.conn.server.config.MaxLeaseTTL
	if ttl > most {
		return 0, codes.Refuse(wire.Invalid, "ttl: a lease of %v, max-lease-ttl is %v", ttl, most)
	}
	return ttl, nil
}

func (t leaseOps) acquire(m *wire.AcquireRequest) (wire.Message, error) {
	if m.Reserved != 0 {
		return nil, codes.Refuse(wire.Unsupported, "acquire: block tables of %d tokens, which this daemon does not have", m.Reserved)
	}
	q, err := t.leasing(m.Profile, m.Rank, m.TTLMs, m.Digests, m.All, m.Keys)
	if err != nil {
		return nil, err
	}
	if t.switchedOff(q.Profile) {
		return t.acquired(&q, make([]tiering.Acquired, len(m.Keys))), nil
	}
	return t.lease(&q)
}

// leasing returns an acquire with the fields of a request.
func (t leaseOps) leasing(profileID, rank, ttlMs uint32, digests, all uint8, keys [][32]byte) (q leasing, err error) {
	q.Rank, q.Digests, q.All, q.Keys = rankOf(rank), digests != 0, all != 0, keys
	if q.Profile, q.Tenant, err = t.scope(profileID); err == nil {
		q.TTL, err = t.lifeOf(ttlMs)
	}
	return q, err
}

// lease acquires the leases of a query and returns the reply. If some objects need a promotion, it
// returns no reply and sets t.rest to a continuation that waits for the promotions.
func (t leaseOps) lease(q *leasing) (_ wire.Message, err error) {
	s := t.scratch
	may := !q.atOnce && t.mayWait()
	if q.All && may && q.needsWait(t.conn.server.store) { // no row is leased before all can be
		t.rest = awaitAcquire(*q, slices.Repeat([]tiering.Acquired{{Promoting: true}}, len(q.Keys)))
		return nil, nil
	}
	q.Again = !q.All && may
	s.acquired, err = q.acquire(t.at.session, s.acquired[:0])
	if err != nil {
		return nil, err
	}
	defer clear(s.acquired) // the rows point into the store
	if q.Again && slices.ContainsFunc(s.acquired, promoting) {
		t.rest = awaitAcquire(*q, s.acquired)
		return nil, nil
	}
	return t.acquired(q, s.acquired), nil
}

// acquired returns the reply with as many rows as fit a frame. It releases the leases of the
// remaining rows, whose code becomes busy or full.
func (t leaseOps) acquired(q *leasing, rows []tiering.Acquired) *wire.AcquireReply {
	out := &t.scratch.acquireReply
	resetAcquire(out)
	if q.All {
		t.keepTogether(q, rows)
	}
	left := newRoom(len(rows))
	for i := range rows {
		row := &rows[i]
		code := acquireCode(row)
		if row.Hit && !left.take(row) {
			code = wire.Busy
			if alone := newRoom(1); !alone.take(row) {
				code = wire.Full
			}
			t.giveBack(row.Lease)
			*row = tiering.Acquired{}
		}
		appendAcquired(out, t.rowCode(code), row)
	}
	t.at.claims.leased(q.Keys, rows)
	return out
}

func acquireCode(row *tiering.Acquired) wire.Code {
	if row.Err == nil && !row.Hit {
		return wire.Miss
	}
	code, _ := codes.Of(row.Err)
	return code
}

func resetAcquire(out *wire.AcquireReply) {
	*out = wire.AcquireReply{
		Codes: out.Codes[:0], Leases: out.Leases[:0], Bytes: out.Bytes[:0], Begins: out.Begins[:0], Tokens: out.Tokens[:0],
		ExtentCount: out.ExtentCount[:0], ExtentOff: out.ExtentOff[:0], ExtentLen: out.ExtentLen[:0],
		DigestCount: out.DigestCount[:0], Digest: out.Digest[:0],
		Packed: wire.AcquirePacked{Count: out.Packed.Count[:0], Layout: out.Packed.Layout[:0]},
	}
}

func appendAcquired(out *wire.AcquireReply, code uint16, row *tiering.Acquired) {
	out.Codes = append(out.Codes, code)
	out.Leases = append(out.Leases, uint64(row.Lease))
	out.Bytes = append(out.Bytes, uint64(row.Bytes))
	out.Begins = append(out.Begins, uint32(row.Begin))
	out.Tokens = append(out.Tokens, uint32(row.Tokens))
	out.ExtentCount = append(out.ExtentCount, uint32(len(row.Extents)))
	for _, e := range row.Extents {
		out.ExtentOff = append(out.ExtentOff, uint64(e.Off))
		out.ExtentLen = append(out.ExtentLen, uint64(e.Len))
	}
	out.DigestCount = append(out.DigestCount, uint32(len(row.Digests)))
	out.Digest = append(out.Digest, row.Digests...)
	out.Packed.Count = append(out.Packed.Count, uint32(len(row.Packed)))
	out.Packed.Layout = append(out.Packed.Layout, row.Packed...)
	out.Packed.Present = out.Packed.Present || row.Packed != "" // only clients that can read packed parts have such profiles
}

// giveBack releases a lease that is not reported to the client.
func (t leaseOps) giveBack(lease tier.LeaseID) {
	if err := t.at.session.Release(lease); err != nil && t.conn.ctx.Err() == nil {
		t.conn.server.log.Error().Err(err).Uint64("lease", uint64(lease)).Msg("cannot release a new lease")
	}
}

// release releases slots and leases of the store. Both have ids from one sequence, so that an id
// names at most one of them.
func (t leaseOps) release(m *wire.ReleaseRequest) (wire.Message, error) {
	out := &t.scratch.codes
	out.Codes = out.Codes[:0]
	for _, id := range m.Leases {
		out.Codes = append(out.Codes, t.row(t.releaseOne(id)))
	}
	return out, nil
}

func (t leaseOps) releaseOne(id uint64) error {
	if t.at.slots.Release(id) {
		return nil
	}
	if l := t.at.gpu.Load(); l != nil && l.slots.Release(id) {
		return nil
	}
	return t.at.session.Release(tier.LeaseID(id))
}

func (t leaseOps) load(m *wire.LoadRequest) (wire.Message, error) {
	q, err := t.loading(m)
	if err != nil {
		return nil, err
	}
	if err := t.knowsKinds(q.Accept); err != nil {
		return nil, err
	}
	return t.loadFrom(t.at.session.Load, t.at.session.AwaitLoad, q)
}

// loading returns the store's query for a load.
func (t leaseOps) loading(m *wire.LoadRequest) (q tiering.LoadQuery, err error) {
	q = tiering.LoadQuery{Rank: rankOf(m.Rank), Accept: tier.CheckpointKind(m.Accept), Digests: m.Digests != 0, Again: t.mayWait(), Hash: m.Hash}
	if q.Profile, q.Tenant, err = t.scope(m.Profile); err == nil {
		q.TTL, err = t.lifeOf(m.TTLMs)
	}
	return q, err
}

// loadFrom leases a checkpoint, in host or device memory, with the function now. If the checkpoint
// must be promoted, the request waits and leases it with the function later.
func (t leaseOps) loadFrom(now loadNow, later loadLater, q tiering.LoadQuery) (wire.Message, error) {
	if q.Accept&tier.Spliced != 0 && t.switchedOff(q.Profile) {
		if q.Accept &^= tier.Spliced; q.Accept == 0 {
			return nil, refuseOff(&q)
		}
	}
	got, err := now(&q)
	if err != nil {
		return nil, err
	}
	if got.Promoting && q.Again {
		t.rest = awaitLoad(later, q)
		return nil, nil
	}
	return t.loaded(&q, &got)
}

func refuseOff(q *tiering.LoadQuery) error {
	return codes.Refuse(wire.Miss, "checkpoint %x: splicing is switched off for its profile", q.Hash[:8])
}

// loadNow and loadLater are the types of a session's methods that load a checkpoint.
type (
	loadNow   func(*tiering.LoadQuery) (tiering.Loaded, error)
	loadLater func(context.Context, *tiering.LoadQuery) (tiering.Loaded, error)
)

// loaded returns the reply for a checkpoint, or an error for a miss.
func (t leaseOps) loaded(q *tiering.LoadQuery, got *tiering.Loaded) (wire.Message, error) {
	if !got.Hit {
		return nil, codes.Refuse(wire.Miss, "checkpoint %x: %v", q.Hash[:8], got.Reason)
	}
	if !t.at.has(wire.FeatureRows) && slices.ContainsFunc(got.Nodes, func(n tiering.LoadedNode) bool { return n.Kind == tier.Rows }) {
		t.giveBack(got.Lease)
		return nil, codes.Refuse(wire.Miss, "checkpoint %x: it extends a checkpoint kept as rows, which this client does not support", q.Hash[:8])
	}
	out, fits := loadReply(got)
	out.Rows.Present = t.at.has(wire.FeatureRows)
	if !fits {
		t.giveBack(got.Lease)
		return nil, codes.Refuse(wire.Full, "checkpoint %x: its %d nodes do not fit a frame", q.Hash[:8], len(got.Nodes))
	}
	t.at.claims.loaded(got)
	return out, nil
}

func loadReply(got *tiering.Loaded) (*wire.LoadReply, bool) {
	out := &wire.LoadReply{Lease: uint64(got.Lease), Kind: uint8(got.Kind), Tokens: uint32(got.Tokens)}
	// A node takes less space than the row of acquire that newRoom assumes.
	left := newRoom(len(got.Nodes))
	if len(got.Nodes) > wire.MaxNodes {
		return out, false
	}
	for _, n := range got.Nodes {
		if !left.take(&tiering.Acquired{Extents: n.Extents, Digests: n.Digests}) {
			return out, false
		}
		out.Rows.Kinds = append(out.Rows.Kinds, uint8(n.Kind))
		out.NodeBegin = append(out.NodeBegin, uint32(n.Begin))
		out.NodeEnd = append(out.NodeEnd, uint32(n.End))
		out.ExtentCount = append(out.ExtentCount, uint32(len(n.Extents)))
		for _, e := range n.Extents {
			out.ExtentOff = append(out.ExtentOff, uint64(e.Off))
			out.ExtentLen = append(out.ExtentLen, uint64(e.Len))
		}
		out.DigestCount = append(out.DigestCount, uint32(len(n.Digests)))
		out.Digest = append(out.Digest, n.Digests...)
	}
	return out, true
}

// rankOf clamps a rank, so that large invalid ranks do not wrap around.
func rankOf(rank uint32) int { return int(min(rank, math.MaxInt32)) }

func milliseconds(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }

// longKnown is the largest number of prompt tokens that the reader searches itself, in about 100
// µs. searchBytes is the heap memory that a search needs per token in addition to the token's id.
// keptSearch is the number of tokens for which a scratch keeps memory after a request.
const (
	longKnown   = 4 << 10
	searchBytes = 16
	keptSearch  = 64 << 10
)

// matchIsLong reports whether a match has many rows, or a long prompt to search. Only a connection
// that negotiated the search can send a prompt, so other connections' requests are not decoded here.
func (t lookupOps) matchIsLong() (bool, error) {
	if long := len(t.body) > longLookup; long || !t.at.has(wire.FeatureKnown) {
		return long, nil
	}
	m, err := decode[wire.MatchRequest](t.task)
	if err != nil {
		return false, err
	}
	return m.Known.Present && m.Prompt.Tokens > longKnown, nil
}

// notKnown stands for an unknown time in MatchEstimates.
const notKnown = math.MaxUint32

// estimates returns the section with the error bounds of hits. The section is absent if the client
// may not see it or all errors are zero. The memory of m, an earlier section, is reused.
func estimates(m *wire.MatchEstimates, r *tiering.MatchResult, may bool) wire.MatchEstimates {
	out := wire.MatchEstimates{PrefixMicros: notKnown, Micros: m.Micros[:0], Error: m.Error[:0]}
	if r.PrefixTokens > 0 && r.PrefixKind&tier.Spliced != 0 {
		out.PrefixError = math.Inf(1) // the errors of the spliced checkpoint's parts are unknown
	}
	if out.Present = may && (r.MaxError > 0 || out.PrefixError > 0); !out.Present {
		return out
	}
	for i := range r.Segments {
		out.Micros = append(out.Micros, notKnown)
		out.Error = append(out.Error, r.Segments[i].Error)
	}
	return out
}

// noneKnown returns an absent section that reuses the memory of m, an earlier one.
func noneKnown(m *wire.MatchKnown) wire.MatchKnown {
	return wire.MatchKnown{
		Starts: m.Starts[:0], Lengths: m.Lengths[:0], Keys: m.Keys[:0], Tiers: m.Tiers[:0], Interiors: m.Interiors[:0],
	}
}

// findKnown searches the prompt for known segments and fills the reply's section known. The prefix
// lookup comes first, since the search begins after the prefix.
func (t lookupOps) findKnown(m *wire.MatchRequest, out *wire.MatchReply, off bool) error {
	k := &t.scratch.known
	q, err := t.knownQuery(m)
	if err != nil {
		return err
	}
	answer := &out.Known
	answer.Present = true
	if off {
		answer.Reason = wire.ReasonOff
		return nil
	}
	if q.Tokens, err = t.stagedTokens(m.Prompt.TokenOff, int(m.Prompt.Tokens)); err != nil {
		return err
	}
	q.Begin = max(q.Begin, int(out.PrefixTokens))
	if q.Begin > len(q.Tokens) {
		return codes.Refuse(wire.Invalid, "known: a prefix of %d tokens of a prompt of %d", out.PrefixTokens, len(q.Tokens))
	}
	if err := t.conn.server.store.Known(t.ctx, q, k); err != nil {
		return err
	}
	answer.Untried = uint32(k.Untried)
	for i := range k.Segments {
		s := &k.Segments[i]
		answer.Starts = append(answer.Starts, uint32(s.Start))
		answer.Lengths = append(answer.Lengths, uint32(s.Tokens))
		answer.Keys = append(answer.Keys, s.Key)
		answer.Tiers = append(answer.Tiers, uint8(s.Place))
		answer.Interiors = append(answer.Interiors, s.SegmentStatus.Tokens)
		if p := &out.Primers; p.Present {
			p.Primed = append(p.Primed, oneIf(s.Primed))
		}
	}
	if len(q.Tokens) > keptSearch {
		t.scratch.known = tiering.Known{}
	}
	return nil
}

// knownQuery validates the client's query and reserves heap memory for the search.
func (t lookupOps) knownQuery(m *wire.MatchRequest) (*tiering.KnownQuery, error) {
	if err := t.needs(wire.FeatureKnown, true, "known"); err != nil {
		return nil, err
	}
	prompt, ask := &m.Prompt, &m.Known
	switch {
	case !prompt.Present || prompt.TokenOff == wire.None:
		return nil, codes.Refuse(wire.Invalid, "known: the prompt's token ids are not in staging")
	case prompt.Tokens < 1 || prompt.Tokens > wire.MaxPrompt:
		return nil, codes.Refuse(wire.Invalid, "known: a prompt of %d tokens, want 1 to %d", prompt.Tokens, wire.MaxPrompt)
	case ask.Begin > prompt.Tokens || ask.SeamTokens > prompt.Tokens:
		return nil, codes.Refuse(wire.Invalid, "known: from token %d on with seams of %d, of %d", ask.Begin, ask.SeamTokens, prompt.Tokens)
	case m.Primers.Either > 1:
		return nil, codes.Refuse(wire.Invalid, "either %d", m.Primers.Either)
	}
	if err := t.holdTokens(int(prompt.Tokens) * (4 + searchBytes) / 4); err != nil {
		return nil, err
	}
	primers := &m.Primers
	return &tiering.KnownQuery{
		Profile: tier.ProfileID(m.Profile), Tenant: tier.TenantID(t.header.Tenant), Begin: int(ask.Begin), SeamTokens: int(ask.SeamTokens),
		Primer: primers.Primer, PrimedFrom: int(primers.PrimedFrom), Either: primers.Either != 0,
		Most: wire.MaxKeys, Device: t.at.reads(), Pause: t.giveWay,
	}, nil
}
