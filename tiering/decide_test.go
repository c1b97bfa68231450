package tiering

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
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
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(1, 32, 16, tier.Exact), 16)
	b.save(c, b.saveQuery(2, 16, 0, tier.Exact), 0)
	b.wantTold(
		"admitted 1 [0, 16) 57344 bytes: filled by its writer",
		"admitted 1 [16, 32) 57344 bytes: filled by its writer",
		"admitted 2 [0, 16) 57344 bytes: filled by its writer",
	)
	if b.pools[privatePool].floorValue() != 0 {
		t.Error("a floor before anything had to leave")
	}
	b.save(c, b.saveQuery(3, 16, 0, tier.Exact), 0)
	b.wantTold(
		"thinned 1 [0, 16) 45056 bytes: for room in its pool",
		"admitted 3 [0, 16) 57344 bytes: filled by its writer",
	)
	b.save(c, b.saveQuery(4, 16, 0, tier.Exact), 0)
	b.wantTold(
		"evicted 1 [0, 32) 57344 bytes: for room in its pool", // the tokens of both are gone with it
		"dropped 1 [0, 16) 12288 bytes: thinned, and nothing extends it any more",
		"admitted 4 [0, 16) 57344 bytes: filled by its writer",
	)
	if b.pools[privatePool].floorValue() <= 0 {
		t.Error("no floor after an eviction for room")
	}
	b.wantUsed(0, 3*57344)
	_, err := c.Save(b.saveQuery(5, 5000, 0, tier.Exact))
	b.wantErr(err, tier.ErrFull)
	if d := b.Decisions(1)[0]; d.What != DecidedRefuse || d.Why != BecauseNoRoom || d.End != 5000 {
		t.Errorf("%+v", d)
	}
}

func TestDecisionsAreBoundedAndCountedByReason(t *testing.T) {
	b := newBench(t, tiny(1), func(c *Config) { c.MaxDecisions = 8 })
	short := cost.ReasonShort
	for i := range 10 {
		b.note(Decision{What: DecidedRefuse, Why: BecauseNoRoom, Begin: i})
		b.note(Decision{What: DecidedAdviseAgainst, Why: Because(short), Begin: i})
	}
	b.note(Decision{What: DecidedAdmit, Why: BecauseFilled, Begin: 10})
	got := ""
	for _, d := range b.Decisions(100) {
		got += fmt.Sprintf("%d %v\n", d.Begin, d.What)
	}
	if want := "10 admitted\n9 discouraged\n9 refused\n8 discouraged\n8 refused\n7 refused\n6 refused\n5 refused\n"; got != want {
		t.Errorf("decisions:\n%swant:\n%s", got, want)
	}
	if got := len(b.Decisions(2)); got != 2 {
		t.Errorf("%d decisions of 2", got)
	}
	counts := ""
	b.EachDecision(func(what What, why Because, n uint64) { counts += fmt.Sprintf("%v, %v: %d\n", what, why, n) })
	want := fmt.Sprintf("admitted, %v: 1\nrefused, %v: 10\ndiscouraged, %v: 10\n", BecauseFilled, BecauseNoRoom, short)
	if counts != want {
		t.Errorf("counted:\n%swant:\n%s", counts, want)
	}
}

// TestNobodyWaitsForAReaderOfDecisions decides something while a reader has got
// each of them: the log is never held for it.
func TestNobodyWaitsForAReaderOfDecisions(t *testing.T) {
	const limit = 4096
	b := newBench(t, tiny(1), func(c *Config) { c.MaxDecisions = limit })
	for i := range 3 * limit {
		b.note(Decision{What: DecidedEvict + What(i%2)*(DecidedAdvise-DecidedEvict), Begin: i})
	}
	last, n := 3*limit, 0
	for d := range b.LastDecisions() {
		if d.Begin >= last {
			t.Fatalf("%d after %d", d.Begin, last)
		}
		last = d.Begin
		b.note(Decision{What: DecidedThin, Begin: 1 << 30})
		n++
	}
	// Each that was noted meanwhile has pushed one out that was not told yet.
	if n < limit/2 || n > limit {
		t.Errorf("%d of %d decisions told", n, limit)
	}
	if page := b.decisions.page(1<<62, make([]Decision, 0, decisionPage)); len(page) != decisionPage {
		t.Errorf("%d decisions in a page", len(page))
	}
	one := newBench(t, tiny(1), func(c *Config) { c.MaxDecisions = 1 })
	one.note(Decision{What: DecidedAdvise})
	one.note(Decision{What: DecidedDrop})
	if got := one.Decisions(9); len(got) != 1 || got[0].What != DecidedDrop {
		t.Errorf("%+v", got)
	}
}

// TestAdviceDoesNotPushOutWhatHappened asks for much advice, often.
func TestAdviceDoesNotPushOutWhatHappened(t *testing.T) {
	b := newBench(t, stateful(1), func(c *Config) { c.MaxDecisions = 64 })
	b.save(b.NewSession("a"), b.saveQuery(1, 16, 0, tier.Exact), 0)
	q := AdviseQuery{Tenant: tenantB, Tokens: promptOf(t, "x:5000"), MaxCheckpoints: MaxPositions}
	for at := range MaxPositions {
		q.Cuts = append(q.Cuts, uint32(1+4*at))
		q.Segments = append(q.Segments, AdviseSegment{Begin: 4 * at, Tokens: 4, Status: StatusMiss})
	}
	positions := 0
	for turn := range 20 {
		positions += len(b.serve(q).Positions)
		if told := b.Decisions(1 << 10); turn == 0 && len(told) != 1+2*adviceTold {
			t.Fatalf("%d decisions of one checkpoint and one advice", len(told))
		}
	}
	told := b.Decisions(1 << 10)
	if first := told[len(told)-1]; first.What != DecidedAdmit || first.Tenant != tenantA || len(told) != 1+64/adviceShare {
		t.Errorf("%d decisions are told, the first is %+v", len(told), first)
	}
	counted := uint64(0)
	b.EachDecision(func(what What, _ Because, n uint64) {
		if what >= DecidedAdvise {
			counted += n
		}
	})
	if want := uint64(positions + 20*MaxPositions); counted != want {
		t.Errorf("%d pieces of advice are counted, want %d", counted, want)
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
