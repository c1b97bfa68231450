package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Run does the work of the tier until Close, or until its context ends: it writes
// what was admitted, makes it last, and tries again what failed. It is called
// once.
func (t *Tier) Run(ctx context.Context) error {
	t.mu.Lock()
	if t.running || t.closing {
		t.mu.Unlock()
		return fmt.Errorf("disk: run twice, or after close: %w", tier.ErrInvalid)
	}
	t.running = true
	t.mu.Unlock()
	// Whoever waits on a condition is woken by it.
	defer context.AfterFunc(ctx, func() {
		t.mu.Lock()
		t.closing = true
		t.wakeLocked()
		t.mu.Unlock()
	})()
	t.serveAll(ctx)
	t.mu.Lock()
	t.running = false
	t.idle.Broadcast()
	t.mu.Unlock()
	return nil
}

// serveAll opens the directory as often as it takes, and serves it.
func (t *Tier) serveAll(ctx context.Context) {
	wait := t.cfg.RetryMin
	for !t.ending() {
		t.mu.Lock()
		open := t.vol != nil
		t.mu.Unlock()
		if open || t.attach() {
			// One that fails soon after each opening is opened less and less often.
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
	return t.closing
}

// pause waits for a time or for the end.
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
	for !t.closing && !over {
		t.idle.Wait()
	}
}

// serve works on the open volume until the tier is closed or the volume has to be
// opened anew, which it is after a while only.
func (t *Tier) serve(ctx context.Context, while time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := t.vol
	var writers, others sync.WaitGroup
	t.mu.Lock()
	v.writers = t.cfg.Workers
	t.mu.Unlock()
	for range t.cfg.Workers {
		writers.Go(func() {
			t.writeLoop(ctx, v)
			t.mu.Lock()
			v.writers--
			t.rows.Broadcast()
			t.mu.Unlock()
		})
	}
	others.Go(func() { t.commitLoop(v) })
	others.Go(func() { t.syncLoop(v) })
	others.Go(func() { t.proveLoop(ctx, v) })
	t.keep(v, while)
	cancel()
	writers.Wait()
	others.Wait()
	if !t.ending() {
		t.detach(v)
	}
}

// keep looks after the volume while others work: at intervals it has what is
// logged synced and uses noted, and it tries out a disk that was in trouble.
func (t *Tier) keep(v *volume, while time.Duration) {
	wait, probe := t.cfg.RetryMin, time.Now().Add(t.cfg.RetryMin)
	synced := time.Now()
	for {
		t.pause(max(min(time.Until(probe), time.Until(synced.Add(t.cfg.SyncEvery))), time.Millisecond))
		if t.drained(v) {
			return
		}
		if time.Since(synced) >= t.cfg.SyncEvery {
			synced = time.Now()
			t.saveUses(v)
			t.wantSync()
		}
		if time.Now().Before(probe) {
			continue
		}
		again, reopen := t.probe(v)
		if reopen {
			t.pause(while) // reads go on meanwhile
			t.stop(v)
			return
		}
		if wait = min(2*wait, t.cfg.RetryMax); !again {
			wait = t.cfg.RetryMin
		}
		probe = time.Now().Add(wait)
	}
}

// wantSync has the syncer sync what there is.
func (t *Tier) wantSync() {
	t.mu.Lock()
	t.syncWanted = true
	t.syncs.Signal()
	t.mu.Unlock()
}

// probe tries whether trouble has ended. again: it has not. reopen: the catalogue
// has failed, but the disk takes what opening it anew would write.
func (t *Tier) probe(v *volume) (again, reopen bool) {
	t.mu.Lock()
	state := t.state
	t.mu.Unlock()
	switch state {
	case StateFull:
		free, err := v.set.Free()
		if again = err != nil || free-t.cfg.SlabBytes < t.cfg.ReserveBytes; !again {
			t.recovered(StateFull)
		}
	case StatePaused:
		if again = v.tryOut() != nil; !again {
			t.recovered(StatePaused)
		}
	case StateFailed:
		again = v.tryOut() != nil || v.roomToReopen() != nil
		reopen = !again
	}
	return again, reopen
}

// probeName is a file that is written to see whether writing works.
const probeName = "probe"

// tryOut writes, syncs and removes a file, where slabs are and where rows are.
func (v *volume) tryOut() error {
	_ = v.slabs.Remove(probeName) // of a crash
	f, err := v.slabs.Create(probeName, slab.BlockBytes)
	if err != nil {
		return err
	}
	err = f.WriteAt([][]byte{slab.AlignedBuffer(slab.BlockBytes)}, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close(), v.slabs.Remove(probeName)); err != nil {
		return err
	}
	if err := replaceFile(v.index, v.dir, probeName, []byte{0}); err != nil {
		return err
	}
	return v.index.Remove(v.path(probeName))
}

// stop ends the work on a volume; what is queued fails.
func (t *Tier) stop(v *volume) {
	t.mu.Lock()
	v.stopping = true
	queue := t.queue
	t.queue = nil
	t.wakeLocked()
	t.mu.Unlock()
	for _, w := range queue {
		t.failWrite(v, w, fmt.Errorf("disk: closing: %w", tier.ErrUnavailable))
	}
}

// drained says that the tier is closing and that nothing is left to be done, or
// no time for it; then the volume is stopping.
func (t *Tier) drained(v *volume) bool {
	t.mu.Lock()
	done := t.closing
	t.mu.Unlock()
	if done {
		t.stop(v)
	}
	return done
}

// detach lets go of a volume so that the directory can be opened anew. Nothing is
// found until then; reads that go on are waited for.
func (t *Tier) detach(v *volume) {
	t.mu.Lock()
	t.enterLocked(StateOpening, t.stateCause, t.cfg.Now())
	for t.reading > 0 {
		if t.closing { // Close waits for them, not without end
			t.mu.Unlock()
			return
		}
		t.idle.Wait()
	}
	// Rows that were to be deleted may still be there: they are not to come back.
	for _, e := range append(t.doomed, t.deleted...) {
		t.removed[e.Name] = max(t.removed[e.Name], e.generation)
	}
	t.forgetAllLocked()
	t.vol = nil
	t.mu.Unlock()
	if err := v.close(); err != nil {
		t.log.Warn().Str("tier", "disk").Err(err).Msg("closing the disk tier")
	}
}

// forgetAllLocked ends every entry, without a change on the disk, and answers who
// waits for one.
func (t *Tier) forgetAllLocked() {
	for _, e := range t.index {
		if e.phase == admitted {
			t.counters.WritesDropped++
			t.endWriteLocked(e.write, tier.LevelMemory, fmt.Errorf("disk: %s: %w", t.state, tier.ErrUnavailable))
		}
		e.phase = forgotten
	}
	for _, w := range t.raising {
		t.answerLocked(w, tier.LevelMemory, fmt.Errorf("disk: %s: %w", t.state, tier.ErrUnavailable))
	}
	t.catalogue = t.newCatalogue()
	t.queue, t.ready, t.deleted, t.raising = nil, nil, nil, nil
}

// usesAtOnce bounds one batch of use times.
const usesAtOnce = 4096

// saveUses notes in the catalogue when entries were used.
func (t *Tier) saveUses(v *volume) {
	for {
		t.mu.Lock()
		n := min(len(t.fresh), usesAtOnce)
		uses := make([]catalog.Use, 0, n)
		for _, e := range t.fresh[:n] {
			e.usedNews = false
			if e.phase == live {
				uses = append(uses, catalog.Use{Name: extentName(e.Name), At: e.used.UnixNano()})
			}
		}
		t.fresh = t.fresh[n:]
		failed := t.state >= StateFailed
		t.mu.Unlock()
		if n == 0 || failed {
			return
		}
		if err := v.catalog.SaveUses(uses); err != nil {
			_ = t.catalogTrouble(err)
			return
		}
	}
}
