// Package policy holds the decisions of the cache as functions of ids, sizes,
// costs and a passed-in now: what leaves a full pool, later also what comes in
// and where it goes.
//
// It has no locks, goroutines, clock, I/O, logger or metrics, so that a trace
// replays exactly. It leaves bytes, leases and trees to package tiering, which
// asks it for victims. Nothing here is safe for concurrent use: the owner of a
// policy calls it under its own lock.
package policy

import "time"

// ID names an object of the cache. The owner chooses ids and does not reuse one
// while a policy holds it.
type ID uint64

// Item is what a policy may know of an object.
type Item struct {
	Bytes  int64 // memory that its eviction gives back
	Tokens int   // tokens of prefill that a hit saves
	Tenant uint32
}

// Eviction orders the objects of one pool by how little they would be missed.
// Every policy passes policytest.Conformance.
//
// An owner may keep an object that is in use held and Touch it, or Remove it for
// as long as nothing can evict it and Insert it again: then no victim is ever
// looked for among objects that may not leave.
type Eviction interface {
	// Insert adds an object, used now. An id that is held already gets the new
	// Item and counts as used.
	Insert(id ID, it Item, now time.Time)
	// Touch notes a use. An id that is not held is ignored.
	Touch(id ID, now time.Time)
	// Remove forgets an object. An id that is not held is ignored.
	Remove(id ID)
	// Victim names the object that should leave first among those for which
	// evictable answers true, and leaves it held; false means there is none.
	// Asked again with nothing changed it gives the same answer. evictable is
	// called for held ids only and must not call back.
	Victim(evictable func(ID) bool) (ID, bool)
	// Len is the number of objects held.
	Len() int
}
