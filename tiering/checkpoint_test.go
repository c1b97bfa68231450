package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// hashOf names the first n tokens of prompt number prompt.
func hashOf(prompt, n int) profile.PrefixHash {
	return profile.PrefixHash{byte(prompt * 37), byte(prompt), byte(n >> 8), byte(n), 1}
}

// saveQuery saves n tokens of a prompt behind a parent of fewer (0 = none).
func (b *bench) saveQuery(prompt, n, parent int, kind tier.CheckpointKind) *SaveQuery {
	q := &SaveQuery{Profile: b.id, Tenant: tenantA, Kind: kind, Hash: hashOf(prompt, n), Tokens: n}
	if parent > 0 {
		q.Parent = hashOf(prompt, parent)
	}
	return q
}

// save fills a checkpoint for all ranks and returns its bytes by rank.
func (b *bench) save(c *Session, q *SaveQuery, begin int) (data [][]byte) {
	b.Helper()
	l := checkpointLayout(b.profile, q.Kind, q.Tokens-begin)
	for rank := range b.profile.TPSize() {
		ranked := *q
		ranked.Rank = rank
		r, err := c.Save(&ranked)
		b.must(err)
		if r.Bytes != l.Bytes {
			b.Fatalf("%d bytes reserved, layout has %d", r.Bytes, l.Bytes)
		}
		d := content(&l, uint64(q.Hash[0])<<16|uint64(q.Tokens)<<4|uint64(q.Kind)<<2|uint64(rank))
		data = append(data, d)
		if published := b.commitAll(c, r, &l, d); published != (rank == b.profile.TPSize()-1) {
			b.Fatalf("rank %d: published %v", rank, published)
		}
	}
	return data
}

func (b *bench) loadPrefix(c *Session, hash profile.PrefixHash, accept tier.CheckpointKind) Loaded {
	b.Helper()
	q := &LoadQuery{Profile: b.id, Tenant: tenantA, Accept: accept, Digests: true, Hash: hash}
	if b.above {
		return b.raisePrefix(c, q)
	}
	l, err := c.Load(q)
	b.must(err)
	return l
}

// matchPrefix asks for the given positions of a prompt.
func (b *bench) matchPrefix(prompt int, accept tier.CheckpointKind, positions ...uint32) MatchResult {
	b.Helper()
	q := &MatchQuery{Profile: b.id, Tenant: tenantA, Accept: accept, Positions: positions, Device: b.reads()}
	for _, p := range positions {
		q.Prefixes = append(q.Prefixes, hashOf(prompt, int(p)))
	}
	var r MatchResult
	b.must(b.Match(q, &r))
	return r
}

func TestMatchFindsTheLongestAcceptedPrefix(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(1, 32, 16, tier.Spliced), 16)
	for _, row := range []struct {
		accept    tier.CheckpointKind
		positions []uint32
		want      MatchResult
	}{
		{tier.Exact, []uint32{8, 16, 32}, MatchResult{PrefixTokens: 16, PrefixIndex: 1, PrefixKind: tier.Exact, PrefixReason: tier.ReasonFlagOnly}},
		{tier.Exact | tier.Spliced, []uint32{8, 16, 32}, MatchResult{PrefixTokens: 32, PrefixIndex: 2, PrefixKind: tier.Spliced}},
		{tier.Exact | tier.Spliced, []uint32{8, 16, 32, 64}, MatchResult{PrefixTokens: 32, PrefixIndex: 2, PrefixKind: tier.Spliced, PrefixReason: tier.ReasonUnknown}},
		{tier.Spliced, []uint32{16}, MatchResult{PrefixReason: tier.ReasonFlagOnly}},
		{tier.Exact, []uint32{32}, MatchResult{PrefixReason: tier.ReasonFlagOnly}},
		{tier.Exact, []uint32{7}, MatchResult{PrefixReason: tier.ReasonUnknown}},
		{0, []uint32{16}, MatchResult{}},
	} {
		got := b.matchPrefix(1, row.accept, row.positions...)
		got.Segments = nil
		if got.PrefixTokens != row.want.PrefixTokens || got.PrefixIndex != row.want.PrefixIndex ||
			got.PrefixKind != row.want.PrefixKind || got.PrefixReason != row.want.PrefixReason {
			t.Errorf("accept %d positions %v: PrefixTokens %v, want %v; PrefixIndex %v, want %v; PrefixKind %v, want %v; PrefixReason %v, want %v", row.accept, row.positions, got.PrefixTokens, row.want.PrefixTokens, got.PrefixIndex, row.want.PrefixIndex, got.PrefixKind, row.want.PrefixKind, got.PrefixReason, row.want.PrefixReason)
		}
	}
	if got := b.matchPrefix(2, tier.Exact, 16); got.PrefixTokens != 0 {
		t.Fatalf("another prompt hit PrefixTokens %v, want 0", got.PrefixTokens)
	}
	var r1 MatchResult // a hash asked for at a position that is not its own
	b.must(b.Match(&MatchQuery{
		Profile: b.id, Tenant: tenantA, Accept: tier.Exact, Positions: []uint32{17}, Prefixes: [][32]byte{hashOf(1, 16)},
	}, &r1))
	if r1.PrefixTokens != 0 {
		t.Fatalf("PrefixTokens %v, want 0", r1.PrefixTokens)
	}
	r, err := c.Save(b.saveQuery(1, 64, 16, tier.Exact))
	b.must(err)
	if got := b.matchPrefix(1, tier.Exact, 16, 64); got.PrefixTokens != 16 || got.PrefixReason != tier.ReasonPending {
		t.Fatalf("PrefixTokens %v, want 16; PrefixReason %v, want %v", got.PrefixTokens, got.PrefixReason, tier.ReasonPending)
	}
	b.must(c.Abort(r.ID))
	if got := b.matchPrefix(1, tier.Exact, 16, 64); got.PrefixTokens != 16 || got.PrefixReason != tier.ReasonAborted {
		t.Fatalf("PrefixTokens %v, want 16; PrefixReason %v, want %v", got.PrefixTokens, got.PrefixReason, tier.ReasonAborted)
	}
}

func TestSaveRefusesWrongParents(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) { c.MaxChain = 3 })
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(1, 32, 16, tier.Spliced), 16)
	pending, err := c.Save(b.saveQuery(1, 48, 32, tier.Spliced))
	b.must(err)
	for _, row := range []struct {
		name string
		q    *SaveQuery
		want error
	}{
		{"no such parent", b.saveQuery(1, 64, 20, tier.Exact), tier.ErrGone},
		{"parent still being filled", b.saveQuery(1, 64, 48, tier.Spliced), tier.ErrGone},
		{"parent of another prompt", b.saveQuery(2, 64, 16, tier.Exact), tier.ErrGone},
		{"exact behind spliced", b.saveQuery(1, 64, 32, tier.Exact), tier.ErrInvalid},
		{"parent as long", b.saveQuery(1, 16, 16, tier.Spliced), tier.ErrInvalid},
		{"parent longer", b.saveQuery(1, 8, 16, tier.Exact), tier.ErrInvalid},
		{"no tokens", b.saveQuery(1, 0, 0, tier.Exact), tier.ErrInvalid},
		{"absurd tokens", b.saveQuery(1, profile.MaxTokens+1, 0, tier.Exact), tier.ErrInvalid},
		{"both kinds", b.saveQuery(1, 64, 0, tier.Exact|tier.Spliced), tier.ErrInvalid},
		{"no kind", b.saveQuery(1, 64, 0, 0), tier.ErrInvalid},
		{"no hash", &SaveQuery{Profile: b.id, Tenant: tenantA, Kind: tier.Exact, Tokens: 8}, tier.ErrInvalid},
		{"no such rank", &SaveQuery{Profile: b.id, Tenant: tenantA, Kind: tier.Exact, Tokens: 8, Hash: hashOf(3, 8), Rank: 1}, tier.ErrInvalid},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := c.Save(row.q)
			b.wantErr(err, row.want)
		})
	}
	l := b.profile.CheckpointLayout(16)
	b.commitAll(c, pending, &l, content(&l, 5))
	_, err = c.Save(b.saveQuery(1, 64, 48, tier.Spliced))
	b.wantErr(err, tier.ErrInvalid) // a fourth node in a chain of three
}

func TestRanksMustAgreeOnACheckpoint(t *testing.T) {
	b := newBench(t, hybrid(2))
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	q := b.saveQuery(1, 32, 16, tier.Exact)
	_, err := c.Save(q)
	b.must(err)
	q.Rank = 1
	for _, change := range []func(*SaveQuery){
		func(q *SaveQuery) { q.Tokens = 33 },
		func(q *SaveQuery) { q.Parent = profile.PrefixHash{} },
	} {
		other := *q
		change(&other)
		_, err := c.Save(&other)
		b.wantErr(err, tier.ErrInvalid)
	}
	_, err = c.Save(q)
	b.must(err)
}

func TestLoadRefusesNoKind(t *testing.T) {
	b := newBench(t, hybrid(1))
	for _, accept := range []tier.CheckpointKind{0, 8, 15} {
		_, err := b.NewSession("c").Load(&LoadQuery{Profile: b.id, Tenant: tenantA, Accept: accept, Hash: hashOf(1, 16)})
		b.wantErr(err, tier.ErrInvalid)
	}
}

// checkpointLayout is one rank's share of a checkpoint of a kind, with so many rows.
func checkpointLayout(p *profile.Profile, kind tier.CheckpointKind, rows int) profile.Layout {
	l, err := tier.LayoutOf(p, kind, rows, "")
	if err != nil {
		panic(err)
	}
	return l
}
