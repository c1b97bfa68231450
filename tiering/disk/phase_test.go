package disk

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// Every phase has a way in and a way out, apart from the first and the last, and no
// other step is taken.
func TestPhases(t *testing.T) {
	reached := map[phase]bool{admitted: true, dormant: true, suspect: true}
	for from := range phases {
		if (len(mayBecome[from]) == 0) != (from == gone) {
			t.Errorf("%v leads to %v", from, mayBecome[from])
		}
		for _, to := range mayBecome[from] {
			reached[to] = true
			if from.live() && to.pending() || !from.pending() && to.pending() {
				t.Errorf("%v leads back to %v", from, to)
			}
		}
	}
	for p := range phases {
		if !reached[p] || p.String() == "" {
			t.Errorf("nothing leads to %v", p)
		}
		for to := range phases {
			if err := become(p, to); (err == nil) != slices.Contains(mayBecome[p], to) {
				t.Errorf("%v to %v: %v", p, to, err)
			}
		}
	}
}

// become tries a step on an entry of no table.
func become(from, to phase) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("refused")
		}
	}()
	var none table
	none.become(&entry{phase: from, owner: &account{}, model: &model{}}, to)
	return nil
}

// A graver trouble is not covered up by a lighter one, only a directory that was
// opened anew is out of the gravest, and what is closed stays closed.
func TestStates(t *testing.T) {
	leads := map[State][]State{
		StateOK:     {StateFull, StatePaused, StateFailed, StateOpening, StateMissing, StateClosed},
		StateFull:   {StateOK, StatePaused, StateFailed, StateOpening, StateMissing, StateClosed},
		StatePaused: {StateOK, StateFailed, StateOpening, StateMissing, StateClosed},
		StateFailed: {StateOpening, StateMissing, StateClosed},
		StateClosed: nil,
	}
	shut := []State{StateOpening, StateMissing, StateRefused, StateLocked, StateVersion, StateUnreadable, StateForeign}
	for _, s := range shut {
		leads[s] = []State{StateOK, StateClosed}
		for _, other := range shut {
			if other != s {
				leads[s] = append(leads[s], other)
			}
		}
	}
	States(func(from State) {
		States(func(to State) {
			if want := slices.Contains(leads[from], to); from.leadsTo(to) != want {
				t.Errorf("from %v to %v: %v", from, to, !want)
			}
		})
	})
}

// An object in the place of many small ones has a few of them evicted by Admit and
// the others by Start. The accounts are right in between, for whoever asks.
func TestAdmitLeavesTheRestOfItsRoomToStart(t *testing.T) {
	for name, quota := range map[string]bool{"quota": true, "pool": false} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg := onMem(s.config(), vfs.NewMem())
			cfg.PublicBytes, cfg.PrivateBytes, cfg.SlabBytes = 1<<20, 0, 256<<10
			lower := s.openOK(cfg)
			small := segments(1, 60)
			for _, w := range small {
				s.mustWrite(lower.Tier, w, tier.LevelLogged)
			}
			budget := lower.Usage().Pools[public].BudgetBytes
			room := int64(1) << 40
			if quota {
				room = lower.Used(tenantA)
			}
			large := thing{seed: 99, profile: smallOne, tenant: tenantA, tokens: 3000}
			before := lower.Counters()
			k, err := s.admit(lower.Tier, large, room)
			must(t, err)
			after := lower.Counters()
			if n := after.EvictedQuota + after.EvictedRoom - before.EvictedQuota - before.EvictedRoom; n != rowsAtOnce {
				t.Errorf("Admit has evicted %d entries, not %d", n, rowsAtOnce)
			}
			if used := lower.Used(tenantA); quota && used > room {
				t.Errorf("%d bytes are counted, the tenant may hold %d", used, room)
			}
			answer := make(chan error, 1)
			k.Start(tier.LevelLogged, func(_ tier.Level, err error) { answer <- err })
			if used := lower.Usage().Pools[public].UsedBytes; used > min(room, budget) {
				t.Errorf("after Start %d bytes are used of %d", used, min(room, budget))
			}
			must(t, <-answer)
			s.mustRead(lower.Tier, large)
			s.check(lower.Tier)
		})
	}
}

// What was not evicted yet for a write that is canceled stays, and nobody owes it.
func TestCancelOwesNothing(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	small := segments(1, 60)
	for _, w := range small {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	room := lower.Used(tenantA)
	k, err := s.admit(lower.Tier, thing{seed: 99, profile: smallOne, tenant: tenantA, tokens: 3000}, room)
	must(t, err)
	k.Cancel()
	for _, w := range small[rowsAtOnce:] {
		s.mustRead(lower.Tier, w)
	}
	s.check(lower.Tier)
}

// Those that extend an entry leave with it, the last first, however many they are.
func TestRemoveTakesAllThatExtendIt(t *testing.T) {
	s := newShelf(t)
	cfg := s.config()
	cfg.PrivateBytes = 3 << 20
	lower := s.openOK(onMem(cfg, vfs.NewMem()))
	nodes := chain(1, 3*rowsAtOnce, tenantA)
	for i := range nodes {
		if i > 2 {
			nodes[i].parent = nodes[i/2].name()
		}
		s.mustWrite(lower.Tier, nodes[i], tier.LevelLogged)
	}
	n := nodes[1].name()
	if !lower.Remove(&n) {
		t.Error("nothing was there")
	}
	for i, w := range nodes {
		n := w.name()
		if _, ok := lower.Lookup(&n); ok != (i == 0) {
			t.Errorf("node %d is found: %v", i, ok)
		}
	}
	if c := lower.Counters(); c.Removed != 1 || c.LostWithOther != uint64(len(nodes)-2) {
		t.Errorf("%d removed, %d lost with it", c.Removed, c.LostWithOther)
	}
	s.check(lower.Tier)
}

// Rows of a child are written after those of its parent, whichever is ready first.
func TestChildWaitsForItsParent(t *testing.T) {
	c := &core{}
	c.rows = sync.NewCond(&c.mu)
	w := &writer{core: c}
	tr := &Tier{core: c, writer: w, committer: &committer{c, w}}
	up := &entry{phase: writing, Row: catalog.Row{Generation: 2}}
	up.write = &write{entry: up}
	child := &entry{phase: writing, parent: up}
	child.write = &write{entry: child}
	for _, e := range []*entry{up, child} {
		e.pool = &pool{}
	}
	m := newMount(nil)
	tr.written(m, child.write)
	if g := tr.groupLocked(); !g.empty() {
		t.Errorf("%d rows of a child before its parent's", len(g.put))
	}
	tr.written(m, up.write)
	if g := tr.groupLocked(); len(g.put) != 2 || g.put[0] != up.write || g.put[1] != child.write {
		t.Errorf("%d rows, want the parent's and the child's", len(g.put))
	}
}
