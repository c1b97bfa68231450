//go:build !lockholds

// Package lockhold is a mutex that counts how often it was taken and, for benchmarks
// with the build tag lockholds, for how long it was held.
package lockhold

import "sync"

// Mutex is a sync.Mutex that counts.
type Mutex struct {
	sync.Mutex
	uses uint64 // how often it was taken; under it
}

// Lock is sync.Mutex's.
func (m *Mutex) Lock() {
	m.Mutex.Lock()
	m.uses++
}
