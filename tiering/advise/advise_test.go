package advise

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func commonPrefix(a, b []uint32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// partings lists where prompts that begin as this one go on in different ways.
func partings(prompt []uint32, held [][]uint32) []int {
	next := map[int]map[uint32]bool{}
	add := func(d int, id uint32) {
		if next[d] == nil {
			next[d] = map[uint32]bool{}
		}
		next[d][id] = true
	}
	for _, h := range append(held, prompt) {
		for d := range min(commonPrefix(prompt, h)+1, len(h)) {
			add(d, h[d])
		}
	}
	var at []int
	for d, ids := range next {
		if d > 0 && len(ids) > 1 {
			at = append(at, d)
		}
	}
	slices.Sort(at)
	return at
}

func TestAdviceAgreesWithAListOfPrompts(t *testing.T) {
	const seed = 31
	b := newBench(t, wholeTree)
	rng := rand.New(rand.NewPCG(seed, 0))
	held := map[tier.TenantID][][]uint32{}
	for turn := range 800 {
		tenant := []tier.TenantID{tenantA, tenantB}[rng.IntN(2)]
		prompt := make([]uint32, 1+rng.IntN(40))
		for i := range prompt {
			prompt[i] = rng.Uint32N(2)
		}
		q := Query{Tenant: tenant, Tokens: prompt, MaxCheckpoints: MaxPositions, PrefixTokens: rng.IntN(len(prompt) + 1)}
		got := b.serve(q)
		want := 0
		for _, h := range held[tenant] {
			want = max(want, commonPrefix(prompt, h))
		}
		if got.SeenTokens != want {
			t.Fatalf("seed %d turn %d: %d tokens seen, want %d", seed, turn, got.SeenTokens, want)
		}
		var branches []int
		for _, p := range got.Positions {
			if p.Why == WhyBranch {
				branches = append(branches, p.Tokens)
			} else if p.Why != WhyLast || p.Tokens != len(prompt)-1 {
				t.Fatalf("seed %d turn %d: a position at %d for %v, of %d tokens", seed, turn, p.Tokens, p.Why, len(prompt))
			}
		}
		parts := slices.DeleteFunc(partings(prompt, held[tenant]), func(d int) bool { return d <= q.PrefixTokens })
		if !slices.Equal(branches, parts) {
			t.Fatalf("seed %d turn %d: branches at %v behind %d, want %v", seed, turn, branches, q.PrefixTokens, parts)
		}
		held[tenant] = append(held[tenant], prompt)
	}
}

func TestPositionsKeepToBlockBudgetAndPrompt(t *testing.T) {
	const seed = 32
	b := newBench(t, wholeTree)
	rng := rand.New(rand.NewPCG(seed, 0))
	for turn := range 500 {
		tokens := promptOf(t, "pre:"+string(rune('1'+rng.IntN(9)))+"00")
		for range rng.IntN(2000) {
			tokens = append(tokens, rng.Uint32N(3))
		}
		q := Query{Tokens: tokens, BlockTokens: 1 + rng.IntN(64), MaxCheckpoints: 1 + rng.IntN(9), Output: rng.IntN(len(tokens)) * rng.IntN(2)}
		for c := 0; c < len(tokens) && rng.IntN(5) > 0; c += 1 + rng.IntN(100) {
			q.Cuts = append(q.Cuts, uint32(c))
		}
		got := b.serve(q)
		b.Work(b.ctx)
		last := len(tokens) - q.Output
		if q.Output == 0 {
			last = 0
		}
		for _, p := range got.Positions {
			if p.Tokens <= last || p.Tokens > len(tokens) || p.Tokens%q.BlockTokens != 0 || p.Why == WhyNone || p.Value < 0 || p.Admit != p.Reason.Admitted() {
				t.Fatalf("seed %d turn %d: position %d for %v, admit %v for %v at %g, after %d of %d, blocks of %d", seed, turn,
					p.Tokens, p.Why, p.Admit, p.Reason, p.Value, last, len(tokens), q.BlockTokens)
			}
			last = p.Tokens
		}
		if end := len(tokens) - 1; q.Output == 0 {
			for _, p := range got.Positions {
				if p.Why == WhyLast && p.Tokens != end-end%q.BlockTokens {
					t.Fatalf("seed %d turn %d: last at %d of %d tokens, blocks of %d", seed, turn, p.Tokens, len(tokens), q.BlockTokens)
				}
			}
		}
		if len(got.Positions) > q.MaxCheckpoints {
			t.Fatalf("seed %d turn %d: %d positions, wanted %d", seed, turn, len(got.Positions), q.MaxCheckpoints)
		}
	}
}

// checkTree compares what the advisor counts with what its tree has.
func (b *bench) checkTree() {
	b.Helper()
	a := b.Advisor
	a.mu.Lock()
	defer a.mu.Unlock()
	tokens, nodes := int64(0), 1
	held := make([]owned, len(a.mu.tree.owned))
	for n := radix.Root + 1; int(n) < a.mu.tree.Limit(); n++ {
		if a.mu.tree.Parent(n) != radix.None {
			nodes++
			own := int64(a.mu.tree.End(n) - a.mu.tree.Begin(n))
			tokens += own
			held[a.mu.tree.value(n).owner()].add(1, own)
		}
	}
	if !slices.Equal(held, a.mu.tree.owned) {
		b.Fatalf("nodes and tokens by tenant: %v are held, %v are counted", held, a.mu.tree.owned)
	}
	const pages = 3 * 64 << 10 // package radix takes memory by the page
	if tokens != a.mu.tree.tokens || nodes != a.mu.tree.Len() || nodes > a.mu.tree.most.nodes || treeBytes(nodes, tokens) > a.mu.tree.most.bytes || a.mu.tree.Bytes() > a.mu.tree.most.bytes+pages {
		b.Fatalf("%d tokens counted, %d held; %d nodes of %d, %d bytes of %d", a.mu.tree.tokens, tokens, nodes, a.mu.tree.most.nodes, a.mu.tree.Bytes(), a.mu.tree.most.bytes)
	}
}

func TestTreeOfPromptsStaysWithinItsBounds(t *testing.T) {
	for _, bound := range []struct {
		name  string
		nodes int
		bytes int64
	}{{"nodes", 200, 64 << 20}, {"bytes", 1 << 20, 256 << 10}} {
		t.Run(bound.name, func(t *testing.T) {
			const seed = 33
			b := newBench(t, func(o *Options) { o.Nodes, o.Bytes = bound.nodes, bound.bytes })
			rng := rand.New(rand.NewPCG(seed, 0))
			hot := promptOf(t, "hot:500")
			turns := 3000
			if testing.Short() {
				turns = 1000
			}
			for turn := range turns {
				if turn%10 == 0 {
					if got := b.serve(Query{Tokens: append(slices.Clone(hot), uint32(turn))}); turn > 0 && got.SeenTokens < len(hot) {
						t.Fatalf("seed %d turn %d: %d tokens of a hot prompt are left", seed, turn, got.SeenTokens)
					}
				}
				cold := make([]uint32, 1+rng.IntN(3000))
				for i := range cold {
					cold[i] = rng.Uint32()
				}
				b.serve(Query{Tokens: cold, Tenant: []tier.TenantID{tenantA, tenantB}[turn%2]})
				b.checkTree()
				if turn%50 == 0 {
					b.Work(b.ctx)
					b.checkTree()
				}
			}
			if s := b.Stats(); s.Dropped == 0 || s.Recorded < s.NotRecorded {
				t.Fatalf("%d nodes dropped, %d prompts recorded and %d left out", s.Dropped, s.Recorded, s.NotRecorded)
			}
		})
	}
}

func TestAdviceWithoutATreeOnlyAnswers(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Bytes = -1 })
	for range 3 {
		if got := b.serve(Query{Tokens: promptOf(t, "x:5000"), Cuts: []uint32{4000}}); got.SeenTokens != 0 || len(got.Positions) != 2 || got.Choice.Best != cost.WayRecompute {
			t.Fatalf("%d tokens seen, %d positions, way %v; want 0, 2, recompute", got.SeenTokens, len(got.Positions), got.Choice.Best)
		}
	}
	if s := b.Stats(); s.NotRecorded != 3 || s.Nodes != 1 {
		t.Fatalf("%d prompts left out, %d nodes; want 3 and 1", s.NotRecorded, s.Nodes)
	}
}

// TestARequestThatAsksTwiceIsOnePrompt asks with a prompt and again with the
// answer behind it, as engines do.
func TestARequestThatAsksTwiceIsOnePrompt(t *testing.T) {
	b := newBench(t, wholeTree)
	prompt, answer := promptOf(t, "sys:300 q:20"), promptOf(t, "sys:300 q:20 a:200")
	for range 3 {
		b.serve(Query{Tokens: prompt})
		b.serve(Query{Tokens: answer, Output: 200})
	}
	a := b.Advisor
	a.mu.Lock()
	defer a.mu.Unlock()
	sc := a.mu.scopes[scopeKey{b.id, tenantA}]
	at := func(depth int) seen {
		symbols := append([]uint32{sc.symbol}, answer[:depth]...)
		p := a.mu.tree.Match(symbols)
		if p.End != depth+1 {
			t.Fatalf("no node at %d", depth)
		}
		return a.mu.tree.value(p.Node)
	}
	if n := at(320).count(); n != 3 {
		t.Errorf("the prompt counts %d times, want 3", n)
	}
	if n := at(520).count(); n != 3 {
		t.Errorf("the answer counts %d times, want 3", n)
	}
	// The second request came back to the prompt of the first, whose end was the
	// deepest that it had; the answer was given again, not continued.
	if r := sc.returns[originPrompt]; r.back != 1 || r.ended != 1 {
		t.Errorf("of prompts %g of %g came back, want 1 of 1", r.back, r.ended)
	}
	if r := sc.returns[originAnswer]; r.back != 1 {
		t.Errorf("%g answers came back, want 1", r.back)
	}
}

func TestScopesOfForgottenProfilesAreBounded(t *testing.T) {
	b := newBench(t, wholeTree, func(o *Options) { o.MaxProfiles = 2 })
	for i := range 20 {
		n := b.store.add(b.profile)
		b.must(b.Advise(&Query{Profile: n, Tenant: tenantB, Tokens: []uint32{1}, Record: true}, &Advice{}))
		delete(b.store.learned, n-2) // two are registered
		select {
		case <-b.wake:
			b.Work(b.ctx)
		default:
		}
		if s := b.Stats(); s.Scopes > 4 {
			t.Fatalf("%d scopes after %d profiles", s.Scopes, i+1)
		}
	}
}

func TestAdviceNeedsItsTenantAndProfile(t *testing.T) {
	b := newBench(t)
	for _, q := range []Query{
		{Profile: b.id + 1, Tenant: tenantA, Tokens: []uint32{1}},
		{Profile: b.id, Tenant: 9, Tokens: []uint32{1}},
	} {
		b.wantErr(b.Advise(&q, &Advice{}), tier.ErrInvalid)
	}
	if s := b.Stats(); s.Scopes != 0 || s.Asked != 0 {
		t.Fatalf("%d scopes, %d advices; want none", s.Scopes, s.Asked)
	}
}

// Walks that only one tenant finds slow keep only that one from splicing.
func TestATenantIsAdvisedByItsOwnSlowWalks(t *testing.T) {
	b := newBench(t)
	q := &Query{Profile: b.id, Tenant: tenantA, Tokens: promptOf(t, "doc:4000 question:10"), Segments: []Segment{{Tokens: 4000, Status: tier.StatusHit}}}
	for i := range 30 {
		q.Samples = append(q.Samples, cost.Sample{Task: cost.TaskWalk, End: 100 + 40*i, Millis: 1000 * float64(100+40*i), Source: 1})
	}
	b.must(b.Advise(q, &Advice{}))
	b.Work(b.ctx)
	q.Samples = nil
	for tenant, want := range map[tier.TenantID]cost.Way{tenantA: cost.WayRecompute, tenantB: cost.WaySplice} {
		var a Advice
		q.Tenant = tenant
		if b.must(b.Advise(q, &a)); a.Choice.Best != want {
			t.Errorf("tenant %d is advised %+v, want %v", tenant, a.Choice, want)
		}
	}
}

func TestSamplesBeyondTheBoundAreCounted(t *testing.T) {
	b := newBench(t)
	const engines, each = 10, samplesMost / 8
	for source := range uint64(engines) {
		samples := slices.Repeat([]cost.Sample{{Begin: 0, End: 1000, Millis: 40, Source: source}}, each+10)
		b.serve(Query{Tokens: []uint32{1}, Samples: samples})
	}
	b.Work(b.ctx)
	if s := b.Stats(); s.SamplesDropped != engines*(each+10)-samplesMost || s.Samples != samplesMost {
		t.Fatalf("%d samples taken and %d dropped, want %d and the rest", s.Samples, s.SamplesDropped, samplesMost)
	}
	c := b.store.learned[b.id].Snapshot()
	if ms := c.Prefill.Millis(0, 1000); c.Samples != samplesMost || ms < 39 || ms > 41 {
		t.Fatalf("%d samples, %.1f ms", c.Samples, ms)
	}
}

// TestAdviceRunsBesideItsWorker is for the race detector: many engines ask while
// the worker of Run fits, solves and drops.
func TestAdviceRunsBesideItsWorker(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Nodes, o.Bytes = 500, 1<<20 })
	ctx, stop := context.WithCancel(context.Background())
	var run, engines sync.WaitGroup
	run.Go(func() { b.Run(ctx) })
	for e := range 4 {
		engines.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(e), 1))
			var a Advice
			for range 400 {
				tokens := promptOf(t, "sys:"+string(rune('1'+rng.IntN(9)))+"00")
				for range 1 + rng.IntN(300) {
					tokens = append(tokens, rng.Uint32N(2))
				}
				q := Query{
					Profile: b.id, Tenant: tenantA, Tokens: tokens, Record: true,
					Samples: []cost.Sample{{Begin: 0, End: len(tokens), Millis: float64(len(tokens)) / 20}},
				}
				if err := b.Advise(&q, &a); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	engines.Wait()
	stop()
	run.Wait()
	b.Work(b.ctx)
	b.checkTree()
	if s := b.Stats(); s.Asked != 1600 || s.Recorded+s.NotRecorded != 1600 || s.Samples == 0 || s.Solved == 0 {
		t.Fatalf("%d asked, %d recorded, %d left out, %d samples, %d solved", s.Asked, s.Recorded, s.NotRecorded, s.Samples, s.Solved)
	}
}

func TestTheWorkerWakesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		go b.Run(ctx)
		b.serve(Query{Tokens: []uint32{1}, Samples: []cost.Sample{{Begin: 0, End: 1000, Millis: 40}}})
		synctest.Wait()
		if n := b.Stats().Samples; n != 1 {
			t.Errorf("%d samples were taken, want 1", n)
		}
	})
}

// BenchmarkAdvise asks beside a million nodes: 40,000 documents of 384 tokens, each
// left at some ten places by prompts that go on in their own way. It reports the
// slowest hundredth, and what a node takes with its edge.
func BenchmarkAdvise(b *testing.B) {
	const documents, length = 40_000, 384
	s := newBench(b, func(o *Options) { o.Nodes, o.Bytes = 1<<21, 2<<30 })
	rng := rand.New(rand.NewPCG(5, 5))
	// prompt reads some of a document and goes on in its own way.
	prompt := func(tokens int) []uint32 {
		d := rng.Uint32N(documents)
		p := make([]uint32, 0, tokens)
		for i := range min(1+rng.IntN(length), tokens) {
			p = append(p, d*2654435761+uint32(i))
		}
		for len(p) < tokens {
			p = append(p, rng.Uint32())
		}
		return p
	}
	for nodes := 0; nodes < 1_000_000; nodes = s.mu.tree.Len() {
		s.serve(Query{Tokens: prompt(1 + rng.IntN(length)), MaxCheckpoints: 1})
	}
	stats := s.Stats()
	for _, row := range []struct {
		name   string
		tokens int
	}{{"tokens=512", 512}, {"tokens=4096", 4096}, {"tokens=16384", 16384}} {
		b.Run("nodes=1000000/"+row.name, func(b *testing.B) {
			b.ReportAllocs()
			prompts := make([][]uint32, 256)
			for i := range prompts {
				prompts[i] = prompt(row.tokens)
			}
			var took []time.Duration
			var a Advice
			for i := 0; b.Loop(); i++ {
				q := Query{Profile: s.id, Tenant: tenantA, Tokens: prompts[i%len(prompts)], Record: true, BlockTokens: 16}
				began := time.Now()
				if err := s.Advise(&q, &a); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-us")
			b.ReportMetric(float64(stats.Bytes)/float64(stats.Nodes), "bytes/node")
			b.ReportMetric(float64(stats.NodeTokens)/float64(stats.Nodes), "tokens/node")
		})
	}
}
