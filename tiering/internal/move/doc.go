// Package move moves a store's objects between tiers, and makes room for them. A Mover has
// the parts: one for each direction, each with its own state and one transfer engine (package
// transfer), and those that evict and that change budgets. Copies in HBM have an engine per
// device in package hbm.
//
// All state is guarded by the catalog's lock. Code begins a transfer under the lock; workers
// of the store, of the lower tier or of a sink carry it out without the lock; its end is
// recorded under the lock again.
package move
