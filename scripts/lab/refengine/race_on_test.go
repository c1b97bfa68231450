//go:build race

package refengine

const raceEnabled = true
