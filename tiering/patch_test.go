package tiering

import (
	"bytes"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// copied makes a chain of checkpoints at 16 and 32 tokens, which the lower tier has
// as well; want is what it has of the first.
func copied(t *testing.T) (x *twoTiers, want []byte) {
	t.Helper()
	x = newTwoTiers(t, stateful(1))
	want = x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)[0]
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.writeOut()
	return x, want
}

// wantPromoted promotes the first checkpoint and compares its states, and the
// digests of all it has, with what a load answers.
func (x *twoTiers) wantPromoted(want []byte) {
	x.Helper()
	if l := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact); l.Hit || !l.Promoting {
		x.Fatalf("Hit %v, want false; Promoting %v, want true", l.Hit, l.Promoting)
	}
	x.carry()
	x.audit()
	l := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact)
	if !l.Hit {
		x.Fatalf("Hit %v, want true", l.Hit)
	}
	got, layout := x.loadShare(l.Nodes[0].Extents), x.profile.CheckpointLayout(16)
	at := 0
	for _, p := range layout.Parts {
		a, b := got[p.Off:p.Off+p.Len], want[p.Off:p.Off+p.Len]
		if !plan.IsRows(p.Kind) && !bytes.Equal(a, b) {
			x.Errorf("layer %d part %d is not what the lower tier has", p.Layer, p.Kind)
		}
		for ; len(a) > 0; at++ {
			n := min(len(a), gpuipc.ChunkBytes)
			if gpuipc.DigestBytes(a[:n]) != l.Nodes[0].Digests[at] {
				x.Errorf("layer %d part %d: digest %d is of other bytes", p.Layer, p.Kind, at)
			}
			a = a[n:]
		}
	}
}

// Whatever became of a stripped node's states that lie among rows: a promotion
// brings all of them back.
func TestPromotionBringsAllStatesBack(t *testing.T) {
	for name, between := range map[string]func(x *twoTiers){
		"nothing happened": func(*twoTiers) {},
		"a save was given up": func(x *twoTiers) {
			l := x.profile.CheckpointLayout(16)
			r, err := x.c.Save(x.saveQuery(1, 16, 0, tier.Exact))
			x.must(err)
			other := content(&l, 4242)
			for i, p := range l.Parts[:len(l.Parts)-1] {
				_, err := x.c.Commit(x.ctx, x.item(r.ID, i, 0, other[p.Off:p.Off+p.Len]))
				x.must(err)
			}
			x.must(x.c.Abort(r.ID))
		},
		"saved from another run and stripped again": func(x *twoTiers) {
			l := x.profile.CheckpointLayout(16)
			r, err := x.c.Save(x.saveQuery(1, 16, 0, tier.Exact))
			x.must(err)
			x.commitAll(x.c, r, &l, content(&l, 4242))
			x.strip(1, 16)
		},
		"a promotion failed half-way": func(x *twoTiers) {
			x.dev.Fail(gpuipc.OpCopyDigests, 1, gpuipc.ErrUnavailable)
			if l := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact); !l.Promoting {
				x.Fatalf("Promoting %v, want true", l.Promoting)
			}
			x.carry()
			if n := x.Counters(); n.Promotions[transfer.Unavailable] != 1 || n.StrippedPromoted != 0 {
				x.Fatalf("Promotions[transfer.Unavailable] %v, want 1; StrippedPromoted %v, want 0", n.Promotions[transfer.Unavailable], n.StrippedPromoted)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, want := copied(t)
			x.strip(1, 16)
			between(x)
			x.audit()
			x.wantPromoted(want)
		})
	}
}

// What is in memory need not be what the lower tier has a copy of, though it has
// never been stripped: it has left and was saved again, from another run.
func TestPromotionOverMemoryOfAnotherRun(t *testing.T) {
	x, want := copied(t)
	x.dropAll()
	x.cat.Objects.Policies.WriteBehind = true // which finds what is there already
	l := x.profile.CheckpointLayout(16)
	r, err := x.c.Save(x.saveQuery(1, 16, 0, tier.Exact))
	x.must(err)
	x.commitAll(x.c, r, &l, content(&l, 4242))
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.strip(1, 16)
	x.wantPromoted(want)
}

// A promotion that is ended while it copies into a node keeps everybody else from
// filling that until the copy has ended.
func TestPromotionEndsDuringItsPatch(t *testing.T) {
	x, want := copied(t)
	x.strip(1, 16)
	if l := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact); !l.Promoting {
		t.Fatalf("Promoting %v, want true", l.Promoting)
	}
	stall := x.dev.Stall(t, gpuipc.OpCopyDigests, 1)
	carried := make(chan struct{})
	go func() {
		defer close(carried)
		x.carry()
	}()
	stall.Await()
	x.cat.Mu.Lock()
	x.move.Promotions.Engine.Cancel(x.move.Promotions.Engine.Find(tier.Name{Kind: tier.Exact, Key: hashOf(1, 16)}), transfer.ErrStopped)
	x.cat.Mu.Unlock()
	x.audit()
	if _, err := x.c.Save(x.saveQuery(1, 16, 0, tier.Exact)); err == nil {
		t.Error("a save may write where a promotion does")
	}
	if l := x.loadPrefix(x.c, hashOf(1, 16), tier.Exact); l.Hit || l.Promoting {
		t.Errorf("Hit %v, want false; Promoting %v, want false", l.Hit, l.Promoting)
	}
	x.dropAll() // the checkpoint that extends it leaves
	x.cat.Mu.Lock()
	if x.node(1, 16) == nil {
		t.Error("the node has left under a copy")
	}
	x.cat.Mu.Unlock()
	stall.Release()
	<-carried
	x.audit()
	x.wantUsed(0, 0)
	x.wantPromoted(want)
}
