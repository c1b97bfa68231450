package find

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Query asks which segments of a scope stand in a prompt.
type Query struct {
	Scope
	Hash   profile.RollingHash // of that scope
	Tokens []uint32            // the prompt
	Begin  int                 // spans begin there at the earliest
	// Mid is role, head and tail of the segments that are wanted; their length does not
	// matter. At token 0 segments that lead a prompt are wanted instead.
	Mid profile.SegmentSpec
	// Primer names the primer that segments should have from token PrimedFrom on; zero = none.
	// Segments before it, and at token 0 in any case, should have none.
	Primer     profile.PrimerID
	PrimedFrom int
	// Either accepts the other variant of a segment after token 0 where the preferred one is
	// not cached.
	Either bool
	// Pause is called every few thousand tokens where it is not nil.
	Pause func()
}

// Span is tokens [Start, Start+Tokens) of a prompt, as a segment with the query's primer or
// without one.
type Span struct {
	Start, Tokens int
	Primed        bool
}

// Found answers a Query. It keeps its memory, some 16 bytes for each token, from one
// Search to the next.
type Found struct {
	// Spans ascend and do not overlap. Of all ways to choose such spans they have the
	// most interior tokens, which need not be computed.
	Spans []Span
	// Untried is at how many tokens some lengths were left out, since too many segments
	// begin alike; the longest were tried.
	Untried int

	sums []uint64
	best []int32 // by end: interior tokens of the best choice up to there
	last []int32 // by end: tokens of the span of that choice which ends there, below 0 if it is primed; 0 = none
}

// A token pays for triesPerToken lengths; what it does not need, those behind it may
// take, firstTries beforehand. So the lead of a template that thousands of segments
// begin with is tried in full where it stands now and then, and a prompt that is made
// of nothing else costs no more than this. Guesses: 16 tries take about as long as 16
// tokens.
const (
	triesPerToken = 16
	firstTries    = 4096
)

const (
	heldSteps  = 128  // tokens and tries in one critical section: 3 µs or so
	pauseEvery = 4096 // tokens
)

// Search fills found. It fails when ctx ends only.
//
// Spans are chosen by dynamic programming over the tokens, from the left: the best choice
// up to a token is the best up to the one before, or a segment that ends there behind the
// best up to its start. Taking the longest at each token in place of that would let a
// chance match hide the start of a longer segment.
func (x *Index) Search(ctx context.Context, q *Query, found *Found) error {
	found.Spans, found.Untried = found.Spans[:0], 0
	n := len(q.Tokens) - q.Begin
	if n < profile.LeadTokens || !x.holds(q.Scope) {
		return nil
	}
	found.sums = q.Hash.Sums(found.sums, q.Tokens[q.Begin:])
	found.best, found.last = zeros(found.best, n+1), zeros(found.last, n+1)
	s := newSearch(q, found)
	for paused := 0; s.at+profile.LeadTokens <= n; {
		if s.at-paused >= pauseEvery {
			paused = s.at
			if q.Pause != nil {
				q.Pause()
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !x.step(q.Scope, &s) {
			break
		}
	}
	for ; s.at < n; s.at++ {
		s.carry()
	}
	found.choose(q.Begin, n)
	return nil
}

// step goes on; false = the scope has no segments any more.
func (x *Index) step(at Scope, s *search) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	sc := x.scopes[at]
	if sc != nil {
		s.steps(sc, heldSteps)
	}
	return sc != nil
}

func (x *Index) holds(at Scope) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.scopes[at] != nil
}

// search is how far a Search has come.
type search struct {
	found  *Found
	window profile.Window
	at     int // token, from Query.Begin on
	tries  int // that are left
	below  int // lengths are still to be tried that are shorter; 0 = all
	here   []segments
	which  int        // of here
	behind []segments // from the second token on
	from   int        // token, as at
	primed []segments // from there on
}

// segments are what is looked for.
type segments struct {
	kind   profile.SegmentKind
	cost   int // tokens of each that are computed again
	primed bool
}

func newSearch(q *Query, found *Found) search {
	s := search{found: found, window: q.Hash.Window(found.sums, 0), tries: firstTries + triesPerToken, from: max(q.PrimedFrom-q.Begin, 0)}
	cost := q.Mid.Head + q.Mid.Tail
	plain := segments{q.Mid.Kind(), cost, false}
	s.behind, s.primed = []segments{plain}, []segments{plain}
	if q.Primer != (profile.PrimerID{}) {
		spec := q.Mid
		spec.Primer = q.Primer
		primed := segments{spec.Kind(), cost, true}
		if s.primed = []segments{primed}; q.Either {
			s.behind, s.primed = append(s.behind, primed), append(s.primed, plain)
		}
	}
	if s.look(); q.Begin == 0 {
		s.here = []segments{{kind: profile.FirstSpec(0).Kind()}}
	}
	return s
}

// look begins with the first variant that is wanted at a token after token 0.
func (s *search) look() {
	s.which, s.below = 0, 0
	if s.here = s.behind; s.at >= s.from {
		s.here = s.primed
	}
}

// steps goes on, so many tokens and tries, or to the last token that can have a lead.
func (s *search) steps(sc *scope, steps int) {
	for ; steps > 0 && s.window.Left() >= profile.LeadTokens; steps-- {
		for untried := s.found.Untried; s.which < len(s.here) && s.found.Untried == untried; s.which, s.below = s.which+1, 0 {
			of := &s.here[s.which]
			lead := s.window.Lead(of.kind)
			if sh := sc.shard(lead); sh.filter.has(lead) {
				tried, more := s.try(sc, of, sh.leads[lead], steps)
				if steps -= tried; more {
					return
				}
			}
		}
		s.carry()
		s.at++
		s.window.Next()
		s.look()
		s.tries += triesPerToken
	}
}

// try tries the lengths of a lead, the longest first; more says that it came to the end
// of most before it was done.
func (s *search) try(sc *scope, of *segments, lengths []length, most int) (tried int, more bool) {
	longest := s.window.Left()
	if s.below > 0 {
		longest = s.below - 1
	}
	i, _ := slices.BinarySearchFunc(lengths, int32(longest), descending)
	for _, l := range lengths[i:] {
		switch {
		case tried == most:
			return tried, true
		case s.tries == 0:
			s.found.Untried++
			return tried, false
		}
		n := int(l.tokens)
		s.tries--
		tried++
		s.below = n
		if sc.wholes[s.window.Whole(of.kind, n)] > 0 {
			s.take(of, n)
		}
	}
	return tried, false
}

// take counts a segment of n tokens that begins at the token. Of two that are worth as much,
// the one that is preferred comes first.
func (s *search) take(of *segments, n int) {
	f, end := s.found, s.at+n
	if value := f.best[s.at] + int32(n-of.cost); value > f.best[end] && n > of.cost {
		if f.best[end], f.last[end] = value, int32(n); of.primed {
			f.last[end] = -int32(n)
		}
	}
}

// carry makes the best up to the token count for the next one.
func (s *search) carry() {
	f := s.found
	if f.best[s.at] > f.best[s.at+1] {
		f.best[s.at+1], f.last[s.at+1] = f.best[s.at], 0
	}
}

// choose lists the spans of the best choice.
func (f *Found) choose(begin, n int) {
	for end := n; end > 0; {
		if f.last[end] == 0 {
			end--
			continue
		}
		tokens, primed := int(f.last[end]), f.last[end] < 0
		if primed {
			tokens = -tokens
		}
		end -= tokens
		f.Spans = append(f.Spans, Span{begin + end, tokens, primed})
	}
	slices.Reverse(f.Spans)
}

func zeros(v []int32, n int) []int32 {
	if cap(v) < n {
		return make([]int32, n)
	}
	v = v[:n]
	clear(v)
	return v
}
