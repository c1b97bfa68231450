package held

import (
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// ledger is what a listener has heard.
type ledger struct {
	mu   sync.Mutex
	held map[tier.Want]bool
	t    *testing.T
}

func (l *ledger) Added(w tier.Want) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[w] {
		l.t.Errorf("%v is added twice", w.Name)
	}
	l.held[w] = true
}

func (l *ledger) Removed(w tier.Want) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held[w] {
		l.t.Errorf("%v is removed, and was not there", w.Name)
	}
	delete(l.held, w)
}

// Several holders come and go at once; all listeners end with what somebody holds.
func TestListenersKnowWhatSomebodyHolds(t *testing.T) {
	l, other := &ledger{t: t, held: map[tier.Want]bool{}}, &ledger{t: t, held: map[tier.Want]bool{}}
	s := New(l, other)
	var holders sync.WaitGroup
	mine := make([]map[tier.Want]bool, 4)
	for h := range mine {
		mine[h] = map[tier.Want]bool{}
		holders.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(h), 1))
			for range 20_000 {
				w := tier.Want{Tenant: tier.TenantID(rng.IntN(2))}
				w.Kind, w.Key[0], w.Key[9], w.Fingerprint[3] = tier.CheckpointKind(rng.IntN(3)), byte(rng.IntN(40)), byte(rng.IntN(3)), byte(rng.IntN(2))
				if mine[h][w] {
					s.Remove(w)
					delete(mine[h], w)
				} else {
					s.Add(w)
					mine[h][w] = true
				}
				if mine[h][w] && !s.Has(w) {
					t.Errorf("%v is held, and the set has it not", w.Name)
				}
			}
		})
	}
	holders.Wait()
	want, all := map[tier.Want]bool{}, map[tier.Want]bool{}
	for _, m := range mine {
		maps.Copy(want, m)
	}
	for w := range s.All() {
		all[w] = true
	}
	for w := range want {
		if absent := w; !s.Has(w) {
			t.Errorf("%v is held, and the set has it not", w.Name)
		} else if absent.Key[20] = 1; s.Has(absent) {
			t.Errorf("%v is not held", absent.Name)
		}
	}
	if s.Has(tier.Want{Tenant: 9}) {
		t.Error("a tenant without objects has one")
	}
	if !maps.Equal(other.held, want) {
		t.Errorf("%d are held, the second listener knows %d", len(want), len(other.held))
	}
	if !maps.Equal(l.held, want) || !maps.Equal(all, want) || s.Len() != len(want) {
		t.Errorf("%d are held, the listener knows %d, All %d, Len %d", len(want), len(l.held), len(all), s.Len())
	}
	for range s.All() {
		break
	}
}

func TestRemovedWithoutAddPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it does not")
		}
	}()
	New().Remove(tier.Want{})
}

func TestNilSetHoldsNothing(t *testing.T) {
	var s *Set
	s.Add(tier.Want{})
	s.Remove(tier.Want{})
	for w := range s.All() {
		t.Error(w)
	}
	if s.Len() != 0 || s.Has(tier.Want{}) {
		t.Error(s.Len())
	}
}
