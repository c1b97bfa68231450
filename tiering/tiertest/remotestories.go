package tiertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func testRemoteContent(r *remoteRig) {
	list := r.rig.variety()
	r.put(0, list...)
	list = slices.DeleteFunc(slices.Clone(list), func(o *Object) bool { return o.Kind == tier.Rows }) // no source sends it alone
	for _, o := range list {
		w := WantOf(o)
		if h, ok := r.Hint(&w); !ok || h.Latency < 0 || h.BytesPerSecond < 0 {
			r.Errorf("%v: hint %+v, %v", o, h, ok)
		}
	}
	r.want(list...)
	slices.Reverse(list)
	r.want(list...)
}

func testRemoteMiss(r *remoteRig) {
	o, other := r.rig.segment(alice), r.rig.segment(alice)
	r.put(0, o)
	rows, err := r.find(context.Background(), other, o, Checkpoint(Pair, alice, r.rig.next(), tier.Exact, nil, 9))
	if err != nil {
		r.Fatal(err)
	}
	if rows[0] != nil || rows[1] == nil || rows[2] != nil {
		r.Errorf("found %v", rows)
	}
	for _, c := range rows {
		if c != nil {
			c.Close()
		}
	}
	if rows, err := r.Find(context.Background(), nil); err != nil || len(rows) != 0 {
		r.Errorf("nothing wanted: %v, %v", rows, err)
	}
}

func testRemoteScope(r *remoteRig) {
	list := []*Object{r.rig.segment(alice), Checkpoint(Small, bob, r.rig.next(), tier.Exact, nil, 20)}
	r.put(0, list...)
	for _, o := range list {
		tenant, kind, of := *o, *o, *o
		tenant.Tenant = bob
		if o.Tenant.ID == bob.ID {
			tenant.Tenant = alice
		}
		kind.Kind = tier.Spliced
		of.Profile = Pair
		r.missing(&tenant, &kind, &of)
	}
	r.want(list...)
}

func testRemoteUnread(r *remoteRig) {
	list := []*Object{r.rig.segment(alice), r.rig.segment(alice)}
	r.put(0, list...)
	for range 3 {
		rows, err := r.find(context.Background(), list...)
		if err != nil {
			r.Fatal(err)
		}
		for _, c := range rows {
			c.Close()
		}
	}
	r.want(list...)
}

func testRemoteLengths(r *remoteRig) {
	o, longer := Segment(Pair, alice, r.rig.next(), 40), Segment(Pair, alice, r.rig.next(), 900)
	r.put(0, o)
	c := r.copyOf(o)
	defer c.Close()
	m := r.RemoteTraits().Memory
	refs, err := m.junk(longer)
	if err != nil {
		r.Fatal(err)
	}
	defer m.free(refs...)
	for _, dst := range [][]gpuipc.Ref{nil, refs[:1], refs} {
		if _, err := c.Read(context.Background(), dst); !errors.Is(err, tier.ErrInvalid) {
			r.Errorf("read into %d ranks: %v", len(dst), err)
		}
	}
	if err := r.read(context.Background(), c, o); err != nil {
		r.Error(err)
	}
}

func testRemoteSpoilt(r *remoteRig) {
	for _, o := range []*Object{r.rig.segment(alice), Segment(WideF32, alice, r.rig.next(), 1500), Checkpoint(Pair, bob, r.rig.next(), tier.Exact, nil, 200)} {
		r.put(0, o)
		mend := r.disturb(0, o, Spoilt)
		c := r.copyOf(o)
		if err := r.read(context.Background(), c, o); !errors.Is(err, tier.ErrCorrupt) {
			r.Errorf("%v: %v, want %v", o, err, tier.ErrCorrupt)
		}
		c.Close()
		r.missing(o) // its source is not asked again for a while
		mend()
	}
	other := r.rig.segment(alice)
	r.put(0, other)
	r.want(other)
}

func testRemoteLies(r *remoteRig) {
	played := false
	for _, f := range []Fault{LieBytes, LieShape, LieName, LieTokens, LieDigests, LieShort} {
		for _, o := range []*Object{r.rig.segment(alice), Checkpoint(Pair, alice, r.rig.next(), tier.Exact, nil, 30)} {
			if f == LieTokens && o.Kind != 0 {
				continue // checkpoints have none
			}
			r.put(0, o)
			mend, err := r.Disturb(0, o, f)
			if errors.Is(err, ErrNoFault) {
				continue
			}
			if err != nil {
				r.Fatal(err)
			}
			played = true
			rows, err := r.find(context.Background(), o)
			if err != nil && !errors.Is(err, tier.ErrUnavailable) {
				r.Errorf("%v: %v", f, err)
			}
			if err == nil && rows[0] != nil {
				if f != LieDigests {
					r.Errorf("%v of a source that %v is believed", o, f)
				}
				if err := r.read(context.Background(), rows[0], o); !errors.Is(err, tier.ErrCorrupt) {
					r.Errorf("%v of a source that %v: %v, want %v", o, f, err, tier.ErrCorrupt)
				}
				rows[0].Close()
			}
			mend()
		}
	}
	if !played {
		r.Skip("sources do not lie")
	}
}

func testRemoteVanishing(r *remoteRig) {
	for _, o := range []*Object{r.rig.segment(alice), Segment(WideF32, alice, r.rig.next(), 1500)} {
		r.put(0, o)
		mend := r.disturb(0, o, Vanishing)
		c := r.copyOf(o)
		if err := r.read(context.Background(), c, o); !errors.Is(err, tier.ErrGone) {
			r.Errorf("%v: %v, want %v", o, err, tier.ErrGone)
		}
		c.Close()
		mend()
	}
}

func testRemoteDead(r *remoteRig) {
	o := Segment(WideF32, alice, r.rig.next(), 1500)
	r.put(0, o)
	for _, f := range []Fault{Dead, DeadHalfway} {
		c := r.copyOf(o)
		mend := r.disturb(0, o, f)
		r.bounded(func() {
			if err := r.read(context.Background(), c, o); !errors.Is(err, tier.ErrUnavailable) {
				r.Errorf("read from a source that is %v: %v, want %v", f, err, tier.ErrUnavailable)
			}
		})
		c.Close()
		mend()
		if !Wait(time.Minute, func() bool { return r.served(o) }) {
			r.Fatalf("%v is not served again after its source was %v", o, f)
		}
	}
}

// served reports whether an object is found and can be read. Both may fail for a while,
// since a source that has failed is not asked again at once.
func (r *remoteRig) served(o *Object) bool {
	rows, err := r.find(context.Background(), o)
	if err != nil || rows[0] == nil {
		return false
	}
	defer rows[0].Close()
	if err := r.read(context.Background(), rows[0], o); err != nil {
		if errors.Is(err, ErrWrong) {
			r.Error(err)
		}
		return false
	}
	return true
}

func testRemoteStalled(r *remoteRig) {
	o, other := Segment(WideF32, alice, r.rig.next(), 1500), r.rig.segment(alice)
	r.put(0, o, other)
	c := r.copyOf(o)
	mend := r.disturb(0, o, StalledHalf)
	r.bounded(func() {
		if err := r.read(context.Background(), c, o); !errors.Is(err, tier.ErrUnavailable) {
			r.Errorf("read of bytes that stop: %v, want %v", err, tier.ErrUnavailable)
		}
	})
	c.Close()
	mend()
	if !Wait(time.Minute, func() bool { return r.served(other) }) {
		r.Fatalf("%v is not served again", other)
	}
	mend = r.disturb(0, o, Stalled)
	r.bounded(func() {
		rows, err := r.find(context.Background(), other)
		if err != nil && !errors.Is(err, tier.ErrUnavailable) {
			r.Errorf("find at a source that does not answer: %v", err)
		}
		if err == nil && rows[0] != nil {
			r.Error("a source that does not answer has answered")
			rows[0].Close()
		}
	})
	mend()
}

func testRemoteCancel(r *remoteRig) {
	o := Segment(WideF32, alice, r.rig.next(), 1500)
	r.put(0, o)
	for _, f := range []Fault{StalledHalf, Stalled} {
		c := r.copyOf(o)
		mend := r.disturb(0, o, f)
		ctx, cancel := context.WithCancel(context.Background())
		var reading sync.WaitGroup
		reading.Go(func() {
			if err := r.read(ctx, c, o); !errors.Is(err, context.Canceled) {
				r.Errorf("%v: %v, want %v", f, err, context.Canceled)
			}
		})
		cancel()
		r.bounded(reading.Wait)
		c.Close()
		cancelled, end := context.WithCancel(context.Background())
		end()
		if rows, err := r.find(cancelled, o); !errors.Is(err, context.Canceled) {
			r.Errorf("find of an ended context: %v, %v", rows, err)
		}
		mend()
	}
	r.want(o) // a canceled caller says nothing about the source
}

func testRemoteFailover(r *remoteRig) {
	r.sources(2)
	for _, f := range []Fault{Dead, DeadHalfway, StalledHalf} {
		o := Segment(WideF32, alice, r.rig.next(), 1500)
		r.put(0, o)
		c := r.copyOf(o)
		r.put(1, o)
		mend := r.disturb(0, o, f)
		r.bounded(func() {
			if err := r.read(context.Background(), c, o); err != nil {
				r.Errorf("a source was %v: %v", f, err)
			}
		})
		c.Close()
		mend()
		if !Wait(time.Minute, func() bool { return r.served(o) }) {
			r.Fatalf("%v is not served again", o)
		}
	}
}

func testRemoteMixed(r *remoteRig) {
	r.sources(2)
	for _, f := range []Fault{Dead, DeadHalfway} {
		o := Segment(WideF32, alice, r.rig.next(), 1500)
		r.put(0, o)
		c := r.copyOf(o)
		differs := *o
		differs.Fill(r.rig.next())
		r.put(1, &differs)
		mend := r.disturb(0, o, f)
		r.bounded(func() {
			if err := r.read(context.Background(), c, o); !errors.Is(err, tier.ErrUnavailable) {
				r.Errorf("the only source with these bytes was %v: %v, want %v", f, err, tier.ErrUnavailable)
			}
		})
		c.Close()
		if !Wait(time.Minute, func() bool { return r.served(&differs) }) {
			r.Errorf("the other source's bytes are not served while one is %v", f)
		}
		mend()
	}
}

func testRemoteAtOnce(r *remoteRig) {
	var list []*Object
	for range 8 {
		list = append(list, r.rig.segment(alice), Segment(WideF16, bob, r.rig.next(), 300), Checkpoint(Pair, alice, r.rig.next(), tier.Exact, nil, 60))
	}
	for i, o := range list {
		r.put(i%r.RemoteTraits().Sources, o)
	}
	var users sync.WaitGroup
	for range 4 {
		rng := rand.New(rand.NewPCG(r.rig.rng.Uint64(), 0))
		users.Go(func() {
			for range 20 {
				r.anyOf(rng, list)
			}
		})
	}
	users.Wait()
	r.want(list...)
}

// anyOf finds some objects and reads them, sometimes with a timeout of at most 3 ms.
func (r *remoteRig) anyOf(rng *rand.Rand, list []*Object) {
	some := []*Object{list[rng.IntN(len(list))], list[rng.IntN(len(list))]}
	ctx, cancel := context.WithCancel(context.Background())
	if rng.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rng.Int64N(int64(3*time.Millisecond))))
	}
	defer cancel()
	rows, err := r.find(ctx, some...)
	if err != nil {
		r.tolerateRemote(err)
		return
	}
	for i, c := range rows {
		if c == nil {
			continue // its source was busy
		}
		if rng.IntN(5) > 0 {
			r.tolerateRemote(r.read(ctx, c, some[i]))
		}
		c.Close()
	}
}

func (r *remoteRig) tolerateRemote(err error) {
	for _, kind := range []error{nil, tier.ErrBusy, tier.ErrUnavailable, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return
		}
	}
	r.Error(err)
}
