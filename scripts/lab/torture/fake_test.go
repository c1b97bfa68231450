package torture

import (
	"context"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// fake is a cache that damages what a test tells it to.
type fake struct {
	held   map[tier.Name]*item
	wrong  map[tier.Name]bool // served with a flipped bit
	short  map[tier.Name]bool // served without its last part
	listed []tier.Name        // beside what is held
	hits   bool               // every lookup is a hit
}

func newFake() *fake {
	return &fake{held: map[tier.Name]*item{}, wrong: map[tier.Name]bool{}, short: map[tier.Name]bool{}}
}

func (f *fake) found(_ context.Context, items []*item) ([]bool, error) {
	out := make([]bool, len(items))
	for i := range items {
		out[i] = f.hits || f.held[items[i].Name] != nil
	}
	return out, nil
}

func (f *fake) read(_ context.Context, i *item, see func(rank, part int, off int64, b []byte)) (bool, error) {
	if f.held[i.Name] == nil {
		return false, nil
	}
	for rank := range i.shape.ranks() {
		for n, p := range i.layout.Parts {
			b := make([]byte, p.Len)
			if err := i.fill(rank)(p, n, 0, b); err != nil {
				return false, err
			}
			last := rank == i.shape.ranks()-1 && n == len(i.layout.Parts)-1
			if f.short[i.Name] && last {
				continue
			}
			if f.wrong[i.Name] && last {
				b[len(b)-1] ^= 1
			}
			half := len(b) / 16 * 8
			see(rank, n, 0, b[:half])
			see(rank, n, int64(half), b[half:])
		}
	}
	return true, nil
}

func (f *fake) list(context.Context) ([]tier.Name, error) {
	out := append([]tier.Name(nil), f.listed...)
	for n := range f.held {
		out = append(out, n)
	}
	return out, nil
}

// bench is a ledger, a workload and a fake beside each other.
type bench struct {
	*testing.T
	ledger *ledger
	work   *workload
	fake   *fake
}

func newBench(t *testing.T, seed uint64) *bench {
	t.Helper()
	l := newLedger(io.Discard)
	b := &bench{T: t, ledger: l, fake: newFake()}
	b.work = newWorkload(l, testShapes(t), seed, Limits{Items: 60, LiveBytes: 24 << 20, Tokens: 200})
	return b
}

func testShapes(t *testing.T) []*shape {
	t.Helper()
	var out []*shape
	for ranks := 1; ranks <= 2; ranks++ {
		s, err := newShape([]string{"", "one rank", "two ranks"}[ranks], ranks, []byte("salt"))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

// put submits one segment and acknowledges it, unless level is 0.
func (b *bench) put(number uint64, level tier.Level) *item {
	b.Helper()
	i := newSegment(b.work.shapes[number%2], 1, number, rand.New(rand.NewPCG(number, 0)), 100)
	b.ledger.submit(i)
	if level != 0 {
		if err := b.ledger.acknowledge(i, level); err != nil {
			b.Fatal(err)
		}
	}
	b.fake.held[i.Name] = i
	return i
}

func (b *bench) audit(older int64) Findings {
	b.Helper()
	a := audit{ledger: b.ledger, cache: b.fake, rng: rand.New(rand.NewPCG(1, 2)), older: older, must: tier.LevelLogged, strangers: b.work.strangers(8)}
	f, err := a.run(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return f
}
