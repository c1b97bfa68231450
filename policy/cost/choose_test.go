package cost

import (
	"math"
	"testing"
)

func TestChooseTiesGoToTheExactAndSimple(t *testing.T) {
	free := New(Options{Prefill: Prefill{PerToken: 1}})
	for j := range jobs {
		free.SetLink(j, Link{})
	}
	prefix, buffer := Prefix{Tokens: 500, Tier: TierHBM}, Buffer{Tokens: 500, Tier: TierHBM}
	segments := []Segment{{Begin: 0, Tokens: 500, Tier: TierHBM}}
	for _, c := range []struct {
		name string
		r    Request
		want Way
	}{
		{"all alike", Request{Tokens: 1000, Prefix: prefix, Buffer: buffer, Segments: segments}, WayPrefix},
		{"buffer and splice", Request{Tokens: 1000, Buffer: buffer, Segments: segments}, WayReplay},
		{"nothing held", Request{Tokens: 1000}, WayRecompute},
		{"a splice that gains nothing", Request{Tokens: 1000, Segments: []Segment{{Tokens: 500, SeamTokens: 500, Tier: TierHBM}}}, WayRecompute},
		{"a splice", Request{Tokens: 1000, Segments: segments}, WaySplice},
		{"a splice where only exact states are taken", Request{Tokens: 1000, Segments: segments, ExactOnly: true}, WayRecompute},
		{"held nowhere", Request{Tokens: 1000, Prefix: Prefix{Tokens: 500}, Buffer: Buffer{Tokens: 500}, Segments: []Segment{{Tokens: 500}}}, WayRecompute},
	} {
		if got := free.Choose(c.r); got.Best != c.want {
			t.Errorf("%s: %s, want %s; %v", c.name, got.Best, c.want, got.Millis)
		}
	}
}

func TestChooseAddsUp(t *testing.T) {
	m := model()
	const mib = 1 << 20
	c := m.Choose(Request{
		Tokens: 3000,
		Prefix: Prefix{Tokens: 1000, Bytes: 2 * mib, Tier: TierDRAM},
		Buffer: Buffer{Tokens: 1100, Bytes: 3 * mib, RebuildBytes: mib, Tier: TierDRAM},
		Segments: []Segment{
			{Begin: 500, Tokens: 400, StateBytes: mib, RowBytes: mib, Tier: TierDRAM}, // the prefix has it
			{Begin: 1000, Tokens: 1000, SeamTokens: 16, StateBytes: mib, RowBytes: mib, Tier: TierDRAM},
			{Begin: 2100, Tokens: 800, SeamTokens: 16, StateBytes: mib, RowBytes: mib, Tier: TierDisk},
		},
	})
	near(t, "recompute", c.Of(WayRecompute), 10+300, 1e-9)
	near(t, "prefix", c.Of(WayPrefix), 0.2+10+200, 1e-9)
	near(t, "replay", c.Of(WayReplay), 0.3+2+10+190, 1e-9)
	// Computed: 8 + 108+8 + 108 tokens, beside two loads, compositions, rotations.
	near(t, "splice", c.Of(WaySplice), 0.2+10+0.1*(8+116+108)+(0.2+2+1)+(3+2+1), 1e-9)
	if c.Best != WaySplice || !math.IsInf(c.Of(0), 1) || !math.IsInf(c.Of(9), 1) {
		t.Errorf("best %s", c.Best)
	}
}

// What is known of a source counts in place of its tier's measure, and only where it is held.
func TestChooseTakesTheLinkThatIsGiven(t *testing.T) {
	m := model()
	const mib = 1 << 20
	slow := Link{Fixed: 50, PerByte: 1.0 / mib}
	r := Request{
		Tokens: 3000, Prefix: Prefix{Tokens: 1000, Bytes: 2 * mib, Tier: TierPeer, From: slow},
		Segments: []Segment{{Begin: 1000, Tokens: 1000, StateBytes: mib, RowBytes: mib, Tier: TierPeer, From: slow}},
	}
	c := m.Choose(r)
	near(t, "prefix", c.Of(WayPrefix), 52+10+200, 1e-9)
	near(t, "splice", c.Of(WaySplice), 52+10+52+(2+1)+100, 1e-9)
	r.Prefix.Tier, r.Segments[0].Tier = TierNone, TierNone
	if c = m.Choose(r); c.Best != WayRecompute || !math.IsInf(c.Of(WayPrefix), 1) || !math.IsInf(c.Of(WaySplice), 1) {
		t.Errorf("held nowhere: %v", c)
	}
}

func TestTheLastTokenIsAlwaysComputed(t *testing.T) {
	m := model()
	prefix := m.Choose(Request{Tokens: 1000, Prefix: Prefix{Tokens: 1000, Tier: TierHBM}, Buffer: Buffer{Tokens: 1200, Tier: TierHBM}})
	near(t, "prefix", prefix.Of(WayPrefix), 10+0.1, 1e-9)
	near(t, "replay", prefix.Of(WayReplay), 2+10+0.1, 1e-9)
	segment := m.Choose(Request{Tokens: 1000, Segments: []Segment{{Tokens: 1000, Tier: TierHBM}}})
	near(t, "splice", segment.Of(WaySplice), 10+0.1+1, 1e-9)
}
