//go:build !invariants

package objects

const checked = false
