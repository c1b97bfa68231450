package tiering

import (
	"context"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestDiscardRemovesFromAllTiers(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	var list []tier.Want
	want := func(p piece) tier.Want {
		return tier.Want{Name: tier.Name{Key: p.key}, Fingerprint: x.profile.Fingerprint(), Tenant: tenantA}
	}
	for i := range 20 { // on disk, the last of them again in memory
		p := x.mid(i, 64, 8)
		x.sink(p)
		list = append(list, want(p))
	}
	for i := range 20 {
		p := x.mid(100+i, 64, 8)
		x.publish(x.c, p)
		list = append(list, want(p))
	}
	pending := x.mid(999, 64, 8)
	r, err := x.c.Reserve(x.reserveQuery(pending, 0))
	x.must(err)
	list = append(list, want(pending), want(x.mid(5000, 64, 8)))
	answers := make([]error, len(list))
	x.Discard(t.Context(), list, func(i int, err error) { answers[i] = err })
	for i, err := range answers[:40] {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	x.wantErr(answers[40], tier.ErrBusy)
	x.wantErr(answers[41], tier.ErrGone)
	x.must(x.c.Abort(r.ID))
	if n := len(x.Segments(SegmentFilter{}, nil, 100)) + len(x.tier.entries); n != 0 {
		t.Fatalf("%d objects are left", n)
	}
	if n := len(x.cat.Objects.Below.Deleting); n != 0 {
		t.Fatalf("%d names count as being removed", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	x.Discard(ctx, list, func(int, error) { t.Fatal("removed after the end of the context") })
}

// On disk too, where what extends an object is removed outside the lock.
func TestDiscardTakesChainsOnDiskApart(t *testing.T) {
	for name, push := range map[string]bool{"in memory too": false, "on disk only": true} {
		t.Run(name, func(t *testing.T) {
			x := newTwoTiers(t, hybrid(1), writeBehind)
			for n := 40; n <= 800; n += 40 {
				x.save(x.c, x.saveQuery(1, n, n-40, tier.Exact), n-40)
			}
			all := x.Checkpoints(CheckpointFilter{}, nil, 100)
			slices.SortFunc(all, func(x, y CheckpointInfo) int { return y.Tokens - x.Tokens })
			list := x.wants(all)
			x.tier.finishAll()
			if push {
				x.push()
			}
			if n, m := len(x.Checkpoints(CheckpointFilter{}, nil, 100)), len(x.tier.entries); m != len(list) || (n == 0) != push {
				t.Fatalf("%d checkpoints in memory and %d below, of %d", n, m, len(list))
			}
			for i := range list[:len(list)-1] {
				x.Discard(t.Context(), list[i+1:i+2], func(_ int, err error) { x.wantErr(err, tier.ErrBusy) })
			}
			x.Discard(t.Context(), list, func(i int, err error) {
				if err != nil {
					t.Errorf("%d of %d: %v", i, len(list), err)
				}
			})
			if n := len(x.Checkpoints(CheckpointFilter{}, nil, 100)) + len(x.tier.entries); n != 0 {
				t.Fatalf("%d checkpoints are left", n)
			}
			x.audit()
		})
	}
}

func TestLeasesAreListedInOrder(t *testing.T) {
	b := newBench(t, hybrid(1))
	one, two := b.NewSession("one"), b.NewSession("two")
	var pieces []piece
	for i := range 40 {
		pieces = append(pieces, b.mid(i, 64, 8))
		b.publish(one, pieces[i])
	}
	for i, p := range pieces {
		for _, c := range []*Session{one, two}[:1+i%2] {
			rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil)
			b.must(err)
			b.must(rows[0].Err)
		}
	}
	for _, limit := range []int{1, 7, 100} {
		var all []LeaseInfo
		after := tier.LeaseID(0)
		for {
			page := b.Leases(LeaseFilter{}, after, limit)
			if len(page) == 0 {
				break
			}
			all = append(all, page...)
			after = page[len(page)-1].ID
		}
		if len(all) != 60 || !slices.IsSortedFunc(all, func(x, y LeaseInfo) int { return int(x.ID) - int(y.ID) }) {
			t.Fatalf("limit %d: %d leases, or out of order", limit, len(all))
		}
		if l := all[0]; l.Session != one || l.Key != pieces[0].key || l.Since != b.clock.Now() || !l.Expires.After(l.Since) || l.Bytes != pieces[0].layout.Bytes+4*64 {
			t.Fatalf("lease %+v", l)
		}
	}
	other := tenantB
	if n, m := len(b.Leases(LeaseFilter{Session: two}, 0, 100)), len(b.Leases(LeaseFilter{Tenant: &other}, 0, 100)); n != 20 || m != 0 {
		t.Fatalf("%d leases of a session, %d of a tenant without", n, m)
	}
	one.Close()
	two.Close()
	if n := b.CountLeases(); n != 0 {
		t.Fatalf("%d leases are left", n)
	}
}
