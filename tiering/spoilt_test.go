package tiering

import (
	"context"
	"fmt"
	"testing"
)

func TestSpoiltCheckpointsAreNotServedNorWhatExtendsThem(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind)
	x.save(x.c, x.saveQuery(1, 16, 0, Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, Exact), 16)
	x.tier.finish(0, fmt.Errorf("digest: %w", ErrCorrupt))
	x.tier.finishAll()
	if n := x.Counters(); n.SpoiltInMemory != 1 {
		t.Fatalf("%+v", n)
	}
	for _, tokens := range []int{16, 32} {
		if l := x.loadPrefix(x.c, hashOf(1, tokens), Exact); l.Hit {
			t.Errorf("the checkpoint of %d tokens is leased", tokens)
		}
	}
	x.audit()
}

func TestWaitThatEndsWithItsContextTellsWhatWasReached(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	d := x.publishTo(x.mid(1, 64, 8), LevelLogged).Durable
	x.tier.finishAll()
	ctx, cancel := context.WithCancel(x.ctx)
	cancel()
	for range 100 {
		if got := d.Wait(ctx); got != LevelLogged {
			t.Fatalf("level %v of an object that is logged", got)
		}
	}
}
