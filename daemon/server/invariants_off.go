//go:build !invariants

package server

// invariants enables checks that are too expensive for every run.
const invariants = false
