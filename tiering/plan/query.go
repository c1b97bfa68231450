package plan

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Scope names the profile, tenant and rank of a request.
type Scope struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
}

// SpanKind is the kind of a span of a plan.
type SpanKind uint8

// The span kinds. The local protocol uses the same numbers.
const (
	SpanSegment   SpanKind = 1 // the interior of a leased segment
	SpanRecompute SpanKind = 2 // tokens that the engine computes: a seam, a miss, the question
)

// Span is a run of prompt tokens [Start, Start+Count).
type Span struct {
	Kind  SpanKind
	Lease tier.LeaseID // SpanSegment
	Start int
	Count int
	// Input holds T and S of a recomputed span in F32, laid out by profile.SeamLayout of
	// the requested layers. Its S is at the true positions of its tokens already, so it is
	// not rotated. Only the last span of a plan may lack it. Rotate ignores it and
	// Assemble refuses it.
	Input gpuipc.Ref
}

// Plan is a list of spans that cover the tokens [Begin, End) of a prompt exactly once, in order.
//
// Invariant: no token enters a state twice. A plan is refused if its spans leave gaps or overlap.
// It is also refused if two whole segments (head, interior and tail) overlap, or if there is no
// room for a segment's head.
type Plan struct {
	Begin, End int
	Spans      []Span
}

// check returns an error if the spans leave gaps or overlap: each must begin where the
// previous one ended.
func (pl *Plan) check() error {
	if pl.Begin < 0 || pl.End < pl.Begin || pl.End > profile.MaxTokens {
		return fmt.Errorf("plan of tokens [%d, %d): %w", pl.Begin, pl.End, tier.ErrInvalid)
	}
	at := pl.Begin
	for i := range pl.Spans {
		sp := &pl.Spans[i]
		if sp.Kind != SpanSegment && sp.Kind != SpanRecompute {
			return fmt.Errorf("span %d: kind %d: %w", i, sp.Kind, tier.ErrInvalid)
		}
		if sp.Count < 1 || sp.Start != at || sp.Count > pl.End-at {
			return fmt.Errorf("span %d: %d tokens at %d, expected at %d of [%d, %d): %w",
				i, sp.Count, sp.Start, at, pl.Begin, pl.End, tier.ErrInvalid)
		}
		at += sp.Count
	}
	if at != pl.End {
		return fmt.Errorf("plan of tokens [%d, %d) ends at %d: %w", pl.Begin, pl.End, at, tier.ErrInvalid)
	}
	return nil
}

// shape returns the number of segment rows and of recomputed spans, on which the sizes of
// results depend.
func (pl *Plan) shape() (rows, seams int) {
	for i := range pl.Spans {
		if pl.Spans[i].Kind == SpanSegment {
			rows += pl.Spans[i].Count
		} else {
			seams++
		}
	}
	return rows, seams
}

// leases returns the leases of a plan: first the lease of the checkpoint that it begins
// from, if any, then those of its segments in order.
func (pl *Plan) leases(from From) []tier.LeaseID {
	ids := make([]tier.LeaseID, 0, len(pl.Spans)+1)
	if from.Kind == FromCheckpoint {
		ids = append(ids, from.Lease)
	}
	for i := range pl.Spans {
		if pl.Spans[i].Kind == SpanSegment {
			ids = append(ids, pl.Spans[i].Lease)
		}
	}
	return ids
}

// FromKind says where a plan begins.
type FromKind uint8

// The kinds of beginning. The local protocol uses the same numbers.
const (
	FromZero       FromKind = 0 // Plan.Begin is 0 and the state is zero
	FromCheckpoint FromKind = 1 // From.Lease is a loaded checkpoint of Plan.Begin tokens
	FromState      FromKind = 2 // From.State holds the states after Plan.Begin tokens
)

// From is the beginning of a plan. State is laid out by profile.StatesLayout(layer, 0);
// StateBytes returns its size.
type From struct {
	Kind  FromKind
	Lease tier.LeaseID
	State gpuipc.Ref
}

// check returns an error if the beginning cannot hold for the plan's first token.
func (from From) check(pl *Plan) error {
	switch {
	case from.Kind > FromState:
		return fmt.Errorf("plan from kind %d: %w", from.Kind, tier.ErrInvalid)
	case from.Kind == FromZero && pl.Begin != 0:
		return fmt.Errorf("plan from zero begins at %d: %w", pl.Begin, tier.ErrInvalid)
	}
	return nil
}

// ComposeQuery advances a running state over a plan. For each requested linear layer in
// order, Out receives the F32 states before the recomputed spans, in order, and then the
// final state, laid out by profile.StatesLayout(Layer, number of recomputed spans).
type ComposeQuery struct {
	Scope
	Layer int // a linear layer, or profile.AllLayers
	From  From
	Plan  Plan
	Out   gpuipc.Ref // at least ComposeBytes
}

// Destination says where rows are written. Without Memory they are packed into Out, in plan
// order, by profile.RowsLayout. With Memory they are written to the engine's blocks; Blocks is
// the block table of tokens [0, Plan.End).
type Destination struct {
	Out    gpuipc.Ref
	Memory *EngineMemory
	Blocks []uint32
}

// region returns the region of the destination.
func (d *Destination) region() gpuipc.Region {
	if d.Memory != nil {
		return d.Memory.Region
	}
	return d.Out.Region
}

// RotateQuery copies the keys and values of a plan's segments to their positions. With Memory and
// FromCheckpoint it also copies the rows of the checkpoint's chain, unrotated, since they are
// already at their positions. With FromZero, a RotateQuery may have a Plan.Begin above 0; the
// engine itself writes the rows before Plan.Begin.
type RotateQuery struct {
	Scope
	Layer int // an attention layer, or profile.AllLayers
	From  From
	Plan  Plan
	Dest  Destination
}

// AssembleQuery is a Compose and a Rotate of all layers in one call. Only the last span of the
// plan may be a recomputed one. Dest.Out is laid out by profile.CheckpointLayout(rows), or
// CheckpointLayout(0) if the rows are written to Dest.Memory. The convolution tails in Dest.Out
// come from the last segment. Without segments they come from the checkpoint, or are zero.
type AssembleQuery struct {
	Scope
	From From
	Plan Plan
	Dest Destination
}

// AppendQuery appends rows to a buffer, or opens one.
type AppendQuery struct {
	Scope
	Buffer tier.LeaseID // 0 = open one

	// Only for a new buffer. Base is the states before its first row: zero states, those
	// of a loaded checkpoint, or the bytes of profile.CheckpointLayout(0), which are
	// copied. Capacity is the maximum number of rows.
	Base     From
	Capacity int

	Begin int        // prompt position of the first row
	Rows  int        // at least 1, or 0 when a buffer is opened
	Src   gpuipc.Ref // the rows, laid out by profile.BufferLayout(Rows)
}

// BufferState describes a buffer, in prompt positions.
type BufferState struct {
	Buffer   tier.LeaseID
	Begin    int // of the first row
	Accepted int // tokens before it are accepted
	End      int
}

// AcceptQuery keeps the first Tokens drafted rows and drops the others.
type AcceptQuery struct {
	Scope
	Buffer tier.LeaseID
	Tokens int
}

// ReplayQuery requests the states and convolution tails after an accepted token.
type ReplayQuery struct {
	Scope
	Buffer tier.LeaseID
	Token  int        // tokens before it are included
	Flush  bool       // the rows before Token become part of the base
	Out    gpuipc.Ref // at least profile.CheckpointLayout(0)
}
