package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// One rank's bytes fit an int64, those of 1024 ranks do not.
func TestSizesOfAllRanksDoNotOverflow(t *testing.T) {
	id := profile.Identity{Model: "big", Weights: [32]byte{3}, Tokenizer: "bytes", TPSize: 1024}
	for range 1100 {
		id.Layers = append(id.Layers, profile.Layer{Kind: profile.KindMLA, Attention: profile.Attention{
			KVHeads: 1, KeyDim: 65536, ValueDim: 65536, DType: profile.F32, Keys: profile.AtZero,
		}})
	}
	b := newBench(t, id)
	c := b.NewSession("c")
	_, err := c.Save(&SaveQuery{Profile: b.id, Tenant: tenantA, Kind: tier.Exact, Hash: profile.PrefixHash{1}, Tokens: profile.MaxTokens})
	b.wantErr(err, tier.ErrFull)
	_, err = c.Reserve(b.reserveQuery(b.piece(1, profile.FirstSpec(100_000)), 0))
	b.wantErr(err, tier.ErrFull)
	b.wantUsed(0, 0)
	if n := b.Counters().RefusedFull; n != 2 {
		t.Fatalf("%d refusals counted", n)
	}
}

func TestTokenIDsAreCounted(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) {
		c.PublicBytes = 512 << 10
		c.Tenants[1].QuotaBytes = 100 << 10
	})
	c := b.NewSession("c")
	spec := profile.SegmentSpec{Role: profile.RoleMid, Head: 100_000, Tokens: 100_010} // 10 tokens are kept, and 390 KiB of ids
	p := b.piece(1, spec)
	r, err := c.Reserve(b.reserveQuery(p, 0))
	b.must(err)
	b.wantUsed(b.cost(p), 0)
	if used := b.Pools()[0].UsedBytes; used < 400_000 {
		t.Fatalf("%d bytes used", used)
	}
	_, err = c.Reserve(b.reserveQuery(b.piece(2, spec), 0))
	b.wantErr(err, tier.ErrFull)
	b.must(c.Abort(r.ID))
	b.wantUsed(0, 0)
	q := b.reserveQuery(b.pieceOf(tenantB, 3, spec), 0)
	q.Tenant = tenantB
	_, err = c.Reserve(q)
	b.wantErr(err, tier.ErrQuota)
}
