package tiering

import (
	"fmt"
	"math"
	"slices"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Why a checkpoint at a position is worth having. The numbers are those of the
// local protocol.
type Why uint8

// The whys.
const (
	WhyNone     Why = 0
	WhyBranch   Why = 1 // prompts were seen to part there
	WhyLast     Why = 2 // the last token of the prompt
	WhyBoundary Why = 3 // the application named it
	WhyPlaced   Why = 4 // placed from the depths at which earlier prompts parted

	whys = 5
)

func (w Why) String() string {
	return [whys]string{"none", "branch", "last", "boundary", "placed"}[w]
}

// AdviseQuery asks what to use and what to store for a prompt. Nothing of it is
// kept or written.
type AdviseQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Tokens  []uint32 // the whole prompt
	Output  int      // of these, generated tokens at the end
	Record  bool     // the prompt is being served: remember it
	// BlockTokens is what positions are multiples of, 0 = 1; MaxCheckpoints how
	// many of them are wanted at most, 0 = Config.AdviseCheckpoints.
	BlockTokens    int
	MaxCheckpoints int

	// What is held, as Match has answered it; zero = nothing.
	PrefixTokens int
	PrefixPlace  tier.Place
	BufferTokens int // end of a buffer over this prompt
	SeamTokens   int // computed again in all, when the segments are used

	Cuts     []uint32 // boundaries that the application knows, ascending
	Segments []AdviseSegment
	Samples  []cost.Sample // prefills that the engine measured since it last asked
}

// AdviseSegment is a segment of the prompt. They ascend and do not overlap.
type AdviseSegment struct {
	Begin, Tokens int
	Status        tier.Status
	Place         tier.Place
}

// Advice answers an AdviseQuery. Its slices are reused by the next Advise into
// the same Advice.
type Advice struct {
	SeenTokens int         // longest prefix of the prompt that was seen before, stored or not
	Choice     cost.Choice // how the prompt is served the quickest
	Positions  []Position  // ascending
	Segments   []SegmentAdvice
}

// Position is a checkpoint worth thinking of.
type Position struct {
	Tokens int
	Why    Why
	Admit  bool
	Reason cost.Reason
	Value  float64 // expected milliseconds saved per MiB
}

// SegmentAdvice says whether a segment that is missing is worth publishing.
// Reason is cost.ReasonNone for one that is there.
type SegmentAdvice struct {
	Admit  bool
	Reason cost.Reason
	Value  float64 // as in Position
}

// MaxPositions is the most checkpoints that one advice names.
const MaxPositions = 1024

// Advise answers what to use and what to store for a prompt, from what this
// tenant's prompts of this profile looked like so far and from what computing
// and loading have been measured to take. It does no I/O and never waits for the
// store's lock; its own it holds for a few walks along a prompt, each bounded by
// its tokens and by pathMost nodes. An answer is a guess about what comes: nothing
// depends on its being right.
func (s *Store) Advise(q *AdviseQuery, dst *Advice) error {
	p, err := s.profile(q.Profile)
	if err != nil {
		return err
	}
	if _, err := s.tenant(q.Tenant); err != nil {
		return err
	}
	if err := q.check(); err != nil {
		return fmt.Errorf("advise: %w", err)
	}
	w := s.advice.open(q)
	w.model = p.costs.Model()
	w.pool = s.poolLimits()
	s.advice.look(w, q)
	s.advice.think(w, q)
	w.choice = w.model.Choose(w.request(q))
	s.advice.settle(w, q)
	dst.SeenTokens = w.seen
	dst.Positions = append(dst.Positions[:0], w.positions...)
	dst.Segments = append(dst.Segments[:0], w.segments...)
	dst.Choice = w.choice
	if q.Record {
		s.noteAdvice(w, q)
	}
	s.advice.close(w)
	return nil
}

// adviceTold is how many positions and how many segments of one advice can be told
// afterwards.
const adviceTold = 4

// noteAdvice puts what was advised for a prompt that is being served among the
// decisions, the first few of it to be told. What is to be stored has no name yet.
func (s *Store) noteAdvice(w *adviseWork, q *AdviseQuery) {
	d := decision.Decision{At: s.cfg.Now(), Profile: q.Profile, Tenant: q.Tenant, Name: tier.Name{Kind: tier.Exact}}
	for i := range w.positions {
		p := &w.positions[i]
		d.Begin, d.End, d.Bytes = w.begins[i], p.Tokens, w.bytes[i]
		d.What, d.Why, d.Value = advised(p.Admit), decision.Reason(p.Reason), p.Value
		s.noteSome(i, d)
	}
	d.Name = tier.Name{}
	missing := 0
	for i := range w.segments {
		g := &w.segments[i]
		if g.Reason == cost.ReasonNone {
			continue
		}
		d.Begin, d.End = q.Segments[i].Begin, q.Segments[i].Begin+q.Segments[i].Tokens
		d.Bytes = w.model.Shape.SegmentTotalBytes(q.Segments[i].Tokens)
		d.What, d.Why, d.Value = advised(g.Admit), decision.Reason(g.Reason), g.Value
		s.noteSome(missing, d)
		missing++
	}
}

// noteSome notes the i-th decision of a kind in one advice.
func (s *Store) noteSome(i int, d decision.Decision) {
	if i < adviceTold {
		s.decisions.Note(d)
	} else {
		s.decisions.Count(d.What, d.Why)
	}
}

func advised(admit bool) decision.What {
	if admit {
		return decision.Advise
	}
	return decision.AdviseAgainst
}

// check holds a query to its bounds: it comes from a client.
func (q *AdviseQuery) check() error {
	n := len(q.Tokens)
	switch {
	case n < 1 || n > profile.MaxTokens:
		return fmt.Errorf("prompt of %d tokens, want 1 to %d: %w", n, profile.MaxTokens, tier.ErrInvalid)
	case q.Output < 0 || q.Output > n:
		return fmt.Errorf("%d of %d tokens generated: %w", q.Output, n, tier.ErrInvalid)
	case q.BlockTokens < 0 || q.BlockTokens > profile.MaxTokens:
		return fmt.Errorf("block of %d tokens: %w", q.BlockTokens, tier.ErrInvalid)
	case q.MaxCheckpoints < 0 || q.MaxCheckpoints > MaxPositions:
		return fmt.Errorf("%d checkpoints, most %d: %w", q.MaxCheckpoints, MaxPositions, tier.ErrInvalid)
	case q.PrefixTokens < 0 || q.PrefixTokens > n || q.BufferTokens < 0 || q.BufferTokens > n:
		return fmt.Errorf("prefix of %d and buffer of %d of %d tokens: %w", q.PrefixTokens, q.BufferTokens, n, tier.ErrInvalid)
	case q.SeamTokens < 0 || q.SeamTokens > n:
		return fmt.Errorf("seams of %d of %d tokens: %w", q.SeamTokens, n, tier.ErrInvalid)
	case q.PrefixPlace > tier.PlaceDisk:
		return fmt.Errorf("prefix in place %d: %w", q.PrefixPlace, tier.ErrInvalid)
	}
	return q.checkLists(n)
}

func (q *AdviseQuery) checkLists(n int) error {
	last := int64(-1)
	for _, cut := range q.Cuts {
		if int64(cut) <= last || int64(cut) > int64(n) {
			return fmt.Errorf("cut at %d after %d of %d tokens: %w", cut, last, n, tier.ErrInvalid)
		}
		last = int64(cut)
	}
	end := 0
	for _, g := range q.Segments {
		if g.Begin < end || g.Tokens < 1 || g.Tokens > n-g.Begin {
			return fmt.Errorf("segment [%d, +%d) after %d of %d tokens: %w", g.Begin, g.Tokens, end, n, tier.ErrInvalid)
		}
		if g.Status > tier.StatusPending || g.Place > tier.PlaceDisk {
			return fmt.Errorf("segment at %d: status %d in place %d: %w", g.Begin, g.Status, g.Place, tier.ErrInvalid)
		}
		end = g.Begin + g.Tokens
	}
	for _, m := range q.Samples {
		if m.Begin < 0 || m.Begin >= m.End || m.End > profile.MaxTokens || !(m.Millis > 0) || math.IsInf(m.Millis, 1) {
			return fmt.Errorf("prefill of [%d, %d) in %v ms: %w", m.Begin, m.End, m.Millis, tier.ErrInvalid)
		}
	}
	return nil
}

// request is what is held of a prompt, for the choice of a way.
func (w *adviseWork) request(q *AdviseQuery) cost.Request {
	shape := &w.model.Shape
	r := cost.Request{Tokens: len(q.Tokens), Segments: w.held[:0]}
	if q.PrefixTokens > 0 {
		r.Prefix = cost.Prefix{Tokens: q.PrefixTokens, Bytes: shape.PrefixBytes(q.PrefixTokens, 1), Tier: tierOf(q.PrefixPlace)}
	}
	if q.BufferTokens > 0 {
		r.Buffer = cost.Buffer{
			Tokens: q.BufferTokens, Tier: cost.TierDRAM,
			Bytes: shape.PrefixBytes(q.BufferTokens, 1), RebuildBytes: shape.CheckpointBytes(),
		}
	}
	hits := 0
	for i := range q.Segments {
		if q.Segments[i].Status == tier.StatusHit {
			hits++
		}
	}
	for i := range q.Segments {
		if g := &q.Segments[i]; g.Status == tier.StatusHit {
			seam := min(q.SeamTokens/hits, g.Tokens)
			r.Segments = append(r.Segments, cost.Segment{
				Begin: g.Begin, Tokens: g.Tokens, SeamTokens: seam, Tier: tierOf(g.Place),
				StateBytes: shape.SegmentTotalBytes(0), RowBytes: shape.RowBytes(g.Tokens - seam),
			})
		}
	}
	w.held = r.Segments
	return r
}

// tierOf is where bytes lie; what is held but not said where lies in memory.
func tierOf(p tier.Place) cost.Tier {
	if p == tier.PlaceNone {
		return cost.TierDRAM
	}
	return cost.Tier(p)
}

// poolLimits are what admission has to know of the two pools.
type poolLimits [poolCount]struct {
	most  int64   // bytes that one object may take
	floor float64 // density of what left for room last
}

// mostShare of a pool is the most that one object should take: with less than
// two objects there is nothing to choose from.
const mostShare = 2

func (s *Store) poolLimits() (l poolLimits) {
	for i, p := range s.pools {
		l[i].most, l[i].floor = p.budget/mostShare, p.floorValue()
	}
	return l
}

// unique drops repeated positions of an ascending list, in place; of those that
// fall together the one that says most stays.
func unique(list []candidate) []candidate {
	slices.SortFunc(list, func(a, b candidate) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return int(telling[b.why]) - int(telling[a.why])
	})
	kept := list[:0]
	for _, c := range list {
		if n := len(kept); n > 0 && kept[n-1].at == c.at {
			kept[n-1].likely = max(kept[n-1].likely, c.likely)
			continue
		}
		kept = append(kept, c)
	}
	return kept
}

var telling = [whys]uint8{WhyBoundary: 4, WhyBranch: 3, WhyLast: 2, WhyPlaced: 1}
