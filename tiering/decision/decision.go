// Package decision records decisions about objects, with reason and value, for people to
// read: the last ones, and counts of all. It makes no decisions itself. A Log has its own
// lock, may be used concurrently and is locked for no longer than a copy of a page.
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
	Begin   int // tokens [Begin, End): what a hit saves
	End     int
	Value   float64 // milliseconds saved by a hit per MiB of the object, as far as known
	Bytes   int64   // of memory allocated, requested or freed

	// The other fields are empty for advice.
	Model  string     // of the profile
	Client string     // the client that started to fill it
	From   tier.Place // admitted: source of its bytes; PlaceNone = its writer
	In     tier.Place // PlaceHBM for a copy there, which is only reported; PlaceDisk: evicted from disk; PlaceNone = memory
	Rival  Rival      // evicted for room or a quota: the object that needed it

	number uint64 // sequence number of all decisions
}

// Rival is the object for which another one was evicted; the zero Rival is none.
type Rival struct {
	Name  tier.Name
	Value float64 // as in Decision
}

// What is the kind of a decision. The numbers are not part of the local protocol.
type What uint8

// The decisions. The first six are events in memory, or on disk. Advice is given by the
// cost model before anything is filled, and is not binding.
const (
	Admit         What = iota // lookups find it from now on
	Refuse                    // there was no room
	Evict                     // evicted from memory, and no tier has it; or from disk
	Strip                     // its states left memory, its rows stayed; users see "thinned"
	Demote                    // evicted from memory, the lower tier has it or is receiving it
	Drop                      // had to be removed, whatever its value
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

// Reason is the reason of a decision: a cost.Reason, by its number, or one of the
// store's.
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
	Busy                             // refused: its room is still being demoted, or a bound is reached
	ForDiskRoom                      // evicted from disk: another object needed its room
	ForDiskQuota                     // evicted from disk: its tenant is at its quota
	Together                         // refused: one of several requested together that do not fit next to what is in use
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
