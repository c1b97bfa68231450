package policy_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
)

// The dumb model keeps ids in a slice, least recent first.
func TestLRUOrderAgreesWithSlice(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		p := policy.NewLRU()
		var order []policy.ID
		for step := range 3000 {
			id := policy.ID(rng.IntN(50))
			at := slices.Index(order, id)
			drop := func() {
				if at >= 0 {
					order = slices.Delete(order, at, at+1)
				}
			}
			switch rng.IntN(4) {
			case 0:
				p.Insert(id, policy.Item{}, time.Time{})
				drop()
				order = append(order, id)
			case 1:
				p.Touch(id, time.Time{})
				if at >= 0 {
					drop()
					order = append(order, id)
				}
			case 2:
				p.Remove(id)
				drop()
			case 3:
				keep := policy.ID(rng.IntN(4))
				may := func(id policy.ID) bool { return id%4 != keep }
				want := slices.IndexFunc(order, may)
				got, ok := p.Victim(may)
				if ok != (want >= 0) || ok && got != order[want] {
					t.Fatalf("seed %d step %d: victim %d, %v; order %v without multiples of 4 plus %d", seed, step, got, ok, order, keep)
				}
			}
		}
	}
}

func TestLRUReusesNodes(t *testing.T) {
	p := policy.NewLRU()
	for id := range policy.ID(64) {
		p.Insert(id, policy.Item{}, time.Time{})
	}
	next := policy.ID(64)
	allocs := testing.AllocsPerRun(1000, func() {
		victim, _ := p.Victim(func(policy.ID) bool { return true })
		p.Remove(victim)
		p.Insert(next, policy.Item{}, time.Time{})
		p.Touch(next-30, time.Time{})
		next++
	})
	if allocs > 0.1 {
		t.Fatalf("%v allocations per insert and eviction in steady state", allocs)
	}
}
