package find

import (
	"context"
	"slices"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Query asks which segments of a scope occur in a prompt.
type Query struct {
	Scope
	Hash   profile.RollingHash // rolling hash of that scope
	Tokens []uint32            // the prompt
	Begin  int                 // first token at which spans may begin
	// Mid has the role, head and tail of the requested segments; its length does not
	// matter. At token 0 the search looks for segments that lead a prompt instead.
	Mid profile.SegmentSpec
	// Primer is the primer after which the segments from token PrimedFrom on should have
	// been captured; zero = none. Segments before PrimedFrom, and at token 0 in any case,
	// should have been captured without one.
	Primer     profile.PrimerID
	PrimedFrom int
	// If Either is true, the search accepts a segment after token 0 that was captured after the
	// primer where one without a primer is preferred, and the reverse, if the preferred variant
	// is not cached.
	Either bool
	// Pause is called every few thousand tokens if it is not nil.
	Pause func()
}

// Span is the tokens [Start, Start+Tokens) of a prompt, as a segment that was captured
// after the query's primer, or without one.
type Span struct {
	Start, Tokens int
	Primed        bool
}

// Found answers a Query. Its memory, about 16 bytes per token, is reused by the next
// Search into the same value.
type Found struct {
	// Spans ascend and do not overlap. Among all such choices of spans, this one has the
	// most interior tokens, which need not be computed.
	Spans []Span
	// Untried is the number of tokens at which the search did not try all lengths, since
	// too many segments begin alike. It tried the longest ones.
	Untried int

	sums []uint64
	best []int32 // by end: interior tokens of the best choice of spans up to this end
	last []int32 // by end: length of the last span of that choice if it ends here, negative if primed; 0 = none ends here
}

// triesPerToken and firstTries bound the lengths that a search tries (guesses: 16 tries take
// about as long as 16 tokens). A search may try firstTries lengths at the start and
// triesPerToken more per token. Unused tries stay available for later tokens. So if thousands
// of segments begin with the same template, all their lengths are tried where it occurs
// occasionally. A prompt that consists only of the template costs no more than the bound.
const (
	triesPerToken = 16
	firstTries    = 4096
)

const (
	heldSteps  = 128  // tokens and tries in one critical section: about 3 µs
	pauseEvery = 4096 // tokens
)

// Search fills found. It fails only if ctx ends.
//
// It chooses spans by dynamic programming over the tokens, from the left. The best choice
// up to a token is either the best choice up to the previous token, or a segment that ends
// at the token after the best choice up to the segment's start. Taking the longest segment
// at each token instead could miss a longer one whose start is covered by a chance match.
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

// step continues the search for some steps. It returns false if the scope has no segments
// any more.
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

// search is the progress of a Search.
type search struct {
	found  *Found
	window profile.Window
	at     int // current token, counted from Query.Begin
	tries  int // remaining tries
	below  int // only lengths below this are still to be tried; 0 = all
	here   []segments
	which  int        // index of the current variant in the field here
	behind []segments // variants wanted after token 0 and before the token from
	from   int        // first token at which primed applies, counted like the field at
	primed []segments // variants wanted from the token from on
}

// segments describes a variant of segments to look for.
type segments struct {
	kind   profile.SegmentKind
	cost   int // tokens of each such segment that must be recomputed
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

// look selects the variants that are wanted at the current token, and begins with the first.
func (s *search) look() {
	s.which, s.below = 0, 0
	if s.here = s.behind; s.at >= s.from {
		s.here = s.primed
	}
}

// steps continues the search for a number of tokens and tries, or to the last token that can
// begin a segment.
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

// try tries the lengths of the segments with a lead, longest first. It stops after as many
// tries as the parameter most allows. The second result is true if it stopped with lengths
// left.
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

// take considers a segment of n tokens that begins at the current token. Of two segments
// with the same value, the preferred variant wins, since it is taken first.
func (s *search) take(of *segments, n int) {
	f, end := s.found, s.at+n
	if value := f.best[s.at] + int32(n-of.cost); value > f.best[end] && n > of.cost {
		if f.best[end], f.last[end] = value, int32(n); of.primed {
			f.last[end] = -int32(n)
		}
	}
}

// carry extends the best choice up to the current token by that token.
func (s *search) carry() {
	f := s.found
	if f.best[s.at] > f.best[s.at+1] {
		f.best[s.at+1], f.last[s.at+1] = f.best[s.at], 0
	}
}

// choose sets Spans to the spans of the best choice.
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
