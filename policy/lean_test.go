package policy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Logarithms of densities are normal, and the chance of a use goes with a power.
func TestLeanFindsThePower(t *testing.T) {
	for _, want := range []float64{-0.7, -0.3, 0, 0.5} {
		rng := rand.New(rand.NewPCG(9, 1))
		var l lean
		for range 3000 {
			var d [50]float64
			mean, square, all := 0.0, 0.0, 0.0
			for i := range d {
				d[i] = -17 + 0.6*rng.NormFloat64()
				mean += d[i] / float64(len(d))
				square += d[i] * d[i] / float64(len(d))
				all += math.Exp(want * d[i])
			}
			used, left := 0, all*rng.Float64()
			for ; used < len(d)-1 && left > math.Exp(want*d[used]); used++ {
				left -= math.Exp(want * d[used])
			}
			l.note(d[used], mean, square)
		}
		if got := l.power(); math.Abs(got-want) > 0.08 {
			t.Errorf("power %.3f, want %.1f", got, want)
		}
	}
	var l lean
	l.note(-17, -10, 100.001)
	l.note(-17, -10, 90) // rounding
	if got := l.power(); got != -1 {
		t.Errorf("power %.3f, want -1 at least", got)
	}
}

// Half of the objects save ten times as much and never come back, the others come
// back once, all of one kind.
func TestDefaultSeesThatDenseObjectsStayAway(t *testing.T) {
	served := func(p Eviction) int {
		rng := rand.New(rand.NewPCG(9, 2))
		now := time.Unix(1e9, 0)
		due := map[int]ID{}
		hits := 0
		held := map[ID]bool{}
		for i := range 40_000 {
			now = now.Add(time.Second)
			if id := due[i]; held[id] {
				hits++
				p.Touch(id, now)
				p.Remove(id) // over with
				delete(held, id)
			}
			it := Item{Bytes: 1, Saved: 10 * (0.5 + rng.Float64())}
			if i%2 == 0 {
				it.Saved /= 10
				due[i+1+int(rng.ExpFloat64()*800)] = ID(i + 1)
			}
			p.Insert(ID(i+1), it, now)
			held[ID(i+1)] = true
			for p.Len() > 500 {
				id, _ := p.Victim(func(ID) bool { return true })
				p.Remove(id)
				delete(held, id)
			}
		}
		return hits
	}
	if got, lru := served(NewDefault()), served(NewLRU()); float64(got) < 0.9*float64(lru) {
		t.Errorf("%d hits, want 0.9 of LRU's %d", got, lru)
	} else {
		t.Logf("%d hits, LRU has %d", got, lru)
	}
}
