package tiering

import (
	"context"
	"testing"

	"github.com/spliced-kv/spliced/tiering/internal/serve"
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

// marker is a neighbour that marks what it is told to prepare for, and says which marks
// it was asked with.
type marker struct {
	*neighbour
	told  []tier.Name
	marks map[tier.Name]uint64 // by which Hint was asked
}

func (m *marker) Prepare(wants []tier.Want) {
	for i := range wants {
		m.told = append(m.told, wants[i].Name)
		wants[i].Mark = uint64(wants[i].Key[0]) + 1
	}
}

func (m *marker) Hint(w *tier.Want) (tier.Hint, bool) {
	m.marks[w.Name] = w.Mark
	return m.neighbour.Hint(w)
}

func TestHintsAreAskedWithTheMarksOfTheirNames(t *testing.T) {
	m := marker{marks: map[tier.Name]uint64{}}
	x := newApart(t, hybrid(1), func(c *Config) {
		m.neighbour = c.Remote.(*neighbour)
		c.Remote = &m
	})
	here := x.mid(1, 20, 2)
	x.publish(x.c, here)
	q := &MatchQuery{Profile: x.id, Tenant: tenantA}
	for i := range serve.MatchRows + 5 { // more than one critical section
		q.Keys = append(q.Keys, x.mid(100+i, 20, 2).key)
	}
	q.Keys[3] = here.key
	m.told = nil
	clear(m.marks)
	var r MatchResult
	x.must(x.Match(q, &r))
	if len(m.told) != len(q.Keys)-1 {
		t.Errorf("told of %d names, want all %d that are not here", len(m.told), len(q.Keys)-1)
	}
	for i, key := range q.Keys {
		if got, want := m.marks[tier.Name{Key: key}], uint64(key[0])+1; got != want && i != 3 {
			t.Errorf("key %d was asked for with mark %d, want %d", i, got, want)
		}
	}
	x.must(x.Match(&MatchQuery{Profile: x.id, Tenant: tenantA, Keys: q.Keys[:1]}, &r))
	if got := m.marks[tier.Name{Key: q.Keys[0]}]; got != 0 {
		t.Errorf("a mark of another match was left: %d", got)
	}
}
