package link

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestStagingAllocator(t *testing.T) {
	s := newStaging(make([]byte, 1024))
	soon := time.Now().Add(time.Millisecond)
	if _, err := s.Alloc(t.Context(), 1025, soon); !errors.Is(err, ErrFull) {
		t.Fatalf("too large: %v", err)
	}
	var parts []gpuipc.Extent
	for range 16 {
		e, err := s.Alloc(t.Context(), 33, soon)
		if err != nil || e.Len != 33 || e.Off%profile.PartAlign != 0 {
			t.Fatalf("%v, %v", e, err)
		}
		parts = append(parts, e)
	}
	if _, err := s.Alloc(t.Context(), 1, soon); !errors.Is(err, ErrBusy) {
		t.Fatalf("full: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := s.Alloc(ended, 1, soon.Add(time.Hour)); !errors.Is(err, ErrCanceled) {
		t.Fatalf("ended: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := s.Alloc(t.Context(), 128, time.Now().Add(time.Hour))
		got <- err
	}()
	s.Free(parts[3], parts[9]) // room, but not in one run
	s.Free(parts[2])           // joins with 3
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := s.Alloc(t.Context(), 1024, time.Now().Add(time.Hour))
		got <- err
	}()
	s.close()
	if err := <-got; !errors.Is(err, ErrUnavailable) {
		t.Fatalf("closed: %v", err)
	}
}

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
