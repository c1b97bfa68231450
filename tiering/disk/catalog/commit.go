package catalog

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Change puts or deletes one entry.
type Change struct {
	Row      *Row         // put; replaces an entry of the same name
	Manifest []byte       // only with Row: the manifest as stored in the extent; nil = unchanged
	Delete   *extent.Name // instead of Row: the entry, its manifest and its last use
}

// Use is the last use of an entry.
type Use struct {
	extent.Name
	At int64 // nanoseconds since 1970
}

// Commit makes changes in their order, all or none. An unsynced commit returns when the
// kernel has the changes. A synced commit returns when the disk has them and all earlier
// commits; Commit(nil, true) only syncs.
//
// After tier.ErrInvalid no change was made. After any other error it is unknown whether
// the changes were made.
func (c *Catalog) Commit(changes []Change, synced bool) error {
	for i := range changes {
		if err := changes[i].check(); err != nil {
			return err
		}
	}
	if len(changes) == 0 {
		if synced {
			return c.SyncNow()
		}
		return c.Failed()
	}
	return c.write(synced, func(b *pebble.Batch) error {
		for i := range changes {
			if err := changes[i].apply(b); err != nil {
				return err
			}
		}
		return nil
	})
}

func (ch *Change) check() error {
	if (ch.Row == nil) == (ch.Delete == nil) || ch.Row == nil && ch.Manifest != nil {
		return fmt.Errorf("a change is a row or a name to delete: %w", tier.ErrInvalid)
	}
	if ch.Row == nil {
		return nil
	}
	if err := ch.Row.check(); err != nil {
		return fmt.Errorf("%v: %s: %w", ch.Row.Name, err, tier.ErrInvalid)
	}
	if len(ch.Manifest) > extent.MaxStoredManifestBytes {
		return fmt.Errorf("%v: manifest of %d bytes: %w", ch.Row.Name, len(ch.Manifest), tier.ErrInvalid)
	}
	return nil
}

func (ch *Change) apply(b *pebble.Batch) error {
	if n := ch.Delete; n != nil {
		for _, space := range [...]byte{spaceEntry, spaceManifest, spaceUse} {
			if err := b.Delete(nameKey(space, n), nil); err != nil {
				return err
			}
		}
		return nil
	}
	row := ch.Row.append(make([]byte, 0, rowMaxBytes))
	if err := b.Set(nameKey(spaceEntry, &ch.Row.Name), row, nil); err != nil {
		return err
	}
	if ch.Manifest == nil {
		return nil
	}
	value := append([]byte{manifestVersion}, ch.Manifest...)
	return b.Set(nameKey(spaceManifest, &ch.Row.Name), value, nil)
}

// The method write commits a batch, which the function fill has filled. If synced is true,
// write returns when the disk has the batch, and otherwise when the kernel has it.
func (c *Catalog) write(synced bool, fill func(b *pebble.Batch) error) error {
	// With pebble.NoSync the record would stay in the process until the next sync. With
	// pebble.Sync Pebble writes it to the kernel; the guard skips the sync itself.
	if err := c.apply(pebble.Sync, fill); err != nil {
		return err
	}
	if !synced {
		return nil
	}
	return c.SyncNow()
}

// apply writes a batch to Pebble's log and memory table.
func (c *Catalog) apply(how *pebble.WriteOptions, fill func(b *pebble.Batch) error) error {
	_, err := call(c, func() (struct{}, error) {
		b := c.db.NewBatch()
		err := fill(b)
		if err == nil {
			err = c.db.Apply(b, how)
		}
		if err == nil {
			err = b.Close()
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// SyncNow returns when everything committed before the call is on the disk. Concurrent
// callers share a sync.
func (c *Catalog) SyncNow() error {
	_, err := call(c, func() (struct{}, error) { return struct{}{}, c.g.syncLogs() })
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// Present checks that the files that Pebble is writing are still found under their names.
// It returns slab.ErrMissing if a file was removed or renamed.
func (c *Catalog) Present() error {
	_, err := call(c, func() (struct{}, error) { return struct{}{}, c.g.present() })
	return err
}

// SaveUses saves last uses cheaply: they reach the disk with the next commit, or whenever
// Pebble decides. If the process ends before that, they are lost. The next Load deletes
// uses of entries that do not exist.
func (c *Catalog) SaveUses(uses []Use) error {
	if len(uses) == 0 {
		return c.Failed()
	}
	return c.apply(pebble.NoSync, func(b *pebble.Batch) error {
		for i := range uses {
			if err := b.Set(nameKey(spaceUse, &uses[i].Name), uint64Row(useVersion, uint64(uses[i].At)), nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// Manifest returns the stored manifest of an entry. If the catalogue has failed, the
// entry's extent still has it.
func (c *Catalog) Manifest(n extent.Name) (manifest []byte, ok bool, err error) {
	row, ok, err := c.get(nameKey(spaceManifest, &n))
	if err != nil || !ok {
		return nil, false, err
	}
	if err := checkVersion(row, manifestVersion, "manifest"); err != nil {
		return nil, false, fmt.Errorf("%v: %w", n, err)
	}
	return row[1:], true, nil
}

// get returns a copy of a value.
func (c *Catalog) get(key []byte) (value []byte, ok bool, err error) {
	value, err = call(c, func() ([]byte, error) {
		v, closer, err := c.db.Get(key)
		if err != nil {
			return nil, err
		}
		out := append([]byte{}, v...)
		return out, closer.Close()
	})
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	return value, err == nil, marked(err)
}
