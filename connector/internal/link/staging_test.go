package link

import (
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestStagingAllocatorAgainstABitmap(t *testing.T) {
	const unit, n = profile.PartAlign, 64
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newStaging(make([]byte, unit*n))
	var used [n]bool
	var live []gpuipc.Extent
	for range 5000 {
		if len(live) > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(len(live))
			e := live[i]
			live = append(live[:i], live[i+1:]...)
			s.Free(e)
			for u := range int(padded(e.Len) / unit) {
				used[int(e.Off)/unit+u] = false
			}
			continue
		}
		want := int64(rng.IntN(12*unit)) + 1
		e, ok, err := s.TryAlloc(want)
		if err != nil {
			t.Fatal(err)
		}
		units := int(padded(want) / unit)
		first := firstFit(used[:], units)
		if ok != (first >= 0) || ok && int(e.Off)/unit != first {
			t.Fatalf("%d units: %v at %d, want %d", units, ok, e.Off/unit, first)
		}
		if ok {
			live = append(live, e)
			for u := range units {
				used[first+u] = true
			}
		}
	}
}

// firstFit is the first run of n free units, -1 = none.
func firstFit(used []bool, n int) int {
	run := 0
	for i, u := range used {
		if run++; u {
			run = 0
		}
		if run == n {
			return i - n + 1
		}
	}
	return -1
}
