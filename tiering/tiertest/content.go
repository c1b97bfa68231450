package tiertest

import (
	"context"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// variety returns objects of all shapes: kinds, numbers of ranks, chains, and parts of no,
// one and several chunks.
func (r *rig) variety() []*Object {
	list := []*Object{
		Segment(Small, alice, r.next(), 1),
		Segment(Small, alice, r.next(), 40),
		Segment(Small, bob, r.next(), 177),
		Segment(Pair, alice, r.next(), 33),
		Middle(Pair, bob, r.next(), 200),
		Primed(Pair, bob, r.next(), 200),
		Segment(Linear, bob, r.next(), 1000),
		Segment(WideF32, alice, r.next(), 777),
		Segment(WideF16, bob, r.next(), 601),
		Checkpoint(WideF16, alice, r.next(), tier.Exact, nil, 513),
	}
	var up *Object
	for i := range 5 {
		kind := tier.Exact
		switch {
		case i == 2:
			kind = tier.Rows
		case i > 2:
			kind = tier.Spliced
		}
		up = Checkpoint(Pair, alice, r.next(), kind, up, 10+7*i)
		list = append(list, up)
	}
	return append(list, Checkpoint(Small, bob, r.next(), tier.Spliced, nil, 90))
}

func testContent(r *rig) {
	r.open(Options{LargestBytes: 4 << 20})
	list := r.variety()
	levels := r.Traits()
	if levels.Lowest > tier.LevelMemory { // only if the subject is no store, since a store packs objects itself
		list = append(list, Segment(Lenient, alice, r.next(), 90))
	}
	for i, o := range list {
		span := int(levels.Highest-levels.Lowest) + 1
		r.must(r.try(o, levels.Lowest+tier.Level(i%span)))
	}
	r.want(list...)
	slices.Reverse(list)
	r.want(list...)
	for _, o := range list {
		if err := r.try(o, levels.Lowest); err != nil {
			r.wantErr(err, tier.ErrExists)
		}
	}
	r.want(list...)
}

func testBegun(r *rig) {
	r.open(Options{})
	o, other := r.segment(alice), Checkpoint(Pair, alice, r.next(), tier.Exact, nil, 30)
	for _, o := range []*Object{o, other} {
		r.Settle()
		before := r.Used(alice.ID)
		f, err := r.Begin(o)
		r.must(err)
		if r.Used(alice.ID) <= before {
			r.Error("what was begun is not charged")
		}
		r.gone2(o)
		f.Cancel()
		r.Settle()
		r.gone2(o)
		r.wantUsed(alice, before)
		r.put(o)
		r.want(o)
	}
}

// gone2 is gone for subjects that may also report the object as pending.
func (r *rig) gone2(o *Object) {
	r.Helper()
	if e, ok := r.Find(o); ok {
		r.Fatalf("%v is found: %+v", o, e)
	}
	_, err := r.Get(context.Background(), o)
	r.wantErr(err, tier.ErrGone, tier.ErrBusy, tier.ErrUnavailable)
}

func testSpoiltBefore(r *rig) {
	r.open(Options{})
	for _, o := range []*Object{r.segment(alice), Checkpoint(Pair, alice, r.next(), tier.Exact, nil, 30)} {
		right := o.Digests[len(o.Digests)-1]
		wrong := slices.Clone(right)
		wrong[r.rng.IntN(len(wrong))] ^= 1 << r.rng.IntN(64)
		o.Digests[len(o.Digests)-1] = wrong
		if err := r.try(o, r.Traits().Lowest); err != nil {
			r.wantErr(err, tier.ErrCorrupt)
		} else if c, err := r.Get(context.Background(), o); err == nil {
			r.Fatalf("served %d ranks that are not what their digests say", len(c.Bytes))
		}
		r.Settle()
		r.gone(o)
		r.wantUsed(alice, 0)
		o.Digests[len(o.Digests)-1] = right
		r.put(o)
		r.want(o)
		r.removeAll(o)
	}
}

// removeAll removes segments. Checkpoints stay, since not every subject can remove them.
func (r *rig) removeAll(list ...*Object) {
	for _, o := range list {
		if o.Kind == 0 {
			r.Remove(o)
		}
	}
	r.Settle()
}

func testOrphans(r *rig) {
	r.open(Options{})
	up := Checkpoint(Pair, alice, r.next(), tier.Exact, nil, 20)
	child := Checkpoint(Pair, alice, r.next(), tier.Exact, up, 10)
	_, err := r.Begin(child)
	r.wantErr(err, tier.ErrInvalid, tier.ErrGone)
	r.wantUsed(alice, 0)
	unknown := Segment(Small, Tenant{ID: 99, Name: "nobody"}, r.next(), 20)
	_, err = r.Begin(unknown)
	r.wantErr(err, tier.ErrInvalid)
	r.put(up, child)
	r.want(child, up)
}

func testAccounts(r *rig) {
	r.open(Options{LargestBytes: 4 << 20})
	sums := map[tier.TenantID]int64{}
	list := r.variety()
	r.put(list...)
	r.Settle()
	for _, o := range list {
		e, ok := r.Find(o)
		if !ok {
			r.Fatalf("%v is not found", o)
		}
		if e.Bytes <= 0 || e.Bytes < o.Total()/4 {
			r.Errorf("%v of %d bytes is charged %d", o, o.Total(), e.Bytes)
		}
		sums[o.Tenant.ID] += e.Bytes
	}
	r.wantUsed(alice, sums[alice.ID])
	r.wantUsed(bob, sums[bob.ID])
	for _, o := range list {
		e, _ := r.Find(o)
		if o.Kind == 0 && r.Remove(o) {
			sums[o.Tenant.ID] -= e.Bytes
		}
	}
	r.Settle()
	r.wantUsed(alice, sums[alice.ID])
	r.wantUsed(bob, sums[bob.ID])
}

func testRemove(r *rig) {
	r.open(Options{})
	o, other := r.segment(alice), r.segment(alice)
	if r.Remove(o) {
		r.Error("removed what was never there")
	}
	r.put(o, other)
	if !r.Remove(o) {
		r.Error("not removed")
	}
	r.gone(o)
	if r.Remove(o) {
		r.Error("removed twice")
	}
	r.want(other)
	o.Fill(r.next()) // other bytes, so that removed bytes would be noticed
	r.put(o)
	r.want(o)
}

func testContext(r *rig) {
	r.open(Options{LargestBytes: 4 << 20})
	o := Segment(WideF32, alice, r.next(), 600)
	r.put(o)
	for range 20 {
		ctx, cancel := context.WithCancel(context.Background())
		var getting sync.WaitGroup
		getting.Go(func() {
			if c, err := r.Get(ctx, o); err == nil {
				if err := o.Compare(c); err != nil {
					r.Error(err)
				}
			}
		})
		cancel()
		getting.Wait()
	}
	r.want(o)
}
