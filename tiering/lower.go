package tiering

import (
	"context"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Level is how safe an object is, or has to be before its commit is answered.
// The numbers are those of the local protocol.
type Level uint8

// The levels, each with what it survives.
const (
	LevelDefault Level = 0 // of a request: what the store's configuration says
	LevelMemory  Level = 1 // nothing
	LevelLogged  Level = 2 // a killed process: the kernel has the data and the row that finds it
	LevelSynced  Level = 3 // power loss: the disk has both
)

// Name is what an object is known by in every tier. The zero Name is none.
type Name struct {
	Kind CheckpointKind // 0 = segment
	Key  [32]byte       // segment key or prefix hash
}

// Entry is what a tier knows of an object without I/O.
type Entry struct {
	Name
	Fingerprint profile.Fingerprint
	Tenant      TenantID            // 0 = a tenant that is not configured now: nobody's hit
	Spec        profile.SegmentSpec // segments
	Begin, End  int                 // segments: the interior; checkpoints: rows held
	Parent      Name                // checkpoints: the node this one extends, in the same tier
	Bytes       int64               // what the entry takes in the tier, to the byte
	Level       Level               // LevelLogged or LevelSynced
	Generation  uint64              // tells this entry from an earlier or later one of the same name
}

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
	// Used is how many bytes a tenant holds here, admitted writes included.
	Used(t TenantID) int64
	// Trim forgets least recently used entries of a tenant until bytes are
	// freed or none is left that may go, and answers what was freed. An entry
	// that is read at the moment, or that others extend, may not.
	Trim(t TenantID, bytes int64) (freed int64)
	// Admit makes room for an object and counts it; room is how many bytes the
	// tenant may hold here afterwards. What is here already, or on its way, is
	// admitted without counting again. The answer is to be started or
	// canceled. ErrBusy: too much is being written; ErrFull, ErrQuota: no room
	// even after eviction; ErrUnavailable: this tier does not write now;
	// ErrInvalid: its parent is not here.
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
	// Start begins to write and does not wait. done is called once, from
	// another goroutine and without a lock: when the object's memory is not
	// read any more and the object has reached the level asked for, or cannot.
	// reached is what it has reached; LevelMemory beside an error.
	Start(level Level, done func(reached Level, err error))
	// Cancel gives the room back.
	Cancel()
}

// Content is what a tier keeps beside an object's bytes.
type Content struct {
	Publisher string
	Tokens    []uint32   // segments: the token ids
	Digests   [][]uint64 // by rank, of each chunk of each part
}
