package tiertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// restarts skips a story unless the subject supports this ending.
func (r *rig) restarts(how Ending) Restarter {
	r.Helper()
	s, ok := r.Subject.(Restarter)
	if !ok || !slices.Contains(s.Endings(), how) {
		r.Skipf("this tier cannot be %v and opened again", how)
	}
	return s
}

func testRestartClosed(r *rig) {
	r.open(Options{LargestBytes: 4 << 20})
	s := r.restarts(Closed)
	list := r.variety()
	for i, o := range list {
		r.must(r.try(o, tier.LevelLogged+tier.Level(i%2)))
	}
	lost := r.segment(bob)
	r.must(r.try(lost, tier.LevelSynced))
	r.Remove(lost)
	for range 2 {
		r.must(s.Restart(Closed, 100, r.rng))
		var sums [3]int64
		for _, o := range list {
			e, ok := r.Find(o)
			if !ok {
				r.Fatalf("%v is not found", o)
			}
			sums[o.Tenant.ID] += e.Bytes
		}
		r.wantUsed(alice, sums[alice.ID])
		r.wantUsed(bob, sums[bob.ID])
		r.gone(lost)
		r.want(list...)
	}
	more := r.segment(alice)
	r.put(more)
	r.want(more)
}

func testRestartKilled(r *rig) { r.abrupt(Killed, tier.LevelLogged, 100) }

func testRestartPower(r *rig) {
	for _, unsynced := range []int{0, 30, 100} {
		r.abrupt(PowerLost, tier.LevelSynced, unsynced)
	}
}

// abrupt ends the subject while it writes. It expects that the subject then finds all
// objects that it had acknowledged at the given level.
func (r *rig) abrupt(how Ending, level tier.Level, unsynced int) {
	r.open(Options{LargestBytes: 4 << 20})
	s := r.restarts(how)
	safe := r.variety()
	for _, o := range safe {
		r.must(r.try(o, level))
	}
	var writing sync.WaitGroup
	begun := make([]*Object, 8)
	for i := range begun {
		begun[i] = r.segment(alice)
		f, err := r.Begin(begun[i])
		r.must(err)
		writing.Go(func() { _, _ = f.Finish(context.Background(), tier.LevelSynced) })
	}
	r.must(s.Restart(how, unsynced, r.rng))
	writing.Wait()
	r.want(safe...)
	for _, o := range begun { // complete, or absent
		c, err := r.Get(context.Background(), o)
		if err == nil {
			r.must(o.Compare(c))
			continue
		}
		r.wantErr(err, tier.ErrGone, tier.ErrCorrupt)
		r.put(o)
		r.want(o)
	}
}

// testRestartOrder uses one object, restarts, and makes room. The object must stay.
func testRestartOrder(r *rig) {
	r.open(tight())
	s := r.restarts(Closed)
	keep := r.segment(alice)
	r.must(r.try(keep, tier.LevelLogged))
	for range 8 {
		r.must(r.try(r.segment(bob), tier.LevelLogged))
	}
	r.want(keep)
	r.must(s.Restart(Closed, 100, r.rng))
	list := r.overfillAfter(bob)
	if _, ok := r.Find(keep); !ok {
		r.Errorf("what was used last has left for the first of %d segments", len(list))
	}
}

// overfillAfter puts segments until one was evicted to make room. It does not use earlier
// objects meanwhile.
func (r *rig) overfillAfter(t Tenant) (list []*Object) {
	r.Helper()
	for {
		before := r.Used(alice.ID) + r.Used(bob.ID)
		o := r.segment(t)
		r.must(r.try(o, tier.LevelLogged))
		r.Settle()
		list = append(list, o)
		e, ok := r.Find(o)
		if !ok || len(list) > 1000 {
			r.Fatalf("%d segments, the last is found: %v", len(list), ok)
		}
		if r.Used(alice.ID)+r.Used(bob.ID) < before+e.Bytes {
			return list
		}
	}
}

func testSpoiltAtRest(r *rig) {
	r.open(Options{LargestBytes: 4 << 20})
	s, ok := r.Subject.(Spoiler)
	if !ok {
		r.Skip("what this tier holds cannot be changed behind its back")
	}
	restart, durable := r.Subject.(Restarter)
	refused, changed := 0, 0
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		list := r.variety()
		for _, o := range list {
			r.must(r.try(o, r.Traits().Highest))
		}
		if durable { // so that only the slowest tier has them
			r.must(restart.Restart(Closed, 100, r.rng))
		}
		for _, o := range list {
			if o.Kind == 0 {
				changed++
				refused += r.spoil(s, o)
			}
		}
		r.removeAll(list...)
	}
	if refused < changed/5 {
		r.Errorf("%d of %d changed entries were refused", refused, changed)
	}
}

// spoil changes bytes of an object at rest. The object must still be served correctly, if
// the changed bits had no meaning. If they had a meaning, the object must be a miss, no
// longer charged, and accepted again.
func (r *rig) spoil(s Spoiler, o *Object) (refused int) {
	r.Helper()
	if there, err := s.Spoil(o, r.rng); err != nil || !there {
		r.Fatalf("%v cannot be changed: there %v, %v", o, there, err)
	}
	c, err := r.Get(context.Background(), o)
	if err == nil {
		r.must(o.Compare(c))
		return 0
	}
	if !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, tier.ErrGone) {
		r.Fatalf("%v: %v", o, err)
	}
	r.Settle()
	r.gone(o)
	r.must(r.try(o, r.Traits().Highest))
	r.want(o)
	return 1
}
