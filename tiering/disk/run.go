package disk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// life is a phase in the life of a tier. Only Tier.advanceLocked changes it.
type life uint8

const (
	serving  life = iota
	draining      // nothing more is admitted; started writes are finished
	ending        // Run has to return
)

// advanceLocked moves the tier to a later phase and wakes all waiters.
func (t *Tier) advanceLocked(to life) {
	if to > t.life {
		t.life = to
		t.wakeLocked()
	}
}

// Run does the work of the tier until Close, or until its context ends: it writes and syncs
// the started objects, and opens the directory again after failures. It is called once.
func (t *Tier) Run(ctx context.Context) error {
	t.mu.Lock()
	if t.running || t.life == ending {
		t.mu.Unlock()
		return fmt.Errorf("disk: run twice, or after close: %w", tier.ErrInvalid)
	}
	t.running = true
	t.mu.Unlock()
	// When the context ends, so does Run.
	defer context.AfterFunc(ctx, func() {
		t.mu.Lock()
		t.advanceLocked(ending)
		t.mu.Unlock()
	})()
	t.serveAll(ctx)
	t.mu.Lock()
	t.running = false
	t.idle.Broadcast()
	t.mu.Unlock()
	return nil
}

// serveAll opens the directory and serves it, and opens it again whenever necessary.
func (t *Tier) serveAll(ctx context.Context) {
	wait := t.cfg.RetryMin
	for !t.ending() {
		t.mu.Lock()
		open := t.mount != nil
		t.mu.Unlock()
		if open || t.attach() {
			// A directory that fails soon after each opening is opened at growing intervals.
			began := time.Now()
			t.serve(ctx, wait)
			if time.Since(began) > max(t.cfg.RetryMax, 2*wait) {
				wait = t.cfg.RetryMin
				continue
			}
		} else {
			t.pause(wait)
		}
		wait = min(2*wait, t.cfg.RetryMax)
	}
}

func (t *Tier) ending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.life == ending
}

// pause waits for a duration, or until the tier is ending.
func (t *Tier) pause(d time.Duration) {
	over := false
	timer := time.AfterFunc(d, func() {
		t.mu.Lock()
		over = true
		t.idle.Broadcast()
		t.mu.Unlock()
	})
	defer timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.life != ending && !over {
		t.idle.Wait()
	}
}

// The method serve runs the workers on the open volume until the tier is closed or the
// volume has to be opened again. Before it opens the volume again, reads may continue for
// the time given by the parameter while. Then serve stops the workers.
func (t *Tier) serve(ctx context.Context, while time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var writers, others sync.WaitGroup
	t.mu.Lock()
	m := t.mount
	m.writers = t.cfg.Workers
	t.mu.Unlock()
	for range t.cfg.Workers {
		writers.Go(func() {
			t.writeLoop(ctx, m)
			t.mu.Lock()
			m.writers--
			t.rows.Broadcast()
			t.mu.Unlock()
		})
	}
	others.Go(func() { t.commitLoop(m) })
	others.Go(func() { t.syncLoop(m) })
	others.Go(func() { t.proveLoop(ctx, m) })
	t.keep(m, while)
	cancel()
	writers.Wait()
	others.Wait()
	if !t.ending() {
		t.detach(m)
	}
}

// keep maintains the volume while the workers run: at intervals it requests a sync, saves
// the times of last uses, and probes the directory. It returns when the volume is stopping.
func (t *Tier) keep(m *mount, while time.Duration) {
	wait, probe := t.cfg.RetryMin, time.Now().Add(t.cfg.RetryMin)
	synced := time.Now()
	for {
		t.pause(max(min(time.Until(probe), time.Until(synced.Add(t.cfg.SyncEvery))), time.Millisecond))
		if t.drained(m) {
			return
		}
		if t.strange(m) {
			t.judgeAll = true
			t.stop(m)
			return
		}
		if time.Since(synced) >= t.cfg.SyncEvery {
			synced = time.Now()
			t.saveUses(m)
			t.wantSync()
		}
		if time.Now().Before(probe) {
			continue
		}
		again, reopen := t.probe(m)
		if reopen {
			t.pause(while) // reads continue meanwhile
			t.stop(m)
			return
		}
		if wait = min(2*wait, t.cfg.RetryMax); !again {
			wait = t.cfg.RetryMin
		}
		probe = time.Now().Add(wait)
	}
}

// wantSync requests a sync.
func (t *core) wantSync() {
	t.mu.Lock()
	t.syncing.due = true
	t.syncs.Signal()
	t.mu.Unlock()
}

// probe checks whether the directory still exists and whether its problem has ended. The
// result again is true if the problem persists. The result reopen is true if the directory
// has to be opened again, because it is missing, or because its catalogue has failed and
// the disk has room for opening it.
func (t *Tier) probe(m *mount) (again, reopen bool) {
	if err := m.Present(); errors.Is(err, slab.ErrMissing) {
		t.missing(err)
		return false, true
	}
	t.wake(m)
	t.mu.Lock()
	state := t.health.state
	t.mu.Unlock()
	switch state {
	case StateFull:
		free, err := m.FileSystemFree()
		if again = err != nil || free-t.cfg.SlabBytes < t.cfg.ReserveBytes; !again {
			t.recovered(StateFull)
		}
	case StatePaused:
		if again = m.TryWriting() != nil; !again {
			t.recovered(StatePaused)
		}
	case StateFailed:
		again = m.TryWriting() != nil || m.TryReopening() != nil
		reopen = !again
	}
	return again, reopen
}

// stop makes the workers of a volume return; queued writes fail.
func (t *Tier) stop(m *mount) {
	t.mu.Lock()
	m.stopping = true
	queue := t.queue.waiting
	t.queue.waiting = nil
	t.wakeLocked()
	t.mu.Unlock()
	for _, w := range queue {
		t.failWrite(m, w, fmt.Errorf("disk: closing: %w", tier.ErrUnavailable))
	}
}

// drained reports whether the tier is ending, after Close has waited for started writes.
// If so, it stops the volume.
func (t *Tier) drained(m *mount) bool {
	t.mu.Lock()
	done := t.life == ending
	t.mu.Unlock()
	if done {
		t.stop(m)
	}
	return done
}

// strange reports whether the key has to be judged again.
func (t *core) strange(m *mount) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return m.strange
}

// detach closes a mount so that the directory can be opened again. It waits for reads in
// progress. Lookups find nothing until the directory is open again.
func (t *Tier) detach(m *mount) {
	t.mu.Lock()
	t.enterLocked(StateOpening, t.health.cause, t.cfg.Now())
	for t.reading > 0 {
		if t.life == ending { // Close bounds its wait for them
			t.mu.Unlock()
			return
		}
		t.idle.Wait()
	}
	t.mu.Unlock()
	// Some rows of forgotten entries may not be deleted yet. The next opening must not
	// load them.
	left := t.forgetAll()
	t.mu.Each(len(left), rowsAtOnce, func(i int) { t.removed.add(m, left[i]) })
	t.mu.Lock()
	t.mount = nil
	t.mu.Unlock()
	if err := m.Close(); err != nil {
		t.log.Warn().Str("tier", "disk").Err(err).Msg("closing the disk tier")
	}
}

// forgetAll forgets all entries without changing the disk, and notifies their waiters. It
// returns the entries whose rows may not be deleted on disk yet.
func (t *Tier) forgetAll() (left []*entry) {
	fresh := t.newTable()
	t.mu.Lock()
	why := fmt.Errorf("disk: %s: %w", t.health.state, tier.ErrUnavailable)
	old := t.table
	t.table = fresh
	for _, p := range old.pools {
		p.closed = true
	}
	writes := slices.Collect(maps.Keys(t.queue.all))
	raising := t.syncing.raising
	t.syncing.raising = nil
	t.mu.Unlock()
	t.mu.Each(len(writes), rowsAtOnce, func(i int) {
		if w := writes[i]; w.entry.write == w {
			t.counters.WritesDropped++
			t.endWriteLocked(w, tier.LevelMemory, why)
			t.become(w.entry, gone)
		}
	})
	t.mu.Each(len(raising), rowsAtOnce, func(i int) { t.answerLocked(raising[i], tier.LevelMemory, why) })
	t.mu.Lock()
	t.queue.waiting, t.queue.ready = nil, nil
	t.mu.Unlock()
	held := slices.Collect(maps.Values(old.index))
	t.mu.Each(len(held), rowsAtOnce, func(i int) { old.publish(held[i], false) })
	return append(old.deleting, old.deleted...)
}

// usesAtOnce is the most use times in one batch.
const usesAtOnce = 4096

// saveUses saves the last uses of entries in the catalogue.
func (t *Tier) saveUses(m *mount) {
	for {
		uses := t.takeUses()
		if len(uses) == 0 {
			return
		}
		if err := m.Catalog.SaveUses(uses); err != nil {
			_ = t.catalogTrouble(err)
			return
		}
	}
}

// takeUses returns some of the use times that are not in the catalogue yet.
func (t *Tier) takeUses() (uses []catalog.Use) {
	turns := t.mu.Turns()
	for len(uses) < usesAtOnce {
		turns.Lock()
		n := min(len(t.fresh), rowsAtOnce)
		for _, e := range t.fresh[:n] {
			e.usedNews = false
			if e.phase.live() {
				uses = append(uses, catalog.Use{Name: e.Name, At: e.used.UnixNano()})
			}
		}
		t.fresh = t.fresh[n:]
		failed := !t.health.state.syncable()
		turns.Unlock()
		switch {
		case failed:
			return nil
		case n == 0:
			return uses
		}
	}
	return uses
}
