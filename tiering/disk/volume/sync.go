package volume

import "fmt"

// syncedName is the name of the counter that holds the synced generation: the bytes of
// every entry up to this generation were synced. The counter is written after these
// bytes, and reaches the disk with the rows of the same sync. When the directory is
// opened, entries of higher generations may have lost their bytes in a power cut.
const syncedName = "synced_generation"

// Sync syncs the given slabs, then all rows, and records that the bytes of all generations
// up to the parameter synced are synced. An entry counts as synced only if both its bytes
// and its row are; a row whose bytes are lost in a power cut costs a miss. The result data
// is an error of the slabs. It is slab.ErrMissing if the synced files are no longer found
// in the directory; after any other error of the slabs, the rows were not synced. The
// result rows is an error of the catalogue.
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
