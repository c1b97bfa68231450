//go:build invariants

package link

// invariants enables checks that are too expensive for every run.
const invariants = true
