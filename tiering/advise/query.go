package advise

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Why is the reason for a checkpoint at a position. The local protocol uses the
// same numbers.
type Why uint8

// The reasons.
const (
	WhyNone     Why = 0
	WhyBranch   Why = 1 // earlier prompts diverge there
	WhyLast     Why = 2 // the last position that a repetition of the prompt can use, or the end of an answer
	WhyBoundary Why = 3 // the application named it
	WhyPlaced   Why = 4 // computed from the depths at which earlier prompts diverged

	whys = 5
)

func (w Why) String() string {
	return [whys]string{"none", "branch", "last", "boundary", "placed"}[w]
}

// Query asks what to use and what to store for a prompt. Advise neither keeps nor modifies
// the query.
type Query struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Tokens  []uint32 // the whole prompt
	Output  int      // number of generated tokens at the end of Tokens
	Record  bool     // the prompt is being served, so it is to be remembered
	// BlockTokens is the block size in tokens: every position is a multiple of it; 0 = 1.
	// MaxCheckpoints is the maximum number of positions; 0 = Config.Checkpoints.
	BlockTokens    int
	MaxCheckpoints int

	// These say what is cached, as a match reported it; zero = nothing.
	PrefixTokens int
	PrefixPlace  tier.Place
	BufferTokens int // end of the rows that follow the prefix, in a buffer or in checkpoints kept as rows
	SeamTokens   int // seam tokens computed again if the cached segments are used, or all segments if none is cached

	Cuts     []uint32 // boundaries named by the application, ascending
	Segments []Segment
	Samples  []cost.Sample // prefills that the engine measured since its last query

	NoSplice bool // no splice keeps within the request's limit of loss
	Refresh  bool // a splice keeps within the limit only if the last segment is computed in context
}

// Segment is a segment of the prompt. Segments ascend and do not overlap.
type Segment struct {
	Begin, Tokens int
	Status        tier.Status
	Place         tier.Place
}

// Advice answers a Query. The next Advise into the same Advice reuses its slices.
type Advice struct {
	SeenTokens int         // length of the longest prefix of the prompt that was seen before, cached or not
	Choice     cost.Choice // the fastest way to serve the prompt
	Positions  []Position  // ascending
	Segments   []SegmentAdvice
}

// Position is a possible position for a checkpoint. The field Admit is the advice to store
// a checkpoint at this position, and Reason is the reason for Admit.
type Position struct {
	Tokens int
	Why    Why
	Admit  bool
	Reason cost.Reason
	Value  float64 // expected milliseconds saved per MiB
}

// SegmentAdvice says whether a missing segment is worth publishing. For a cached segment
// Reason is cost.ReasonNone.
type SegmentAdvice struct {
	Admit  bool
	Reason cost.Reason
	Value  float64 // as in Position
}

// MaxPositions is the maximum number of checkpoints in one advice.
const MaxPositions = 1024

// check validates a query, which comes from a client.
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

// last returns the last position at which a checkpoint is of use, not yet rounded down to a
// block. For a prompt without its answer, this is the position before the last token: if
// the prompt is repeated, the engine computes at least the last token. A prompt with its
// answer is not repeated but continued from its end.
func (q *Query) last() int {
	if q.Output > 0 {
		return len(q.Tokens)
	}
	return len(q.Tokens) - 1
}

// computed returns the number of tokens already in the engine's state. The engine no longer
// has the states after fewer tokens, so it cannot store checkpoints at lower positions.
func (q *Query) computed() int {
	if q.Output > 0 {
		return max(q.PrefixTokens, len(q.Tokens)-q.Output)
	}
	return q.PrefixTokens
}
