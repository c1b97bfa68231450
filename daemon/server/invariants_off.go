//go:build !invariants

package server

// invariants switches on checks that cost too much for every run.
const invariants = false
