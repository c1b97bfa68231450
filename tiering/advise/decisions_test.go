package advise

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// TestAdviceDoesNotPushOutWhatHappened asks for much advice, often.
func TestAdviceDoesNotPushOutWhatHappened(t *testing.T) {
	log := decision.NewLog(64)
	last := func() (list []decision.Decision) {
		for d := range log.Last() {
			list = append(list, *d)
		}
		return list
	}
	b := newBench(t, func(o *Options) { o.Log = log })
	log.Note(decision.Decision{What: decision.Admit, Why: decision.Filled, Tenant: tenantA})
	q := Query{Tenant: tenantB, Tokens: promptOf(t, "x:5000"), MaxCheckpoints: MaxPositions}
	for at := range MaxPositions {
		q.Cuts = append(q.Cuts, uint32(1+4*at))
		q.Segments = append(q.Segments, Segment{Begin: 4 * at, Tokens: 4, Status: tier.StatusMiss})
	}
	positions := 0
	for turn := range 20 {
		positions += len(b.serve(q).Positions)
		if n := len(last()); turn == 0 && n != 1+2*told {
			t.Fatalf("%d decisions of one checkpoint and one advice", n)
		}
	}
	all := last()
	if first := all[len(all)-1]; first.What != decision.Admit || first.Tenant != tenantA || len(all) != 1+64/decision.AdviceShare {
		t.Errorf("%d decisions are told, the first is %v of tenant %d", len(all), first.What, first.Tenant)
	}
	counted := uint64(0)
	log.Counts(func(what decision.What, _ decision.Reason, n uint64) {
		if what >= decision.Advise {
			counted += n
		}
	})
	if want := uint64(positions + 20*MaxPositions); counted != want {
		t.Errorf("%d pieces of advice are counted, want %d", counted, want)
	}
}
