// Package profile describes a model's reusable state: the tensors of each
// layer, their bytes, what identifies them and the keys of segments.
//
// It has no clock, lock, I/O or logging and imports none of our packages, so
// that every other package may import it. A Profile is immutable, and all
// functions are safe for concurrent use.
package profile

// Kind is the kind of state that one decoder layer stores.
type Kind uint8

// The layer kinds. KindNone is a layer without cached state (an MLP-only layer).
const (
	KindNone   Kind = iota
	KindFull        // softmax attention over all earlier tokens
	KindMLA         // multi-head latent attention: one latent row and one rope key row per token
	KindWindow      // softmax attention over the last Window tokens
	KindLinear      // linear attention: a recurrent state, no per-token rows
	KindConv        // a short convolution, with only a tail
)

// DType is an element type of stored tensors.
type DType uint8

// The stored element types. The numbers are part of the canonical bytes and of
// the wire protocol.
const (
	F32  DType = 1
	F16  DType = 2
	BF16 DType = 3
)

// KeyStorage is the position at which stored keys were rotated.
type KeyStorage uint8

// AtZero keys are rotated to their local position in the whole segment, so one
// rotation by R(start) places them; Unrotated keys are not rotated.
const (
	AtZero    KeyStorage = 1
	Unrotated KeyStorage = 2
)

// Rope describes rotary position embedding. The zero value is "no rope".
type Rope struct {
	Dims        int       // leading dimensions of each head that rotate; 0 = none
	Theta       float64   // base; frequency i is Theta^(-2i/Dims) unless InvFreq is set, then 0
	Interleaved bool      // pairs (2i, 2i+1); false = NeoX, pairs (i, i+Dims/2)
	InvFreq     []float64 // explicit inverse frequencies of scaled rope, len Dims/2; nil = from Theta
}

// Attention describes the per-token rows of a full, window or MLA layer. For
// MLA: KVHeads is 1, KeyDim the rope key's size, ValueDim the latent's rank, and
// rows are replicated over TP ranks.
type Attention struct {
	KVHeads  int // over all TP ranks; fewer heads than ranks are replicated
	KeyDim   int
	ValueDim int
	Window   int // tokens, KindWindow only
	DType    DType
	Keys     KeyStorage
	Rope     Rope
}

// Conv describes the causal depthwise convolution before a linear layer. The
// zero value is "none". Its tail is the last Kernel-1 inputs, row-major
// [Kernel-1, sum(Channels)].
type Conv struct {
	Kernel   int
	Channels []int // sizes of the groups that TP splits separately, such as q, k, v; summed over ranks if they are replicated
	DType    DType
}

// Linear describes a linear-attention layer. T and S are stored per value head:
// S is [ValueHeads, KeyDim, ValueDim], T by Transition, acting from the left.
type Linear struct {
	Family          Family
	KeyHeads        int
	ValueHeads      int
	KeyDim          int
	ValueDim        int
	StateDType      DType // S of segments; running states are always F32
	TransitionDType DType // T of diagonal and dense families; scalar T is always F32
	Conv            Conv
	Rope            Rope      // rope inside the linear layer; scalar families only
	Slopes          []float64 // of a fixed decay: exponents as the engine uses them, one per value head; else nil
}

// Layer is one decoder layer.
type Layer struct {
	Kind      Kind
	Attention Attention // KindFull, KindMLA, KindWindow
	Linear    Linear    // KindLinear; KindConv uses only its Conv
}

// Identity is everything that defines the values of cached state. Its canonical
// bytes are hashed into the fingerprint; two engines share segments exactly if
// their identities are equal.
type Identity struct {
	Model     string   // name, for people; hashed too
	Weights   [32]byte // digest of the weights; all zero = unknown = refused
	Adapter   string   // adapter (LoRA) name and digest; empty = none
	Tokenizer string   // name or digest
	TPSize    int      // tensor-parallel ranks, at least 1
	Layers    []Layer
	// Tolerance bounds the error of packed transitions and end-states of
	// segments: the spectral norm of a head's difference in T, and the
	// Frobenius norm of that in S relative to S. 0 = stored as written; at
	// most MaxTolerance. Checkpoints and leading segments are never packed.
	Tolerance float64
	// RowTolerance bounds the error of packed keys and values of segments: the
	// Frobenius norm of the difference in a layer's keys, or values, relative
	// to them. 0 = stored as written.
	RowTolerance float64
}

// Fingerprint is the SHA-256 of an identity's canonical bytes.
type Fingerprint [32]byte

// SegmentKey identifies a segment of one profile and tenant by its content.
type SegmentKey [32]byte

// PrefixHash identifies the first p tokens of a prompt for one profile and
// tenant.
type PrefixHash [32]byte

// Role is the place in a prompt for which a segment was captured.
type Role uint8

// RoleFirst is a leading segment, stored whole and never recomputed. RoleMid is
// any other: only its interior is stored and its ends are recomputed at the
// seams.
const (
	RoleFirst Role = 1
	RoleMid   Role = 2
)

// PrimerID identifies a primer, the passage after which a segment was captured:
// the SHA-256 of its token ids as u32, little-endian. The zero value is none.
type PrimerID [32]byte

// SegmentSpec is the geometry of a segment, and the primer after which it was captured.
type SegmentSpec struct {
	Role   Role
	Head   int      // tokens excluded at the start; 0 for RoleFirst
	Tail   int      // tokens excluded at the end; 0 for RoleFirst
	Tokens int      // whole length n, without the primer
	Primer PrimerID // zero for RoleFirst and captures from an empty state
}

// PartKind is one tensor of a segment or checkpoint.
type PartKind uint8

// The part kinds. The numbers are part of the wire protocol.
const (
	PartT    PartKind = 1 // transition
	PartS    PartKind = 2 // end-state (segment) or running state (checkpoint)
	PartConv PartKind = 3 // last Kernel-1 convolution inputs
	PartK    PartKind = 4 // keys, or the rope key rows of MLA: [tokens, heads, KeyDim]
	PartV    PartKind = 5 // values, or the latent rows of MLA: [tokens, heads, ValueDim]
)

// Part is one tensor inside the linear byte space of a segment or checkpoint of
// one rank. Parts are ordered by layer, then kind, and never overlap.
type Part struct {
	Layer int
	Kind  PartKind
	DType DType
	Shape [3]int // unused trailing dimensions are 1
	Off   int64  // bytes, a multiple of PartAlign
	Len   int64  // bytes
	// Packed: its heads are stored in smaller forms, see PackedLayout; DType
	// and Shape are as written.
	Packed bool
}

// Layout is the byte layout of one rank's share of a segment or checkpoint.
type Layout struct {
	Parts []Part
	Bytes int64 // total, a multiple of PartAlign
}
