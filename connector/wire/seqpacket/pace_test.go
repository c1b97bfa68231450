package seqpacket

import (
	"testing"
	"time"
)

func TestPaceGivesTheProcessorBackNowAndThen(t *testing.T) {
	var p Pace
	for i := range 3 * paceCalls {
		p.Pace()
		if p.since.IsZero() != (i < paceCalls-1) {
			t.Fatalf("after %d calls: given back at %v", i+1, p.since)
		}
	}
	p.calls, p.since = 3*paceCalls, time.Now().Add(-paceEvery)
	p.Pace()
	if p.calls != 0 || time.Since(p.since) > time.Minute {
		t.Errorf("not given back after %v and %d calls", time.Since(p.since), p.calls)
	}
}
