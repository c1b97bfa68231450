package volume

import (
	"testing"
	"time"
)

// Operations end in any order; the oldest that is left counts.
func TestOldestOperationCounts(t *testing.T) {
	at := time.Unix(1e9, 0)
	now := func() time.Time { return at }
	o := Operations{now: now}
	var ends []func()
	for range 4 {
		ends = append(ends, o.Begin())
		at = at.Add(StallAfter)
	}
	expect := func(n int) {
		t.Helper()
		if got, want := o.Stalled(), time.Duration(n)*StallAfter; got != want {
			t.Errorf("%v, not %v", got, want)
		}
	}
	expect(4)
	ends[1]()
	expect(4)
	ends[0]()
	expect(2)
	ends[3]()
	expect(2)
	ends[2]()
	expect(0)
	if o.oldest != nil || o.newest != nil || o.running.Load() != 0 {
		t.Error("not empty")
	}
	defer o.Begin()()
	expect(0)
	at = at.Add(StallAfter)
	expect(1)
}
