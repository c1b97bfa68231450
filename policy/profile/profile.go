// Package profile describes a model's reusable state: the tensors of each
// layer, their bytes, what identifies them and the keys of segments.
//
// It has no clock, lock, I/O or logging and imports no other package of this repository, so
// that every other package may import it. A Profile is immutable, and all functions are
// safe for concurrent use.
package profile

// Kind is the kind of state that one decoder layer stores.
type Kind uint8

// The layer kinds. A layer of KindNone has no cached state, for example because it has only
// an MLP.
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

// KeyStorage says to which position stored keys are rotated.
type KeyStorage uint8

// AtZero keys are rotated to their position in the whole segment, counted from 0, so one
// more rotation, by the segment's start in a prompt, places them in this prompt. Unrotated
// keys are not rotated.
const (
	AtZero    KeyStorage = 1
	Unrotated KeyStorage = 2
)

// Rope describes rotary position embedding. The zero value is "no rope".
type Rope struct {
	Dims        int       // leading dimensions of each head that rotate; 0 = none
	Theta       float64   // base: frequency i is Theta^(-2i/Dims); 0 if InvFreq is set
	Interleaved bool      // pairs (2i, 2i+1); false = NeoX, pairs (i, i+Dims/2)
	InvFreq     []float64 // inverse frequencies of a scaled rope, Dims/2 values; nil = computed from Theta
}

// Attention describes the per-token rows of a full, window or MLA layer. For MLA, KVHeads
// is 1, KeyDim is the size of the rope key, ValueDim is the rank of the latent, and rows
// are replicated over TP ranks.
type Attention struct {
	KVHeads  int // over all TP ranks; if there are fewer heads than ranks, they are replicated
	KeyDim   int
	ValueDim int
	Window   int // tokens, KindWindow only
	DType    DType
	Keys     KeyStorage
	Rope     Rope
}

// Conv describes the causal depthwise convolution before a linear layer. The zero value
// means that there is none. The tail of a convolution is its last Kernel-1 inputs,
// row-major [Kernel-1, sum(Channels)].
type Conv struct {
	Kernel   int
	Channels []int // sizes of the groups that TP splits separately, such as q, k, v; replicated groups count once per rank
	DType    DType
}

// Linear describes a linear-attention layer. T and S are stored per value head. S is
// [ValueHeads, KeyDim, ValueDim]. T acts from the left, and its size depends on Transition.
type Linear struct {
	Family          Family
	KeyHeads        int
	ValueHeads      int
	KeyDim          int
	ValueDim        int
	StateDType      DType // element type of S in segments; running states are always F32
	TransitionDType DType // element type of T in diagonal and dense families; scalar T is always F32
	Conv            Conv
	Rope            Rope      // rope inside the linear layer; only for families with a scalar T
	Slopes          []float64 // for a fixed decay: exponents as the engine uses them, one per value head; else nil
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
	// Tolerance bounds the errors of the packed transitions and end-states of segments, per
	// head. The error of T is the spectral norm of the difference. The error of S is the
	// Frobenius norm of the difference divided by the norm of S. 0 means stored as written;
	// the maximum is MaxTolerance. Checkpoints and leading segments are never packed.
	Tolerance float64
	// RowTolerance bounds the errors of the packed keys and values of segments, per layer.
	// The error is the Frobenius norm of the difference divided by the norm of the layer's
	// keys, or values. 0 means stored as written.
	RowTolerance float64
}

// Fingerprint is the SHA-256 of an identity's canonical bytes.
type Fingerprint [32]byte

// SegmentKey identifies a segment of one profile and tenant by the segment's content.
type SegmentKey [32]byte

// PrefixHash identifies the first p tokens of a prompt for one profile and
// tenant.
type PrefixHash [32]byte

// Role is the place in a prompt for which a segment was captured.
type Role uint8

// RoleFirst is a segment at the start of a prompt, stored whole and never recomputed.
// RoleMid is any other segment: only its interior is stored, and its ends are recomputed at
// the seams.
const (
	RoleFirst Role = 1
	RoleMid   Role = 2
)

// PrimerID identifies a primer, which is the passage after which a segment was captured. It
// is the SHA-256 of the primer's token ids as u32, little-endian. The zero value means that
// there is no primer.
type PrimerID [32]byte

// SegmentSpec is the geometry of a segment, and the primer after which it was captured.
type SegmentSpec struct {
	Role   Role
	Head   int      // tokens excluded at the start; 0 for RoleFirst
	Tail   int      // tokens excluded at the end; 0 for RoleFirst
	Tokens int      // all tokens of the segment, without the primer
	Primer PrimerID // zero for RoleFirst and captures from an empty state
}

// PartKind is the kind of a tensor of a segment or checkpoint.
type PartKind uint8

// The part kinds. The numbers are part of the wire protocol.
const (
	PartT    PartKind = 1 // transition
	PartS    PartKind = 2 // end-state (segment) or running state (checkpoint)
	PartConv PartKind = 3 // last Kernel-1 convolution inputs
	PartK    PartKind = 4 // keys, or the rope key rows of MLA: [tokens, heads, KeyDim]
	PartV    PartKind = 5 // values, or the latent rows of MLA: [tokens, heads, ValueDim]
)

// Part is one tensor in the bytes of one rank's share of a segment or checkpoint. Parts are
// ordered by layer, then kind, and never overlap.
type Part struct {
	Layer int
	Kind  PartKind
	DType DType
	Shape [3]int // unused trailing dimensions are 1
	Off   int64  // offset in bytes, a multiple of PartAlign
	Len   int64  // bytes
	// Packed means that the heads are stored in smaller forms, see PackedLayout. DType and
	// Shape describe the part before packing.
	Packed bool
}

// Layout is the byte layout of one rank's share of a segment or checkpoint.
type Layout struct {
	Parts []Part
	Bytes int64 // total, a multiple of PartAlign
}
