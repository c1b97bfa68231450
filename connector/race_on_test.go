//go:build race

package connector

// raceDetector: sync.Pool then forgets at random, so that nothing can be said
// about allocations.
const raceDetector = true
