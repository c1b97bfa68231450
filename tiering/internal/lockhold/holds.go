//go:build !lockholds

// Package lockhold is a mutex that can tell for how long it was held, for benchmarks:
// with the build tag lockholds it does, without it is sync.Mutex.
package lockhold

import "sync"

// Mutex is a sync.Mutex.
type Mutex = sync.Mutex
