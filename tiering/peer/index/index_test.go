package index

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// follow asks until there is nothing more, as a node does that has just met a peer.
func follow(t testing.TB, x *Index, n Node, o *Own) {
	t.Helper()
	for range 1 << 12 {
		more, err := x.Apply(n, o.Delta(nil, x.Position(n)))
		if err != nil {
			t.Fatalf("node %d: %v", n, err)
		}
		if !more {
			return
		}
	}
	t.Fatalf("node %d always has more", n)
}

func holders(x *Index, tag uint64) []Node {
	dst := make([]Node, 64)
	n := x.Holders(tag, dst)
	dst = dst[:min(n, len(dst))]
	slices.Sort(dst)
	return dst
}

func allHolders(x *Index, tag uint64) (nodes []Node) {
	set := NodeSet{5: 1} // which is to be gone
	x.AllHolders(tag, &set)
	for n := range Node(MaxNodes) {
		if set.Has(n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// model is the same as an index, as plain maps.
type model map[Node]map[uint64]bool

func (m model) holders(tag uint64) (nodes []Node) {
	for n, set := range m {
		if set[keyOf(tag)] {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// TestIndexAgreesWithMaps lets nodes change, restart, be forgotten and fall behind, in
// any order, and compares all answers about a few thousand tags.
func TestIndexAgreesWithMaps(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		tags := make([]uint64, 4000)
		for i := range tags {
			tags[i] = r.Uint64()
			if i%20 == 0 { // many in one bucket
				tags[i] = tags[i]>>22 | 0x2af37b<<42
			}
		}
		const nodes = 9
		x := New(Config{Seed: seed})
		owns, want := [nodes]*Own{}, model{}
		incarnation := uint64(1)
		for step := range 2000 {
			n := Node(r.IntN(nodes))
			if owns[n] == nil || r.IntN(400) == 0 {
				incarnation++
				owns[n] = NewOwn(incarnation)
			}
			for range r.IntN(60) {
				if tag := tags[r.IntN(len(tags))]; r.IntN(3) > 0 {
					owns[n].Add(tag)
				} else {
					owns[n].Remove(tag)
				}
			}
			if r.IntN(3) == 0 {
				follow(t, x, n, owns[n])
				want[n] = map[uint64]bool{}
				keys, _ := owns[n].keys.from(0, 1<<20)
				for _, k := range keys {
					want[n][k] = true
				}
			}
			if r.IntN(500) == 0 {
				x.Forget(n)
				delete(want, n)
			}
			if r.IntN(100) == 0 {
				x.Sweep(r.IntN(2 * shards))
			}
			if step%10 == 0 {
				for range 20 {
					tag := tags[r.IntN(len(tags))]
					if got, all := holders(x, tag), allHolders(x, tag); !slices.Equal(got, want.holders(tag)) || !slices.Equal(all, got) {
						t.Fatalf("seed %d step %d: tag %x: %v, all %v, want %v", seed, step, tag, got, all, want.holders(tag))
					}
				}
			}
		}
		for _, tag := range tags {
			if got, all := holders(x, tag), allHolders(x, tag); !slices.Equal(got, want.holders(tag)) || !slices.Equal(all, got) {
				t.Fatalf("seed %d: tag %x: %v, all %v, want %v", seed, tag, got, all, want.holders(tag))
			}
		}
		checkCounts(t, x, want)
		if s := x.Stats(); s.Refused != 0 {
			t.Errorf("%d found no room", s.Refused)
		}
	}
}

// What hundreds of nodes hold is told of all of them, whatever they change at once.
func TestAllHoldersAreTold(t *testing.T) {
	x, owns := New(Config{}), [300]*Own{}
	const tag = 0x9e3779b97f4a7c15
	var want []Node
	for n := range owns {
		owns[n] = NewOwn(uint64(n + 1))
		owns[n].Add(tag)
		follow(t, x, Node(n*13), owns[n])
		want = append(want, Node(n*13))
	}
	if got := allHolders(x, tag); !slices.Equal(got, want) {
		t.Fatalf("%d of %d nodes are told", len(got), len(want))
	}
	want = want[:0]
	for n := range owns { // more changes of one key than a block takes without being put in order
		if n%3 > 0 {
			owns[n].Remove(tag)
			follow(t, x, Node(n*13), owns[n])
		} else {
			want = append(want, Node(n*13))
		}
		if got := len(allHolders(x, tag)); got != len(owns)-(n+1-len(want)) {
			t.Fatalf("%d nodes are told after %d have changed, %d keep it", got, n+1, len(want))
		}
	}
	if got := allHolders(x, tag); !slices.Equal(got, want) {
		t.Errorf("%d of %d nodes are told", len(got), len(want))
	}
}

// checkCounts puts all in order and compares what the index counts with what it holds.
func checkCounts(t *testing.T, x *Index, want model) {
	t.Helper()
	for x.Sweep(shards) {
	}
	for i := range x.shards {
		x.mergeLocked(i)
	}
	total, counts := 0, [numbers]int32{}
	for i := range x.shards {
		if b := x.shards[i].Load(); b != nil {
			for e := range b.len() {
				counts[b.at(e)&(numbers-1)]++
			}
		}
	}
	for _, set := range want {
		total += len(set)
	}
	if s := x.Stats(); s.Keys != int64(total) || s.Peers != len(want) || s.Complete != len(want) {
		t.Errorf("%+v; want %d keys of %d peers", s, total, len(want))
	}
	if counts != x.mu.counts {
		t.Error("counts differ from what is there")
	}
}

// Operators look at the numbers of names: they are right at once, not when a block fills.
func TestNamesAreCountedAtOnce(t *testing.T) {
	x := New(Config{})
	of := map[Node]*Own{3: NewOwn(7), 4: NewOwn(8)}
	want := func(three, four int64) {
		t.Helper()
		for n, o := range of {
			follow(t, x, n, o)
		}
		if s := x.Stats(); s.Keys != three+four || x.Names(3) != three || x.Names(4) != four {
			t.Errorf("%d names, %d of 3, %d of 4; want %d and %d", s.Keys, x.Names(3), x.Names(4), three, four)
		}
	}
	want(0, 0)
	for i := range uint64(20) {
		of[3].Add(i << 40)
	}
	of[4].Add(1 << 40)
	want(20, 1)
	of[3].Remove(2 << 40)
	want(19, 1)
	for i := range uint64(5000) {
		of[3].Add((i + 100) << 40)
	}
	want(5019, 1)
	if x.Names(5) != 0 {
		t.Error("a peer that is not known has names")
	}
	x.Forget(3)
	for x.Sweep(shards) {
	}
	if s := x.Stats(); s.Keys != 1 || x.Names(3) != 0 {
		t.Errorf("%d names after one of two is forgotten", s.Keys)
	}
}

func TestWhoFellBehindTheLogReadsTheWholeSet(t *testing.T) {
	o, x := NewOwn(7), New(Config{})
	o.Add(1 << 60)
	follow(t, x, 3, o)
	for i := range uint64(3 * maxLog) {
		o.Add(i << 30)
		o.Remove(i << 30)
	}
	o.Remove(1 << 60)
	o.Add(2 << 60)
	follow(t, x, 3, o)
	if x.Holders(1<<60, nil) != 0 || x.Holders(2<<60, nil) != 1 || x.Position(3).Version != o.Version() {
		t.Errorf("holders %v %v at %v, want version %d", holders(x, 1<<60), holders(x, 2<<60), x.Position(3), o.Version())
	}
}

// A set that changes while it is read in pieces arrives as it is at the end.
func TestSetsChangeWhileTheyAreRead(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	o, x := NewOwn(1), New(Config{})
	tags := make([]uint64, 4*maxMessageKeys)
	for i := range tags {
		tags[i] = r.Uint64()
		o.Add(tags[i])
	}
	added := tags
	for pieces := 0; ; pieces++ {
		more, err := x.Apply(0, o.Delta(nil, x.Position(0)))
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			if pieces < 4 {
				t.Errorf("%d pieces", pieces)
			}
			break
		}
		for i := range min(500, len(tags)) {
			o.Remove(tags[i])
			passing := r.Uint64()
			o.Add(passing) // gone before anybody hears of its coming, or after
			if i%2 == 0 {
				o.Remove(passing)
			} else {
				added = append(added, passing)
			}
		}
		tags = tags[min(500, len(tags)):]
	}
	for _, tag := range added {
		if got, want := x.Holders(tag, nil) == 1, o.keys.has(keyOf(tag)); got != want {
			t.Fatalf("tag %x: held %v, want %v", tag, got, want)
		}
	}
}

func TestFormerSetStaysUntilTheNewOneIsWhole(t *testing.T) {
	x, r := New(Config{}), rand.New(rand.NewPCG(1, 1))
	before, after := NewOwn(1), NewOwn(2)
	gone, kept := r.Uint64(), r.Uint64()
	before.Add(gone)
	before.Add(kept)
	follow(t, x, 5, before)
	after.Add(kept)
	for range 2 * maxMessageKeys {
		after.Add(r.Uint64())
	}
	if more, err := x.Apply(5, after.Delta(nil, x.Position(5))); err != nil || !more {
		t.Fatal(more, err)
	}
	if len(holders(x, gone)) != 1 || len(holders(x, kept)) != 1 || !x.Complete(5) {
		t.Error("what was known before the restart is gone before the new set is known")
	}
	follow(t, x, 5, after)
	if x.Holders(gone, nil) != 0 || x.Holders(kept, nil) != 1 {
		t.Error("the former set is still there")
	}
}

func TestDeltasThatDoNotFollowOnAreRefused(t *testing.T) {
	o, x := NewOwn(9), New(Config{})
	o.Add(1 << 60)
	whole := o.Delta(nil, Position{})
	follow(t, x, 1, o)
	at := x.Position(1)
	o.Add(2 << 60)
	next := o.Delta(nil, at)
	for range 2 {
		if _, err := x.Apply(1, next); err != nil && !errors.Is(err, ErrGap) {
			t.Fatal(err)
		}
	}
	if _, err := x.Apply(1, next); !errors.Is(err, ErrGap) {
		t.Errorf("the same changes again: %v", err)
	}
	if _, err := x.Apply(2, next); !errors.Is(err, ErrGap) {
		t.Errorf("changes of a set that is not known: %v", err)
	}
	if _, err := x.Apply(MaxNodes, whole); !errors.Is(err, ErrInvalid) {
		t.Errorf("a node beyond the last: %v", err)
	}
	for i := range whole {
		if _, err := x.Apply(2, whole[:i]); !errors.Is(err, ErrInvalid) {
			t.Errorf("%d of %d bytes: %v", i, len(whole), err)
		}
	}
	if s := x.Stats(); s.Peers != 1 || s.Complete != 1 {
		t.Errorf("%+v", s)
	}
}

// A peer that begins anew each time is put off, and uses up no numbers.
func TestEndlessRestartsArePutOff(t *testing.T) {
	x := New(Config{})
	busy := 0
	for i := range uint64(5 * numbers) {
		o := NewOwn(i + 1)
		o.Add(i << 31)
		if _, err := x.Apply(1, o.Delta(nil, Position{})); errors.Is(err, ErrBusy) {
			busy++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	honest := NewOwn(1)
	honest.Add(5 << 60)
	follow(t, x, 2, honest)
	live := 0
	for _, s := range x.mu.state {
		if s != numberFree {
			live++
		}
	}
	if busy == 0 || live > 2+1+maxRetiring {
		t.Errorf("%d put off, %d numbers in use", busy, live)
	}
}

// A peer that claims too much gets its share and no more, however its tags lie.
func TestALiarGetsItsShareOnly(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	const room, fair = 80_000, 10_000
	x := New(Config{MaxKeys: room})
	liar := NewOwn(1)
	for range 5 * fair {
		liar.Add(r.Uint64())
	}
	honest := make([]*Own, 7)
	var tags []uint64
	for n := range honest {
		honest[n] = NewOwn(1)
		follow(t, x, Node(n+1), honest[n])
	}
	follow(t, x, 0, liar)
	for n := range honest {
		for range fair {
			tags = append(tags, r.Uint64())
			honest[n].Add(tags[len(tags)-1])
		}
		follow(t, x, Node(n+1), honest[n])
	}
	for i := range x.shards {
		x.mergeLocked(i)
	}
	if n := x.mu.counts[x.mu.peers[0].current]; n > fair {
		t.Errorf("the liar has %d entries, its share is %d", n, fair)
	}
	for _, tag := range tags {
		if x.Holders(tag, nil) == 0 {
			t.Fatal("an honest node found no room")
		}
	}

	// The same in one shard.
	x, liar = New(Config{}), NewOwn(1)
	for i := range uint64(maxBlock + 1000) {
		liar.Add(i << 30)
	}
	for range 1 << 16 {
		honest[0].Add(r.Uint64())
	}
	follow(t, x, 0, liar)
	follow(t, x, 1, honest[0])
	x.mergeLocked(0)
	if n := x.shards[0].Load().len(); n > minSkewed+512 {
		t.Errorf("%d entries in the shard that the liar wants", n)
	}
	keys, _ := honest[0].keys.from(0, 1<<20)
	for _, k := range keys {
		if x.Holders(k<<30, nil) == 0 {
			t.Fatal("an honest node found no room")
		}
	}
}

func TestWhatManyHoldIsAskedOfDifferentNodes(t *testing.T) {
	firsts := map[Node]bool{}
	o := NewOwn(1)
	o.Add(77 << 40)
	for seed := range uint64(20) {
		x := New(Config{Seed: seed})
		for n := range Node(200) {
			follow(t, x, n, o)
		}
		x.mergeLocked(int(keyOf(77<<40) >> innerBits))
		var dst [3]Node
		if n := x.Holders(77<<40, dst[:]); n != 200 {
			t.Fatalf("%d holders", n)
		}
		firsts[dst[0]] = true
	}
	if len(firsts) < 15 {
		t.Errorf("20 nodes ask %d different ones first", len(firsts))
	}
}

func TestPositionsTravel(t *testing.T) {
	want := Position{Incarnation: 1 << 63, Version: 5, Cursor: keyEnd - 1}
	if got, err := ParsePosition(want.AppendTo(nil)); err != nil || got != want {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParsePosition(make([]byte, PositionSize-1)); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	o := NewOwn(3)
	o.Add(1 << 60)
	for _, p := range []Position{{3, 99, 0}, {3, 0, 1 << 63}, {4, 0, 0}} {
		if m, err := parse(o.Delta(nil, p), nil); err != nil || m.kind != kindPiece || m.from.Cursor != 0 {
			t.Errorf("from %v: %+v, %v", p, m, err)
		}
	}
}

func TestAbsentNamesMeetAsManyAsExpected(t *testing.T) {
	x, _ := filled(10, 100_000)
	r := rand.New(rand.NewPCG(9, 9))
	asked := 1 << 20
	if testing.Short() {
		asked /= 2
	}
	met := 0
	var set NodeSet
	for range asked {
		if x.AllHolders(r.Uint64(), &set); set != (NodeSet{}) {
			met++
		}
	}
	if want := x.Stats().FalseHits() * float64(asked); float64(met) < want/2 || float64(met) > 2*want || want < 30 {
		t.Errorf("%d of %d absent names met one, %.1f were expected", met, asked, want)
	}
}
