package tiering

import (
	"context"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// newcomer is a neighbour that is not hinted at before it was asked for.
type newcomer struct {
	*neighbour
	asked []tier.Name
	done  bool
}

func (n *newcomer) Learning() bool { return !n.done }

func (n *newcomer) Learn(_ context.Context, wants []tier.Want) {
	for i := range wants {
		n.asked = append(n.asked, wants[i].Name)
		n.believe(wants[i].Name, true)
	}
}

func TestLearnAsksForWhatNobodyIsKnownToHold(t *testing.T) {
	var n newcomer
	x := newApart(t, hybrid(1), func(c *Config) {
		n.neighbour = c.Remote.(*neighbour)
		c.Remote = &n
	})
	here, there, absent := x.mid(1, 20, 2), x.mid(2, 20, 2), x.mid(3, 20, 2)
	x.publish(x.c, here)
	x.keep(there)
	x.far.home.publish(x.far.home.NewSession("b"), absent) // it is there, and nobody says so
	q := &MatchQuery{
		Profile: x.id, Tenant: tenantA, Keys: [][32]byte{here.key, there.key, absent.key},
		Accept: tier.Exact, Positions: []uint32{8}, Prefixes: [][32]byte{hashOf(1, 8)},
	}
	if !x.Learning() {
		t.Fatal("it does not learn")
	}
	local := *q
	local.Local = true
	x.Learn(context.Background(), &local)
	if len(n.asked) > 0 {
		t.Errorf("%v was asked for a client that does not know of peers", n.asked)
	}
	x.Learn(context.Background(), q)
	want := []tier.Name{{Key: absent.key}, {Kind: tier.Exact, Key: hashOf(1, 8)}}
	if len(n.asked) != 2 || n.asked[0] != want[0] || n.asked[1] != want[1] {
		t.Errorf("%v was asked for, want %v", n.asked, want)
	}
	var r MatchResult
	if err := x.Match(q, &r); err != nil || r.Segments[2].Place != tier.PlacePeer {
		t.Errorf("%+v, %v", r, err)
	}
	n.done = true
	if x.Learning() {
		t.Error("it learns still")
	}
}
