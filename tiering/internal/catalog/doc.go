// Package catalog has the state that all parts of a store share: its configuration, its
// memory, and under one lock the objects (package objects) and counters. It does no I/O,
// moves no bytes and knows no other part of the store. It gets one function from them, by
// which it starts transfers.
//
// The lock is Catalog.Mu. Functions whose names end in Locked are called with it, and so are
// all methods of the set of objects. A critical section looks things up and counts them, a
// few rows at a time (HoldRows, objects.EvictRows).
package catalog
