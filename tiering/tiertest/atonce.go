package tiertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// testAtOnce lets several goroutines put, get and remove some objects, in budgets that do
// not fit all of them. The served bytes must be right, and so must the accounts at the end.
func testAtOnce(r *rig) {
	r.open(Options{PublicBytes: 512 << 10, PrivateBytes: 256 << 10})
	var list []*Object
	for i := range 60 {
		t := alice
		if i%3 == 0 {
			t = bob
		}
		list = append(list, r.segment(t))
	}
	var up *Object
	for i := range 24 {
		if i%6 == 0 {
			up = nil
		}
		up = Checkpoint(Pair, alice, r.next(), tier.Exact, up, 12)
		list = append(list, up)
	}
	var users sync.WaitGroup
	for range 6 {
		rng := rand.New(rand.NewPCG(r.rng.Uint64(), 0))
		users.Go(func() {
			for range 150 {
				r.anything(rng, list[rng.IntN(len(list))])
			}
		})
	}
	users.Wait()
	r.Settle()
	r.held()
	r.balanced(list)
	for _, o := range list {
		if _, ok := r.Find(o); ok {
			r.want(o)
		}
	}
}

func (r *rig) anything(rng *rand.Rand, o *Object) {
	span := int(r.Traits().Highest-r.Traits().Lowest) + 1
	switch rng.IntN(8) {
	case 0, 1, 2:
		r.tolerate(r.try(o, r.Traits().Lowest+tier.Level(rng.IntN(span))))
	case 3:
		r.Remove(o)
	case 4:
		if f, err := r.Begin(o); err == nil {
			f.Cancel()
		} else {
			r.tolerate(err)
		}
	default:
		c, err := r.Get(context.Background(), o)
		if err == nil {
			err = o.Compare(c)
		}
		r.tolerate(err)
	}
}

// tolerate reports an error unless a tier in concurrent use may return it.
func (r *rig) tolerate(err error) {
	for _, kind := range []error{nil, tier.ErrBusy, tier.ErrFull, tier.ErrGone, tier.ErrExists, tier.ErrInvalid, errNotReached} {
		if errors.Is(err, kind) {
			return
		}
	}
	r.Error(err)
}
