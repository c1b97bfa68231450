// Package policy holds the decisions of the cache as functions of ids, sizes,
// costs and a passed-in now: what leaves a full pool, what comes in and where it
// goes.
//
// It has no locks, goroutines, clock, I/O, logger or metrics, so that a trace
// replays exactly. It leaves bytes, leases and trees to package tiering, which
// asks it for victims. Nothing here is safe for concurrent use: the owner of a
// policy calls it under its own lock.
package policy

import (
	"math"
	"time"
)

// ID names an object of the cache. The owner chooses ids and does not reuse one
// while a policy holds it.
type ID uint64

// Item is what a policy may know of an object.
type Item struct {
	Bytes  int64 // memory that its eviction gives back
	Tokens int   // tokens of prefill that a hit saves
	Tenant uint32
	// Key names the content whatever its ID: what comes back after an eviction
	// has a new ID and its old Key. 0 = none, such an object has no past.
	Key uint64
	// Saved is the milliseconds that a hit saves against not having the object in
	// this pool (computing it again, or reading it from the tier below), against
	// having what it extends. 0 = unknown: Tokens stand in for it. One pool holds
	// items that know it or items that do not, else the two are compared. What is
	// no finite positive number counts as unknown, and a value is cut to
	// 1e-9..1e15.
	Saved float64
	// Extends is the object of this pool that this one begins with and is nearest
	// to, such as the checkpoint before it: 0 = none. The policy counts by it what
	// extends an object. When something comes between the two, or what came
	// between leaves, the owner says so by Update.
	Extends ID
}

// value is what a hit saves, in milliseconds or, where they are unknown, tokens.
func (it Item) value() float64 {
	if it.Saved > 0 && !math.IsInf(it.Saved, 1) {
		return min(max(it.Saved, 1e-9), 1e15)
	}
	return float64(max(it.Tokens, 1))
}

// density is what a hit saves per byte that its eviction gives back.
func (it Item) density() float64 { return it.value() / float64(max(it.Bytes, 1)) }

// Eviction orders the objects of one pool by how little they would be missed.
// Every policy passes policytest.Conformance. Calls for an id that is not held
// are ignored.
//
// An owner may keep an object that is in use held and Suspend it: then no victim
// is ever looked for among objects that may not leave, and its history stays.
type Eviction interface {
	// Insert adds an object, used now. An id that is held already gets the new
	// Item and counts as used; a suspended one stays suspended.
	Insert(id ID, it Item, now time.Time)
	// Update gives an object a new Item, because its bytes or what it saves
	// changed. It is no use.
	Update(id ID, it Item)
	// Touch notes a use, also of a suspended object.
	Touch(id ID, now time.Time)
	// Suspend says that an object may not leave for now: it is no victim and is
	// not asked for, but keeps its place and history. Twice is as once.
	Suspend(id ID)
	// Resume ends a suspension. It is no use.
	Resume(id ID)
	// Remove forgets an object. What Victim named last counts as evicted, so that
	// clocks that move with evictions do.
	Remove(id ID)
	// Victim names the object that should leave first among those for which
	// evictable answers true, and leaves it held; false means there is none.
	// Asked again with nothing changed it gives the same answer. evictable is
	// called for held ids that are not suspended and must not call back.
	Victim(evictable func(ID) bool) (ID, bool)
	// Len is the number of objects held, suspended ones included.
	Len() int
}
