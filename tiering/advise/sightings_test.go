package advise

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TestNobodyCanMakeTheNameOfAnothersContent: names say nothing about each other
// beyond being equal, so that no tenant can work out tokens of its own that count
// as another's.
func TestNobodyCanMakeTheNameOfAnothersContent(t *testing.T) {
	b, other := newBench(t), newBench(t)
	contents := [][]uint32{{1}, {2}, {1, 0}, promptOf(t, "x:300"), promptOf(t, "x:301"), promptOf(t, "y:300")}
	scopes := []scopeKey{{b.id, tenantA}, {b.id, tenantB}, {b.id + 1, tenantA}}
	names, between := map[uint64]int{}, map[uint64]int{}
	for i, content := range contents {
		for _, of := range scopes {
			name := b.contents.id(of, content)
			names[name]++
			names[other.contents.id(of, content)]++
			between[name^b.contents.id(scopes[0], content)]++
			if again := b.contents.id(of, slices.Clone(content)); again != name {
				t.Errorf("content %d of %v has two names", i, of)
			}
		}
	}
	if want := 2 * len(contents) * len(scopes); len(names) != want {
		t.Errorf("%d names of %d contents in two processes", len(names), want)
	}
	// The first scope differs from itself by nothing, each time.
	if want := 1 + len(contents)*(len(scopes)-1); len(between) != want {
		t.Errorf("%d differences between the names of scopes, want %d unlike ones", len(between), want)
	}
}

func TestSegmentsThatOthersServedAreNotSeen(t *testing.T) {
	b := newBench(t)
	b.store.limit.MaxBytes = 32 << 20
	ask := func(tenant tier.TenantID, record bool) cost.Reason {
		var a Advice
		b.must(b.Advise(&Query{
			Profile: b.id, Tenant: tenant, Record: record, Tokens: promptOf(t, "doc:4000"),
			Segments: []Segment{{Tokens: 4000, Status: tier.StatusMiss}},
		}, &a))
		return a.Segments[0].Reason
	}
	fresh := ask(tenantB, false)
	for range 4 {
		ask(tenantA, true)
	}
	if own, others := ask(tenantA, false), ask(tenantB, false); own != cost.ReasonSeen || others != fresh {
		t.Errorf("its own: %v; another's: %v, and %v before", own.Code(), others.Code(), fresh.Code())
	}
}
