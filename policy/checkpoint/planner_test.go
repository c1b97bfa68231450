package checkpoint

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// drift is a stream of prompts of one kind: length and depth of the hit on it.
type drift func(rng *rand.Rand) (length, depth int)

// lead feeds hits of one kind and answers what the planner and each of the
// papers' placements save on the second half of them.
func lead(t *testing.T, seed uint64, budget int, kind drift) (ours, even, blocks, law float64, rule Rule) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 3))
	p := New(Options{Budget: budget})
	h := NewHistogram(0.99)
	var s *Schedule
	var sums [5]float64
	for i := range 2000 {
		length, depth := kind(rng)
		if i >= 1000 {
			for j, positions := range [][]int{
				tokensOf(p.Place(Prompt{Tokens: length})), Align(Balanced(length, budget), block), aligned(length, budget, block), s.Place(length/block, budget),
			} {
				scale := 1
				if j == 3 {
					scale = block
				}
				sums[j] += float64(deepest(positions, depth/scale) * scale)
			}
			sums[4] += float64(depth)
		}
		p.Request(Hit{Depth: depth, Length: length})
		h.Add(depth / block)
		if p.Due() {
			p.Install(p.Problem().Solve())
			s = h.Law().Solve(budget)
		}
	}
	return sums[0] / sums[4], sums[1] / sums[4], sums[2] / sums[4], sums[3] / sums[4], p.Rule(budget)
}

// Each kind of traffic suits another rule; the planner has to find it.
func TestPlannerFollowsWhatTrafficDoes(t *testing.T) {
	lengths := func(rng *rand.Rand) int { return 2000 + rng.IntN(60_000) }
	for _, c := range []struct {
		name string
		kind drift
	}{
		{"any depth of any length", func(rng *rand.Rand) (int, int) { n := lengths(rng); return n, 1 + rng.IntN(n) }},
		{"one preamble before anything", func(rng *rand.Rand) (int, int) { return lengths(rng), 1500 + rng.IntN(40) }},
		{"two preambles", func(rng *rand.Rand) (int, int) { return lengths(rng), []int{640, 1900}[rng.IntN(2)] }},
		{"half of any document", func(rng *rand.Rand) (int, int) { n := lengths(rng); return n, n / 2 }},
		{"questions behind documents", func(rng *rand.Rand) (int, int) { n := lengths(rng); return n, n - 1 - rng.IntN(60) }},
		{"turns of a conversation", func(rng *rand.Rand) (int, int) { n := lengths(rng); return n, n }},
		{"preambles and turns", func(rng *rand.Rand) (int, int) {
			n := lengths(rng)
			return n, []int{1500, n, n - 30}[rng.IntN(3)]
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			budgets := []int{1, 2, 4, 8, 32}
			if testing.Short() {
				budgets = []int{2}
			}
			for _, budget := range budgets {
				ours, even, blocks, law, rule := lead(t, 1, budget, c.kind)
				t.Logf("%2d checkpoints: planner %.4f by %s; balanced %.4f, block %.4f, dynamic program %.4f", budget, ours, rule, even, blocks, law)
				if bar := max(even, blocks, law); ours < bar-0.005 {
					t.Errorf("%d checkpoints: saves %.4f by %s, the best of the others %.4f", budget, ours, rule, bar)
				}
			}
		})
	}
}

func TestPlaceKeepsItsPromises(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 4))
		p := New(Options{Budget: 1 + rng.IntN(20), BlockTokens: []int{1, 16, 64}[rng.IntN(3)]})
		for range rng.IntN(60) {
			n := 1 + rng.IntN(5000)
			cuts := rng.IntN(4)
			p.Request(Hit{Depth: rng.IntN(n + 10), Length: n, Branch: rng.IntN(n), Cuts: cuts, Cut: rng.IntN(cuts + 1)})
			if p.Due() {
				p.Install(p.Problem().Solve())
			}
		}
		q := Prompt{Tokens: rng.IntN(6000), From: rng.IntN(3000), Branch: rng.IntN(6000), Budget: rng.IntN(25)}
		for range rng.IntN(5) {
			q.Cuts = append(q.Cuts, rng.IntN(7000)) // not even ascending
		}
		most := p.options.Budget
		if q.Budget > 0 {
			most = min(most, q.Budget)
		}
		last := q.From
		placed := p.Place(q)
		for _, at := range placed {
			if at.Tokens <= last || at.Tokens > q.Tokens || at.Tokens%p.options.BlockTokens != 0 || at.Why < WhyBranch || at.Why > WhyPlaced {
				t.Fatalf("seed %d, %+v: %v, position %d", seed, q, placed, at.Tokens)
			}
			last = at.Tokens
		}
		if len(placed) > most {
			t.Fatalf("seed %d, %+v: %d positions, at most %d", seed, q, len(placed), most)
		}
	}
}

func TestBranchesThatNeverPayAreLeftOut(t *testing.T) {
	p := New(Options{Budget: 1})
	q := Prompt{Tokens: 10_000, Branch: 640}
	if got := p.Place(q); !slices.Equal(got, []Position{{640, WhyBranch}}) {
		t.Errorf("before any hit: %v, want the branch", got)
	}
	for range 40 {
		p.Request(Hit{Depth: 10_000, Length: 10_000, Branch: 640})
	}
	if got := p.Place(q); !slices.Equal(got, []Position{{9984, WhyLast}}) {
		t.Errorf("after hits on whole prompts: %v, want the end", got)
	}
	if got := p.Place(Prompt{Tokens: 10_000, Branch: 9000}); !slices.Equal(got, []Position{{8960, WhyBranch}}) {
		t.Errorf("a branch as deep as none before: %v, want it", got)
	}
}

func TestCutsThatHitsEndInAreKept(t *testing.T) {
	p := New(Options{Budget: 2})
	cuts := []int{640, 1280, 1920, 2560, 3200}
	for range 20 {
		p.Request(Hit{Depth: 2000, Length: 4000, Cut: 3, Cuts: 5})
	}
	if got := tokensOf(p.Place(Prompt{Tokens: 4000, Cuts: cuts, Budget: 1})); !slices.Equal(got, []int{1920}) {
		t.Errorf("kept %v, want the third cut", got)
	}
	if got := p.Place(Prompt{Tokens: 4000, Cuts: cuts, Branch: 3300}); len(got) != 2 || got[0] != (Position{1920, WhyBoundary}) || got[1] != (Position{3264, WhyBranch}) {
		t.Errorf("kept %v, want the third cut and the branch", got)
	}
}

func TestProblemIsACopy(t *testing.T) {
	p, q := New(Options{Budget: 4}), New(Options{Budget: 4})
	for i := range 30 {
		p.Request(Hit{Depth: 1000 + i, Length: 2000})
		q.Request(Hit{Depth: 1000 + i, Length: 2000})
	}
	if !p.Due() {
		t.Fatal("30 hits and nothing is due")
	}
	early := p.Problem()
	if p.Due() {
		t.Error("due again at once")
	}
	for range 500 {
		p.Request(Hit{Depth: 100, Length: 5000})
	}
	a, b := early.Solve(), q.Problem().Solve()
	for _, rule := range []Rule{RuleDepth, RuleShare, RuleTail, RuleTailDepth} {
		if got, want := rule.place(a, 3000, 4, 64), rule.place(b, 3000, 4, 64); !slices.Equal(got, want) {
			t.Errorf("%s: %v after later hits, want %v", rule, got, want)
		}
	}
}

func TestMissesAreNotDue(t *testing.T) {
	p := New(Options{})
	for range 100 {
		p.Request(Hit{})
	}
	if p.Due() {
		t.Error("due without a hit")
	}
}
