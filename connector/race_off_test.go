//go:build !race

package connector

const raceDetector = false
