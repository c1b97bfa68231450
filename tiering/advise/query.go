package advise

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Why a checkpoint at a position is worth having. The numbers are those of the
// local protocol.
type Why uint8

// The reasons.
const (
	WhyNone     Why = 0
	WhyBranch   Why = 1 // prompts were seen to part there
	WhyLast     Why = 2 // the last position that the same prompt can use, or the end of an answer
	WhyBoundary Why = 3 // the application named it
	WhyPlaced   Why = 4 // placed from the depths at which earlier prompts parted

	whys = 5
)

func (w Why) String() string {
	return [whys]string{"none", "branch", "last", "boundary", "placed"}[w]
}

// Query asks what to use and what to store for a prompt. Nothing of it is kept or
// written.
type Query struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Tokens  []uint32 // the whole prompt
	Output  int      // of these, generated tokens at the end
	Record  bool     // the prompt is being served: remember it
	// BlockTokens is what positions are multiples of, 0 = 1; MaxCheckpoints how
	// many of them are wanted at most, 0 = Config.Checkpoints.
	BlockTokens    int
	MaxCheckpoints int

	// What is held, as a match has answered it; zero = nothing.
	PrefixTokens int
	PrefixPlace  tier.Place
	BufferTokens int // end of rows behind the prefix: of a buffer, or of what is kept as rows
	SeamTokens   int // computed again in all, when the held segments are used; where none is held, when all are

	Cuts     []uint32 // boundaries that the application knows, ascending
	Segments []Segment
	Samples  []cost.Sample // what the engine measured since it last asked

	NoSplice bool // no splice is good enough for the request
	Refresh  bool // the last segment is computed in context, so that a splice is good enough
}

// Segment is a segment of the prompt. They ascend and do not overlap.
type Segment struct {
	Begin, Tokens int
	Status        tier.Status
	Place         tier.Place
}

// Advice answers a Query. Its slices are reused by the next Advise into the same
// Advice.
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

// check holds a query to its bounds: it comes from a client.
func (q *Query) check() error {
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
	case q.PrefixPlace > tier.PlacePeer:
		return fmt.Errorf("prefix in place %d: %w", q.PrefixPlace, tier.ErrInvalid)
	}
	return q.checkLists(n)
}

func (q *Query) checkLists(n int) error {
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
		if g.Status > tier.StatusPending || g.Place > tier.PlacePeer {
			return fmt.Errorf("segment at %d: status %d in place %d: %w", g.Begin, g.Status, g.Place, tier.ErrInvalid)
		}
		end = g.Begin + g.Tokens
	}
	for _, m := range q.Samples {
		if m.Begin < 0 || m.Begin >= m.End || m.End > profile.MaxTokens || !(m.Millis > 0) || math.IsInf(m.Millis, 1) {
			return fmt.Errorf("%s of [%d, %d) in %v ms: %w", m.Task, m.Begin, m.End, m.Millis, tier.ErrInvalid)
		}
	}
	return nil
}

// last returns the last position at which a checkpoint is of use, before it is aligned. The same
// prompt continues before its last token at the latest, which every engine computes for the first
// token of the answer. A prompt with its answer is not repeated but continued, from its end.
func (q *Query) last() int {
	if q.Output > 0 {
		return len(q.Tokens)
	}
	return len(q.Tokens) - 1
}

// computed is how many tokens the engine has computed: states before that are gone.
func (q *Query) computed() int {
	if q.Output > 0 {
		return max(q.PrefixTokens, len(q.Tokens)-q.Output)
	}
	return q.PrefixTokens
}
