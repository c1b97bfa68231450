package volume

import "fmt"

// syncedName is the counter for the highest generation up to which the bytes of every
// entry were synced. It is written after them, and reaches the disk with the rows of the
// same sync. When the directory is opened, entries above it may have lost their bytes in
// a power cut.
const syncedName = "synced_generation"

// Sync syncs what was written to some slabs, then all rows, and records that bytes up to
// a generation are synced. A row whose data is lost in a power cut costs a miss, but a
// level that was acknowledged needs both. After an error of data the rows were not
// synced. slab.ErrMissing, as an error of data: what was synced is not found in the
// directory.
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

// Synced returns the generation that Sync recorded last before the directory was opened.
func (v *Volume) Synced() uint64 { return v.Catalog.Counters()[syncedName] }
