//go:build !lockholds

// Package lockhold is a mutex that counts its acquisitions. With the build tag lockholds,
// for benchmarks, it also measures how long it was held.
package lockhold

import "sync"

// Mutex is a sync.Mutex that counts its acquisitions.
type Mutex struct {
	sync.Mutex
	uses uint64 // acquisitions; guarded by the mutex
}

// Lock locks the mutex and counts the acquisition.
func (m *Mutex) Lock() {
	m.Mutex.Lock()
	m.uses++
}
