// Package decision records decisions about objects, with reason and value, for operators to read.
// It keeps the last decisions, and counts all of them. It makes no decisions itself. A Log has
// its own lock, which it holds at most while it copies one page of decisions. A Log may be used
// concurrently.
package decision

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Decision is one choice about an object.
type Decision struct {
	At      time.Time
	What    What
	Why     Reason
	Name    tier.Name
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Begin   int // a hit saves the computation of tokens [Begin, End)
	End     int
	Value   float64 // milliseconds saved by a hit per MiB of the object, as far as known
	Bytes   int64   // bytes of memory allocated, requested or freed

	// The fields below are empty for advice.
	Model  string     // name of the profile's model
	Client string     // the client that began to fill the object
	From   tier.Place // if admitted: the source of its bytes; PlaceNone = its writer
	In     tier.Place // PlaceHBM for a copy there (not kept in the log); PlaceDisk if evicted from disk; PlaceNone = memory
	Rival  Rival      // if evicted for room or a quota: the object that needed the room

	number uint64 // sequence number of all decisions
}

// Rival is the object for which another object was evicted; the zero Rival is none.
type Rival struct {
	Name  tier.Name
	Value float64 // as in Decision
}

// What is the kind of a decision. The numbers are not part of the local protocol.
type What uint8

// The decisions. The first six are events in memory or on disk. The last two are advice,
// which the cost model gives before an object is filled and which engines need not follow.
const (
	Admit         What = iota // lookups find the object from now on
	Refuse                    // there was no room
	Evict                     // it was evicted from disk, or from memory and no tier has it
	Strip                     // its states left memory, its rows stayed; users see "thinned"
	Demote                    // it was evicted from memory, and the lower tier or an outlet has it or is receiving it
	Drop                      // it had to be removed, whatever its value
	Advise                    // an engine was advised to fill it
	AdviseAgainst             // an engine was advised not to
	whats
)

// String returns the decision's name in metrics and output.
func (w What) String() string {
	if w >= whats {
		return "unknown"
	}
	return [...]string{"admitted", "refused", "evicted", "thinned", "demoted", "dropped", "advised", "discouraged"}[w]
}

// Reason is the reason of a decision: the number of a cost.Reason, or one of the store's reasons.
type Reason uint8

// The store's reasons.
const (
	Filled       Reason = 128 + iota // admitted: its writer has committed all of it
	FilledAgain                      // admitted: it was stripped, and has been saved again
	Promoted                         // admitted: a client asked for it
	ReadAhead                        // admitted: a match has named it
	ForRoom                          // evicted: another object needed its room
	ForQuota                         // evicted: its tenant is at its quota
	Childless                        // dropped: it was stripped, and has no children any more
	Removed                          // dropped: by an operator
	Corrupt                          // dropped: its bytes were not those published
	NoRoom                           // refused: everything in its pool is in use
	OverQuota                        // refused: everything of its tenant is in use
	Busy                             // refused: memory is still being freed, or a bound is reached
	ForDiskRoom                      // evicted from disk: another object needed its room
	ForDiskQuota                     // evicted from disk: its tenant is at its quota
	Together                         // refused: the objects requested together do not fit next to those in use
	reasonsEnd                       // end of the list
)

var reasonWords = [...]string{
	"filled by its writer", "thinned, and saved again", "promoted for a client", "promoted since a match named it",
	"for room in its pool", "for its tenant's quota", "thinned, and nothing extends it any more", "removed by an operator",
	"its bytes were wrong", "all in its pool is in use", "all that its tenant has is in use", "busy",
	"for room on disk", "for its tenant's quota, on disk",
	"wanted with others, together too much beside what is in use",
}

// String returns the reason in words.
func (r Reason) String() string {
	switch {
	case r < Filled:
		return cost.Reason(r).String()
	case r < reasonsEnd:
		return reasonWords[r-Filled]
	}
	return "no reason"
}
