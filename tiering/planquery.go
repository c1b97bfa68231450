package tiering

import (
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// SpanKind is what a span of a plan is.
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
	// Input holds (T, S) of a recomputed span in F32, laid out by
	// profile.SeamLayout of the asked layers, its S already at the true
	// positions of its tokens (never turned). Absent is allowed for the last
	// span of a plan only. Rotate and Assemble ignore and refuse it.
	Input gpuipc.Ref
}

// Plan is the spans that cover the tokens [Begin, End) of a prompt exactly once,
// in order.
//
// Invariant: no token enters a state twice. Besides gaps and overlaps of spans,
// a plan in which two whole segments (head, interior and tail) overlap is
// refused, and so is one that leaves no room for a segment's head.
type Plan struct {
	Begin, End int
	Spans      []Span
}

// FromKind says where a plan begins from.
type FromKind uint8

// The beginnings. The numbers are those of the local protocol.
const (
	FromZero       FromKind = 0 // Begin is 0 and the state is zero
	FromCheckpoint FromKind = 1 // Lease is that of a loaded checkpoint of Begin tokens
	FromState      FromKind = 2 // State holds the states after Begin tokens
)

// From is the beginning of a plan. State is laid out by
// profile.StatesLayout(layer, 0); StateBytes tells its size.
type From struct {
	Kind  FromKind
	Lease tier.LeaseID
	State gpuipc.Ref
}

// ComposeQuery moves a running state over a plan. Out receives, for each asked
// linear layer in order, the F32 state before each recomputed span and then the
// final state: profile.StatesLayout(Layer, recomputed spans).
type ComposeQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Layer   int // a linear layer, or profile.AllLayers
	From    From
	Plan    Plan
	Out     gpuipc.Ref // at least ComposeBytes
}

// MemoryLayer says where one attention layer's rows live in engine memory, in
// bytes: row t of head h of a block b is at Base + b*BlockStride +
// t*TokenStride + h*HeadStride.
type MemoryLayer struct {
	Layer        int
	KBase        int64
	VBase        int64
	BlockStride  int64
	KTokenStride int64
	KHeadStride  int64
	VTokenStride int64
	VHeadStride  int64
}

// Memory is engine memory bound to a profile: paged rows of every attention
// layer. CheckMemory validates it once; it must not change afterwards.
type Memory struct {
	Region gpuipc.Region
	// Chunks are where the runs end that the region's addresses fall into; nil =
	// it is one run. The keys of a layer lie in one of them, and so do its values.
	Chunks      []int64
	BlockTokens int
	Layers      []MemoryLayer
}

// Destination is where rows go. Without Memory they are packed into Out, in plan
// order, by profile.RowsLayout. With Memory they are scattered by the block
// table of tokens [0, End).
type Destination struct {
	Out    gpuipc.Ref
	Memory *Memory
	Blocks []uint32
}

// region is where rows go.
func (d *Destination) region() gpuipc.Region {
	if d.Memory != nil {
		return d.Memory.Region
	}
	return d.Out.Region
}

// RotateQuery places the keys and values of a plan's segments. With Memory and
// FromCheckpoint the rows of the checkpoint's chain are placed too, unrotated:
// they already stand at their positions. FromZero asks nothing of Begin here,
// rows before it are the engine's own.
type RotateQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Layer   int // an attention layer, or profile.AllLayers
	From    From
	Plan    Plan
	Dest    Destination
}

// AssembleQuery is Compose and Rotate of all layers in one call, for plans whose
// only recomputed span, if any, is the last. Out is laid out by
// profile.CheckpointLayout(rows), or CheckpointLayout(0) when rows go to Memory;
// the convolution tails in it are the last segment's, or the checkpoint's when
// the plan has no segment, or zero.
type AssembleQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	From    From
	Plan    Plan
	Dest    Destination
}
