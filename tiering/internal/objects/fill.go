package objects

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Fill is the state of an object between its reservation and its publication. Guarded by
// the store's lock; Layout and Ranks are fixed.
type Fill struct {
	Layout *plan.PartMap
	Ranks  []Filler // by rank; Of is nil until the rank joins

	Left    int        // ranks that are incomplete
	Copying int        // number of commits or reads that are writing into the object's memory
	Level   tier.Level // highest level that a commit asked for
	Dead    bool       // aborted; memory is freed once Copying is 0

	Promoted bool // filled by a promotion; no rank may join
	Fetched  bool // promoted from outside this node

	// The first token and the parent, as the writer stated them. They differ from those of a
	// stripped checkpoint that had another parent.
	Begin   int
	Extends profile.PrefixHash
}

// Filler is one rank's share of a fill: a reservation.
type Filler struct {
	ID      tier.ReservationID
	Object  *Object
	Rank    int
	Of      map[tier.ReservationID]*Filler // the reservations of the session that has joined; nil until then
	Chunks  []ChunkState                   // chunks of all parts, in order
	Left    int                            // chunks that are not done
	Digests []uint64                       // digests of all chunks; they become the share's digests at publication
}

// ChunkState is the progress of a chunk.
type ChunkState uint8

const (
	ChunkAbsent ChunkState = iota
	ChunkCopying
	ChunkDone
)

// NewFill returns the fill of an object with the layout, first token and parent that its
// writer wants.
func NewFill(want *Object, l *plan.PartMap) *Fill {
	ranks := want.Profile.Ranks
	return &Fill{Layout: l, Ranks: make([]Filler, ranks), Left: ranks, Begin: want.Begin, Extends: want.Extends}
}
