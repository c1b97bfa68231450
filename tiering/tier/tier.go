// Package tier defines what a tier is: the names, kinds and errors shared by the store
// and the places where it keeps bytes, and the interface of a tier below memory. It holds
// no state and imports nothing from the store.
package tier

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Tier is the next slower tier below memory. The first group of methods reads memory
// only, never waits and never calls back, since the store calls them under its lock. The
// others are called without a lock. All methods may be called concurrently.
//
// The tier accounts for the bytes of each tenant. Only Admit adds to them and only the
// store calls Admit, under one lock, so a quota over both tiers is exact to the byte.
//
// Invariant: every checkpoint of the tier has its parent there.
type Tier interface {
	// Lookup finds an entry that Read can deliver. It does not count as a use.
	Lookup(n *Name) (Entry, bool)
	// Used returns the bytes a tenant is charged here, admitted writes included.
	Used(t TenantID) int64
	// Trim evicts the least recently used entries of a tenant until bytes are freed or no
	// evictable entry is left. Entries that are being read, that others extend or that
	// are named in spare are not evictable. One call evicts a bounded number of entries;
	// more reports that another call would free more.
	Trim(t TenantID, bytes int64, spare []Name) (freed int64, more bool)
	// Admit makes room for an object and counts it. room is the number of bytes the
	// tenant may hold here afterwards. One call evicts a bounded number of entries; if
	// more are needed, Used stops counting them at once and Start evicts them. An object
	// that is already here, or being written, is admitted without counting it again. The
	// caller starts or cancels the Write. ErrBusy: too much is being written or evicted;
	// ErrFull, ErrQuota: no room even after eviction; ErrUnavailable: this tier does not
	// write now; ErrInvalid: the object's parent is not here.
	Admit(o *Object, room int64) (Write, error)
	// Touch counts a use of an entry, if it exists.
	Touch(n *Name)

	// Read fills the memory of each rank with an entry's bytes, verifies them, and counts
	// a use. ErrCorrupt: they were wrong, and the entry is removed. ErrGone: the entry no
	// longer exists. ErrUnavailable: they cannot be read now. After an error the contents
	// of the memory are undefined.
	Read(ctx context.Context, e *Entry, dst []gpuipc.Ref) (*Content, error)
	// Remove removes an entry for an operator; false if there is none.
	Remove(n *Name) bool
}

// Write is an admitted write. Exactly one of its methods is called, once.
type Write interface {
	// Start begins the write and returns without waiting for it. done is called once,
	// from another goroutine and without a lock, when the object's memory is no longer
	// read and the object has reached the requested level or cannot reach it. reached is
	// the level that it has; with an error it is LevelMemory.
	Start(level Level, done func(reached Level, err error))
	// Cancel releases the room.
	Cancel()
}
