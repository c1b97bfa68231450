package tiering

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// measured are prefills of many lengths on a computer that is so many times slower
// than the prior.
func measured(times float64) []cost.Sample {
	var list []cost.Sample
	for range 30 {
		for _, n := range []int{100, 1000, 4096, 20_000} {
			list = append(list, cost.Sample{End: n, Millis: times * cost.DefaultPrefill.Millis(0, n)})
		}
	}
	return list
}

// slower is how many times the prior a prefill is believed to take.
func (p *prices) slower() float64 {
	return p.now().Prefill().Millis(0, claimTokens) / cost.DefaultPrefill.Millis(0, claimTokens)
}

func TestPrefillsAreWhatTenantsAgreeOn(t *testing.T) {
	type claim struct {
		tenant tier.TenantID
		times  float64
	}
	for _, row := range []struct {
		claims []claim
		alone  bool
		want   float64
	}{
		{nil, false, 1},
		{[]claim{{1, 1000}}, true, 1000},
		{[]claim{{1, 3}}, false, 3},
		{[]claim{{1, 1000}}, false, claimMost},
		{[]claim{{1, 0.001}}, false, 1.0 / claimMost},
		{[]claim{{1, 3}, {2, 1000}}, false, 3},
		{[]claim{{1, 1000}, {2, 3}}, false, 3},
		{[]claim{{1, 3}, {2, 0.001}}, false, 1},
		{[]claim{{1, 40}, {2, 50}}, false, 40},
		{[]claim{{1, 3}, {2, 1000}, {3, 5}}, false, 5},
		{[]claim{{1, 3}, {2, 0.001}, {3, 5}}, false, 3},
		{[]claim{{1, 1000}, {1, 1000}, {2, 3}, {3, 5}}, false, 5},
		{[]claim{{1, 2}, {2, 3}, {3, 5}, {4, 1000}}, false, 3},
	} {
		t.Run(fmt.Sprint(row.claims, row.alone), func(t *testing.T) {
			b := newBench(t, talker())
			p, err := b.Store.profile(b.id)
			b.must(err)
			n := 0
			for _, c := range row.claims {
				n += p.prices.computed(c.tenant, measured(c.times), row.alone)
			}
			if got := p.prices.slower(); got < 0.98*row.want || got > 1.02*row.want {
				t.Errorf("%.4f times the prior, want %.4f", got, row.want)
			}
			if got := p.prices.prefillSamples(); got != n || n != 120*len(row.claims) {
				t.Errorf("%d samples, %d were taken", got, n)
			}
		})
	}
}

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
	// Tokens in the middle may take more of what is claimed of the whole.
	if after := saved(); after < before || after > 2*claimMost*before {
		t.Errorf("a hit saves %.3f ms, and %.3f ms before the claims", after, before)
	}
	if own := b.Costs()[0]; own.Samples != 4*1024 {
		t.Errorf("%d samples", own.Samples)
	}
}

// Commits and loads of all tenants tell how long they took while one tenant's
// samples are fitted.
func TestJobsDoNotWaitForAFit(t *testing.T) {
	b := newBench(t, hybrid(1))
	p, err := b.Store.profile(b.id)
	b.must(err)
	p.prices.fitting.Lock()
	defer p.prices.fitting.Unlock()
	before := p.prices.jobs
	p.prices.did(cost.JobPublish, 1<<20, time.Millisecond)
	if p.prices.jobs != before+1 {
		t.Errorf("%d jobs measured, were %d", p.prices.jobs, before)
	}
}
