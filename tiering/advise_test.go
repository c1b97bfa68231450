package tiering

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TestClaimsOfOneTenantMoveAnothersValuesLittle prices a checkpoint of one tenant
// after another has told absurd times.
func TestClaimsOfOneTenantMoveAnothersValuesLittle(t *testing.T) {
	b := newBench(t, stateful(1))
	b.save(b.NewSession("a"), b.saveQuery(1, 64, 0, tier.Exact), 0)
	saved := func() float64 {
		b.cat.Mu.Lock()
		defer b.cat.Mu.Unlock()
		return b.cat.Objects.Policies.Item(b.node(1, 64)).Saved
	}
	before := saved()
	absurd := slices.Repeat([]cost.Sample{{End: 4096, Millis: 4e6}}, 1024)
	for range 4 {
		b.must(b.Advisor().Advise(&advise.Query{Profile: b.id, Tenant: tenantB, Tokens: []uint32{1}, Samples: absurd}, &advise.Advice{}))
		b.Advisor().Work(b.ctx)
	}
	// One claim counts 16 times at most (package costs); tokens in the middle may
	// take more of what is claimed of the whole.
	if after := saved(); after < before || after > 2*16*before {
		t.Errorf("a hit saves %.3f ms, and %.3f ms before the claims", after, before)
	}
	// One source fills an eighth of the queue at most: the rest is dropped.
	if own := b.Costs()[0]; own.Samples != 4*512 {
		t.Errorf("%d samples", own.Samples)
	}
}

func TestAdviceOfAForgottenProfileGoes(t *testing.T) {
	b := newBench(t, hybrid(1), func(c *Config) { c.MaxProfiles = 1 })
	a := b.Advisor()
	b.must(a.Advise(&advise.Query{Profile: b.id, Tenant: tenantA, Record: true, Tokens: make([]uint32, 100), Samples: []cost.Sample{{Begin: 0, End: 100, Millis: 7}}}, &advise.Advice{}))
	b.ReleaseProfile(b.id)
	id := hybrid(1)
	id.Model = "another"
	p, err := profile.New(id)
	b.must(err)
	_, err = b.AddProfile(p)
	b.must(err)
	b.wantErr(a.Advise(&advise.Query{Profile: b.id, Tenant: tenantA, Tokens: []uint32{1}}, &advise.Advice{}), tier.ErrInvalid)
	a.Work(b.ctx)
	if s := a.Stats(); s.Scopes != 0 || s.Samples != 0 {
		t.Fatalf("%d scopes, %d samples taken; want none", s.Scopes, s.Samples)
	}
}
