package link

import (
	"testing"
	"time"
)

// TestStallThatNobodyEnds: a daemon that loses requests is tried again.
func TestStallThatNobodyEnds(t *testing.T) {
	var s stall
	for range StallCalls {
		if s.refuses() {
			t.Fatal("refused too early")
		}
		s.missed()
	}
	if !s.refuses() {
		t.Fatal("not refused")
	}
	s.probe.Store(time.Now().UnixNano() - 1)
	if s.refuses() || !s.refuses() {
		t.Fatal("not exactly one call is let through")
	}
	s.heard()
	if s.refuses() {
		t.Fatal("refused after a frame")
	}
	s.missed()
	s.heard()
	s.missed()
	s.missed()
	if s.refuses() {
		t.Fatal("calls before the last frame count")
	}
}
