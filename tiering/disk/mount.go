package disk

import (
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
)

// mount is an open directory and its counts. A new one is created when the directory is
// opened again, after all users of the previous one are done.
type mount struct {
	*volume.Volume
	growing sync.Mutex // held while a slab is created

	// Guarded by the tier's lock.
	capacity int64             // usable by entries
	frees    uint64            // number of times that space was freed
	dirty    map[uint32]bool   // slabs written since the last sync
	lost     int64             // bytes given up after failed writes; not part of capacity
	bad      int               // failed writes in a row
	failures int               // failed syncs of data
	highest  uint64            // highest generation seen
	opened   uint64            // generation up to which bytes were synced at opening
	unproven bool              // there are suspects that no one has tried to read
	flying   map[*write]uint64 // writes without a row yet, each with a lower bound of its generation
	dormant  map[profile.Fingerprint]*dormancy
	writers  int // running
	stopping bool
}

func newMount(v *volume.Volume) *mount {
	return &mount{Volume: v, dirty: map[uint32]bool{}, flying: map[*write]uint64{}, dormant: map[profile.Fingerprint]*dormancy{}}
}

// wroteLocked marks slabs as dirty.
func (m *mount) wroteLocked(runs []slab.Run) {
	for _, r := range runs {
		m.dirty[r.Slab] = true
	}
}
