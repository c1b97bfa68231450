package disk

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// writeLoop writes what is queued until the volume stops.
func (t *Tier) writeLoop(ctx context.Context, v *volume) {
	for {
		w := t.nextWrite(v)
		if w == nil {
			return
		}
		if err := t.perform(ctx, v, w); err != nil {
			t.failWrite(v, w, err)
		}
	}
}

// nextWrite waits for a write; nil = stop.
func (t *Tier) nextWrite(v *volume) *write {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.queue) == 0 && !v.stopping {
		t.jobs.Wait()
	}
	if len(t.queue) == 0 {
		return nil
	}
	w := t.queue[0]
	t.queue[0] = nil
	t.queue = t.queue[1:]
	return w
}

// writableLocked says why nothing can be written now.
func (t *Tier) writableLocked(e *entry) error {
	if e.phase == forgotten {
		return fmt.Errorf("disk: %x left before it was written: %w", e.Key[:8], tier.ErrGone)
	}
	if t.state > StateFull {
		return fmt.Errorf("disk: %s: %w", t.state, tier.ErrUnavailable)
	}
	return nil
}

// perform writes an object and hands it to the committer, who may answer at once:
// by then its memory has to be let go of.
func (t *Tier) perform(ctx context.Context, v *volume, w *write) error {
	if err := t.writeBytes(ctx, v, w); err != nil {
		return err
	}
	t.written(v, w)
	return nil
}

// writeBytes writes an object into space that no row names.
func (t *Tier) writeBytes(ctx context.Context, v *volume, w *write) error {
	e := w.entry
	t.mu.Lock()
	err := t.writableLocked(e)
	v.flying[w] = v.highest + 1
	t.mu.Unlock()
	if err != nil {
		return err
	}
	end := v.writes.begin()
	err = v.keepProfile(e.model)
	end()
	if err != nil {
		return t.writeTrouble(err)
	}
	p, err := t.prepare(ctx, e, w.object)
	if err != nil {
		return err
	}
	defer p.release()
	h := extent.Header{
		Name: extentName(e.Name), Coded: p.coded, PayloadBytes: p.payload,
		HeaderBytes: extent.HeaderBytes(len(p.manifest)),
	}
	end = v.writes.begin()
	h.Generation, err = v.catalog.NextGenerations(1)
	end()
	if err != nil {
		return t.catalogTrouble(err)
	}
	if h.Runs, err = t.takeSpace(v, e, int64(h.HeaderBytes)+h.PayloadBytes); err != nil {
		return err
	}
	header, err := h.Append(slab.AlignedBuffer(h.HeaderBytes)[:0], p.manifest)
	if err == nil {
		err = t.place(v, w, &h)
	}
	if err != nil {
		t.giveSpace(v, h.Runs)
		return err
	}
	end = v.writes.begin()
	err = v.set.Write(h.Runs, 0, append([][]byte{header}, buffers(p.pieces)...))
	end()
	if err != nil {
		return t.writeFailed(v, e, fmt.Errorf("disk: write %x: %w", e.Key[:8], err))
	}
	w.manifest = p.manifest
	return nil
}

// place tells the entry where it comes to lie.
func (t *Tier) place(v *volume, w *write, h *extent.Header) error {
	e := w.entry
	t.mu.Lock()
	defer t.mu.Unlock()
	v.flying[w], v.highest = h.Generation, max(v.highest, h.Generation)
	if err := t.writableLocked(e); err != nil {
		return err
	}
	bytes := slab.RunBytes(h.Runs)
	if bytes > e.bytes {
		return fmt.Errorf("disk: %x takes %d bytes, not the %d at most that were counted: %w", e.Key[:8], bytes, e.bytes, tier.ErrInvalid)
	}
	e.generation, e.runs, e.headerBytes, e.payload = h.Generation, h.Runs, int64(h.HeaderBytes), h.PayloadBytes
	e.coded, e.manifestSum, e.failures = h.Coded, h.ManifestSum, v.failures
	t.resize(e, bytes)
	return nil
}

// written hands a write to the committer.
func (t *Tier) written(v *volume, w *write) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v.badWrites = 0
	for _, r := range w.entry.runs {
		v.dirty[r.Slab] = true
	}
	t.counters.StoredBytes += uint64(w.entry.headerBytes + w.entry.payload)
	t.ready = append(t.ready, w)
	t.rows.Signal()
}

// writeTrouble sorts an error of the disk.
func (t *Tier) writeTrouble(err error) error {
	t.trouble(afterWrite(err), err)
	return fmt.Errorf("%w: %w", err, answer(err))
}

// Space where a write failed is lost until the next opening, so that the next write
// does not meet the same bad block; but no more than a part of all, since it may be
// the disk that is bad. Several failures in a row mean that.
const (
	failuresToPause = 3
	lostPart        = 16
)

// writeFailed decides whether a place is bad, or the disk.
func (t *Tier) writeFailed(v *volume, e *entry, err error) error {
	if !errors.Is(err, unix.EIO) {
		return t.writeTrouble(err)
	}
	t.mu.Lock()
	v.badWrites++
	bytes := slab.RunBytes(e.runs)
	if e.phase != forgotten && v.lost+bytes <= v.capacity/lostPart {
		v.lost += bytes
		v.capacity -= bytes
		e.runs = nil // nobody frees them
	}
	pause := v.badWrites >= failuresToPause
	t.mu.Unlock()
	if pause {
		return t.writeTrouble(err)
	}
	t.log.Warn().Str("tier", "disk").Err(err).Msg("space of the disk tier is given up")
	return fmt.Errorf("%w: %w", err, tier.ErrUnavailable)
}

// failWrite ends a write that has no row.
func (t *Tier) failWrite(v *volume, w *write, err error) {
	e := w.entry
	t.mu.Lock()
	if e.phase == forgotten {
		t.counters.WritesDropped++
	} else {
		t.counters.WriteErrors++
		t.forgetLocked(e)
	}
	runs := e.runs
	delete(v.flying, w)
	t.endWriteLocked(w, tier.LevelMemory, err)
	t.mu.Unlock()
	if runs != nil {
		t.releaseSpace(v, e, runs)
	}
}

// endWriteLocked answers who waits for a write.
func (t *Tier) endWriteLocked(w *write, reached tier.Level, err error) {
	for _, waiter := range w.waiters {
		if err != nil {
			t.answerLocked(waiter, reached, err)
		} else {
			t.settleWaiterLocked(waiter)
		}
	}
	w.waiters = nil
	t.unqueueLocked(w.entry)
}

// takeSpace allocates, and waits where what was forgotten is not free yet. Room
// was counted at admission, so that it comes, unless growing has failed since.
func (t *Tier) takeSpace(v *volume, e *entry, bytes int64) ([]slab.Run, error) {
	for {
		t.mu.Lock()
		seen := v.frees
		err := t.writableLocked(e)
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
		runs, err := v.space.Alloc(bytes)
		if err == nil {
			return runs, nil
		}
		grown, growErr := t.grow(v, seen)
		if grown {
			continue
		}
		if err := t.waitSpace(v, e, seen); err != nil {
			return nil, errors.Join(err, growErr)
		}
	}
}

// waitSpace returns when space was freed since seen.
func (t *Tier) waitSpace(v *volume, e *entry, seen uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spaceWanted++
	defer func() { t.spaceWanted-- }()
	for v.frees == seen {
		if err := t.writableLocked(e); err != nil {
			return err
		}
		if v.stopping {
			return fmt.Errorf("disk: closing: %w", tier.ErrUnavailable)
		}
		if t.leaving == 0 {
			// Growing was counted on and has failed, or space is in too many runs.
			victim := t.victim(e.pool)
			if victim == nil {
				return fmt.Errorf("disk: no space for %x: %w", e.Key[:8], tier.ErrFull)
			}
			t.evictLocked(victim, &t.counters.EvictedRoom)
		}
		t.rows.Signal()
		t.syncs.Signal()
		t.space.Wait()
	}
	return nil
}

// giveSpace gives back what takeSpace took for an entry that was not placed.
func (t *Tier) giveSpace(v *volume, runs []slab.Run) {
	v.space.Free(runs)
	t.mu.Lock()
	v.frees++
	t.mu.Unlock()
	t.space.Broadcast()
}

// releaseSpace frees the space of forgotten entries.
func (t *Tier) releaseSpace(v *volume, e *entry, runs []slab.Run) {
	v.space.Free(runs)
	t.mu.Lock()
	if t.vol == v { // else the account has begun anew
		t.leaving -= e.bytes
	}
	v.frees++
	t.mu.Unlock()
	t.space.Broadcast()
}

// grow makes a slab more, if the budget and the file system allow it. One worker
// does; another finds the new slab.
func (t *Tier) grow(v *volume, seen uint64) (grown bool, err error) {
	v.growing.Lock()
	defer v.growing.Unlock()
	t.mu.Lock()
	changed, may := v.frees != seen, t.growableLocked(v) > 0
	t.mu.Unlock()
	if changed || !may {
		return changed, nil
	}
	defer v.writes.begin()()
	free, err := v.set.Free()
	if err != nil || free-t.cfg.SlabBytes < t.cfg.ReserveBytes {
		err = fmt.Errorf("disk: %d bytes free (%v), %d of them kept back: %w", free, err, t.cfg.ReserveBytes, slab.ErrNoSpace)
	}
	var made slab.SlabInfo
	if err == nil {
		made, err = v.set.Grow()
	}
	if err != nil {
		t.mu.Lock()
		t.counters.GrowthRefused++
		t.mu.Unlock()
		return false, t.writeTrouble(err)
	}
	v.space.AddSlab(made.Number, made.Bytes)
	t.mu.Lock()
	t.counters.SlabsMade++
	v.addSlab(made)
	v.frees++
	t.mu.Unlock()
	t.space.Broadcast()
	return true, nil
}

// growableLocked is how many slabs may be made.
func (t *Tier) growableLocked(v *volume) int64 {
	if t.state != StateOK {
		return 0
	}
	return max(t.cfg.PublicBytes+t.cfg.PrivateBytes-v.slabBytes.Load(), 0) / t.cfg.SlabBytes
}

// spaceLimitLocked is what all entries together may take.
func (t *Tier) spaceLimitLocked() int64 {
	v := t.vol
	return v.capacity + t.growableLocked(v)*(t.cfg.SlabBytes-t.cfg.GranuleBytes)
}
