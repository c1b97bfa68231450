package torture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// play runs a round of a workload against the fake, with one worker: whoever
// draws p of 100 loses an item before its reply.
func (b *bench) play(rng *rand.Rand) (did map[verb]int, puts []string) {
	did = map[verb]int{}
	b.work.begin()
	for range 400 {
		op := b.work.next()
		did[op.verb]++
		switch op.verb {
		case doPut:
			puts = append(puts, fmt.Sprint(op.item, op.item.number, op.level))
			if p := op.item.parent; p != nil && b.fake.held[p.Name] == nil || rng.IntN(100) < 5 {
				b.work.put(op.item, false)
				continue
			}
			b.fake.held[op.item.Name] = op.item
			if err := b.ledger.acknowledge(op.item, op.level); err != nil {
				b.Fatal(err)
			}
			b.work.put(op.item, true)
		case doRead:
			if intact, err := new(Findings).check(b.Context(), b.fake, op.item); err != nil || !intact {
				b.Fatalf("%s: %v, %v", op.item, intact, err)
			}
		case doRemove:
			if !op.item.isSegment() || b.ledger.records[op.item.Name].round == b.ledger.round {
				b.Fatalf("%s may not be removed in the round that wrote it", op.item)
			}
			delete(b.fake.held, op.item.Name)
			b.ledger.removal(op.item)
		}
	}
	return did, puts
}

// crash loses what was acknowledged in memory, and with it what stands behind it.
func (b *bench) crash() {
	for _, r := range b.ledger.order {
		if r.acked == tier.LevelMemory && r.round == b.ledger.round || r.item.parent != nil && b.fake.held[r.item.parent.Name] == nil {
			delete(b.fake.held, r.item.Name)
		}
	}
}

func TestWorkloadThroughManyRounds(t *testing.T) {
	b := newBench(t, 7)
	rng := rand.New(rand.NewPCG(7, 7))
	all := map[verb]int{}
	var again, parents int
	for range 12 {
		seen := len(b.ledger.order)
		did, puts := b.play(rng)
		for v, n := range did {
			all[v] += n
		}
		if len(puts) != b.work.limits.Items {
			t.Fatalf("%d puts, want %d", len(puts), b.work.limits.Items)
		}
		again += len(puts) - (len(b.ledger.order) - seen)
		b.ledger.close()
		b.crash()
		if f := b.audit(8 << 20); f.Corrupt+f.Phantom > 0 {
			t.Fatalf("%+v", f)
		}
		if c := b.ledger.current(); c.Memory.Survived >= c.Memory.Acked || c.Memory.Acked == 0 || c.Logged.Acked == 0 || c.Synced.Acked == 0 {
			t.Errorf("%+v", c)
		}
		if b.work.bytes > b.work.limits.LiveBytes+b.written() {
			t.Errorf("%d bytes are live, want about %d", b.work.bytes, b.work.limits.LiveBytes)
		}
	}
	for _, r := range b.ledger.order {
		if r.item.parent != nil {
			parents++
		}
	}
	if all[doPut] == 0 || all[doRead] == 0 || all[doRemove] < 20 || again < 10 || parents < 50 {
		t.Errorf("%v, %d submitted again, %d behind a parent", all, again, parents)
	}
	if total := b.ledger.totals(); total.Synced.Survived == 0 || total.Logged.Survived == 0 {
		t.Errorf("%+v", total)
	}
}

// written is what one round may add before old segments are removed.
func (b *bench) written() (n int64) {
	for _, r := range b.ledger.order {
		if r.round == b.ledger.round || !r.item.isSegment() {
			n += r.item.bytes()
		}
	}
	return n
}

// What is being removed may not be submitted again before that is over.
func TestARemovalIsAwaited(t *testing.T) {
	b := newBench(t, 1)
	b.ledger.begin()
	i := b.put(1, tier.LevelSynced)
	b.ledger.begin()
	b.ledger.remove(i)
	if got := b.work.former(); got != nil {
		t.Errorf("%s would be submitted while it is being removed", got)
	}
	b.ledger.removal(i)
	if got := b.work.former(); got != i {
		t.Errorf("%v is not submitted again", got)
	}
	b.ledger.submit(i)
	b.ledger.begin()
	b.ledger.remove(i)
	b.ledger.begin() // its daemon is dead
	if got := b.work.former(); got != i {
		t.Errorf("%v is not submitted again", got)
	}
}

func TestWorkloadFollowsFromItsSeed(t *testing.T) {
	var puts [3]string
	for i, seed := range []uint64{3, 3, 4} {
		b := newBench(t, seed)
		_, p := b.play(rand.New(rand.NewPCG(1, 1)))
		puts[i] = fmt.Sprint(p)
	}
	if puts[0] != puts[1] {
		t.Error("the same seed gave other items")
	}
	if puts[0] == puts[2] {
		t.Error("another seed gave the same items")
	}
}

func TestContentIsAFunctionOfItsPlace(t *testing.T) {
	c := contentOf(1, 2, 0, 3)
	whole := make([]byte, 1003)
	c.fill(whole, 0)
	if !c.holds(whole, 0) {
		t.Error("does not hold what it filled")
	}
	for off := range 64 {
		part := make([]byte, 333)
		c.fill(part, int64(off))
		if !bytes.Equal(part, whole[off:][:333]) {
			t.Errorf("333 bytes at %d differ from those of the whole", off)
		}
		if off%8 == 0 && !c.holds(part, int64(off)) {
			t.Errorf("does not hold 333 bytes at %d", off)
		}
	}
	for i := range whole {
		whole[i] ^= 0x10
		if c.holds(whole, 0) {
			t.Fatalf("a flipped bit in byte %d is not seen", i)
		}
		whole[i] ^= 0x10
	}
	for _, other := range []content{contentOf(2, 2, 0, 3), contentOf(1, 3, 0, 3), contentOf(1, 2, 1, 3), contentOf(1, 2, 0, 4)} {
		if other.holds(whole[:8], 0) {
			t.Error("another place has the same bytes")
		}
	}
}

func TestKeysNameTheirItems(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[tier.Name]bool{}
	for _, s := range testShapes(t) {
		var parent *item
		for n := range uint64(8) {
			parent = newCheckpoint(s, 1, 100+n, parent, tier.Exact, rng, 300)
			for _, i := range []*item{newSegment(s, 1, n, rng, 300), parent} {
				if seen[i.Name] {
					t.Errorf("%s has the name of another", i)
				}
				seen[i.Name] = true
			}
		}
		if parent.begin == 0 || parent.prompt != 100 {
			t.Errorf("the chain ends in %+v", parent)
		}
	}
}

func BenchmarkContentHolds(b *testing.B) {
	c := contentOf(1, 2, 3, 4)
	buf := make([]byte, 1<<20)
	c.fill(buf, 0)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if !c.holds(buf, 0) {
			b.Fatal("differs")
		}
	}
}
