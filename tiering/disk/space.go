package disk

import (
	"fmt"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// space frees and hands out room on the disk: it grows slabs, and evicts entries for a
// tenant's quota or for a full pool.
type space struct{ *core }

// takeSpace allocates space for an entry. It creates a slab or waits until the space of
// forgotten entries is free. Admit has counted the room, so there will be space unless a
// slab could not be created since.
func (t *space) takeSpace(m *mount, e *entry, bytes int64) ([]slab.Run, error) {
	for {
		t.mu.Lock()
		seen := m.frees
		err := t.writableLocked(e)
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
		runs, err := m.Space.Alloc(bytes)
		if err == nil {
			return runs, nil
		}
		grown, growErr := t.grow(m, seen)
		if grown {
			continue
		}
		if err := t.waitSpace(m, e, seen); err != nil {
			if growErr != nil {
				err = fmt.Errorf("%w (%w)", err, growErr)
			}
			return nil, err
		}
	}
}

// waitSpace waits until mount.frees differs from seen, which means that space was freed.
// It evicts an entry if no space is about to become free.
func (t *space) waitSpace(m *mount, e *entry, seen uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.syncing.spaceWanted++
	defer func() { t.syncing.spaceWanted-- }()
	for m.frees == seen {
		if err := t.writableLocked(e); err != nil {
			return err
		}
		if m.stopping {
			return fmt.Errorf("disk: closing: %w", tier.ErrUnavailable)
		}
		// No space is about to become free: a slab that Admit counted on could not be
		// created, or the free space is in too many runs.
		if t.leaving == 0 && !t.evictForRoomLocked(e.pool) {
			return fmt.Errorf("disk: no space for %x: %w", e.Key[:8], tier.ErrFull)
		}
		t.rows.Signal()
		t.syncs.Signal()
		t.room.Wait()
	}
	return nil
}

// giveSpace returns space from takeSpace that was not used.
func (t *space) giveSpace(m *mount, runs []slab.Run) {
	m.Space.Free(runs)
	t.mu.Lock()
	m.frees++
	t.mu.Unlock()
	t.room.Broadcast()
}

// releaseSpace frees the space of an entry that is gone.
func (t *core) releaseSpace(m *mount, e *entry) {
	if e.Runs == nil {
		return
	}
	m.Space.Free(e.Runs)
	t.mu.Lock()
	if t.mount == m { // otherwise t.leaving counts for a new mount
		t.leaving -= e.bytes
	}
	m.frees++
	t.mu.Unlock()
	t.room.Broadcast()
}

// grow creates one more slab, if the budget and the file system allow it. Only one worker
// does so at a time. The result grown is true if there may be new space: from the new slab,
// or because space was freed since m.frees had the value seen.
func (t *space) grow(m *mount, seen uint64) (grown bool, err error) {
	m.growing.Lock()
	defer m.growing.Unlock()
	t.mu.Lock()
	changed, may := m.frees != seen, t.growableLocked(m) > 0
	t.mu.Unlock()
	if changed || !may {
		return changed, nil
	}
	defer m.Writes.Begin()()
	free, err := m.FileSystemFree()
	switch {
	case err != nil:
		err = fmt.Errorf("free bytes of the file system: %w: %w", err, slab.ErrNoSpace)
	case free-t.cfg.SlabBytes < t.cfg.ReserveBytes:
		err = fmt.Errorf("%d bytes free, %d of them kept back, a slab takes %d: %w", free, t.cfg.ReserveBytes, t.cfg.SlabBytes, slab.ErrNoSpace)
	}
	var made slab.SlabInfo
	if err == nil {
		made, err = m.Grow()
	}
	if err != nil {
		t.mu.Lock()
		t.counters.GrowthRefused++
		t.mu.Unlock()
		t.trouble(afterWrite(err), err)
		return false, err
	}
	m.Space.AddSlab(made.Number, made.Bytes)
	t.mu.Lock()
	t.counters.SlabsMade++
	m.capacity += m.CountSlab(made)
	m.frees++
	t.mu.Unlock()
	t.room.Broadcast()
	return true, nil
}

// growableLocked returns the number of slabs that may be created.
func (t *space) growableLocked(m *mount) int64 {
	if t.health.state != StateOK {
		return 0
	}
	return max(t.cfg.PublicBytes+t.cfg.PrivateBytes-m.SlabBytes(), 0) / t.cfg.SlabBytes
}

// spaceLimitLocked returns the bytes available to all entries together, including slabs
// that may still be created.
func (t *space) spaceLimitLocked() int64 {
	return t.mount.capacity + t.growableLocked(t.mount)*(t.cfg.SlabBytes-t.cfg.GranuleBytes)
}
