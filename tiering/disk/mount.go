package disk

import (
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
)

// mount is an open directory and what is counted of it while it is open. It is made
// anew when the directory is opened again, after everybody has let go of the one
// before.
type mount struct {
	*volume.Volume
	growing sync.Mutex // held while a slab is made

	// Guarded by the tier's lock.
	capacity int64             // bytes that entries can take
	frees    uint64            // times that space came free
	dirty    map[uint32]bool   // slabs written since the last sync
	lost     int64             // bytes given up after writes that failed, no part of capacity
	bad      int               // writes that failed, in a row
	failures int               // syncs of data that failed
	highest  uint64            // generation that was seen
	opened   uint64            // generation up to which bytes were synced when it was opened
	unproven bool              // there are suspects that nobody has tried to read
	flying   map[*write]uint64 // writes on their way to a row: no lower generation will be theirs
	dormant  map[profile.Fingerprint]*dormancy
	writers  int // running
	stopping bool
}

func newMount(v *volume.Volume) *mount {
	return &mount{Volume: v, dirty: map[uint32]bool{}, flying: map[*write]uint64{}, dormant: map[profile.Fingerprint]*dormancy{}}
}

// wroteLocked notes that slabs are dirty.
func (m *mount) wroteLocked(runs []slab.Run) {
	for _, r := range runs {
		m.dirty[r.Slab] = true
	}
}
