package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// longAdvise and longChoice bound an advise request that the reader answers itself, in about 100 µs
// of copying and walking the tree of prompts. longAdvise is in token ids, longChoice in positions
// or segments. A larger request becomes a job.
const (
	longAdvise = 16 << 10
	longChoice = 64
)

func (t lookupOps) adviseIsLong(m *wire.AdviseRequest) (bool, error) {
	return m.Tokens > longAdvise || max(len(m.Cuts), len(m.SegmentBegin), int(min(m.MaxCheckpoints, 1<<16))) > longChoice, nil
}

// advise answers an advise request. It copies the prompt out of staging first, because the client
// can still write to staging, and asks the store about the copy.
func (t lookupOps) advise(m *wire.AdviseRequest) (wire.Message, error) {
	s := t.scratch
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if m.Record > 1 || m.Tokens > profile.MaxTokens {
		return nil, codes.Refuse(wire.Invalid, "record %d, a prompt of %d tokens, at most %d", m.Record, m.Tokens, profile.MaxTokens)
	}
	if err := t.needs(wire.FeatureSplices, m.Measured.Present, "measured"); err != nil {
		return nil, err
	}
	reply := &s.adviseReply
	if reply.Match.Present = m.Match.Present; m.Match.Present {
		if waits, err := t.matchFirst(m, &reply.Match); err != nil || waits {
			return nil, err
		}
	}
	loss, err := t.limit(id, m)
	if err != nil {
		return nil, err
	}
	q := adviseQuery(&s.adviseQuery, m, t.conn.process())
	q.Profile, q.Tenant = id, tenant
	q.NoSplice, q.Refresh = loss.Splicing == wire.SplicingNone, loss.Splicing == wire.SplicingRefreshed
	if q.Tokens, err = t.stagedTokens(m.TokenOff, int(m.Tokens)); err != nil {
		return nil, err
	}
	err = t.conn.server.store.Advisor().Advise(q, &s.advice)
	if served := t.conn.server.served; served != nil && err == nil {
		served(q, &s.advice)
	}
	q.Tokens, q.Cuts = nil, nil // the scratch reuses their buffers
	if err != nil {
		return nil, err
	}
	adviseReply(reply, &s.advice)
	reply.Splice = wire.AdviseSplice{Present: t.at.has(wire.FeatureSplices), Segments: uint32(s.advice.Choice.Segments)}
	reply.Loss = loss
	return reply, nil
}

// Bits of AdviseMatch.Primed, one byte per segment.
const (
	primedKey = 1 << iota // the segment's key names the variant captured after the primer
	primedDue             // at its place in the prompt, that variant is preferred
)

// lookupOf returns the lookup in the section match of an advise request.
func (t lookupOps) lookupOf(m *wire.AdviseRequest) (q tiering.MatchQuery, err error) {
	l := &m.Match
	if !t.at.has(wire.FeatureLookup) {
		return q, codes.Refuse(wire.Invalid, "match: the connection has not asked for the feature lookup")
	}
	if len(l.Keys) != len(m.SegmentBegin) {
		return q, codes.Refuse(wire.Invalid, "match: %d keys for %d segments", len(l.Keys), len(m.SegmentBegin))
	}
	if err := t.needs(wire.FeaturePrimers, len(l.Others) > 0, "primers"); err != nil {
		return q, err
	}
	return t.lookupQuery(m.Profile, l.Accept, l.Positions, l.Prefixes, l.Keys, l.Others)
}

// matchFirst does the lookup of an advise request that has the section match. It stores the result
// in the parameter out, a section of the reply. It also sets the fields of m that a client would
// otherwise copy from the reply to a match. waits is as in lookUp.
func (t lookupOps) matchFirst(m *wire.AdviseRequest, out *wire.AdviseMatched) (waits bool, err error) {
	s := t.scratch
	q, err := t.lookupOf(m)
	if err != nil {
		return false, err
	}
	_, waits, err = t.lookUp(&q)
	if err != nil || waits {
		return waits, err
	}
	r := &s.matchResult
	*out = wire.AdviseMatched{
		Present: true, PrefixTokens: r.PrefixTokens, PrefixIndex: uint32(r.PrefixIndex), PrefixFlags: uint8(r.PrefixKind),
		PrefixReason: uint8(r.PrefixReason), PrefixTier: uint8(r.PrefixPlace), PrefixStates: r.PrefixStates,
		Status: out.Status[:0], Tier: out.Tier[:0], Reason: out.Reason[:0], Tokens: out.Tokens[:0],
		Error: out.Error[:0], Variants: out.Variants[:0],
	}
	for i := range r.Segments {
		row := &r.Segments[i]
		out.Status, out.Tier = append(out.Status, uint8(row.Status)), append(out.Tier, uint8(row.Place))
		out.Reason, out.Tokens = append(out.Reason, uint8(row.Reason)), append(out.Tokens, row.Tokens)
		out.Error, out.Variants = append(out.Error, row.Error), append(out.Variants, oneIf(row.Other))
	}
	m.PrefixTokens, m.PrefixTier = r.PrefixTokens, uint8(r.PrefixPlace)
	if r.PrefixKind == tier.Rows { // the prefix has states up to PrefixStates; the tokens after them are replayed
		m.PrefixTokens, m.BufferTokens = r.PrefixStates, max(m.BufferTokens, r.PrefixTokens)
	}
	m.SegmentStatus, m.SegmentTier = out.Status, out.Tier
	m.SeamTokens = seamTokens(m, r.Segments)
	m.Limit.Primed = oneIf(allPrimed(m.Match.Primed, r.Segments))
	t.at.claims.matched(&q, r, &wire.MatchKnown{})
	return false, nil
}

// seamTokens returns the number of tokens that the engine computes again at the seams of the
// segments that were found. If none was found, it returns the number that the request states.
func seamTokens(m *wire.AdviseRequest, rows []tiering.SegmentStatus) uint32 {
	seam, hit := uint32(0), false
	for i := range rows {
		if rows[i].Status != tier.StatusHit {
			continue
		}
		hit = true
		if n := rows[i].Tokens; n > 0 && n <= m.SegmentTokens[i] { // 0 = unknown
			seam += m.SegmentTokens[i] - n
		}
	}
	if !hit {
		return m.SeamTokens
	}
	return seam
}

// allPrimed reports whether the request counts as spliced from segments that were captured after
// the primer. At least one segment must be cached in that variant. So must every segment for which
// the request prefers that variant.
func allPrimed(primed []uint8, rows []tiering.SegmentStatus) bool {
	some := false
	for i := range rows {
		is := (primed[i]&primedKey != 0) != rows[i].Other
		some = some || is
		if !is && primed[i]&primedDue != 0 {
			return false
		}
	}
	return some
}

// limit returns how a request may be spliced within the loss that it accepts, or a zero value if it
// states no limit.
func (t lookupOps) limit(id tier.ProfileID, m *wire.AdviseRequest) (none wire.AdviseLoss, _ error) {
	l := &m.Limit
	if err := t.needs(wire.FeatureLosses, l.Present, "losses"); err != nil || !l.Present {
		return none, err
	}
	if !canary.ValidLoss(l.MaxLoss) || l.Primed > 1 || l.Refreshed > 1 {
		return none, codes.Refuse(wire.Invalid, "limit: max loss %v, primed %d, refreshed %d", l.MaxLoss, l.Primed, l.Refreshed)
	}
	p, ok := t.conn.server.store.Profile(id)
	if !ok {
		return none, codes.Refuse(wire.Gone, "profile %d", m.Profile)
	}
	of := canary.Key{Tenant: tier.TenantID(t.header.Tenant), Fingerprint: p.Fingerprint()}
	return t.conn.server.canary.Limit(of, l, len(m.SegmentBegin)), nil
}

// adviseQuery turns a request into a query, reusing the memory of q. Numbers that do not fit an
// int32 are clamped to a value above every bound of the store, so that the store refuses them.
func adviseQuery(q *advise.Query, m *wire.AdviseRequest, source uint64) *advise.Query {
	*q = advise.Query{
		Output: cut(m.Output), Record: m.Record == 1, BlockTokens: cut(m.BlockTokens), MaxCheckpoints: cut(m.MaxCheckpoints),
		PrefixTokens: cut(m.PrefixTokens), PrefixPlace: tier.Place(m.PrefixTier),
		BufferTokens: cut(m.BufferTokens), SeamTokens: cut(m.SeamTokens),
		Cuts: m.Cuts, Segments: q.Segments[:0], Samples: q.Samples[:0],
	}
	for i := range m.SegmentBegin {
		q.Segments = append(q.Segments, advise.Segment{
			Begin: cut(m.SegmentBegin[i]), Tokens: cut(m.SegmentTokens[i]),
			Status: tier.Status(m.SegmentStatus[i]), Place: tier.Place(m.SegmentTier[i]),
		})
	}
	for i := range m.SampleBegin {
		q.Samples = append(q.Samples, cost.Sample{
			Begin: cut(m.SampleBegin[i]), End: cut(m.SampleEnd[i]), Millis: float64(m.SampleMicros[i]) / 1e3, Source: source,
		})
	}
	for i := range m.Measured.WalkRows {
		rows := cost.WalkRows(cut(m.Measured.WalkRows[i]), cut(m.Measured.WalkPlaced[i]))
		q.Samples = append(q.Samples, cost.Sample{Task: cost.TaskWalk, End: rows, Millis: float64(m.Measured.WalkMicros[i]) / 1e3, Source: source})
	}
	for i := range m.Measured.CaptureTokens {
		tokens := cut(m.Measured.CaptureTokens[i])
		q.Samples = append(q.Samples, cost.Sample{Task: cost.TaskCapture, End: tokens, Millis: float64(m.Measured.CaptureMicros[i]) / 1e3, Source: source})
	}
	return q
}

// cut clamps n so that it fits an int of 32 bits.
func cut(n uint32) int { return int(min(n, 1<<30)) }

// adviseReply turns an advice into a reply. It reuses the memory of out and leaves its section
// match unchanged.
func adviseReply(out *wire.AdviseReply, a *advise.Advice) {
	*out = wire.AdviseReply{
		Match:      out.Match,
		SeenTokens: uint32(a.SeenTokens), Way: uint8(a.Choice.Best), WayMicros: out.WayMicros[:0],
		Positions: out.Positions[:0], Why: out.Why[:0], Admit: out.Admit[:0], Reason: out.Reason[:0], Value: out.Value[:0],
		SegmentAdmit: out.SegmentAdmit[:0], SegmentReason: out.SegmentReason[:0],
	}
	for _, ms := range a.Choice.Millis {
		out.WayMicros = append(out.WayMicros, 1e3*ms)
	}
	for i := range a.Positions {
		p := &a.Positions[i]
		out.Positions = append(out.Positions, uint32(p.Tokens))
		out.Why = append(out.Why, uint8(p.Why))
		out.Admit = append(out.Admit, oneIf(p.Admit))
		out.Reason = append(out.Reason, uint8(p.Reason))
		out.Value = append(out.Value, p.Value)
	}
	for i := range a.Segments {
		out.SegmentAdmit = append(out.SegmentAdmit, oneIf(a.Segments[i].Admit))
		out.SegmentReason = append(out.SegmentReason, uint8(a.Segments[i].Reason))
	}
}
