package disk

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// syncing is what the syncer is wanted for.
type syncing struct {
	raising     []waiter // for a level
	spaceWanted int      // workers that wait for the space of what was deleted
	due         bool     // the clock says so
}

// syncRound is what one sync makes last.
type syncRound struct {
	slabs    map[uint32]bool
	logged   []*entry
	deleted  []*entry
	failures int    // mount.failures when it began
	synced   uint64 // generation up to which all bytes are synced then
}

// syncLoop syncs while somebody wants it, until the mount stops. It runs beside
// the committer, so that who needs no sync waits for none, and those who do share.
func (t *Tier) syncLoop(m *mount) {
	for {
		t.mu.Lock()
		for !t.syncDueLocked() && !m.stopping {
			t.syncs.Wait()
		}
		if m.stopping {
			t.mu.Unlock()
			return
		}
		r := t.beginSyncLocked(m)
		t.mu.Unlock()
		_, _ = t.sync(m, &r)
	}
}

// syncDueLocked: somebody waits for a level, or for space that a synced deletion
// would free, or it is time. A failed catalogue syncs nothing.
func (t *Tier) syncDueLocked() bool {
	s := &t.syncing
	if !t.health.state.syncable() {
		return false
	}
	return len(s.raising) > 0 || s.spaceWanted > 0 && len(t.deleted) > 0 || s.due && len(t.logged)+len(t.deleted) > 0
}

func (t *Tier) beginSyncLocked(m *mount) syncRound {
	r := syncRound{slabs: m.dirty, logged: t.logged, deleted: t.deleted, failures: m.failures, synced: t.syncedLocked(m)}
	m.dirty = map[uint32]bool{}
	t.logged, t.deleted, t.syncing.due = nil, nil, false
	return r
}

// syncedLocked is the generation up to which all bytes will be synced by a sync that
// begins now, or less. Entries beyond it are suspect when the directory is opened.
func (t *Tier) syncedLocked(m *mount) uint64 {
	synced := m.highest
	for _, g := range m.flying {
		synced = min(synced, g-1)
	}
	t.skipSuspectsLocked()
	if len(t.suspects) > 0 && !t.suspects[0].doubted() {
		synced = min(synced, t.suspects[0].Generation-1)
	}
	return synced
}

// sync carries a round out, raises what was synced, frees space, and answers who
// waits.
func (t *Tier) sync(m *mount, r *syncRound) (data, rows error) {
	data, rows = m.Sync(slices.Sorted(maps.Keys(r.slabs)), r.synced)
	why := error(tier.ErrGone)
	switch {
	case data != nil:
		t.syncFailed(m, r)
		t.trouble(afterSync(data), data)
		why = fmt.Errorf("%w: %w", data, tier.ErrUnavailable)
	case rows != nil:
		t.keepDeleted(r)
		_ = t.catalogTrouble(rows)
	default:
		t.synced(m, r)
	}
	t.answerRaising(why)
	return data, rows
}

// answerRaising answers who waits for a sync, as far as there is an answer; why is
// why entries have left.
func (t *Tier) answerRaising(why error) {
	t.mu.Lock()
	waiting := t.syncing.raising
	t.syncing.raising = nil
	t.mu.Unlock()
	t.mu.Each(len(waiting), rowsAtOnce, func(i int) {
		w := waiting[i]
		if w.entry.forgotten() {
			t.answerLocked(w, tier.LevelMemory, fmt.Errorf("disk: %x left before it was synced: %w", w.entry.Key[:8], why))
			return
		}
		t.awaitLevelLocked(w)
	})
}

// awaitLevelLocked answers a waiter of a live entry, or has it wait for a sync.
func (t *Tier) awaitLevelLocked(w waiter) {
	level := w.entry.phase.level()
	if t.health.state == StateMissing {
		level = tier.LevelMemory // the row is where the next opening does not look
	}
	switch {
	case level >= w.level:
		t.answerLocked(w, level, nil)
	case !t.health.state.syncable():
		t.answerLocked(w, level, fmt.Errorf("disk: %x cannot be synced: %w", w.entry.Key[:8], tier.ErrUnavailable))
	default:
		t.syncing.raising = append(t.syncing.raising, w)
		t.syncs.Signal()
	}
}

// answerLocked calls a waiter back without the lock, as each is promised.
func (t *Tier) answerLocked(w waiter, reached tier.Level, err error) {
	t.answers++
	go func() {
		defer t.answered()
		w.done(reached, err)
	}()
}

func (t *Tier) answered() {
	t.mu.Lock()
	t.answers--
	t.idle.Broadcast()
	t.mu.Unlock()
}

// synced draws the conclusions of a sync that worked.
func (t *Tier) synced(m *mount, r *syncRound) {
	var unsure, free []*entry
	t.mu.Each(len(r.logged), rowsAtOnce, func(i int) {
		e := r.logged[i]
		switch {
		case e.phase != logged:
		case e.failures != r.failures:
			unsure = append(unsure, e)
		default:
			t.become(e, synced)
			t.counters.SyncedObjects++
			if e.doubted() {
				t.cleared = append(t.cleared, e)
				t.rows.Signal()
			}
		}
	})
	t.forgetUnsure(unsure)
	t.mu.Each(len(r.deleted), rowsAtOnce, func(i int) {
		e := r.deleted[i]
		t.become(e, released)
		if e.readers == 0 {
			t.become(e, gone)
			free = append(free, e)
		}
	})
	for _, e := range free {
		t.releaseSpace(m, e)
	}
	t.mu.Lock()
	t.counters.Syncs++
	t.mu.Unlock()
}

// syncFailed forgets what can never be called synced: after an error the kernel
// drops what it could not write, and answers the next sync with success. To keep
// such an entry as logged would do until the next opening, which knows of no error.
func (t *Tier) syncFailed(m *mount, r *syncRound) {
	t.mu.Lock()
	m.failures++
	t.mu.Unlock()
	var unsure []*entry
	t.mu.Each(len(r.logged), rowsAtOnce, func(i int) {
		if r.logged[i].phase == logged {
			unsure = append(unsure, r.logged[i])
		}
	})
	t.forgetUnsure(unsure)
	t.keepDeleted(r)
}

// forgetUnsure forgets entries whose bytes may not be on the disk.
func (t *Tier) forgetUnsure(list []*entry) {
	for _, e := range list {
		t.mu.Lock()
		if e.phase.live() {
			t.counters.LostUnsynced++
		}
		t.mu.Unlock()
		t.forgetTree(e)
	}
}

// keepDeleted leaves what could not be synced to the next sync, or opening.
func (t *Tier) keepDeleted(r *syncRound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counters.SyncErrors++
	t.deleted = append(r.deleted, t.deleted...)
}
