package disk

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// syncing holds the requests to the syncer.
type syncing struct {
	raising     []waiter // callers that wait for a level
	spaceWanted int      // number of workers that wait for the space of deleted entries
	due         bool     // a sync was requested because SyncEvery has passed
}

// syncRound is the work of one sync.
type syncRound struct {
	slabs    map[uint32]bool
	logged   []*entry
	deleted  []*entry
	failures int    // value of mount.failures when the sync began
	synced   uint64 // generation up to which all bytes are synced after this sync
}

// syncer syncs data and rows, and then raises the level of the entries.
type syncer struct{ *core }

// syncLoop syncs when requested, until the mount stops. It runs concurrently with the
// committer, so that writers that need no sync do not wait for one. Writers that need a
// sync share it.
func (t *syncer) syncLoop(m *mount) {
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

// syncDueLocked reports whether to sync now: a caller waits for a level, a worker waits
// for space that a synced deletion would free, or a sync is due by the clock. A failed
// catalogue is not synced.
func (t *syncer) syncDueLocked() bool {
	s := &t.syncing
	if !t.health.state.syncable() {
		return false
	}
	return len(s.raising) > 0 || s.spaceWanted > 0 && len(t.deleted) > 0 || s.due && len(t.logged)+len(t.deleted) > 0
}

func (t *syncer) beginSyncLocked(m *mount) syncRound {
	r := syncRound{slabs: m.dirty, logged: t.logged, deleted: t.deleted, failures: m.failures, synced: t.syncedLocked(m)}
	m.dirty = map[uint32]bool{}
	t.logged, t.deleted, t.syncing.due = nil, nil, false
	return r
}

// syncedLocked returns a generation up to which all bytes will be synced by a sync that
// begins now. Entries of higher generations are suspect when the directory is opened next.
func (t *syncer) syncedLocked(m *mount) uint64 {
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

// The method sync performs the round r. If it succeeds, the logged entries become synced,
// and the space of deleted entries is freed. It notifies the waiters in any case. The
// result data is the error of the slabs, and rows is the error of the catalogue.
func (t *syncer) sync(m *mount, r *syncRound) (data, rows error) {
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

// answerRaising answers the callers that wait for a sync, or makes them wait for the next
// one. The error why is for callers whose entry was forgotten.
func (t *core) answerRaising(why error) {
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

// awaitLevelLocked answers a waiter of a live entry, or makes it wait for a sync.
func (t *core) awaitLevelLocked(w waiter) {
	level := w.entry.phase.level()
	if t.health.state == StateMissing {
		level = tier.LevelMemory // the next opening will not find the row, which is in another directory
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

// answerLocked calls a waiter back from another goroutine without the lock, as tier.Write
// promises.
func (t *core) answerLocked(w waiter, reached tier.Level, err error) {
	t.answers++
	go func() {
		defer t.answered()
		w.done(reached, err)
	}()
}

func (t *core) answered() {
	t.mu.Lock()
	t.answers--
	t.idle.Broadcast()
	t.mu.Unlock()
}

// synced updates the entries of a round after a successful sync.
func (t *syncer) synced(m *mount, r *syncRound) {
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

// syncFailed forgets the logged entries of a failed round, because they can never count
// as synced: after an error the kernel drops the data that it could not write, and
// reports success for the next sync. They cannot stay logged either, since the next
// opening would not know of the error.
func (t *syncer) syncFailed(m *mount, r *syncRound) {
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
func (t *syncer) forgetUnsure(list []*entry) {
	for _, e := range list {
		t.mu.Lock()
		if e.phase.live() {
			t.counters.LostUnsynced++
		}
		t.mu.Unlock()
		t.forgetTree(e)
	}
}

// keepDeleted leaves the deletions that could not be synced to the next sync, or to the
// next opening.
func (t *syncer) keepDeleted(r *syncRound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counters.SyncErrors++
	t.deleted = append(r.deleted, t.deleted...)
}
