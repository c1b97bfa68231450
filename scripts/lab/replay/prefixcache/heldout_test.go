package prefixcache_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/tracetest"
)

// What the default was not made with: parts of the conversations, and agent
// sessions beyond those of the reference in orders drawn here.

func TestDefaultOnPartsOfConversations(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds of simulation")
	}
	var prompts [][]uint32
	tracetest.Mooncake(t)(func(input, _ []uint32) { prompts = append(prompts, slices.Clone(input)) })
	sum := 0.0
	parts, sizes := 3, []int64{200, 300, 600, 1000}
	for part := range parts {
		trace := tracetest.Trace(func(each func(input, output []uint32)) {
			for _, p := range prompts[part*len(prompts)/parts : (part+1)*len(prompts)/parts] {
				each(p, nil)
			}
		})
		for _, gb := range sizes {
			lru := hits(trace, gb, 512, policy.NewLRU(), clocks[0].at)
			got := hits(trace, gb, 512, policy.NewDefault(), clocks[0].at)
			sum += got/lru - 1
			t.Logf("part %d, %4d GB: %.4f, LRU %.4f (%+.1f %%)", part, gb, got, lru, 100*(got/lru-1))
			if got < 0.99*lru {
				t.Errorf("part %d, %d GB: %.4f, want 0.99 of LRU's %.4f", part, gb, got, lru)
			}
		}
	}
	if mean := sum / float64(parts*len(sizes)); mean < 0 {
		t.Errorf("%.2f %% below LRU in the mean", -100*mean)
	}
}

// drawn is a trace of sessions that start by a Poisson process, as do their turns.
// Agents that drop keep the last five observations.
func drawn(sessions [][][]uint32, perSecond, turnSeconds float64, drop bool) tracetest.Trace {
	type turn struct {
		at    float64
		input []uint32
		reply []uint32
	}
	rng := rand.New(rand.NewPCG(11, 3))
	var turns []turn
	start := 0.0
	for _, s := range sessions {
		start += rng.ExpFloat64() / perSecond
		at := start
		for n := range len(s) / 2 {
			var input []uint32
			for old := range n {
				if !drop || old >= n-5 {
					input = append(input, s[2*old]...)
				}
				input = append(input, s[2*old+1]...)
			}
			if input = append(input, s[2*n]...); len(input) > 32768 {
				break
			}
			turns = append(turns, turn{at, input, s[2*n+1]})
			at += rng.ExpFloat64() * turnSeconds
		}
	}
	slices.SortStableFunc(turns, func(a, b turn) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	return func(each func(input, output []uint32)) {
		for _, r := range turns {
			each(r.input, r.reply)
		}
	}
}

func TestDefaultOnOtherAgentSessions(t *testing.T) {
	if testing.Short() {
		t.Skip("some seconds of simulation")
	}
	sessions := tracetest.Sessions(t, 300)
	for _, c := range []struct {
		from, to               int
		perSecond, turnSeconds float64
		drop                   bool
		atLeast                float64 // of LRU
	}{
		{100, 200, 1, 7.5, true, 1.05},
		{200, 300, 5, 10, true, 1.05},
		{100, 200, 2, 5, false, 0.99},
		{200, 300, 0.5, 10, false, 0.99},
	} {
		trace := drawn(sessions[c.from:c.to], c.perSecond, c.turnSeconds, c.drop)
		for _, gb := range []int64{20, 40} {
			t.Run(fmt.Sprintf("%d-%d/drop=%t/%dGB", c.from, c.to, c.drop, gb), func(t *testing.T) {
				lru := hits(trace, gb, 1, policy.NewLRU(), clocks[0].at)
				got := hits(trace, gb, 1, policy.NewDefault(), clocks[0].at)
				t.Logf("%.4f, LRU %.4f (%+.1f %%)", got, lru, 100*(got/lru-1))
				if got < c.atLeast*lru {
					t.Errorf("%.4f, want %.2f times LRU's %.4f", got, c.atLeast, lru)
				}
			})
		}
	}
}
