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

// The span kinds. The numbers are those of the local protocol.
const (
	SpanSegment   SpanKind = 1 // the interior of a leased segment
	SpanRecompute SpanKind = 2 // tokens the engine computes: seam, miss, query
)

// Span is a run of prompt tokens [Start, Start+Count).
type Span struct {
	Kind  SpanKind
	Lease tier.LeaseID // SpanSegment
	Start int
	Count int
	// Input holds (T, S) of a recomputed span in F32, laid out by profile.SeamLayout of
	// the requested layers, its S already at the true positions of its tokens (never
	// rotated). It may be absent for the last span of a plan only. Rotate ignores it and
	// Assemble refuses it.
	Input gpuipc.Ref
}

// Plan is a list of spans that cover the tokens [Begin, End) of a prompt exactly once, in
// order.
//
// Invariant: no token enters a state twice. Besides gaps and overlaps of spans, a plan in
// which two whole segments (head, interior and tail) overlap is refused, and so is one
// that leaves no room for a segment's head.
type Plan struct {
	Begin, End int
	Spans      []Span
}

// check refuses gaps and overlaps: each span begins where the previous one ended.
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

// shape returns the counts on which the sizes of results depend.
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

// leases returns the leases of a plan: of the checkpoint that it begins from, if any,
// then of its segments in order.
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

// The kinds of beginning. The numbers are those of the local protocol.
const (
	FromZero       FromKind = 0 // Begin is 0 and the state is zero
	FromCheckpoint FromKind = 1 // Lease is a loaded checkpoint of Begin tokens
	FromState      FromKind = 2 // State holds the states after Begin tokens
)

// From is the beginning of a plan. State is laid out by profile.StatesLayout(layer, 0);
// StateBytes returns its size.
type From struct {
	Kind  FromKind
	Lease tier.LeaseID
	State gpuipc.Ref
}

// check refuses a state that cannot be the one before the plan's first token.
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
// order, Out receives the F32 state before each recomputed span and then the final state:
// profile.StatesLayout(Layer, recomputed spans).
type ComposeQuery struct {
	Scope
	Layer int // a linear layer, or profile.AllLayers
	From  From
	Plan  Plan
	Out   gpuipc.Ref // at least ComposeBytes
}

// Destination is the destination of rows. Without Memory they are packed into Out, in
// plan order, by profile.RowsLayout. With Memory they are scattered by the block table of
// tokens [0, End).
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

// RotateQuery copies the keys and values of a plan's segments to their positions. With
// Memory and FromCheckpoint the rows of the checkpoint's chain are copied too, unrotated,
// since they are already at their positions. FromZero does not restrict Begin here; rows
// before it belong to the engine.
type RotateQuery struct {
	Scope
	Layer int // an attention layer, or profile.AllLayers
	From  From
	Plan  Plan
	Dest  Destination
}

// AssembleQuery is Compose and Rotate of all layers in one call, for plans whose only
// recomputed span, if any, is the last. Out is laid out by
// profile.CheckpointLayout(rows), or CheckpointLayout(0) if rows are written to Memory.
// Its convolution tails are the last segment's, or the checkpoint's if the plan has no
// segment, or zero.
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

	// For a new buffer. The base is zero states, a loaded checkpoint, or the bytes of
	// profile.CheckpointLayout(0), which are copied.
	Base     From
	Capacity int

	Begin int        // prompt position of the first row
	Rows  int        // at least 1, or 0 when a buffer is opened
	Src   gpuipc.Ref // the rows as profile.BufferLayout(Rows)
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
