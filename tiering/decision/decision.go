// Package decision keeps what was decided about objects, with the reason and the
// value, for people to read: the last decisions, and how often each was made. It
// decides nothing itself. A Log has a lock of its own, may be used by many at once
// and is held for no more than a copy of a page.
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
	Value   float64 // milliseconds that a hit saves for each MiB that it takes, as far as known
	Bytes   int64   // of memory that came into use, was asked for or was given back

	// The rest is empty of advice.
	Model  string     // of the profile
	Client string     // who began to fill it
	From   tier.Place // admitted: where its bytes were; PlaceNone = with its writer
	In     tier.Place // PlaceHBM of a copy there, which is only told; PlaceDisk: it left the disk; PlaceNone = memory
	Rival  Rival      // left for room or a quota: what needed it

	number uint64 // of all decisions, in their order
}

// Rival is what another object had to leave for; the zero Rival is none.
type Rival struct {
	Name  tier.Name
	Value float64 // as that of a Decision
}

// What was decided. The numbers are not on the wire of the local protocol.
type What uint8

// The decisions. The first six are what happened in memory, or on disk; advice is given by the
// cost model before anything is filled, and nobody has to follow it.
const (
	Admit         What = iota // lookups find it from now on
	Refuse                    // there was no room
	Evict                     // it left memory, and no tier has it; or the disk
	Strip                     // its states left memory, its rows stayed; users see "thinned"
	Demote                    // it left memory, the lower tier has it or is getting it
	Drop                      // it had to go, whatever its value
	Advise                    // an engine was advised to fill it
	AdviseAgainst             // an engine was advised not to
	whats
)

// String names a decision as metrics and people see it.
func (w What) String() string {
	if w >= whats {
		return "unknown"
	}
	return [...]string{"admitted", "refused", "evicted", "thinned", "demoted", "dropped", "advised", "discouraged"}[w]
}

// Reason of a decision: a cost.Reason, by its number, or one of the store's.
type Reason uint8

// The store's reasons.
const (
	Filled       Reason = 128 + iota // admitted: its writer has committed all of it
	FilledAgain                      // admitted: it was stripped, and saved once more
	Promoted                         // admitted: a client asked for it
	ReadAhead                        // admitted: a match has named it
	ForRoom                          // left: another object needed its room
	ForQuota                         // left: its tenant is at its quota
	Childless                        // dropped: it was stripped, and nothing extends it any more
	Removed                          // dropped: by an operator
	Corrupt                          // dropped: its bytes were not those published
	NoRoom                           // refused: all in its pool is in use
	OverQuota                        // refused: all that its tenant has is in use
	Busy                             // refused: its room is still being demoted, or a bound is met
	ForDiskRoom                      // left the disk: another object needed its room
	ForDiskQuota                     // left the disk: its tenant is at its quota
	Together                         // refused: it was wanted with others, and they do not all fit beside what is in use
	reasonsEnd                       // not one
)

var reasonWords = [...]string{
	"filled by its writer", "thinned, and saved again", "promoted for a client", "promoted since a match named it",
	"for room in its pool", "for its tenant's quota", "thinned, and nothing extends it any more", "removed by an operator",
	"its bytes were wrong", "all in its pool is in use", "all that its tenant has is in use", "busy",
	"for room on disk", "for its tenant's quota, on disk",
	"wanted with others, together too much beside what is in use",
}

// String is the reason in words.
func (r Reason) String() string {
	switch {
	case r < Filled:
		return cost.Reason(r).String()
	case r < reasonsEnd:
		return reasonWords[r-Filled]
	}
	return "no reason"
}
