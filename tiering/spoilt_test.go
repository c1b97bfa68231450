package tiering

import (
	"context"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestSpoiltCheckpointsAreNotServedNorWhatExtendsThem(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.tier.finish(0, fmt.Errorf("digest: %w", tier.ErrCorrupt))
	x.tier.finishAll()
	if n := x.Counters(); n.CorruptInMemory != 1 {
		t.Fatalf("CorruptInMemory %v, want 1", n.CorruptInMemory)
	}
	for _, tokens := range []int{16, 32} {
		if l := x.loadPrefix(x.c, hashOf(1, tokens), tier.Exact); l.Hit {
			t.Errorf("the checkpoint of %d tokens is leased", tokens)
		}
	}
	x.audit()
}

// What it extends may leave its states and get them back, which makes what
// extends it worth another try; not what is wrong.
func TestSpoiltCheckpointIsNotOfferedAgain(t *testing.T) {
	x := newTwoTiers(t, stateful(1), writeBehind)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.tier.finishAll()
	x.tier.spoil = tier.ErrCorrupt
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.save(x.c, x.saveQuery(1, 48, 32, tier.Exact), 32)
	x.tier.finishAll()
	x.tier.spoil = nil
	x.strip(1, 16)
	if l := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact); !l.Promoting {
		t.Fatalf("Promoting %v, want true", l.Promoting)
	}
	x.carry()
	x.mu.Lock()
	o := x.node(1, 32)
	if !o.Corrupt {
		t.Error("a checkpoint whose write found its bytes wrong is not marked")
	}
	_ = x.cleanLocked()
	if o.Write != nil {
		t.Error("a corrupt checkpoint is offered to the tier again")
	}
	x.mu.Unlock()
	x.launch()
	x.tier.finishAll()
	x.audit()
}

func TestWaitThatEndsWithItsContextTellsWhatWasReached(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	d := x.publishTo(x.mid(1, 64, 8), tier.LevelLogged).Durable
	x.tier.finishAll()
	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	for range 100 {
		if got := d.Wait(ctx); got != tier.LevelLogged {
			t.Fatalf("level %v of an object that is logged", got)
		}
	}
}
