package tiering

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/find"
	"github.com/spliced-kv/spliced/tiering/internal/serve"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// known asks which segments stand in a prompt, at seams of 8.
func (b *bench) known(t tier.TenantID, prompt []uint32, begin int) []KnownSegment {
	b.Helper()
	var k Known
	b.must(b.Known(b.ctx, &KnownQuery{Profile: b.id, Tenant: t, Tokens: prompt, Begin: begin, SeamTokens: 8, Most: 100}, &k))
	return k.Segments
}

// at is a segment's row where it stands at a token.
func (p piece) at(start int, place tier.Place) KnownSegment {
	_, interior := p.spec.Interior()
	return KnownSegment{
		Start: start, Tokens: p.spec.Tokens, Primed: p.spec.Primer != profile.PrimerID{}, Key: p.key,
		SegmentStatus: SegmentStatus{Status: tier.StatusHit, Place: place, Tokens: uint32(interior)},
	}
}

func joined(parts ...[]uint32) []uint32 { return slices.Concat(parts...) }

func TestKnownFindsSegmentsWhereverTheyStand(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	first, one, two, other := b.piece(1, profile.FirstSpec(50)), b.mid(2, 64, 8), b.mid(3, 90, 8), b.mid(4, 64, 4)
	for _, p := range []piece{first, one, two, other} {
		b.publish(c, p)
	}
	words := []uint32{7, 8, 9}
	prompt := joined(first.tokens, words, two.tokens, one.tokens, words, other.tokens, two.tokens[:80], two.tokens, words, first.tokens)
	want := []KnownSegment{
		first.at(0, tier.PlaceDRAM), two.at(53, tier.PlaceDRAM), one.at(143, tier.PlaceDRAM),
		two.at(50+3+90+64+3+64+80, tier.PlaceDRAM),
	}
	if got := b.known(tenantA, prompt, 0); !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if got := b.known(tenantA, prompt, 1); !slices.Equal(got, want[1:]) {
		t.Fatalf("from token 1: %v, want %v", got, want[1:])
	}
	if got := b.known(tenantA, prompt, 54); !slices.Equal(got, want[2:]) {
		t.Fatalf("from inside of a segment: %v, want %v", got, want[2:])
	}
	if got := b.known(tenantB, prompt, 0); len(got) > 0 {
		t.Fatalf("another tenant is told of %v", got)
	}
	n := b.Counters()
	if n.KnownSearches != 4 || n.KnownSegments != 4+3+2 || n.KnownGone+n.KnownUntried > 0 || n.KnownTokens != 50+3*74+3*48+2*74 {
		t.Fatalf("counted %d searches, %d segments of %d tokens", n.KnownSearches, n.KnownSegments, n.KnownTokens)
	}
}

// From a token on segments are preferred as they are after a primer, before it without one.
func TestKnownPrefersTheVariantOfThePlace(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	first, both, plain := b.piece(1, profile.FirstSpec(50)), b.mid(2, 64, 8), b.mid(3, 90, 8)
	second, only, foreign := b.primed(both, 1), b.primed(b.mid(4, 70, 8), 1), b.primed(b.mid(5, 80, 8), 2)
	for _, p := range []piece{first, both, plain, second, only, foreign} {
		b.publish(c, p)
	}
	prompt := joined(first.tokens, both.tokens, only.tokens, both.tokens, plain.tokens, foreign.tokens, first.tokens)
	at := func(p piece, start int) KnownSegment { return p.at(start, tier.PlaceDRAM) }
	query := KnownQuery{
		Profile: b.id, Tenant: tenantA, Tokens: prompt, SeamTokens: 8, Most: 100, Primer: second.spec.Primer, PrimedFrom: 60,
	}
	for _, row := range []struct {
		name     string
		ask      func(q *KnownQuery)
		variants uint64
		want     []KnownSegment
	}{
		{"strictly", func(*KnownQuery) {}, 0, []KnownSegment{at(first, 0), at(both, 50), at(only, 114), at(second, 184)}},
		{"either", func(q *KnownQuery) { q.Either = true }, 1, []KnownSegment{at(first, 0), at(both, 50), at(only, 114), at(second, 184), at(plain, 248)}},
		{"from the start", func(q *KnownQuery) { q.PrimedFrom = 0 }, 0, []KnownSegment{at(first, 0), at(second, 50), at(only, 114), at(second, 184)}},
		{"late", func(q *KnownQuery) { q.PrimedFrom, q.Either = 248, true }, 2, []KnownSegment{at(first, 0), at(both, 50), at(only, 114), at(both, 184), at(plain, 248)}},
		{"without a primer", func(q *KnownQuery) { q.Primer = profile.PrimerID{} }, 0, []KnownSegment{at(first, 0), at(both, 50), at(both, 184), at(plain, 248)}},
		{"from a token on", func(q *KnownQuery) { q.Begin = 100 }, 0, []KnownSegment{at(only, 114), at(second, 184)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			q, before := query, b.Counters().HitSegmentsVariant
			row.ask(&q)
			var k Known
			b.must(b.Known(b.ctx, &q, &k))
			if !slices.Equal(k.Segments, row.want) {
				t.Fatalf("got %v, want %v", k.Segments, row.want)
			}
			if n := b.Counters().HitSegmentsVariant - before; n != row.variants {
				t.Fatalf("%d are counted as another variant, want %d", n, row.variants)
			}
		})
	}
	b.must(b.Evict(second.key))
	query.Either = true
	var k Known
	b.must(b.Known(b.ctx, &query, &k))
	if i := slices.IndexFunc(k.Segments, func(s KnownSegment) bool { return s.Start == 184 }); i < 0 || k.Segments[i] != at(both, 184) {
		t.Fatalf("the variant without a primer does not stand in: %v", k.Segments)
	}
}

// A hash that two segments share is settled by the key.
func TestKnownIsNotDeceivedByAHash(t *testing.T) {
	b := newBench(t, hybrid(1))
	p, q := b.mid(1, 64, 8), b.mid(2, 64, 8)
	b.publish(b.NewSession("c"), p)
	h := b.profile.RollingHash(b.cat.Objects.Tenants[tenantA].Salt).Segment(q.spec, q.tokens)
	scope := find.Scope{Tenant: tenantA, Profile: b.profile.Fingerprint()}
	b.cat.Config.Find.Add(scope, h, q.spec.Tokens) // as if p hashed like q
	prompt := joined([]uint32{1}, q.tokens, p.tokens)
	if got := b.known(tenantA, prompt, 0); len(got) != 1 || got[0] != p.at(65, tier.PlaceDRAM) {
		t.Fatalf("got %v", got)
	}
	if n := b.Counters(); n.KnownGone != 1 {
		t.Fatalf("%d hashes without a segment are counted, want 1", n.KnownGone)
	}
	b.cat.Config.Find.Remove(scope, h, q.spec.Tokens)
}

func TestKnownLeavesOutWhatIsBeyondMost(t *testing.T) {
	b := newBench(t, hybrid(1))
	p := b.mid(1, 64, 8)
	b.publish(b.NewSession("c"), p)
	var k Known
	b.must(b.Known(b.ctx, &KnownQuery{
		Profile: b.id, Tenant: tenantA, Tokens: joined([]uint32{1}, p.tokens, p.tokens, p.tokens), SeamTokens: 8, Most: 2,
	}, &k))
	if want := []KnownSegment{p.at(1, tier.PlaceDRAM), p.at(65, tier.PlaceDRAM)}; !slices.Equal(k.Segments, want) {
		t.Fatalf("got %v, want %v", k.Segments, want)
	}
}

func TestKnownRefusesNonsense(t *testing.T) {
	b := newBench(t, hybrid(1))
	ids := make([]uint32, 10)
	for name, q := range map[string]*KnownQuery{
		"no such profile": {Profile: 9, Tenant: tenantA, Tokens: ids},
		"no such tenant":  {Profile: b.id, Tenant: 9, Tokens: ids},
		"no tokens":       {Profile: b.id, Tenant: tenantA},
		"too many":        {Profile: b.id, Tenant: tenantA, Tokens: make([]uint32, serve.MaxPrompt+1)},
		"begins behind":   {Profile: b.id, Tenant: tenantA, Tokens: ids, Begin: 11},
		"begins before":   {Profile: b.id, Tenant: tenantA, Tokens: ids, Begin: -1},
		"negative seams":  {Profile: b.id, Tenant: tenantA, Tokens: ids, SeamTokens: -1},
		"seams too wide":  {Profile: b.id, Tenant: tenantA, Tokens: ids, SeamTokens: 11},
	} {
		if err := b.Known(b.ctx, q, &Known{}); !errors.Is(err, tier.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := b.mid(1, 64, 8)
	b.publish(b.NewSession("c"), p)
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	if err := b.Known(ctx, &KnownQuery{Profile: b.id, Tenant: tenantA, Tokens: p.tokens}, &Known{}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}
