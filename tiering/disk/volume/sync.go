package volume

import "fmt"

// syncedName is the counter that holds the highest generation up to which the bytes
// of every entry were synced. It is written after them, and is on the disk with the
// rows of the same sync. Entries whose rows lie beyond it when the directory is
// opened may have lost their bytes with the power.
const syncedName = "synced_generation"

// Sync makes last what was written into some slabs, then all rows, and notes that
// bytes up to a generation are synced. A row that power loss leaves without its data
// costs a miss, but one that was promised needs both. After an error of data the
// rows were not synced. slab.ErrMissing, as an error of data: what was synced is not
// found in the directory.
func (v *Volume) Sync(slabs []uint32, synced uint64) (data, rows error) {
	defer v.Writes.Begin()()
	if len(slabs) > 0 {
		if err := v.set.Sync(slabs...); err != nil {
			return fmt.Errorf("sync: %w", err), nil
		}
	}
	if err := v.Catalog.SaveCounters(map[string]uint64{syncedName: synced}); err != nil {
		return nil, err
	}
	if err := v.Catalog.SyncNow(); err != nil {
		return nil, err
	}
	if err := v.Present(); err != nil {
		return fmt.Errorf("sync: %w", err), nil
	}
	return nil, nil
}

// Synced is the generation that Sync noted last before the directory was opened.
func (v *Volume) Synced() uint64 { return v.Catalog.Counters()[syncedName] }
