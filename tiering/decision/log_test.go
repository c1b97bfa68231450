package decision

import (
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
)

// told is up to n of the last decisions, the newest first.
func told(l *Log, n int) (list []Decision) {
	for d := range l.Last() {
		if len(list) == n {
			break
		}
		list = append(list, *d)
	}
	return list
}

func TestDecisionsAreBoundedAndCountedByReason(t *testing.T) {
	l := NewLog(8)
	short := cost.ReasonShort
	for i := range 10 {
		l.Note(Decision{What: Refuse, Why: NoRoom, Begin: i})
		l.Note(Decision{What: AdviseAgainst, Why: Reason(short), Begin: i})
	}
	l.Note(Decision{What: Admit, Why: Filled, Begin: 10})
	got := ""
	for _, d := range told(l, 100) {
		got += fmt.Sprintf("%d %v\n", d.Begin, d.What)
	}
	if want := "10 admitted\n9 discouraged\n9 refused\n8 discouraged\n8 refused\n7 refused\n6 refused\n5 refused\n"; got != want {
		t.Errorf("decisions:\n%swant:\n%s", got, want)
	}
	if got := len(told(l, 2)); got != 2 {
		t.Errorf("%d decisions of 2", got)
	}
	counts := ""
	l.Counts(func(what What, why Reason, n uint64) {
		counts += fmt.Sprintf("%v, %v: %d\n", what, why, n)
	})
	want := fmt.Sprintf("admitted, %v: 1\nrefused, %v: 10\ndiscouraged, %v: 10\n", Filled, NoRoom, short)
	if counts != want {
		t.Errorf("counted:\n%swant:\n%s", counts, want)
	}
}

// TestNobodyWaitsForAReaderOfDecisions decides something while a reader has got
// each of them: the log is never held for it.
func TestNobodyWaitsForAReaderOfDecisions(t *testing.T) {
	const limit = 4096
	l := NewLog(limit)
	for i := range 3 * limit {
		l.Note(Decision{What: Evict + What(i%2)*(Advise-Evict), Begin: i})
	}
	last, n := 3*limit, 0
	for d := range l.Last() {
		if d.Begin >= last {
			t.Fatalf("%d after %d", d.Begin, last)
		}
		last = d.Begin
		l.Note(Decision{What: Strip, Begin: 1 << 30})
		n++
	}
	// Each that was noted meanwhile has pushed one out that was not told yet.
	if n < limit/2 || n > limit {
		t.Errorf("%d of %d decisions told", n, limit)
	}
	if page := l.page(1<<62, make([]Decision, 0, pageRows)); len(page) != pageRows {
		t.Errorf("%d decisions in a page", len(page))
	}
	one := NewLog(1)
	one.Note(Decision{What: Advise})
	one.Note(Decision{What: Drop})
	if got := told(one, 9); len(got) != 1 || got[0].What != Drop {
		t.Errorf("%d decisions are told by a log of one, want that something was dropped", len(got))
	}
}

func TestNotingADecisionAllocatesNothing(t *testing.T) {
	l := NewLog(16)
	d := Decision{What: Strip, Why: ForRoom, Bytes: 1}
	for range 20 {
		l.Note(d)
	}
	if n := testing.AllocsPerRun(100, func() { l.Note(d) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWhoListensHearsWhatHappensAndNoAdvice(t *testing.T) {
	l, heard := NewLog(4), ""
	l.Listen(func(d Decision) { heard += d.What.String() + " " })
	l.Note(Decision{What: Evict})
	l.Note(Decision{What: Advise})
	l.Tell(Decision{What: Admit}) // neither kept nor counted
	l.Note(Decision{What: Drop})
	if heard != "evicted admitted dropped " {
		t.Errorf("heard %q", heard)
	}
	if list := told(l, 9); len(list) != 3 {
		t.Errorf("%d are kept, want 3", len(list))
	}
}
