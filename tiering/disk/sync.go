package disk

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// syncRound is what one sync makes last.
type syncRound struct {
	slabs    []uint32
	logged   []*entry
	deleted  []*entry
	failures int // volume.failures when it began
	mark     uint64
}

// syncLoop syncs while somebody wants it, until the volume stops. It runs beside
// the committer, so that who needs no sync waits for none, and those who do share.
func (t *Tier) syncLoop(v *volume) {
	for {
		t.mu.Lock()
		for !t.syncDueLocked() && !v.stopping {
			t.syncs.Wait()
		}
		if v.stopping {
			t.mu.Unlock()
			return
		}
		r := t.beginSyncLocked(v)
		t.mu.Unlock()
		data, rows := v.sync(&r)
		t.settleSync(v, &r, data, rows)
	}
}

// syncDueLocked: somebody waits for a level, or for space that a synced deletion
// would free, or it is time. A failed catalogue syncs nothing.
func (t *Tier) syncDueLocked() bool {
	if t.state > StatePaused {
		return false
	}
	return len(t.raising) > 0 || t.spaceWanted > 0 && len(t.deleted) > 0 || t.syncWanted && len(t.logged)+len(t.deleted) > 0
}

func (t *Tier) beginSyncLocked(v *volume) syncRound {
	r := syncRound{
		slabs: slices.Sorted(maps.Keys(v.dirty)), logged: t.logged, deleted: t.deleted, failures: v.failures,
	}
	r.mark = t.markLocked(v)
	clear(v.dirty)
	t.logged, t.deleted, t.syncWanted = nil, nil, false
	return r
}

// sync makes data last, then rows: a row that power loss leaves behind without
// its data costs a miss, but one that was promised needs both.
func (v *volume) sync(r *syncRound) (data, rows error) {
	defer v.writes.begin()()
	if len(r.slabs) > 0 {
		if err := v.set.Sync(r.slabs...); err != nil {
			return fmt.Errorf("disk: sync: %w", err), nil
		}
	}
	if err := v.catalog.SaveCounters(map[string]uint64{markName: r.mark}); err != nil {
		return nil, err
	}
	return nil, v.catalog.SyncNow()
}

// markName is the counter that holds the highest generation up to which the bytes
// of every entry were synced. It is written after them, and is on the disk with the
// rows of the same sync. Rows beyond it, found when the directory is opened, may
// have lost their bytes with the power: such entries are suspect until they were
// read.
const markName = "synced_generation"

// markLocked is what the mark will be after a sync that begins now.
func (t *Tier) markLocked(v *volume) uint64 {
	mark := v.highest
	for _, g := range v.flying {
		mark = min(mark, g-1)
	}
	for _, e := range t.suspect {
		if e.suspect && e.phase == live {
			mark = min(mark, e.generation-1)
		}
	}
	return mark
}

// settleSync raises what was synced, frees space, and answers who waits.
func (t *Tier) settleSync(v *volume, r *syncRound, data, rows error) {
	switch {
	case data != nil:
		t.syncFailed(v, r)
		// Whatever the reason, room as well: what cannot be synced is not worth writing.
		t.trouble(StatePaused, data)
	case rows != nil:
		t.rowsFailed(r)
		_ = t.catalogTrouble(rows)
	}
	var free []*entry
	t.mu.Lock()
	if data == nil && rows == nil {
		free = t.syncedLocked(r)
	}
	why := error(tier.ErrGone)
	if data != nil {
		why = fmt.Errorf("%w: %w", data, tier.ErrUnavailable)
	}
	t.settleRaisingLocked(why)
	t.mu.Unlock()
	for _, e := range free {
		t.releaseSpace(v, e, e.runs)
	}
}

// settleRaisingLocked answers who waits for a sync, as far as there is an answer;
// why is why entries have left.
func (t *Tier) settleRaisingLocked(why error) {
	waiting := t.raising
	t.raising = nil
	for _, w := range waiting {
		if w.entry.phase == forgotten {
			t.answerLocked(w, tier.LevelMemory, fmt.Errorf("disk: %x left before it was synced: %w", w.entry.Key[:8], why))
			continue
		}
		t.settleWaiterLocked(w)
	}
}

// syncedLocked draws the conclusions of a sync that worked.
func (t *Tier) syncedLocked(r *syncRound) (free []*entry) {
	t.counters.Syncs++
	for _, e := range r.logged {
		if e.phase != live {
			continue
		}
		if e.failures != r.failures {
			t.unsureLocked(e)
			continue
		}
		e.level = tier.LevelSynced
		t.counters.SyncedObjects++
	}
	for _, e := range r.deleted {
		e.rowDeleted = true
		if e.readers == 0 {
			free = append(free, e)
		}
	}
	return free
}

// syncFailed forgets what can never be called synced: after an error the kernel
// drops what it could not write, and answers the next sync with success. To keep
// such an entry as logged would do until the next opening, which knows of no error.
func (t *Tier) syncFailed(v *volume, r *syncRound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counters.SyncErrors++
	v.failures++
	for _, e := range r.logged {
		if e.phase == live {
			t.unsureLocked(e)
		}
	}
	t.deleted = append(r.deleted, t.deleted...)
}

func (t *Tier) unsureLocked(e *entry) {
	t.counters.LostUnsynced++
	t.forgetLocked(e)
}

// rowsFailed keeps what a failed catalogue leaves open for the next opening.
func (t *Tier) rowsFailed(r *syncRound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counters.SyncErrors++
	t.deleted = append(r.deleted, t.deleted...)
}
