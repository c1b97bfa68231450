//go:build !lockholds

// Package lockhold is a mutex that counts how often it was taken and, for benchmarks
// with the build tag lockholds, for how long it was held.
package lockhold

import "sync"

// Mutex is a sync.Mutex that counts.
type Mutex struct {
	sync.Mutex
	uses uint64
}

// Lock is sync.Mutex's.
func (m *Mutex) Lock() {
	m.Mutex.Lock()
	m.uses++
}

// Uses is how often it was taken. It is for who holds it.
func (m *Mutex) Uses() uint64 { return m.uses }
