package objects

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Fill is the state of an object between its reservation and its publication.
// Guarded by the store's lock; fields up to ranks are fixed.
type Fill struct {
	Layout *plan.PartMap
	Ranks  []Filler // by rank; of is nil until the rank joins

	Left    int        // ranks that are not complete
	Copying int        // commits, or a read of the lower tier, that write into the object's memory now
	Level   tier.Level // highest that a commit asked for
	Dead    bool       // aborted; memory is free once copying is 0

	Promoted bool // the store fills it itself, no rank may join
	Fetched  bool // from beyond this node

	// What the writer says of it; a stripped checkpoint may have had another parent.
	Begin   int
	Extends profile.PrefixHash
}

// Filler is one rank's share of a fill: a reservation.
type Filler struct {
	ID      tier.ReservationID
	Object  *Object
	Rank    int
	Of      map[tier.ReservationID]*Filler // the reservations of who joined; nil until then
	Chunks  []ChunkState                   // of all parts, in order
	Left    int                            // chunks that are not done
	Digests []uint64                       // of the share's chunks, the share's once the object is published
}

// ChunkState is how far a chunk has come.
type ChunkState uint8

const (
	ChunkAbsent ChunkState = iota
	ChunkCopying
	ChunkDone
)

// NewFill begins the filling of an object as its writer wants it.
func NewFill(want *Object, l *plan.PartMap) *Fill {
	ranks := want.Profile.Ranks
	return &Fill{Layout: l, Ranks: make([]Filler, ranks), Left: ranks, Begin: want.Begin, Extends: want.Extends}
}
