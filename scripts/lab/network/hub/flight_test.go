package hub

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestFramesArriveInTheOrderOfTheirTimes(t *testing.T) {
	var f flight
	random := rand.New(rand.NewPCG(1, 1))
	var want []string
	at := make([]int, 500)
	for i := range at {
		at[i] = random.IntN(50)
	}
	for ms := range 50 {
		for i := range at {
			if at[i] == ms {
				want = append(want, fmt.Sprint(i)) // of one time, as they were added
			}
		}
	}
	first := 50
	for i := range at {
		if next := f.add(start.Add(time.Duration(at[i])*time.Millisecond), []byte(fmt.Sprint(i))); next != (at[i] < first) {
			t.Fatalf("frame %d at %d ms: next is %v, and the first was at %d ms", i, at[i], next, first)
		}
		first = min(first, at[i])
	}
	var got []string
	for now := start; ; {
		b, wait := f.due(now)
		if b == nil && wait == 0 {
			break
		}
		if b != nil {
			got = append(got, string(b))
		}
		now = now.Add(wait)
	}
	if !slices.Equal(got, want) || f.bytes != 0 {
		t.Errorf("%d frames arrive, %d bytes are left; the order is %v", len(got), f.bytes, slices.Equal(got, want))
	}
}

func TestTooManyFramesOnTheirWayAreDroppedAndCounted(t *testing.T) {
	var f flight
	b := make([]byte, 1<<20)
	for range 2 * maxFlight >> 20 {
		f.add(start, b)
	}
	if f.bytes != maxFlight || f.full != maxFlight>>20 {
		t.Errorf("%d bytes are on their way, %d frames were dropped", f.bytes, f.full)
	}
}
