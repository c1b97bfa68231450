// Package tier says what a tier is: the names, kinds and errors that the store and
// the places it keeps bytes in share, and the interface that a tier below memory
// implements. It holds no state and imports nothing of the store.
package tier

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Tier is the next slower tier below memory. The methods of the first group
// look at memory only, never wait and never call back: the store calls them under
// its lock. The others are called without a lock. All may run at once.
//
// The tier keeps account of what each tenant holds in it; since only Admit adds
// to it and only the store calls Admit, under one lock, a quota over both tiers
// holds to the byte.
//
// Invariant: every checkpoint of the tier has its parent there.
type Tier interface {
	// Lookup finds what Read can give. It is not a use.
	Lookup(n *Name) (Entry, bool)
	// Used is how many bytes a tenant is charged here, admitted writes included: all
	// that is held for its entries.
	Used(t TenantID) int64
	// Trim forgets least recently used entries of a tenant until bytes are
	// freed or none is left that may go. An entry that is being read, that
	// others extend or that is named in spare may not. A call forgets a bounded
	// number of entries; more says that another call would free more.
	Trim(t TenantID, bytes int64, spare []Name) (freed int64, more bool)
	// Admit makes room for an object and counts it; room is how many bytes the
	// tenant may hold here afterwards. A call forgets a bounded number of entries;
	// if it takes more, Used does not count them any more, and Start forgets them.
	// What is here already, or on its way, is admitted without counting again. The
	// answer is to be started or canceled. ErrBusy: too much is being written, or
	// forgotten; ErrFull, ErrQuota: no room even after eviction; ErrUnavailable:
	// this tier does not write now; ErrInvalid: its parent is not here.
	Admit(o *Object, room int64) (Write, error)
	// Touch counts a use of an entry, if there is one.
	Touch(n *Name)

	// Read fills the memory of each rank with an entry's bytes, checked, and
	// counts a use. ErrCorrupt: they were wrong, and the entry is forgotten.
	// ErrGone: the entry is not there any more. ErrUnavailable: they cannot be
	// read now. After an error the memory holds anything.
	Read(ctx context.Context, e *Entry, dst []gpuipc.Ref) (*Content, error)
	// Remove forgets an entry that an operator removed; false when there is none.
	Remove(n *Name) bool
}

// Write is an admitted write. Exactly one of its methods is called, once.
type Write interface {
	// Start begins to write and does not wait for that. done is called once, from
	// another goroutine and without a lock: when the object's memory is not
	// read any more and the object has reached the level asked for, or cannot.
	// reached is what it has reached; LevelMemory beside an error.
	Start(level Level, done func(reached Level, err error))
	// Cancel gives the room back.
	Cancel()
}
