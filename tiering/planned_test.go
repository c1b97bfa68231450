package tiering

import (
	"testing"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// awaitPlanned is await of what another node has computed for this one.
func (x *apart) awaitPlanned(n int, ps ...piece) *awaiting {
	x.Helper()
	q := x.acquireQuery(ps...)
	q.Planned = true
	return x.awaitFor(x.ctx, x.c, n, q)
}

// What was planned is fetched though computing it would take less, and though it was not
// to be had a moment ago, or is being looked for by somebody who would not have it.
func TestPlannedIsFetchedWhateverItCosts(t *testing.T) {
	for _, how := range []string{"at once", "after an answer", "while it is looked for"} {
		t.Run(how, func(t *testing.T) {
			x := newApart(t, hybrid(1))
			p := x.mid(1, 64, 8)
			x.keep(p)
			x.far.hint = tier.Hint{Latency: time.Second}
			var others *awaiting
			switch how {
			case "after an answer":
				a := x.await(x.ctx, 1, p)
				x.seekAll()
				if row := x.end(a)[0]; row.Hit || row.Reason != tier.ReasonRefused {
					t.Fatalf("%+v", row)
				}
			case "while it is looked for":
				others = x.awaitFor(x.ctx, x.NewSession("other"), 1, x.acquireQuery(p))
			}
			a := x.awaitPlanned(1, p)
			x.seekAll()
			x.fetchAll()
			x.wantBytes(p, x.end(a)[0])
			if others != nil {
				x.wantBytes(p, x.end(others)[0])
			}
			x.audit()
		})
	}
}

func TestRoom(t *testing.T) {
	x := newApart(t, hybrid(2))
	p := x.mid(1, 64, 8)
	need, free, err := x.Room(x.id, tenantA, []int{48, 48}, []int{64, 64})
	x.must(err)
	one, _, err := x.Room(x.id, tenantA, []int{48}, []int{64})
	x.must(err)
	if budget := x.Pools()[0].CapacityBytes; need != 2*one || free != budget {
		t.Fatalf("%d bytes for two, %d for one; %d are free of %d", need, one, free, budget)
	}
	x.publish(x.c, p)
	if _, now, _ := x.Room(x.id, tenantA, nil, nil); now != free {
		t.Fatalf("what may leave takes %d bytes", free-now)
	}
	row := x.try(p)
	if !row.Hit {
		t.Fatalf("%+v", row)
	}
	if _, now, _ := x.Room(x.id, tenantA, nil, nil); now >= free || free-now > one {
		t.Fatalf("what is leased takes %d bytes, an object %d", free-now, one)
	}
	if _, _, err := x.Room(99, tenantA, nil, nil); err == nil {
		t.Fatal("room for a profile that is not there")
	}
	if _, _, err := x.Room(x.id, tenantA, []int{1}, nil); err == nil {
		t.Fatal("room for segments without a length")
	}
}
