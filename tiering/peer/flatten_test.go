package peer

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// chainOf are checkpoints that extend each other, of some 100 rows each.
func chainOf(p *profile.Profile, nodes int) (chain []*tiertest.Object) {
	var parent *tiertest.Object
	for i := range nodes {
		parent = tiertest.Checkpoint(p, loneTenant[0], uint64(i+1), tier.Exact, parent, 100+i)
		chain = append(chain, parent)
	}
	return chain
}

// asOne is what a rank has of a chain as one node: rows of all, states of the last.
func asOne(chain []*tiertest.Object, rank int) []byte {
	last := chain[len(chain)-1]
	l := last.Profile.CheckpointLayout(last.End - chain[0].Begin)
	out := make([]byte, l.Bytes)
	for k, p := range l.Parts {
		at := p.Off
		for i, o := range chain {
			from := o.Profile.CheckpointLayout(o.End - o.Begin).Parts[k]
			if p.Kind == profile.PartK || p.Kind == profile.PartV || i == len(chain)-1 {
				at += int64(copy(out[at:], o.Bytes[rank][from.Off:from.Off+from.Len]))
			}
		}
		if at != p.Off+p.Len {
			panic("the parts of a chain are not as long as those of one node")
		}
	}
	return out
}

// wantAsOne finds and reads what a chain is as one node.
func (s *subject) wantAsOne(t *testing.T, chain []*tiertest.Object, base tier.Name) {
	t.Helper()
	last := chain[len(chain)-1]
	w := tiertest.WantOf(last)
	w.Base = base
	rows, err := s.Find(context.Background(), []tier.Want{w})
	if err != nil || rows[0] == nil {
		t.Fatalf("%v, %v", rows, err)
	}
	defer rows[0].Close()
	if e := rows[0].Entry(); e.Begin != chain[0].Begin || e.End != last.End || e.Parent != chain[0].Parent {
		t.Fatalf("rows [%d, %d) behind %v, want [%d, %d) behind %v", e.Begin, e.End, e.Parent, chain[0].Begin, last.End, chain[0].Parent)
	}
	var want [][]byte
	for rank := range last.Bytes {
		want = append(want, asOne(chain, rank))
	}
	var refs []gpuipc.Ref
	for rank := range want {
		refs = append(refs, must(s.memory.Put(bytes.Repeat([]byte{0xa5}, len(want[rank])))))
	}
	defer func() {
		if err := s.memory.Spend(refs...); err != nil {
			t.Error(err)
		}
	}()
	if _, err := rows[0].Read(context.Background(), refs); err != nil {
		t.Fatal(err)
	}
	for rank := range want {
		if !bytes.Equal(must(s.memory.Load(refs[rank])), want[rank]) {
			t.Fatalf("rank %d has other bytes", rank)
		}
	}
}

func TestACheckpointComesAsOneNode(t *testing.T) {
	s := opened(t, options{})
	chain := chainOf(tiertest.Pair, 4)
	for _, o := range chain {
		s.put(t, 0, o)
	}
	s.wantAsOne(t, chain, tier.Name{})
	s.wantAsOne(t, chain[2:], chain[1].Name)                                  // behind what the asker has
	s.wantAsOne(t, chain[3:], chain[2].Name)                                  // a node as it is
	s.wantAsOne(t, chain, tier.Name{Kind: tier.Exact, Key: [32]byte{1}})      // what is not of the chain is none
	s.wantAsOne(t, chain[:2], tier.Name{Kind: tier.Spliced, Key: [32]byte{}}) // shorter
	if c := s.sources[0].server.Counters(); c.Finds != 5 || s.Counters().Failovers > 0 || s.Counters().Corrupt > 0 {
		t.Errorf("%+v, %+v", c, s.Counters())
	}
}

// What has lost its states, since another one extends it, is of use to peers all the same.
func TestStrippedNodesAreNoHindrance(t *testing.T) {
	chain := chainOf(tiertest.Heavy, 5)
	size := int64(0)
	for _, o := range chain {
		size += int64(len(o.Bytes[0])+4096) * int64(len(o.Bytes))
	}
	s := opened(t, options{store: tiering.Config{PrivateBytes: (size + 4095) &^ 4095}})
	for _, o := range chain {
		s.put(t, 0, o)
	}
	for i := range uint64(2) { // which takes room
		s.put(t, 0, tiertest.Checkpoint(tiertest.Heavy, loneTenant[0], 10+i, tier.Exact, nil, 100))
	}
	if n := s.sources[0].Counters().Stripped; n == 0 {
		t.Fatal("nothing has lost its states")
	}
	s.wantAsOne(t, chain, tier.Name{})
}

func TestNodesMadeOfChainsAreKeptForAWhile(t *testing.T) {
	var let []tier.LeaseID
	f := flats{release: func(id tier.LeaseID) { let = append(let, id) }}
	defer f.close()
	now := time.Now()
	key := func(i int) *name { return &name{Name: tier.Name{Key: [32]byte{byte(i)}}} }
	for i := range maxFlats + 1 {
		f.leave(f.add(key(i), nil, tier.LeaseID(i+1), now))
	}
	if !slices.Equal(let, []tier.LeaseID{maxFlats + 1}) {
		t.Fatalf("%v were let go of, want the one beyond the bound", let)
	}
	used := f.use(key(0), now)
	f.sweep(now.Add(flatTTL))
	if len(let) != maxFlats || f.use(key(1), now) != nil {
		t.Fatalf("%v were let go of; one is used", let)
	}
	f.sweep(now.Add(flatMost))
	if len(let) != maxFlats || f.use(key(0), now) != nil {
		t.Fatal("what is used was let go of, or is given to somebody past its time")
	}
	if f.leave(used); len(let) != maxFlats+1 || f.timer != nil {
		t.Fatalf("%v were let go of in the end, timer %v", let, f.timer)
	}
}
