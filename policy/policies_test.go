package policy_test

import (
	"math"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/policytest"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func anyID(policy.ID) bool { return true }

func TestNamedPoliciesConform(t *testing.T) {
	for _, name := range []string{"lru", "gdsf", "marconi", "default"} {
		newPolicy, ok := policy.Named(name)
		if !ok {
			t.Fatalf("no policy is named %s", name)
		}
		t.Run(name, func(t *testing.T) { policytest.Conformance(t, newPolicy) })
	}
	if _, ok := policy.Named("fifo"); ok {
		t.Error("a policy is named fifo")
	}
}

// evict takes the victim out.
func evict(t *testing.T, p policy.Eviction) policy.ID {
	t.Helper()
	id, ok := p.Victim(anyID)
	if !ok {
		t.Fatal("no victim")
	}
	p.Remove(id)
	return id
}

func TestGDSFClockLetsWorthSink(t *testing.T) {
	p := policy.NewGDSF()
	p.Insert(1, policy.Item{Bytes: 1, Saved: 3}, epoch) // stands at 3
	p.Insert(2, policy.Item{Bytes: 1, Saved: 1}, epoch)
	if got := evict(t, p); got != 2 {
		t.Fatalf("evicted %d, want 2, which stands at 1", got)
	}
	// The clock is 1 now.
	p.Insert(3, policy.Item{Bytes: 2, Saved: 2}, epoch)
	if got := evict(t, p); got != 3 {
		t.Fatalf("evicted %d, want 3, which stands at 2", got)
	}
	p.Insert(4, policy.Item{Bytes: 4, Saved: 6}, epoch)
	if got := evict(t, p); got != 1 {
		t.Fatalf("evicted %d, want 1, which nobody used while the clock came to it", got)
	}
}

func TestGDSFRemovalIsNoEviction(t *testing.T) {
	p := policy.NewGDSF()
	p.Insert(1, policy.Item{Bytes: 1, Saved: 9}, epoch)
	p.Remove(1)
	p.Insert(2, policy.Item{Bytes: 1, Saved: 2}, epoch)
	p.Insert(3, policy.Item{Bytes: 1, Saved: 1}, epoch)
	if got := evict(t, p); got != 3 {
		t.Fatalf("evicted %d, want 3: nothing was evicted before", got)
	}
}

func TestGDSFWithoutMillisecondsCountsTokens(t *testing.T) {
	p := policy.NewGDSF()
	p.Insert(1, policy.Item{Bytes: 10, Tokens: 100}, epoch)
	p.Insert(2, policy.Item{Bytes: 10, Tokens: 99}, epoch)
	p.Update(1, policy.Item{Bytes: 1000, Tokens: 100})
	if got := evict(t, p); got != 1 {
		t.Fatalf("evicted %d, want 1, which an update made large", got)
	}
}

func TestMarconiAlphaWeighsWorthAgainstRecency(t *testing.T) {
	for _, c := range []struct {
		alpha float64
		want  policy.ID
	}{{0, 1}, {0.1, 1}, {2, 3}} {
		p := policy.NewMarconi(policy.MarconiOptions{Alpha: c.alpha})
		p.Insert(1, policy.Item{Bytes: 1, Saved: 10}, epoch)
		p.Insert(2, policy.Item{Bytes: 1, Saved: 9}, epoch)
		p.Insert(3, policy.Item{Bytes: 1, Saved: 1}, epoch)
		if got := evict(t, p); got != c.want {
			t.Errorf("alpha %v: evicted %d, want %d", c.alpha, got, c.want)
		}
	}
}

func TestOddItemsSpoilNothing(t *testing.T) {
	for _, name := range []string{"gdsf", "marconi", "default"} {
		t.Run(name, func(t *testing.T) {
			newPolicy, _ := policy.Named(name)
			p := newPolicy()
			for i, it := range []policy.Item{
				{Saved: math.NaN(), Bytes: 1},
				{Saved: math.Inf(1), Bytes: 1},
				{Saved: math.Inf(-1), Bytes: 1},
				{Saved: -1, Bytes: 1, Tokens: 5},
				{Saved: 1, Bytes: math.MinInt64},
				{Saved: math.MaxFloat64, Bytes: math.MaxInt64},
				{Saved: math.SmallestNonzeroFloat64, Bytes: math.MaxInt64},
				{Tokens: -1},
			} {
				p.Insert(policy.ID(i+1), it, epoch)
			}
			for p.Len() > 0 {
				evict(t, p)
			}
			for id := policy.ID(100); id < 150; id++ {
				p.Insert(id, policy.Item{Bytes: 1, Saved: float64(1 + id%7)}, epoch)
			}
			if got := evict(t, p); got%7 != 0 {
				t.Errorf("evicted %d, which saves %d, want one that saves 1", got, 1+got%7)
			}
		})
	}
}
