package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// longKnown is how many tokens the reader searches itself: some 100 µs. searchBytes is
// what a search takes of the heap for each token beside its id, and keptSearch the most
// tokens that a scratch keeps room for after a request.
const (
	longKnown   = 4 << 10
	searchBytes = 16
	keptSearch  = 64 << 10
)

// matchIsLong is longer(longLookup), and says the same of long prompts. Only connections
// that may send one have their requests read twice.
func (t *task) matchIsLong() (bool, error) {
	if long := len(t.body) > longLookup; long || !t.at.known {
		return long, nil
	}
	m := &t.scratch.match
	if err := m.Decode(t.body); err != nil {
		return false, err
	}
	return m.Known.Present && m.Prompt.Tokens > longKnown, nil
}

// noneKnown is an absent section in the memory of a former one.
func noneKnown(m *wire.MatchKnown) wire.MatchKnown {
	return wire.MatchKnown{
		Starts: m.Starts[:0], Lengths: m.Lengths[:0], Keys: m.Keys[:0], Tiers: m.Tiers[:0], Interiors: m.Interiors[:0],
	}
}

// findKnown answers the section known of a match, whose prefix was found.
func (t *task) findKnown(out *wire.MatchReply, off bool) error {
	m, k := &t.scratch.match, &t.scratch.known
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
		return codes.Refuse(wire.Invalid, "a prefix of %d tokens of a prompt of %d", out.PrefixTokens, len(q.Tokens))
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
	}
	if len(q.Tokens) > keptSearch {
		t.scratch.known = tiering.Known{}
	}
	return nil
}

// knownQuery checks what a client asks, and takes the memory that a search needs.
func (t *task) knownQuery(m *wire.MatchRequest) (*tiering.KnownQuery, error) {
	prompt, ask := &m.Prompt, &m.Known
	switch {
	case !t.at.known:
		return nil, codes.Refuse(wire.Invalid, "known: the connection has not asked for that feature")
	case !prompt.Present || prompt.TokenOff == wire.None:
		return nil, codes.Refuse(wire.Invalid, "known: the prompt's token ids are not in staging")
	case prompt.Tokens < 1 || prompt.Tokens > wire.MaxPrompt:
		return nil, codes.Refuse(wire.Invalid, "known: a prompt of %d tokens, want 1 to %d", prompt.Tokens, wire.MaxPrompt)
	case ask.Begin > prompt.Tokens || ask.SeamTokens > prompt.Tokens:
		return nil, codes.Refuse(wire.Invalid, "known: from token %d on with seams of %d, of %d", ask.Begin, ask.SeamTokens, prompt.Tokens)
	}
	if err := t.holdTokens(int(prompt.Tokens) * (4 + searchBytes) / 4); err != nil {
		return nil, err
	}
	return &tiering.KnownQuery{
		Profile: tier.ProfileID(m.Profile), Tenant: tier.TenantID(t.header.Tenant), Begin: int(ask.Begin), SeamTokens: int(ask.SeamTokens),
		Most: wire.MaxKeys, Device: t.at.gpu.Load() != nil, Pause: t.place.giveWay,
	}, nil
}
