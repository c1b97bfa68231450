package advise

import (
	"math/rand/v2"
	"testing"
)

// every lists n cuts, a step apart.
func every(from, step, n, limit int) []uint32 {
	var cuts []uint32
	for at := from; len(cuts) < n && at <= limit; at += step {
		cuts = append(cuts, uint32(at))
	}
	return cuts
}

// stepsOf is how far an advice walks while others wait.
func (b *bench) stepsOf(q Query) uint64 {
	b.Helper()
	before := b.Stats().Steps
	b.serve(q)
	return b.Stats().Steps - before
}

// walks is how often an advice goes along a path at most: twice down, and up to list
// it, to count who comes back, to know its own prompt, to mark and to count.
const walks = 7

// TestMarksOfAPromptTakeOneWalk names many positions near the front of a prompt that
// has many nodes behind them.
func TestMarksOfAPromptTakeOneWalk(t *testing.T) {
	const length = 1 << 16
	b := newBench(t, wholeTree)
	prompt := promptOf(t, "long:65536")
	for turn := range 3 {
		b.serve(Query{Tokens: prompt, Cuts: every(20_000+turn, 40, MaxPositions, length), MaxCheckpoints: MaxPositions})
	}
	depth := b.Stats().Nodes
	if depth < 3*1000 {
		t.Fatalf("%d nodes are no deep path", depth)
	}
	got := b.stepsOf(Query{Tokens: prompt, Cuts: every(1, 1, 1000, length), MaxCheckpoints: MaxPositions})
	if limit := uint64(walks*depth + 2*MaxPositions); got > limit {
		t.Errorf("%d steps for 1000 marks before %d nodes, most %d", got, depth, limit)
	}
}

// TestNoPromptMakesAdviceWalkFar lets a client make a path as deep as it can.
func TestNoPromptMakesAdviceWalkFar(t *testing.T) {
	const length = 1 << 16
	b := newBench(t, wholeTree)
	prompt := promptOf(t, "long:65536")
	turns := 40
	if testing.Short() {
		turns = 10
	}
	for turn := range turns {
		q := Query{Tokens: prompt, Cuts: every(1+turn, 61, MaxPositions, length), MaxCheckpoints: MaxPositions}
		if got := b.stepsOf(q); got > walks*(pathMost+matchSymbols+MaxPositions) {
			t.Fatalf("turn %d: %d steps, in %d walks", turn, got, walks)
		}
	}
	s := b.Stats()
	if s.NotRecorded == 0 || s.Nodes > pathMost+2*MaxPositions {
		t.Errorf("%d nodes on one path, %d prompts left out", s.Nodes, s.NotRecorded)
	}
	b.checkTree()
}

// TestAMatchInPiecesIsThatInOne has edges and prompts that end around the places
// where a match looks up.
func TestAMatchInPiecesIsThatInOne(t *testing.T) {
	const seed = 34
	b := newBench(t, wholeTree)
	rng := rand.New(rand.NewPCG(seed, 0))
	a := b.Advisor
	for turn := range 300 {
		prompt := promptOf(t, "front:5000")[:1+rng.IntN(5000)]
		for range rng.IntN(3000) {
			prompt = append(prompt, rng.Uint32N(2))
		}
		b.serve(Query{Tokens: prompt})
		a.mu.Lock()
		symbols := append([]uint32{1}, prompt[:rng.IntN(len(prompt))]...)
		symbols = append(symbols, rng.Uint32N(3))
		got, whole := a.mu.tree.match(symbols)
		want := a.mu.tree.Match(symbols)
		a.mu.Unlock()
		if !whole || got != want {
			t.Fatalf("seed %d turn %d: path %v, whole %v; want %v", seed, turn, got, whole, want)
		}
	}
}

// TestPromptsOfOneTenantDoNotPushOutAnothers has one tenant invent prompts for as
// long as it likes, while nobody asks for the few of the other.
func TestPromptsOfOneTenantDoNotPushOutAnothers(t *testing.T) {
	for _, bound := range []struct {
		name  string
		nodes int
		bytes int64
	}{{"nodes", 200, 64 << 20}, {"bytes", 1 << 20, 256 << 10}} {
		t.Run(bound.name, func(t *testing.T) {
			const seed = 35
			b := newBench(t, func(o *Options) { o.Nodes, o.Bytes = bound.nodes, bound.bytes })
			rng := rand.New(rand.NewPCG(seed, 0))
			invent := func(turns int) {
				for range turns {
					cold := make([]uint32, 1+rng.IntN(2000))
					for i := range cold {
						cold[i] = rng.Uint32()
					}
					b.serve(Query{Tokens: cold, Tenant: tenantB})
					b.Work(b.ctx)
				}
				b.checkTree()
			}
			invent(500) // the other comes to a tree that is full
			few := []string{"sys:500 a:40", "sys:500 b:70", "sys:500 b:70 c:900", "other:3000"}
			for _, prompt := range few {
				b.serve(Query{Tokens: promptOf(t, prompt)})
			}
			recorded := b.Stats().Recorded
			invent(5000)
			for _, prompt := range few {
				tokens := promptOf(t, prompt)
				var a Advice
				b.must(b.Advise(&Query{Profile: b.id, Tenant: tenantA, Tokens: tokens}, &a))
				if a.SeenTokens != len(tokens) {
					t.Errorf("seed %d: %d of %d tokens are left of %q", seed, a.SeenTokens, len(tokens), prompt)
				}
			}
			if n := b.Stats().Recorded - recorded; n < 4500 {
				t.Errorf("seed %d: %d of 5000 prompts of the other were recorded", seed, n)
			}
		})
	}
}

// TestATenantThatIsAloneHasTheWholeTree: a part is only kept for who holds something.
func TestATenantThatIsAloneHasTheWholeTree(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Nodes, o.Bytes = 200, 64<<20 })
	for i := range 1000 {
		b.serve(Query{Tokens: []uint32{uint32(i), 1, 2}, MaxCheckpoints: 1})
	}
	if n := b.Stats().Nodes; n < 180 {
		t.Errorf("%d nodes of 200 are used", n)
	}
	b.checkTree()
}

func TestAPromptThatIsTooLongIsAnsweredOnly(t *testing.T) {
	b := newBench(t, wholeTree)
	tokens := make([]uint32, promptMost+5)
	b.serve(Query{Tokens: tokens[:promptMost-1]})
	if a := b.serve(Query{Tokens: tokens}); a.SeenTokens != promptMost-1 {
		t.Errorf("%d tokens seen", a.SeenTokens)
	}
	if s := b.Stats(); s.Recorded != 1 || s.NotRecorded != 1 {
		t.Errorf("%d recorded, %d left out", s.Recorded, s.NotRecorded)
	}
}
