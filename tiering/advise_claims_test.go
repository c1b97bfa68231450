package tiering

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TestClaimsOfOneTenantMoveAnothersValuesLittle prices a checkpoint of one tenant
// after another has told absurd times.
func TestClaimsOfOneTenantMoveAnothersValuesLittle(t *testing.T) {
	b := newBench(t, stateful(1))
	b.save(b.NewSession("a"), b.saveQuery(1, 64, 0, tier.Exact), 0)
	saved := func() float64 {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.itemLocked(b.node(1, 64)).Saved
	}
	before := saved()
	absurd := slices.Repeat([]cost.Sample{{End: 4096, Millis: 4e6}}, 1024)
	for range 4 {
		b.must(b.Advise(&AdviseQuery{Profile: b.id, Tenant: tenantB, Tokens: []uint32{1}, Samples: absurd}, &Advice{}))
		b.serveAdvice(b.ctx)
	}
	// One claim counts 16 times at most (package costs); tokens in the middle may
	// take more of what is claimed of the whole.
	if after := saved(); after < before || after > 2*16*before {
		t.Errorf("a hit saves %.3f ms, and %.3f ms before the claims", after, before)
	}
	if own := b.Costs()[0]; own.Samples != 4*1024 {
		t.Errorf("%d samples", own.Samples)
	}
}
