package tiertest

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// tight returns budgets for about ten small objects in each pool.
func tight() Options { return Options{PublicBytes: 512 << 10, PrivateBytes: 512 << 10} }

// held expects that the charged bytes do not exceed the budget.
func (r *rig) held() {
	r.Helper()
	if sum, budget := heldBy(r.Subject, alice, bob), r.Traits().Budget; sum > budget {
		r.Fatalf("%d bytes are held, the budget is %d", sum, budget)
	}
}

// heldBy returns the bytes that count towards the budget of a subject.
func heldBy(s Subject, tenants ...Tenant) (sum int64) {
	if h, ok := s.(Holder); ok {
		return h.Held()
	}
	for _, t := range tenants {
		sum += s.Used(t.ID)
	}
	return sum
}

// overfill puts segments until several of them were evicted. After each segment it uses the
// object keep, unless keep is nil. The segments that are found must be readable, and the
// evicted ones must be those that were put first.
func (r *rig) overfill(t Tenant, keep *Object) (list []*Object) {
	r.Helper()
	const most = 1000
	left := 0
	for left < 5 {
		if len(list) == most {
			r.Fatalf("%d segments and %d have left", len(list), left)
		}
		o := r.segment(t)
		r.put(o)
		r.Settle()
		r.held()
		list = append(list, o)
		if keep != nil {
			r.want(keep)
		}
		left = 0
		for _, ok := range r.found(list) {
			if !ok {
				left++
			}
		}
	}
	for i, ok := range r.found(list) {
		if ok != (i >= left) {
			r.Fatalf("of %d segments number %d is found: %v, and %d have left", len(list), i, ok, left)
		}
	}
	r.want(list[left:]...)
	return list
}

func testEviction(r *rig) {
	r.open(tight())
	keep := r.segment(alice)
	r.put(keep)
	r.overfill(bob, keep)
	r.want(keep)
}

// testChains makes room among chains of checkpoints. The parent of every checkpoint that
// is found must be found too.
func testChains(r *rig) {
	r.open(tight())
	var chains [][]*Object
	missing := 0
	for n := 0; missing == 0; n++ {
		if n == 500 {
			r.Fatal("500 chains and nothing has left")
		}
		var c []*Object
		var up *Object
		for range 4 {
			up = Checkpoint(Small, alice, r.next(), tier.Exact, up, 25)
			if err := r.try(up, r.Traits().Lowest); err != nil {
				r.wantErr(err, tier.ErrFull, tier.ErrGone, tier.ErrInvalid)
				break
			}
			c = append(c, up)
			r.held()
		}
		r.Settle()
		chains = append(chains, c)
		missing = 0
		for _, c := range chains {
			missing += r.broken(c)
		}
	}
	for _, c := range chains {
		for i := len(c) - 1; i >= 0; i-- {
			if _, ok := r.Find(c[i]); ok {
				r.want(c[:i+1]...)
				break
			}
		}
	}
}

// broken counts the missing nodes of a chain. They must be the last ones.
func (r *rig) broken(c []*Object) (missing int) {
	r.Helper()
	found := r.found(c)
	for i, ok := range found {
		if !ok {
			missing++
		} else if missing > 0 {
			r.Fatalf("node %d of a chain is found without node %d", i, i-1)
		}
	}
	return missing
}

func testTooLarge(r *rig) {
	r.open(tight())
	list := []*Object{r.segment(alice), r.segment(bob), Checkpoint(Pair, bob, r.next(), tier.Exact, nil, 40)}
	r.put(list...)
	r.Settle()
	a, b := r.Used(alice.ID), r.Used(bob.ID)
	for _, o := range []*Object{Segment(WideF32, alice, r.next(), 2000), Checkpoint(WideF32, alice, r.next(), tier.Exact, nil, 2000)} {
		r.wantErr(r.try(o, r.Traits().Lowest), tier.ErrFull)
		r.gone(o)
	}
	r.wantUsed(alice, a)
	r.wantUsed(bob, b)
	r.want(list...)
}

func testQuota(r *rig) {
	r.open(Options{})
	cost := r.lowestCost()
	r.must(r.Subject.Close())

	// A quota of exactly two objects fits two, and a third replaces the first. The other
	// tenant loses nothing.
	few := alice
	few.QuotaBytes = 2 * cost
	r.open(Options{Tenants: []Tenant{few, bob}})
	other := r.segment(bob)
	r.put(other)
	r.Settle()
	charged := r.Used(bob.ID)
	list := []*Object{r.segment(few), r.segment(few), r.segment(few), r.segment(few)}
	for i, o := range list {
		r.put(o)
		r.within(few)
		r.Settle()
		r.within(few)
		r.want(o)
		if i == 1 {
			r.want(list[:2]...)
		}
	}
	if _, ok := r.Find(list[0]); ok {
		r.Error("four objects are found in a quota of two")
	}
	r.want(other)
	r.wantUsed(bob, charged)
	r.must(r.Subject.Close())

	// A quota of one byte less than an object fits no object.
	few.QuotaBytes = cost - 1
	r.open(Options{Tenants: []Tenant{few, bob}})
	r.wantErr(r.try(r.segment(few), r.Traits().Lowest), tier.ErrQuota)
	r.wantUsed(few, 0)
}

// lowestCost returns the bytes that are charged for a segment as soon as it is begun.
func (r *rig) lowestCost() int64 {
	r.Helper()
	f, err := r.Begin(r.segment(alice))
	r.must(err)
	defer f.Cancel()
	return r.Used(alice.ID)
}

func (r *rig) within(t Tenant) {
	r.Helper()
	if used := r.Used(t.ID); used > t.QuotaBytes {
		r.Fatalf("tenant %q is charged %d bytes, its quota is %d", t.Name, used, t.QuotaBytes)
	}
}

func testBusy(r *rig) {
	r.open(Options{MaxBegun: 6})
	var begun []Filling
	var objects []*Object
	most := r.Traits().MaxBegun
	for {
		o := r.segment(alice)
		f, err := r.Begin(o)
		if errors.Is(err, tier.ErrBusy) {
			break
		}
		r.must(err)
		if begun, objects = append(begun, f), append(objects, o); len(begun) > most {
			r.Fatalf("%d objects are begun, at most %d may be", len(begun), most)
		}
	}
	if len(begun) != most {
		r.Errorf("busy with %d objects begun, %d may be", len(begun), most)
	}
	begun[0].Cancel()
	late := r.segment(bob)
	r.put(late)
	for i, f := range begun[1:] {
		if _, err := f.Finish(context.Background(), r.Traits().Lowest); err != nil {
			r.Fatalf("%v: %v", objects[i+1], err)
		}
	}
	r.want(append(objects[1:], late)...)
	r.Settle()
	r.gone(objects[0])
	r.put(objects[0])
	r.want(objects[0])
}
