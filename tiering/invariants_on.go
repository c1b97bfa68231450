//go:build invariants

package tiering

const checked = true
