package disk

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// group is the work of one batch of rows.
type group struct {
	remove []*entry // entries whose rows are deleted
	clear  []*entry // entries no longer doubted, whose rows are rewritten to say so
	put    []*write // writes whose rows are written, parents first
	drop   []*write // writes that end without a row: their entries were forgotten, or the catalogue has failed
}

func (g *group) empty() bool { return g.changes()+len(g.drop) == 0 }

func (g *group) changes() int { return len(g.remove) + len(g.clear) + len(g.put) }

// groupRows is the most rows of each kind (deleted, rewritten, written) in one batch.
const groupRows = 128

// committer writes and deletes rows of the catalogue in batches.
type committer struct {
	*core
	*writer
}

// commitLoop writes and deletes rows until the mount stops and no rows are left to write.
// Rows that arrive during a batch go into the next one, so batches grow with the latency of
// the disk.
func (t *committer) commitLoop(m *mount) {
	for {
		g := t.nextGroup(m)
		if g.empty() {
			return
		}
		t.commitGroup(m, &g)
	}
}

// nextGroup waits for work. An empty group means stop.
func (t *committer) nextGroup(m *mount) group {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		last := m.stopping && m.writers == 0
		if g := t.groupLocked(); last || !g.empty() {
			return g
		}
		t.rows.Wait()
	}
}

// groupLocked returns the rows that can be committed now. Once the catalogue has failed, the
// pending writes are dropped, and no row is deleted before the directory is opened again.
func (t *committer) groupLocked() (g group) {
	failed := !t.health.state.syncable()
	if !failed {
		n := min(len(t.deleting), groupRows)
		g.remove, t.deleting = t.deleting[:n:n], t.deleting[n:]
		for len(t.cleared) > 0 && len(g.clear) < groupRows {
			e := t.cleared[0]
			t.cleared = t.cleared[1:]
			if e.phase == synced { // otherwise its row is deleted, in this group or a later one
				e.Level = uint8(tier.LevelLogged)
				g.clear = append(g.clear, e)
			}
		}
	}
	q := &t.queue
	n := min(len(q.ready), groupRows)
	for _, w := range q.ready[:n] {
		if failed || w.entry.forgotten() {
			g.drop = append(g.drop, w)
			continue
		}
		t.become(w.entry, committing)
		g.put = append(g.put, w)
	}
	q.ready = q.ready[n:]
	return g
}

// commitGroup writes one batch and ends its writes.
func (t *committer) commitGroup(m *mount, g *group) {
	for _, w := range g.drop {
		t.failWrite(m, w, fmt.Errorf("disk: %x left before its row was written: %w", w.entry.Key[:8], tier.ErrGone))
	}
	if g.changes() == 0 {
		return
	}
	changes := make([]catalog.Change, 0, g.changes())
	for _, e := range g.remove {
		changes = append(changes, catalog.Change{Delete: &e.Name})
	}
	for _, e := range g.clear {
		changes = append(changes, catalog.Change{Row: &e.Row})
	}
	for _, w := range g.put {
		changes = append(changes, catalog.Change{Row: &w.entry.Row, Manifest: w.manifest})
	}
	end := m.Writes.Begin()
	err := m.Catalog.Commit(changes, false)
	end()
	if err == nil {
		err = m.LockPresent()
	}
	switch {
	case err == nil:
		t.committed(m, g)
	case errors.Is(err, slab.ErrMissing):
		t.missing(err)
		t.notCommitted(m, g, fmt.Errorf("disk: %w: %w", err, tier.ErrUnavailable))
	case errors.Is(err, tier.ErrInvalid) && m.Catalog.Failed() == nil:
		// A row is invalid, and none of the batch was written.
		t.notCommitted(m, g, fmt.Errorf("disk: catalogue: %w", err))
	default:
		t.notCommitted(m, g, t.catalogTrouble(err))
	}
}

// committed updates the entries of a batch that was written: entries with a new row
// become live.
func (t *committer) committed(m *mount, g *group) {
	t.mu.Lock()
	t.counters.Groups++
	t.counters.GroupObjects += uint64(len(g.put))
	t.mu.Unlock()
	t.mu.Each(len(g.remove), rowsAtOnce, func(i int) {
		t.become(g.remove[i], deleted)
		t.deleted = append(t.deleted, g.remove[i])
	})
	t.mu.Each(len(g.put), rowsAtOnce, func(i int) { t.enterLiveLocked(m, g.put[i]) })
	t.mu.Lock()
	if t.syncing.spaceWanted > 0 {
		t.syncs.Signal()
	}
	t.mu.Unlock()
}

// enterLiveLocked makes an entry live after its row was written, unless it was forgotten
// meanwhile.
func (t *committer) enterLiveLocked(m *mount, w *write) {
	e := w.entry
	delete(m.flying, w)
	if e.phase == dropped {
		// The entry was forgotten while its row was being written. The row is deleted next.
		t.counters.WritesDropped++
		t.becomeDeletingLocked(e)
		t.endWriteLocked(w, tier.LevelMemory, fmt.Errorf("disk: %x left: %w", e.Key[:8], tier.ErrGone))
		return
	}
	t.become(e, logged)
	e.proven = true
	t.counters.Written++
	t.counters.WrittenBytes += uint64(e.RankBytes) * uint64(e.Ranks)
	t.pin(e, -1)
	t.rank(e)
	t.endWriteLocked(w, 0, nil)
}

// becomeDeletingLocked schedules the deletion of a dropped entry's row.
func (t *committer) becomeDeletingLocked(e *entry) {
	t.become(e, deleting)
	t.rows.Signal()
}

// notCommitted ends the writes of a batch that failed. Their rows may have reached the
// disk or not. So the space that these rows name is not reused before the rows are
// deleted, or the directory is opened again.
func (t *committer) notCommitted(m *mount, g *group, err error) {
	t.mu.Each(len(g.remove), rowsAtOnce, func(i int) { t.deleting = append(t.deleting, g.remove[i]) })
	for _, w := range g.put {
		t.mu.Lock()
		if !w.entry.forgotten() {
			t.counters.WriteErrors++
		}
		t.mu.Unlock()
		t.forgetTree(w.entry)
		t.mu.Lock()
		delete(m.flying, w)
		t.becomeDeletingLocked(w.entry)
		t.endWriteLocked(w, tier.LevelMemory, err)
		t.mu.Unlock()
	}
}

// catalogTrouble enters StateFailed and returns the error for callers. Callers that wait
// for a sync are notified now: no sync happens before the directory is opened again,
// which may take any time.
func (t *core) catalogTrouble(err error) error {
	err = fmt.Errorf("catalogue: %w", err)
	t.trouble(StateFailed, err)
	t.answerRaising(tier.ErrGone)
	return fmt.Errorf("disk: %w: %w", err, tier.ErrUnavailable)
}
