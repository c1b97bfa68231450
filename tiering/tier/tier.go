// Package tier defines what a tier is: the names, kinds and errors that the store shares
// with the places that keep objects, and the interfaces of the tier below memory, of
// remote sources and of sinks. It holds no state and imports nothing from the store.
package tier

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Tier is the next slower tier below memory. The store calls the methods up to Touch under
// its lock; they read memory only, never wait and never call the store. It calls Read and
// Remove without a lock. All methods may be called concurrently.
//
// The tier counts the bytes of each tenant. Only Admit adds to them, and only the store
// calls Admit, under one lock. So a quota over memory and the tier is exact to the byte.
//
// Invariant: the tier has the parent of each of its checkpoints.
type Tier interface {
	// Lookup finds an entry that Read can deliver. It does not count as a use.
	Lookup(n *Name) (Entry, bool)
	// Used returns the bytes charged to a tenant in this tier, including admitted writes.
	Used(t TenantID) int64
	// Trim evicts the least recently used entries of a tenant until it has freed the given
	// number of bytes or no evictable entry is left. An entry is not evictable while it is
	// read, if others extend it, or if the list spare names it. One call evicts a bounded
	// number of entries. The result more is true if another call would free more bytes.
	Trim(t TenantID, bytes int64, spare []Name) (freed int64, more bool)
	// Admit makes room for an object and charges it to its tenant. The parameter room is the
	// number of bytes that the tenant may have in this tier afterwards. One call evicts a
	// bounded number of entries. If more evictions are needed, Used excludes these entries at
	// once and Start evicts them. An object that is already in this tier, or being written, is
	// admitted without a second charge. The caller starts or cancels the Write. Errors: ErrBusy
	// if too much is being written or evicted, ErrFull or ErrQuota if there is no room even
	// after evictions, ErrUnavailable if this tier does not write now, ErrInvalid if it does
	// not have the object's parent.
	Admit(o *Object, room int64) (Write, error)
	// Touch counts a use of an entry, if it exists.
	Touch(n *Name)

	// Read fills the memory of each rank with an entry's bytes, verifies them, and counts
	// a use of the entry. Errors: ErrCorrupt if the bytes were wrong (the entry is then
	// removed), ErrGone if the entry no longer exists, ErrUnavailable if it cannot be read
	// now. After an error the contents of the memory are undefined.
	Read(ctx context.Context, e *Entry, dst []gpuipc.Ref) (*Content, error)
	// Remove removes an entry for an operator. It returns false if there is none.
	Remove(n *Name) bool
}

// Write is an admitted write. Exactly one of its methods is called, once.
type Write interface {
	// Start begins the write and returns without waiting for it. The function done is called
	// once, from another goroutine and without a lock. The object's memory is then no longer
	// read, and the object has reached the requested level or cannot reach it. The argument
	// reached is the level that the object has; with an error it is LevelMemory.
	Start(level Level, done func(reached Level, err error))
	// Cancel releases the room that Admit made.
	Cancel()
}
