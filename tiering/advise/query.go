package advise

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Why is the reason for a checkpoint at a position. The numbers are those of the local
// protocol.
type Why uint8

// The reasons.
const (
	WhyNone     Why = 0
	WhyBranch   Why = 1 // earlier prompts diverge there
	WhyLast     Why = 2 // the last position usable by the same prompt, or the end of an answer
	WhyBoundary Why = 3 // the application named it
	WhyPlaced   Why = 4 // placed by the depths at which earlier prompts diverged

	whys = 5
)

func (w Why) String() string {
	return [whys]string{"none", "branch", "last", "boundary", "placed"}[w]
}

// Query asks what to use and what to store for a prompt. Advise neither keeps nor modifies it.
type Query struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Tokens  []uint32 // the whole prompt
	Output  int      // of these, generated tokens at the end
	Record  bool     // the prompt is being served: remember it
	// BlockTokens divides every position, 0 = 1. MaxCheckpoints bounds the positions,
	// 0 = Config.Checkpoints.
	BlockTokens    int
	MaxCheckpoints int

	// What is cached, as match reported it; zero = nothing.
	PrefixTokens int
	PrefixPlace  tier.Place
	BufferTokens int // end of rows after the prefix: of a buffer, or of checkpoints kept as rows
	SeamTokens   int // total computed again when the cached segments are used, or all if none is cached

	Cuts     []uint32 // boundaries named by the application, ascending
	Segments []Segment
	Samples  []cost.Sample // measured by the engine since its last query

	NoSplice bool // no splice is within the request's limit of loss
	Refresh  bool // a splice is within the limit only with the last segment computed in context
}

// Segment is a segment of the prompt. Segments ascend and do not overlap.
type Segment struct {
	Begin, Tokens int
	Status        tier.Status
	Place         tier.Place
}

// Advice answers a Query. Its slices are reused by the next Advise into the same
// Advice.
type Advice struct {
	SeenTokens int         // longest prefix of the prompt that was seen before, stored or not
	Choice     cost.Choice // the fastest way to serve the prompt
	Positions  []Position  // ascending
	Segments   []SegmentAdvice
}

// Position is a candidate position for a checkpoint.
type Position struct {
	Tokens int
	Why    Why
	Admit  bool
	Reason cost.Reason
	Value  float64 // expected milliseconds saved per MiB
}

// SegmentAdvice reports whether a missing segment is worth publishing. Reason is
// cost.ReasonNone for a cached one.
type SegmentAdvice struct {
	Admit  bool
	Reason cost.Reason
	Value  float64 // as in Position
}

// MaxPositions is the most checkpoints in one advice.
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

// last returns the last position at which a checkpoint is of use, before it is aligned. The same
// prompt continues before its last token at the latest, which every engine computes for the first
// token of the answer. A prompt with its answer is not repeated but continued, from its end.
func (q *Query) last() int {
	if q.Output > 0 {
		return len(q.Tokens)
	}
	return len(q.Tokens) - 1
}

// computed returns the number of tokens already in the engine's state. Earlier states are gone.
func (q *Query) computed() int {
	if q.Output > 0 {
		return max(q.PrefixTokens, len(q.Tokens)-q.Output)
	}
	return q.PrefixTokens
}
