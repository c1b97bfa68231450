// Package policy decides what the cache admits, evicts and moves, as functions of ids, sizes,
// costs and the time that a caller passes.
//
// It has no locks, goroutines, clock, I/O, logger or metrics, so that a trace replays exactly.
// Package tiering owns bytes, leases and trees, and asks a policy for victims. Nothing here is
// safe for concurrent use: the owner of a policy calls it under its own lock.
package policy

import (
	"math"
	"time"
)

// ID names an object of the cache. The owner chooses ids and does not reuse one
// while a policy has it.
type ID uint64

// Item describes an object to a policy.
type Item struct {
	Bytes  int64 // bytes freed by its eviction
	Tokens int   // tokens of prefill that a hit saves
	Tenant uint32
	// Key identifies the content: an object that returns after an eviction has a new ID and its
	// old Key. 0 means that the object has no key, and so no history.
	Key uint64
	// Saved is the time in ms that a hit saves, compared with recomputing the object or reading
	// it from the tier below. If the object extends another, only the work after that other
	// object counts. 0 or any value that is not finite and positive means unknown: Tokens is used
	// instead. Values are clamped to 1e-9..1e15. A policy would compare the milliseconds of one
	// item with the tokens of another, so Saved should be known for all items of a pool or for
	// none.
	Saved float64
	// Extends is the longest other object of this pool that is a prefix of this object, such as
	// the previous checkpoint; 0 = none. From this field the policy counts, for each object, how
	// many others extend it. The field changes when a longer prefix of this object is inserted,
	// or when the object that it names is removed. The owner then calls Update.
	Extends ID
}

// value returns what a hit saves: milliseconds or, if these are unknown, tokens.
func (it Item) value() float64 {
	if it.Saved > 0 && !math.IsInf(it.Saved, 1) {
		return min(max(it.Saved, 1e-9), 1e15)
	}
	return float64(max(it.Tokens, 1))
}

// density returns what a hit saves per byte that an eviction frees.
func (it Item) density() float64 { return it.value() / float64(max(it.Bytes, 1)) }

// Eviction ranks the objects of one pool and names the one to evict next. Every policy passes
// policytest.Conformance. Calls with unknown ids are ignored.
//
// An owner may Suspend an object that is in use. The object keeps its history, and Victim does
// not return it.
type Eviction interface {
	// Insert adds an object, used now. If the id exists, the object gets the new Item and counts
	// as used; a suspended object stays suspended.
	Insert(id ID, it Item, now time.Time)
	// Update replaces the Item of an object whose bytes or savings changed. It does not
	// count as a use.
	Update(id ID, it Item)
	// Touch records a use, also of a suspended object.
	Touch(id ID, now time.Time)
	// Suspend excludes an object from Victim until Resume. The object keeps its rank and
	// history. A second call has no effect.
	Suspend(id ID)
	// Resume ends a suspension. It does not count as a use.
	Resume(id ID)
	// Remove deletes an object. If Victim returned this object last, the removal counts as an
	// eviction, for policies whose clock advances with evictions.
	Remove(id ID)
	// Victim returns the object to evict first among those that evictable accepts, and does not
	// remove it. It returns false if there is none. A repeated call without changes returns the
	// same object. Victim calls evictable only with ids that are not suspended, and evictable
	// must not call the policy.
	Victim(evictable func(ID) bool) (ID, bool)
	// Len returns the number of objects, including suspended ones.
	Len() int
}
