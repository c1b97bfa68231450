package find

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// held is a segment of a test.
type held struct {
	spec   profile.SegmentSpec
	tokens []uint32
}

type bed struct {
	*testing.T
	index Index
	scope Scope
	hash  profile.RollingHash
	p     *profile.Profile
	held  []held

	primer profile.PrimerID // as of Query, like the next two
	from   int
	either bool
}

func newBed(t *testing.T) *bed {
	p := profiletest.New(profiletest.Hybrid(1))
	return &bed{T: t, p: p, scope: Scope{1, p.Fingerprint()}, hash: p.RollingHash([]byte("salt"))}
}

const seam = 4

func (b *bed) mid(n int) profile.SegmentSpec {
	s, _ := b.p.MidSpec(n, seam)
	return s
}

func (b *bed) add(s profile.SegmentSpec, tokens []uint32) {
	b.held = append(b.held, held{s, tokens})
	b.index.Add(b.scope, b.hash.Segment(s, tokens), s.Tokens)
}

func (b *bed) remove(i int) {
	h := b.held[i]
	b.held = slices.Delete(b.held, i, i+1)
	b.index.Remove(b.scope, b.hash.Segment(h.spec, h.tokens), h.spec.Tokens)
}

func (b *bed) search(prompt []uint32, begin int) *Found {
	b.Helper()
	var f Found
	q := &Query{Scope: b.scope, Hash: b.hash, Tokens: prompt, Begin: begin, Mid: b.mid(0), Primer: b.primer, PrimedFrom: b.from, Either: b.either}
	if err := b.index.Search(b.Context(), q, &f); err != nil {
		b.Fatal(err)
	}
	return &f
}

// interior is what a span saves.
func (b *bed) interior(s Span) int {
	if s.Start == 0 {
		return s.Tokens
	}
	_, n := b.mid(s.Tokens).Interior()
	return n
}

// best is the most that segments can save from a token on, by comparing tokens.
func (b *bed) best(prompt []uint32, begin int) int {
	best := make([]int, len(prompt)+1)
	for at := len(prompt) - 1; at >= begin; at-- {
		best[at] = best[at+1]
		for _, h := range b.held {
			end := at + h.spec.Tokens
			if h.spec.Tokens >= profile.LeadTokens && b.stands(h, prompt, at) {
				best[at] = max(best[at], b.interior(Span{Start: at, Tokens: h.spec.Tokens})+best[end])
			}
		}
	}
	return best[begin]
}

// stands says whether a segment could be used at a token.
func (b *bed) stands(h held, prompt []uint32, at int) bool {
	return b.standsAs(h, prompt, at, b.either)
}

// preferred says whether a segment stands at a token in the variant that is wanted there.
func (b *bed) preferred(h held, prompt []uint32, at int) bool {
	return b.standsAs(h, prompt, at, false)
}

func (b *bed) standsAs(h held, prompt []uint32, at int, either bool) bool {
	want := b.mid(h.spec.Tokens)
	switch other := b.primer; {
	case at == 0:
		want = profile.FirstSpec(h.spec.Tokens)
	case either && (h.spec.Primer == other || h.spec.Primer == profile.PrimerID{}):
		want.Primer = h.spec.Primer
	case at >= b.from:
		want.Primer = other
	}
	return h.spec == want && at+h.spec.Tokens <= len(prompt) && slices.Equal(prompt[at:at+h.spec.Tokens], h.tokens)
}

// check holds spans to what they promise, and answers what they save.
func (b *bed) check(prompt []uint32, begin int, spans []Span) (saved int) {
	b.Helper()
	at := begin
	for _, s := range spans {
		if s.Start < at {
			b.Fatalf("span %v begins before %d", s, at)
		}
		at = s.Start + s.Tokens
		is := func(which func(held, []uint32, int) bool) func(held) bool {
			return func(h held) bool { return h.spec.Tokens == s.Tokens && which(h, prompt, s.Start) }
		}
		if !slices.ContainsFunc(b.held, func(h held) bool {
			return (h.spec.Primer != profile.PrimerID{}) == s.Primed && is(b.stands)(h)
		}) {
			b.Fatalf("no segment is held that stands at %v", s)
		}
		wanted := b.primer != profile.PrimerID{} && s.Start > 0 && s.Start >= b.from
		if s.Primed != wanted && slices.ContainsFunc(b.held, is(b.preferred)) {
			b.Fatalf("the variant that is preferred is held, and %v is answered", s)
		}
		saved += b.interior(s)
	}
	return saved
}

// TestSearchAgreesWithBruteForce: prompts and segments over few different tokens, so that
// leads repeat, segments overlap, contain and extend each other.
func TestSearchAgreesWithBruteForce(t *testing.T) {
	found := 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		b := newBed(t)
		alphabet := uint32(1 + rng.IntN(3))
		text := func(n int) []uint32 {
			out := make([]uint32, n)
			for i := range out {
				if rng.IntN(40) == 0 {
					out[i] = rng.Uint32N(alphabet)
				} else if i > 0 {
					out[i] = out[i-1]
				}
			}
			return out
		}
		source := text(500)
		for range 1 + rng.IntN(30) {
			n := 20 + rng.IntN(120)
			at := rng.IntN(len(source) - n)
			s := b.mid(n)
			switch rng.IntN(6) {
			case 0:
				s = profile.FirstSpec(n)
			case 1:
				s.Tail++ // of other seams
			case 2, 3:
				s.Primer = profile.PrimerID{1}
			case 4:
				s.Primer = profile.PrimerID{2}
			}
			b.add(s, source[at:at+n])
			if twin := s; s.Role == profile.RoleMid && rng.IntN(2) == 0 {
				if twin.Primer = (profile.PrimerID{}); s == twin {
					twin.Primer = profile.PrimerID{1}
				}
				b.add(twin, source[at:at+n])
			}
		}
		for range rng.IntN(5) {
			if len(b.held) > 1 {
				b.remove(rng.IntN(len(b.held)))
			}
		}
		var prompt []uint32
		for range 1 + rng.IntN(5) {
			n := 1 + rng.IntN(200)
			at := rng.IntN(len(source) - n)
			prompt = append(prompt, source[at:at+n]...)
			prompt = append(prompt, text(rng.IntN(20))...)
		}
		begin := 0
		if rng.IntN(2) == 0 {
			begin = rng.IntN(len(prompt))
		}
		if rng.IntN(4) > 0 {
			b.primer, b.from, b.either = profile.PrimerID{1}, rng.IntN(len(prompt)), rng.IntN(2) == 0
		}
		f := b.search(prompt, begin)
		saved, want := b.check(prompt, begin, f.Spans), b.best(prompt, begin)
		if saved != want || f.Untried != 0 {
			t.Fatalf("seed %d: spans %v save %d tokens, the best save %d; %d untried", seed, f.Spans, saved, want, f.Untried)
		}
		if saved > 0 {
			found++
		}
	}
	if found < 100 {
		t.Fatalf("only %d of 400 prompts had a segment: the test shows little", found)
	}
}

// Hashes that are the same where others are not are no one's mistake: clients can make them.
func TestSegmentsWithOneHashAreTwo(t *testing.T) {
	type added struct {
		hash   profile.SegmentHash
		tokens int
	}
	all := []added{{profile.SegmentHash{Lead: 1, Whole: 7}, 40}, {profile.SegmentHash{Lead: 2, Whole: 7}, 40}, {profile.SegmentHash{Lead: 1, Whole: 7}, 50}}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		var x Index
		for _, a := range all {
			x.Add(Scope{}, a.hash, a.tokens)
		}
		for _, i := range order {
			x.Remove(Scope{}, all[i].hash, all[i].tokens)
		}
		if x.Len() != 0 || len(x.scopes) != 0 {
			t.Errorf("removed in the order %v: %d segments in %d scopes are left", order, x.Len(), len(x.scopes))
		}
	}
}

func TestScopesAreApart(t *testing.T) {
	b := newBed(t)
	text := random(rand.New(rand.NewPCG(3, 4)), 100)
	b.index.Add(Scope{2, b.scope.Profile}, b.hash.Segment(profile.FirstSpec(100), text), 100)
	if f := b.search(text, 0); len(f.Spans) > 0 {
		t.Fatalf("another tenant's segment is found: %v", f.Spans)
	}
	b.add(profile.FirstSpec(100), text)
	if f := b.search(text, 0); len(f.Spans) != 1 {
		t.Fatalf("its own segment is not: %v", f.Spans)
	}
}

// TestThousandsOfSegmentsThatBeginAlike: documents of a template whose head is longer than
// a lead.
func TestThousandsOfSegmentsThatBeginAlike(t *testing.T) {
	b := newBed(t)
	rng := rand.New(rand.NewPCG(5, 6))
	head := random(rng, 2*profile.LeadTokens)
	var prompt []uint32
	want := 0
	for i := range 10_000 {
		n := 100 + rng.IntN(500)
		doc := append(slices.Clone(head), random(rng, n-len(head))...)
		b.add(b.mid(n), doc)
		if i%1000 == 0 {
			prompt = append(prompt, 1, 2, 3)
			prompt = append(prompt, doc...)
			_, interior := b.mid(n).Interior()
			want += interior
		}
	}
	f := b.search(prompt, 0)
	if got := b.check(prompt, 0, f.Spans); got != want || f.Untried > 0 {
		t.Fatalf("%d of %d tokens found, %d untried", got, want, f.Untried)
	}
}

// TestARepetitivePromptIsSearchedInBoundedTime: every token begins a segment of each of
// thousands of lengths. What is tried is bounded, and the longest come first.
func TestARepetitivePromptIsSearchedInBoundedTime(t *testing.T) {
	b := newBed(t)
	same := make([]uint32, 16<<10)
	const most = 8000
	for n := profile.LeadTokens; n <= most; n++ {
		b.index.Add(b.scope, b.hash.Segment(b.mid(n), same[:n]), n)
	}
	n := len(same) + 1
	s := newSearch(&Query{Scope: b.scope, Hash: b.hash, Tokens: same, Mid: b.mid(0)},
		&Found{sums: b.hash.Sums(nil, same), best: zeros(nil, n), last: zeros(nil, n)})
	rounds := 0
	for s.at+profile.LeadTokens <= len(same) {
		before := s.tries + triesPerToken*(len(same)-s.at)
		s.steps(b.index.scopes[b.scope], heldSteps)
		if after := s.tries + triesPerToken*(len(same)-s.at); before-after > heldSteps {
			t.Fatalf("%d tries in one critical section, most %d", before-after, heldSteps)
		}
		rounds++
	}
	steps := len(same) + firstTries + triesPerToken*len(same)
	if most := steps/heldSteps + len(same); rounds > most {
		t.Fatalf("%d critical sections, most %d", rounds, most)
	}
	f := b.search(same, 0)
	if f.Untried == 0 {
		t.Fatal("nothing was left out: the test shows nothing")
	}
	saved := 0
	for _, span := range f.Spans {
		saved += b.interior(span)
	}
	if saved < most {
		t.Fatalf("%v saves %d tokens, not even one of the longest", f.Spans, saved)
	}
}

func TestASearchEndsWithItsContext(t *testing.T) {
	b := newBed(t)
	text := random(rand.New(rand.NewPCG(3, 4)), 20_000)
	b.add(profile.FirstSpec(100), text[:100])
	ctx, cancel := context.WithCancel(t.Context())
	pauses := 0
	err := b.index.Search(ctx, &Query{Scope: b.scope, Hash: b.hash, Tokens: text, Mid: b.mid(0), Pause: func() { pauses++; cancel() }}, &Found{})
	if !errors.Is(err, context.Canceled) || pauses != 1 {
		t.Fatalf("%v after %d pauses", err, pauses)
	}
}

func TestSearchesBesideChanges(t *testing.T) {
	b := newBed(t)
	text := random(rand.New(rand.NewPCG(3, 4)), 5000)
	b.add(b.mid(200), text[1000:1200]) // stays
	var changes sync.WaitGroup
	for i := range 2 {
		changes.Go(func() {
			for j := range 500 {
				s, at := b.mid(50+j%100), 2000+1000*i+j
				h := b.hash.Segment(s, text[at:at+s.Tokens])
				b.index.Add(b.scope, h, s.Tokens)
				b.index.Remove(b.scope, h, s.Tokens)
			}
		})
	}
	for range 20 {
		if f := b.search(text, 0); !slices.Contains(f.Spans, Span{Start: 1000, Tokens: 200}) {
			t.Errorf("what was held all the time is not found: %v", f.Spans)
		}
	}
	changes.Wait()
}

// FuzzSearch: what comes from clients, tokens of segments and of a prompt.
func FuzzSearch(f *testing.F) {
	f.Add([]byte("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), uint8(40), uint8(33), uint8(1))
	f.Add([]byte("abababababababababababababababababababababababababababababababababa"), uint8(34), uint8(36), uint8(0))
	f.Fuzz(func(t *testing.T, raw []byte, one, two, begin uint8) {
		if len(raw) == 0 || len(raw) > 2000 {
			return
		}
		b := newBed(t)
		prompt := make([]uint32, len(raw))
		for i, c := range raw {
			prompt[i] = uint32(c)
		}
		for i, n := range []int{int(one), int(two)} {
			at := int(raw[i%len(raw)])
			if n > 0 && at+n <= len(prompt) {
				b.add(b.mid(n), prompt[at:at+n])
				b.add(profile.FirstSpec(n), prompt[at:at+n])
			}
		}
		from := min(int(begin), len(prompt))
		if got, want := b.check(prompt, from, b.search(prompt, from).Spans), b.best(prompt, from); got != want {
			t.Fatalf("%d tokens, want %d", got, want)
		}
	})
}

func random(rng *rand.Rand, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = rng.Uint32N(150_000)
	}
	return out
}
