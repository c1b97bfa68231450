//go:build !lockholds

// Package lockhold is a mutex that counts its acquisitions and, for benchmarks with the
// build tag lockholds, measures how long it was held.
package lockhold

import "sync"

// Mutex is a sync.Mutex that counts.
type Mutex struct {
	sync.Mutex
	uses uint64 // acquisitions; guarded by the mutex
}

// Lock is sync.Mutex.Lock with a count.
func (m *Mutex) Lock() {
	m.Mutex.Lock()
	m.uses++
}
