package objects

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// servesPlainly is what Serves means, one rank after the other.
func servesPlainly(r *resident, ranks int, on tier.DeviceID) bool {
	told := false
	for rank := range ranks {
		var at []tier.DeviceID
		for _, e := range r.Profile.Engines {
			if e.Rank == rank && !e.Device.Lost {
				at = append(at, e.Device.ID)
			}
		}
		if len(at) == 0 {
			continue
		}
		told = true
		if slices.Contains(at, on) {
			at = []tier.DeviceID{on}
		}
		if !slices.ContainsFunc(at, func(d tier.DeviceID) bool { return r.On(d, rank) != nil }) {
			return false
		}
	}
	return told || slices.ContainsFunc(r.Copies, func(c Copy) bool { return c.Pool.Device.ID == on })
}

// Whoever attaches and leaves, in whatever order, with whatever copies there are.
func TestServesAgreesWithItsMeaning(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[bool]int{}
	for round := range 2000 {
		devices := make([]*Device, 3)
		for i := range devices {
			devices[i] = &Device{ID: tier.DeviceID(i + 1), Lost: rng.IntN(6) == 0}
		}
		p := &Profile{Ranks: 1 + rng.IntN(4)}
		r := &resident{Identity: Identity{Profile: p}}
		for range rng.IntN(8) {
			rank, d := rng.IntN(p.Ranks), devices[rng.IntN(3)]
			if p.engines(rank, d) >= 0 && rng.IntN(2) == 0 {
				p.Detach(rank, d)
			} else {
				p.Attach(rank, d)
			}
			if rank = rng.IntN(p.Ranks); !d.Lost && r.On(d.ID, rank) == nil {
				r.Copies = append(r.Copies, Copy{Object: &Object{Pool: &Pool{Device: d}}, Rank: rank})
			}
		}
		if !slices.IsSortedFunc(p.Engines, func(a, b Engines) int { return a.Rank - b.Rank }) {
			t.Fatalf("engines %v", p.Engines)
		}
		for on := tier.DeviceID(1); on <= 3; on++ {
			got, want := r.Serves(on), servesPlainly(r, p.Ranks, on)
			if seen[got]++; got != want {
				t.Fatalf("round %d: device %d is served: %v, want %v; engines %+v, copies %+v", round, on, got, want, p.Engines, r.Copies)
			}
		}
	}
	if seen[true] < 100 || seen[false] < 100 {
		t.Errorf("answers %v", seen)
	}
}
