package server

import (
	"testing"
	"time"
)

// Whoever is refused may come again at once, thirty thousand times in a second.
func TestRefusedPeersFillNoLog(t *testing.T) {
	var p paced
	lines, more := 0, 0
	begun := time.Now()
	for i := range 100_000 {
		if n, due := p.due(begun.Add(time.Duration(i) * 100 * time.Microsecond)); due {
			lines, more = lines+1, more+n
		}
	}
	if lines != 10 || more != 90_000-9 {
		t.Errorf("%d lines in 10 s, which tell of %d more", lines, more)
	}
}
