package tiering

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
)

// told is the newest decisions in words, oldest first.
func (b *bench) told(n int) string {
	var lines []string
	for _, d := range b.Decisions(n) {
		lines = append([]string{fmt.Sprintf("%v %x [%d, %d) %d bytes: %v", d.What, d.Name.Key[1], d.Begin, d.End, d.Bytes, d.Why)}, lines...)
	}
	return strings.Join(lines, "\n")
}

func (b *bench) wantTold(lines ...string) {
	b.Helper()
	if got, want := b.told(len(lines)), strings.Join(lines, "\n"); got != want {
		b.Fatalf("decided:\n%s\nwant:\n%s", got, want)
	}
}

func TestDecisionsSayWhyNodesComeAndGo(t *testing.T) {
	b := newBench(t, stateful(1), func(c *Config) { c.PrivateBytes = 180 << 10 })
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 16, 0, Exact), 0)
	b.save(c, b.saveQuery(1, 32, 16, Exact), 16)
	b.save(c, b.saveQuery(2, 16, 0, Exact), 0)
	b.wantTold(
		"admitted 1 [0, 16) 57344 bytes: filled by its writer",
		"admitted 1 [16, 32) 57344 bytes: filled by its writer",
		"admitted 2 [0, 16) 57344 bytes: filled by its writer",
	)
	if b.pools[privatePool].floorValue() != 0 {
		t.Error("a floor before anything had to leave")
	}
	b.save(c, b.saveQuery(3, 16, 0, Exact), 0)
	b.wantTold(
		"thinned 1 [0, 16) 45056 bytes: for room in its pool",
		"admitted 3 [0, 16) 57344 bytes: filled by its writer",
	)
	b.save(c, b.saveQuery(4, 16, 0, Exact), 0)
	b.wantTold(
		"evicted 1 [0, 32) 57344 bytes: for room in its pool", // the tokens of both are gone with it
		"dropped 1 [0, 16) 12288 bytes: thinned, and nothing extends it any more",
		"admitted 4 [0, 16) 57344 bytes: filled by its writer",
	)
	if b.pools[privatePool].floorValue() <= 0 {
		t.Error("no floor after an eviction for room")
	}
	b.wantUsed(0, 3*57344)
	_, err := c.Save(b.saveQuery(5, 5000, 0, Exact))
	b.wantErr(err, ErrFull)
	if d := b.Decisions(1)[0]; d.What != DecidedRefuse || d.Why != BecauseNoRoom || d.End != 5000 {
		t.Errorf("%+v", d)
	}
}

func TestDecisionsAreBoundedAndCountedByReason(t *testing.T) {
	b := newBench(t, tiny(1), func(c *Config) { c.MaxDecisions = 4 })
	for i := range 6 {
		b.note(Decision{What: DecidedRefuse, Why: Because(cost.ReasonShort), Begin: i})
	}
	b.note(Decision{What: DecidedAdmit, Why: BecauseFilled, Begin: 6})
	got := ""
	for _, d := range b.Decisions(100) {
		got += fmt.Sprintf("%d %v %v\n", d.Begin, d.What, d.Why)
	}
	short := cost.ReasonShort.String()
	if want := "6 admitted filled by its writer\n5 refused " + short + "\n4 refused " + short + "\n3 refused " + short + "\n"; got != want {
		t.Errorf("decisions:\n%swant:\n%s", got, want)
	}
	if got := len(b.Decisions(2)); got != 2 {
		t.Errorf("%d decisions of 2", got)
	}
	counts := ""
	b.EachDecision(func(what What, why Because, n uint64) { counts += fmt.Sprintf("%v, %v: %d\n", what, why, n) })
	if want := "admitted, filled by its writer: 1\nrefused, " + short + ": 6\n"; counts != want {
		t.Errorf("counted:\n%swant:\n%s", counts, want)
	}
}

func TestEveryReasonHasWords(t *testing.T) {
	seen := map[string]bool{}
	for why := BecauseFilled; why < lastStoreReason; why++ {
		words := why.String()
		if words == "" || words == "no reason" || seen[words] {
			t.Errorf("reason %d: %q", why, words)
		}
		seen[words] = true
	}
	if len(becauseWords) != int(lastStoreReason-BecauseFilled) {
		t.Errorf("%d words for %d reasons", len(becauseWords), lastStoreReason-BecauseFilled)
	}
}

func TestNotingADecisionAllocatesNothing(t *testing.T) {
	b := newBench(t, tiny(1), func(c *Config) { c.MaxDecisions = 16 })
	d := Decision{What: DecidedThin, Why: BecauseRoom, Bytes: 1}
	for range 20 {
		b.note(d)
	}
	if n := testing.AllocsPerRun(100, func() { b.note(d) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
