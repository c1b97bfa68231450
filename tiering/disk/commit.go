package disk

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// group is what one batch of rows settles.
type group struct {
	gone []*entry // rows to delete
	put  []*write // rows to write, those that others extend first
	drop []*write // forgotten meanwhile, or extending what is
}

func (g *group) empty() bool { return len(g.gone)+len(g.put)+len(g.drop) == 0 }

// commitLoop writes rows until the volume stops and nothing is left: all that
// came since the last batch goes into the next, so that groups are as large as
// the disk is slow.
func (t *Tier) commitLoop(v *volume) {
	for {
		g := t.nextGroup(v)
		if g.empty() {
			return
		}
		t.commitGroup(v, &g)
	}
}

// nextGroup waits for work. An empty group means stop.
func (t *Tier) nextGroup(v *volume) group {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		last := v.stopping && v.writers == 0
		if g := t.groupLocked(last); last || !g.empty() {
			return g
		}
		t.rows.Wait()
	}
}

// groupLocked takes what can be settled now. A write that extends one whose bytes
// are still on their way stays.
//
// Once the catalogue has failed no row is deleted: what is doomed stays so until
// the directory is opened again. With last set, nothing else is on its way.
func (t *Tier) groupLocked(last bool) (g group) {
	failed := t.state > StatePaused
	if !failed {
		g.gone, t.doomed = t.doomed, nil
	}
	chosen := map[*entry]bool{}
	for progress := true; progress; {
		progress = false
		var stay []*write
		for _, w := range t.ready {
			e := w.entry
			switch {
			case e.phase == forgotten || failed:
				g.drop = append(g.drop, w)
			case e.parent != nil && e.parent.phase == admitted && !chosen[e.parent]:
				stay = append(stay, w)
				continue
			default:
				g.put = append(g.put, w)
				chosen[e] = true
			}
			progress = true
		}
		t.ready = stay
	}
	if last {
		g.drop = append(g.drop, t.ready...)
		t.ready = nil
	}
	return g
}

// commitGroup writes one batch and tells everybody.
func (t *Tier) commitGroup(v *volume, g *group) {
	for _, w := range g.drop {
		t.failWrite(v, w, fmt.Errorf("disk: %x left before its row was written: %w", w.entry.Key[:8], tier.ErrGone))
	}
	if len(g.gone)+len(g.put) == 0 {
		return
	}
	changes := make([]catalog.Change, 0, len(g.gone)+len(g.put))
	for _, e := range g.gone {
		name := extentName(e.Name)
		changes = append(changes, catalog.Change{Delete: &name})
	}
	for _, w := range g.put {
		changes = append(changes, catalog.Change{Row: w.entry.row(), Manifest: w.manifest})
	}
	end := v.writes.begin()
	err := v.catalog.Commit(changes, false)
	end()
	switch {
	case err == nil:
		t.settleGroup(v, g)
	case errors.Is(err, tier.ErrInvalid) && v.catalog.Failed() == nil:
		// A row that cannot be: none was written.
		t.groupFailed(v, g, fmt.Errorf("disk: catalogue: %w", err))
	default:
		t.groupFailed(v, g, t.catalogTrouble(err))
	}
}

// settleGroup makes what was committed live.
func (t *Tier) settleGroup(v *volume, g *group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counters.Groups++
	t.counters.GroupObjects += uint64(len(g.put))
	t.deleted = append(t.deleted, g.gone...)
	for _, w := range g.put {
		e := w.entry
		delete(v.flying, w)
		if e.phase == forgotten {
			// Forgotten while its row was being written: that goes next.
			t.doomed = append(t.doomed, e)
			t.counters.WritesDropped++
			t.endWriteLocked(w, tier.LevelMemory, fmt.Errorf("disk: %x left: %w", e.Key[:8], tier.ErrGone))
			continue
		}
		e.phase, e.level = live, tier.LevelLogged
		t.logged = append(t.logged, e)
		t.counters.Written++
		t.counters.WrittenBytes += uint64(e.rankBytes) * uint64(e.ranks)
		t.pin(e, -1)
		t.settle(e)
		t.endWriteLocked(w, 0, nil)
	}
	if t.spaceWanted > 0 {
		t.syncs.Signal()
	}
	if len(t.doomed) > 0 {
		t.rows.Signal()
	}
}

// groupFailed ends what could not be committed. A row may have reached the disk
// or not; so nothing that it may name is used again before the row is deleted, or
// the directory is opened anew.
func (t *Tier) groupFailed(v *volume, g *group, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doomed = append(t.doomed, g.gone...)
	for _, w := range g.put {
		e := w.entry
		delete(v.flying, w)
		if e.phase != forgotten {
			t.counters.WriteErrors++
			t.forgetLocked(e)
		}
		t.doomed = append(t.doomed, e)
		t.endWriteLocked(w, tier.LevelMemory, err)
	}
}

// catalogTrouble enters StateFailed. Who waits for a sync is told now: there will be
// none before the directory is opened anew, and nobody knows when that is.
func (t *Tier) catalogTrouble(err error) error {
	err = fmt.Errorf("disk: catalogue: %w", err)
	t.trouble(StateFailed, err)
	t.mu.Lock()
	t.settleRaisingLocked(tier.ErrGone)
	t.mu.Unlock()
	return fmt.Errorf("%w: %w", err, tier.ErrUnavailable)
}

// row is what the catalogue keeps of an entry.
func (e *entry) row() *catalog.Row {
	return &catalog.Row{
		Name: extentName(e.Name), Generation: e.generation, Runs: e.runs, HeaderBytes: int(e.headerBytes), PayloadBytes: e.payload,
		Coded: e.coded, Level: uint8(tier.LevelLogged), Tenant: e.owner.number, Fingerprint: e.model.Fingerprint(),
		Spec: e.spec, Begin: e.begin, End: e.end, Parent: extentName(e.parentName), Ranks: e.ranks, RankBytes: e.rankBytes,
		Created: e.created.UnixNano(), ManifestSum: e.manifestSum,
	}
}
