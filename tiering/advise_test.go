package tiering

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/radix"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func wholeTree(c *Config) { c.AdviseNodes, c.AdviseBytes = 1<<20, 1<<30 }

// serve records a prompt and answers the advice.
func (b *bench) serve(q AdviseQuery) *Advice {
	b.Helper()
	q.Profile, q.Record = b.id, true
	if q.Tenant == 0 {
		q.Tenant = tenantA
	}
	var a Advice
	b.must(b.Advise(&q, &a))
	return &a
}

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
	b := newBench(t, talker(), wholeTree)
	rng := rand.New(rand.NewPCG(seed, 0))
	held := map[tier.TenantID][][]uint32{}
	for turn := range 800 {
		tenant := []tier.TenantID{tenantA, tenantB}[rng.IntN(2)]
		prompt := make([]uint32, 1+rng.IntN(40))
		for i := range prompt {
			prompt[i] = rng.Uint32N(2)
		}
		q := AdviseQuery{Tenant: tenant, Tokens: prompt, MaxCheckpoints: MaxPositions, PrefixTokens: rng.IntN(len(prompt) + 1)}
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
			} else if p.Why != WhyLast || p.Tokens != len(prompt) {
				t.Fatalf("seed %d turn %d: %+v of %d tokens", seed, turn, p, len(prompt))
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
	b := newBench(t, talker(), wholeTree)
	rng := rand.New(rand.NewPCG(seed, 0))
	for turn := range 500 {
		tokens := promptOf(t, "pre:"+string(rune('1'+rng.IntN(9)))+"00")
		for range rng.IntN(2000) {
			tokens = append(tokens, rng.Uint32N(3))
		}
		q := AdviseQuery{Tokens: tokens, BlockTokens: 1 + rng.IntN(64), MaxCheckpoints: 1 + rng.IntN(9), Output: rng.IntN(len(tokens)) * rng.IntN(2)}
		for c := 0; c < len(tokens) && rng.IntN(5) > 0; c += 1 + rng.IntN(100) {
			q.Cuts = append(q.Cuts, uint32(c))
		}
		got := b.serve(q)
		b.serveAdvice(b.ctx)
		last := len(tokens) - q.Output
		if q.Output == 0 {
			last = 0
		}
		for _, p := range got.Positions {
			if p.Tokens <= last || p.Tokens > len(tokens) || p.Tokens%q.BlockTokens != 0 || p.Why == WhyNone || p.Value < 0 || p.Admit != p.Reason.Admitted() {
				t.Fatalf("seed %d turn %d: %+v after %d of %d, blocks of %d", seed, turn, p, last, len(tokens), q.BlockTokens)
			}
			last = p.Tokens
		}
		if len(got.Positions) > q.MaxCheckpoints {
			t.Fatalf("seed %d turn %d: %d positions, wanted %d", seed, turn, len(got.Positions), q.MaxCheckpoints)
		}
	}
}

// checkTree compares what the advisor counts with what its tree has.
func (b *bench) checkTree() {
	b.Helper()
	a := b.advice
	a.mu.Lock()
	defer a.mu.Unlock()
	tokens, nodes := int64(0), 1
	held := make([]owned, len(a.mu.owned))
	for n := radix.Root + 1; int(n) < a.mu.tree.Limit(); n++ {
		if a.mu.tree.Parent(n) != radix.None {
			nodes++
			own := int64(a.mu.tree.End(n) - a.mu.tree.Begin(n))
			tokens += own
			held[a.valueLocked(n).owner()].add(1, own)
		}
	}
	if !slices.Equal(held, a.mu.owned) {
		b.Fatalf("tenants hold %+v, counted are %+v", held, a.mu.owned)
	}
	const pages = 3 * 64 << 10 // package radix takes memory by the page
	if tokens != a.mu.tokens || nodes != a.mu.tree.Len() || nodes > a.maxNodes || treeBytes(nodes, tokens) > a.maxBytes || a.mu.tree.Bytes() > a.maxBytes+pages {
		b.Fatalf("%d tokens counted, %d held; %d nodes of %d, %d bytes of %d", a.mu.tokens, tokens, nodes, a.maxNodes, a.mu.tree.Bytes(), a.maxBytes)
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
			b := newBench(t, talker(), func(c *Config) { c.AdviseNodes, c.AdviseBytes = bound.nodes, bound.bytes })
			rng := rand.New(rand.NewPCG(seed, 0))
			hot := promptOf(t, "hot:500")
			for turn := range 3000 {
				if turn%10 == 0 {
					if got := b.serve(AdviseQuery{Tokens: append(slices.Clone(hot), uint32(turn))}); turn > 0 && got.SeenTokens < len(hot) {
						t.Fatalf("seed %d turn %d: %d tokens of a hot prompt are left", seed, turn, got.SeenTokens)
					}
				}
				cold := make([]uint32, 1+rng.IntN(3000))
				for i := range cold {
					cold[i] = rng.Uint32()
				}
				b.serve(AdviseQuery{Tokens: cold, Tenant: []tier.TenantID{tenantA, tenantB}[turn%2]})
				b.checkTree()
				if turn%50 == 0 {
					b.serveAdvice(b.ctx)
					b.checkTree()
				}
			}
			if s := b.AdviceStats(); s.Dropped == 0 || s.Recorded < s.NotRecorded {
				t.Fatalf("%+v", s)
			}
		})
	}
}

func TestAdviceWithoutATreeOnlyAnswers(t *testing.T) {
	b := newBench(t, talker(), func(c *Config) { c.AdviseBytes = -1 })
	for range 3 {
		if got := b.serve(AdviseQuery{Tokens: promptOf(t, "x:5000"), Cuts: []uint32{4000}}); got.SeenTokens != 0 || len(got.Positions) != 2 || got.Choice.Best != cost.WayRecompute {
			t.Fatalf("%+v", got)
		}
	}
	if s := b.AdviceStats(); s.NotRecorded != 3 || s.Nodes != 1 {
		t.Fatalf("%+v", s)
	}
}

// TestARequestThatAsksTwiceIsOnePrompt asks with a prompt and again with the
// answer behind it, as engines do.
func TestARequestThatAsksTwiceIsOnePrompt(t *testing.T) {
	b := newBench(t, talker(), wholeTree)
	prompt, answer := promptOf(t, "sys:300 q:20"), promptOf(t, "sys:300 q:20 a:200")
	for range 3 {
		b.serve(AdviseQuery{Tokens: prompt})
		b.serve(AdviseQuery{Tokens: answer, Output: 200})
	}
	a := b.advice
	a.mu.Lock()
	defer a.mu.Unlock()
	sc := a.mu.scopes[scopeKey{b.id, tenantA}]
	at := func(depth int) seen {
		symbols := append([]uint32{sc.symbol}, answer[:depth]...)
		p := a.mu.tree.Match(symbols)
		if p.End != depth+1 {
			t.Fatalf("no node at %d", depth)
		}
		return a.valueLocked(p.Node)
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
		t.Errorf("prompts: %+v", r)
	}
	if r := sc.returns[originAnswer]; r.back != 1 {
		t.Errorf("answers: %+v", r)
	}
}

func TestAdviceOfAForgottenProfileGoes(t *testing.T) {
	b := newBench(t, talker(), wholeTree, func(c *Config) { c.MaxProfiles = 1 })
	b.serve(AdviseQuery{Tokens: promptOf(t, "x:100"), Samples: []cost.Sample{{Begin: 0, End: 100, Millis: 7}}})
	b.ReleaseProfile(b.id)
	id := talker()
	id.Model = "another"
	p, err := profile.New(id)
	b.must(err)
	_, err = b.AddProfile(p)
	b.must(err)
	b.wantErr(b.Advise(&AdviseQuery{Profile: b.id, Tenant: tenantA, Tokens: []uint32{1}}, &Advice{}), tier.ErrInvalid)
	b.serveAdvice(b.ctx)
	if s := b.AdviceStats(); s.Scopes != 0 || s.Samples != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestScopesOfForgottenProfilesAreBounded(t *testing.T) {
	b := newBench(t, talker(), wholeTree, func(c *Config) { c.MaxProfiles = 2 })
	for i := range 20 {
		id := talker()
		id.Weights[1] = byte(i + 1)
		p, err := profile.New(id)
		b.must(err)
		n, err := b.AddProfile(p)
		b.must(err)
		b.must(b.Advise(&AdviseQuery{Profile: n, Tenant: tenantB, Tokens: []uint32{1}, Record: true}, &Advice{}))
		b.ReleaseProfile(n)
		select {
		case <-b.advice.wake:
			b.serveAdvice(b.ctx)
		default:
		}
		if s := b.AdviceStats(); s.Scopes > 4 {
			t.Fatalf("%d scopes after %d profiles", s.Scopes, i+1)
		}
	}
}

func TestAdviceNeedsItsTenantAndProfile(t *testing.T) {
	b := newBench(t, talker())
	for _, q := range []AdviseQuery{
		{Profile: b.id + 1, Tenant: tenantA, Tokens: []uint32{1}},
		{Profile: b.id, Tenant: 9, Tokens: []uint32{1}},
	} {
		b.wantErr(b.Advise(&q, &Advice{}), tier.ErrInvalid)
	}
	if s := b.AdviceStats(); s.Scopes != 0 || s.Asked != 0 {
		t.Fatalf("%+v", s)
	}
}

func TestSamplesBeyondTheBoundAreCounted(t *testing.T) {
	b := newBench(t, talker())
	samples := slices.Repeat([]cost.Sample{{Begin: 0, End: 1000, Millis: 40}}, samplesMost+10)
	b.serve(AdviseQuery{Tokens: []uint32{1}, Samples: samples})
	b.serveAdvice(b.ctx)
	if s := b.AdviceStats(); s.SamplesDropped != 10 || s.Samples != samplesMost {
		t.Fatalf("%+v", s)
	}
	c := b.Costs()[0]
	if ms := c.Prefill.Millis(0, 1000); c.Samples != samplesMost || ms < 39 || ms > 41 {
		t.Fatalf("%d samples, %.1f ms", c.Samples, ms)
	}
}

// TestAdviceRunsBesideItsWorker is for the race detector: many engines ask while
// the worker of Run fits, solves and drops.
func TestAdviceRunsBesideItsWorker(t *testing.T) {
	b := newBench(t, talker(), func(c *Config) { c.AdviseNodes, c.AdviseBytes = 500, 1<<20 })
	ctx, stop := context.WithCancel(context.Background())
	var run, engines sync.WaitGroup
	run.Go(func() { _ = b.Run(ctx) })
	for e := range 4 {
		engines.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(e), 1))
			var a Advice
			for range 400 {
				tokens := promptOf(t, "sys:"+string(rune('1'+rng.IntN(9)))+"00")
				for range 1 + rng.IntN(300) {
					tokens = append(tokens, rng.Uint32N(2))
				}
				q := AdviseQuery{
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
	b.serveAdvice(b.ctx)
	b.checkTree()
	if s := b.AdviceStats(); s.Asked != 1600 || s.Recorded+s.NotRecorded != 1600 || s.Samples == 0 || s.Solved == 0 {
		t.Fatalf("%+v", s)
	}
}

func TestTheWorkerWakesByItself(t *testing.T) {
	b := newBench(t, talker())
	ctx, stop := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { _ = b.Run(ctx) })
	b.serve(AdviseQuery{Tokens: []uint32{1}, Samples: []cost.Sample{{Begin: 0, End: 1000, Millis: 40}}})
	for limit := time.Now().Add(10 * time.Second); b.AdviceStats().Samples == 0; {
		if time.Now().After(limit) {
			t.Fatal("the sample was not taken")
		}
	}
	stop()
	run.Wait()
}

// BenchmarkAdvise asks beside a million nodes: 40,000 documents of 384 tokens, each
// left at some ten places by prompts that go on in their own way. It reports the
// slowest hundredth, and what a node takes with its edge.
func BenchmarkAdvise(b *testing.B) {
	const documents, length = 40_000, 384
	s := newBench(b, talker(), func(c *Config) { c.AdviseNodes, c.AdviseBytes = 1<<21, 2<<30 })
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
	for nodes := 0; nodes < 1_000_000; nodes = s.advice.mu.tree.Len() {
		s.serve(AdviseQuery{Tokens: prompt(1 + rng.IntN(length)), MaxCheckpoints: 1})
	}
	stats := s.AdviceStats()
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
				q := AdviseQuery{Profile: s.id, Tenant: tenantA, Tokens: prompts[i%len(prompts)], Record: true, BlockTokens: 16}
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
