package tiering

import (
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// marks sets watermarks for a public pool of so many segments of 48 tokens.
func marks(segments int64, high, low float64) option {
	return func(c *Config) {
		poolOf(segments)(c)
		c.HighWater, c.LowWater = high, low
	}
}

// cleaned does what one round of the cleaner does.
func (x *twoTiers) clean1() error {
	x.cat.Mu.Lock()
	err := x.move.Writes.CleanLocked()
	x.cat.Mu.Unlock()
	x.cat.Launch()
	return err
}

func TestCleanerKeepsRoomThatCanBeDropped(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), marks(10, 0.75, 0.5))
	var ps []piece
	for i := range 10 {
		ps = append(ps, x.mid(i, 64, 8))
		x.publish(x.c, ps[i])
		x.must(x.clean1())
		x.audit()
		if want := i - 4; i < 7 && len(x.tier.offered) != 0 || i >= 7 && len(x.tier.offered) != want {
			t.Fatalf("%d of 10 segments: %d written", i+1, len(x.tier.offered))
		}
	}
	// Half of the pool has to be free or clean: five are, the least recently used.
	if len(x.tier.offered) != 5 {
		t.Fatalf("%d written", len(x.tier.offered))
	}
	for i, o := range x.tier.offered {
		if o.Key != ps[i].key {
			t.Fatalf("write %d is not of the least valuable segment", i)
		}
	}
	x.tier.finishAll()
	x.publish(x.c, x.mid(10, 64, 8)) // at once: the victim is clean
	if n := x.Counters(); n.Demoted != 1 || n.Cleaned != 5 || n.DemotionsRefused != 0 {
		t.Fatalf("Demoted %v, want 1; Cleaned %v, want 5; DemotionsRefused %v, want 0", n.Demoted, n.Cleaned, n.DemotionsRefused)
	}
}

// Leased objects are neither written nor counted upon.
func TestCleanerWritesOnlyWhatCouldLeave(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), marks(4, 0.5, 0.1))
	for i := range 4 {
		p := x.mid(i, 64, 8)
		x.publish(x.c, p)
		if i < 3 {
			x.lease(x.c, p)
		}
	}
	x.must(x.clean1())
	if len(x.tier.offered) != 1 {
		t.Fatalf("%d written", len(x.tier.offered))
	}
}

func TestCleanerStopsForATierThatCannot(t *testing.T) {
	for name, row := range map[string]struct {
		refuse error
		tried  int
		want   error
	}{
		"busy":        {tier.ErrBusy, 1, tier.ErrBusy},
		"full":        {tier.ErrFull, 3, nil}, // one that never fits is nothing to wait behind
		"unavailable": {tier.ErrUnavailable, 1, tier.ErrUnavailable},
		"quota":       {tier.ErrQuota, 3, nil}, // each tenant has its own
		"invalid":     {tier.ErrInvalid, 3, nil},
	} {
		x := newTwoTiers(t, hybrid(1), marks(4, 0.1, 0.1))
		for i := range 3 {
			x.publish(x.c, x.mid(i, 64, 8))
		}
		x.tier.refuse = row.refuse
		if err := x.clean1(); len(x.tier.offered) != row.tried || (err == nil) != (row.want == nil) {
			t.Fatalf("%s: %d tried, %v", name, len(x.tier.offered), err)
		}
		x.audit()
		if row.want != nil {
			x.wantErr(x.clean1(), row.want)
			continue
		}
		x.must(x.clean1())
		if len(x.tier.offered) != row.tried {
			t.Fatalf("%s: asked again although nothing has changed", name)
		}
		x.must(x.c.Release(x.lease(x.c, x.mid(1, 64, 8)))) // its use ends
		x.must(x.clean1())
		if len(x.tier.offered) != row.tried+1 {
			t.Fatalf("%s: not asked again after a use", name)
		}
	}
}

// However many objects are clean, leased or refused: the next one to write costs
// one question.
func TestDirtyObjectsAreFoundAtOnce(t *testing.T) {
	asked := 0
	x := newTwoTiers(t, hybrid(1), marks(60, 0.1, 0.1), func(c *Config) {
		c.Eviction = func() policy.Eviction { return counting{policy.NewLRU(), &asked} }
	})
	for i := range 50 {
		x.publish(x.c, x.mid(i, 64, 8))
		if i%3 == 0 {
			x.lease(x.c, x.mid(i, 64, 8))
		}
	}
	for range 33/move.CleanRows + 1 {
		x.must(x.clean1())
	}
	if n := int(x.Counters().Cleaned); n != 33 || asked != n {
		t.Fatalf("%d questions for %d writes", asked, n)
	}
}

// The goroutine of Run does the same by itself, asks a busy tier again after each
// write and one that failed after a sweep.
func TestRunWritesWhatWasRefused(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind, realTime)
	x.tier.refuse = fmt.Errorf("read-only: %w", tier.ErrUnavailable)
	for i := range 8 {
		x.publish(x.c, x.mid(i, 64, 8))
	}
	if n := x.Counters(); n.WritesRefused[stats.RefusalUnavailable] != 8 || x.Pools()[0].DirtyBytes != 8*x.cost(x.mid(0, 64, 8)) {
		t.Fatalf("%v, want n.WritesRefused[stats.RefusalUnavailable] == 8, x.Pools()[0].DirtyBytes == 8*x.cost(x.mid(0, 64, 8))", n)
	}
	x.tier.mu.Lock()
	x.tier.refuse, x.tier.queue = nil, 1
	x.tier.mu.Unlock()
	x.running()
	x.Sweep()
	for x.Pools()[0].DirtyBytes > 0 || x.Counters().Writing > 0 {
	}
	if n := x.Counters(); n.Written != 8 || n.Cleaned != 8 {
		t.Fatalf("Written %v, want 8; Cleaned %v, want 8", n.Written, n.Cleaned)
	}
}

func TestRunCleansWhenAPoolFills(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), marks(10, 0.75, 0.5), realTime)
	x.running()
	for i := range 10 {
		x.publish(x.c, x.mid(i, 64, 8))
	}
	for x.Counters().Written < 5 {
	}
}

func TestWritesThatFailAreTriedAgainAfterASweep(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	x.publish(x.c, x.mid(1, 64, 8))
	x.tier.finish(0, fmt.Errorf("EIO: %w", tier.ErrUnavailable))
	cleanable := func() bool {
		x.cat.Mu.Lock()
		defer x.cat.Mu.Unlock()
		return x.move.Writes.CleanableLocked(nil, 0, 0)
	}
	if cleanable() {
		t.Fatal("the cleaner would turn round a disk that fails")
	}
	x.Sweep()
	if !cleanable() {
		t.Fatal("what failed is not tried again")
	}
	x.must(x.clean1())
	x.tier.finishAll()
	if n := x.Counters(); n.Written != 1 || n.WritesFailed != 1 || cleanable() {
		t.Fatalf("Written %v, want 1; WritesFailed %v, want 1", n.Written, n.WritesFailed)
	}
}

// A checkpoint behind a stripped one that the tier has dropped cannot be written
// until that is whole again; all others can.
func TestCleanerGoesPastAThinnedParent(t *testing.T) {
	x := newTwoTiers(t, stateful(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.cat.Mu.Lock()
	x.must(x.move.Writes.WantLocked(x.node(1, 16), tier.LevelLogged, false))
	x.cat.Mu.Unlock()
	x.cat.Launch()
	x.tier.finishAll()
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.save(x.c, x.saveQuery(1, 48, 32, tier.Exact), 32)
	x.strip(1, 16)
	x.tier.Remove(&tier.Name{Kind: tier.Exact, Key: hashOf(1, 16)}) // by itself, to make room
	for p := 2; p < 6; p++ {
		x.save(x.c, x.saveQuery(p, 16, 0, tier.Exact), 0)
	}
	x.cat.Objects.Policies.WriteBehind = true
	held := func(prompt, end int) bool { return x.tier.holds(tier.Name{Kind: tier.Exact, Key: hashOf(prompt, end)}) }
	x.must(x.clean1())
	x.tier.finishAll()
	x.audit()
	for p := 2; p < 6; p++ {
		if !held(p, 16) {
			t.Errorf("prompt %d was not written", p)
		}
	}
	if held(1, 32) || held(1, 48) {
		t.Fatal("written without what it extends")
	}
	x.must(x.clean1())
	if n := x.Counters(); n.WritesRefused[stats.RefusalOther] == 0 || n.WritesRefused[stats.RefusalUnavailable] != 0 {
		t.Fatalf("n.WritesRefused[stats.RefusalOther] %v, want other than 0; n.WritesRefused[stats.RefusalUnavailable] %v, want 0", n.WritesRefused[stats.RefusalOther], n.WritesRefused[stats.RefusalUnavailable])
	}
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.must(x.clean1())
	x.tier.finishAll()
	x.audit()
	if !held(1, 16) || !held(1, 32) || !held(1, 48) {
		t.Fatal("not written although all of the chain is there")
	}
}
