package disk

import (
	"errors"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
)

// mount is an open directory and its counts. A new mount is created when the directory is
// opened again, after all users of the previous mount are done.
type mount struct {
	*volume.Volume
	growing sync.Mutex // held while a slab is created

	// Guarded by the tier's lock.
	capacity int64             // bytes that entries can use in the slabs
	frees    uint64            // number of times that space was freed
	dirty    map[uint32]bool   // numbers of the slabs written since the last sync
	lost     int64             // bytes not used any more after failed writes; not part of capacity
	bad      int               // failed writes in a row
	failures int               // number of failed syncs of slabs
	highest  uint64            // highest generation seen
	opened   uint64            // generation up to which bytes were synced at opening
	unproven bool              // proveLoop has to read the suspects (again)
	flying   map[*write]uint64 // writes without a row yet, each with a lower bound of its generation
	dormant  map[profile.Fingerprint]*dormancy
	unjudged bool // no extent has shown yet whether KEY belongs to the store
	strange  bool // one seems to have another key's seal: the directory has to be opened again
	writers  int  // number of running workers
	stopping bool
}

func newMount(v *volume.Volume) *mount {
	return &mount{Volume: v, dirty: map[uint32]bool{}, flying: map[*write]uint64{}, dormant: map[profile.Fingerprint]*dormancy{}}
}

// strangeLocked reports whether an error of a read may mean that KEY is another store's. No
// entry is dropped then: the next opening judges the key, now that a profile is known.
func (m *mount) strangeLocked(err error) bool {
	if !m.unjudged || !errors.Is(err, extent.ErrSeal) {
		return false
	}
	m.strange = true
	return true
}

// wroteLocked marks slabs as dirty.
func (m *mount) wroteLocked(runs []slab.Run) {
	for _, r := range runs {
		m.dirty[r.Slab] = true
	}
}
