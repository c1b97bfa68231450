package modelfile

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spliced-kv/spliced/policy/profile"
)

// ErrInvalid is wrapped by every error about a configuration or a file that can never be
// valid.
var ErrInvalid = errors.New("refengine: invalid")

// Config is the shape of a model. Weights and numbers are in Weights.
type Config struct {
	Name      string
	Vocab     int            // token ids below 256 are bytes, the rest are free
	Dim       int            // width of the residual stream
	Hidden    int            // inner width of the SwiGLU
	Layers    []profile.Kind // profile.KindLinear or profile.KindFull
	Linear    LinearConfig
	Attention AttentionConfig
	Eps       float64 // of every RMSNorm
	Storage   Storage
}

// LinearConfig is the shape of every linear-attention layer.
type LinearConfig struct {
	Family     profile.Family
	KeyHeads   int
	ValueHeads int // a multiple of KeyHeads
	KeyDim     int
	ValueDim   int
	Kernel     int          // causal convolution over q|k|v; 0 = none
	Rope       profile.Rope // inside the layer; RetNet and Lightning only
	// Separate means that the weights of q|k|v, z, b and a are in separate tensors with heads in
	// order, as in Qwen3.5. Otherwise the tensors are as in Qwen3-Next (see Config.tensors).
	// Separate is for GDN only.
	Separate bool
}

// AttentionConfig is the shape of every full-attention layer.
type AttentionConfig struct {
	Heads   int
	KVHeads int
	HeadDim int
	Rope    profile.Rope
	Gate    bool // sigmoid output gate, as in Qwen3-Next
}

// Storage has the element types in which captured segments and checkpoints are stored.
// Transitions of scalar families and running states are always F32.
type Storage struct {
	State      profile.DType
	Transition profile.DType
	Conv       profile.DType
	KV         profile.DType
	// As in profile.Identity.
	Tolerance, RowTolerance float64
}

// Exact returns F32 for everything.
func Exact() Storage {
	return Storage{State: profile.F32, Transition: profile.F32, Conv: profile.F32, KV: profile.F32}
}

// ConvChannels returns the width of q|k|v, the input of the convolution.
func (c LinearConfig) ConvChannels() int { return 2*c.KeyHeads*c.KeyDim + c.ValueHeads*c.ValueDim }

// Delta reports whether the family uses the delta rule: a write subtracts what the state already
// holds for the key. These are the families with dense transitions.
func (c LinearConfig) Delta() bool { return c.Family.Transition() == profile.Dense }

// Erases reports whether the layer has gates per channel: an erase gate per key channel and a
// write gate per value channel.
func (c LinearConfig) Erases() bool { return c.Family == profile.GDN2 }

// Betas returns how many numbers per token the projection of write gates has. With gates per
// channel, all erase gates come first, then all write gates. The heads are in order in both
// groups.
func (c LinearConfig) Betas() int {
	switch {
	case c.Erases():
		return c.ValueHeads * (c.KeyDim + c.ValueDim)
	case c.Delta():
		return c.ValueHeads
	}
	return 0
}

// Gates returns how many numbers per token the projection of decay gates has; 0 if decays are
// fixed.
func (c LinearConfig) Gates() int {
	switch c.Family.Decay() {
	case profile.DecayPerHead:
		return c.ValueHeads
	case profile.DecayPerKey:
		return c.ValueHeads * c.KeyDim
	}
	return 0
}

// Slopes reports whether decays are fixed.
func (c LinearConfig) Slopes() bool {
	return c.Family.Decay() == profile.DecayFixed
}

// TransitionSize returns the number of elements of T of one value head.
func (c LinearConfig) TransitionSize() int {
	switch c.Family.Transition() {
	case profile.Dense:
		return c.KeyDim * c.KeyDim
	case profile.Diagonal:
		return c.KeyDim
	}
	return 1
}

// Validate lists all errors of the configuration.
func (c Config) Validate() error {
	var bad []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	check(c.Vocab >= 256 && c.Vocab <= 1<<20, "vocab %d outside [256, 2^20]", c.Vocab)
	check(c.Dim > 0 && c.Hidden > 0, "dim %d and hidden %d must be positive", c.Dim, c.Hidden)
	check(len(c.Layers) > 0, "no layers")
	check(c.Eps > 0 && c.Eps < 1, "eps %g outside (0, 1)", c.Eps)
	linear, full := c.counts()
	check(linear+full == len(c.Layers), "layers must be linear or full")
	if linear > 0 {
		bad = append(bad, c.Linear.problems()...)
	}
	if full > 0 {
		bad = append(bad, c.Attention.problems()...)
	}
	for _, d := range []profile.DType{c.Storage.State, c.Storage.Transition, c.Storage.Conv, c.Storage.KV} {
		check(d == profile.F32 || d == profile.F16 || d == profile.BF16, "storage type %d unknown", d)
	}
	if len(bad) > 0 {
		return fmt.Errorf("model %q: %s: %w", c.Name, strings.Join(bad, "; "), ErrInvalid)
	}
	return nil
}

func (c Config) counts() (linear, full int) {
	for _, k := range c.Layers {
		switch k {
		case profile.KindLinear:
			linear++
		case profile.KindFull:
			full++
		}
	}
	return linear, full
}

func (c LinearConfig) problems() []string {
	var bad []string
	if c.Family.Transition() == profile.TransitionNone || c.Family == profile.Mamba1 {
		bad = append(bad, fmt.Sprintf("linear family %d not supported", c.Family))
	}
	if c.KeyHeads <= 0 || c.ValueHeads <= 0 || c.ValueHeads%c.KeyHeads != 0 {
		bad = append(bad, fmt.Sprintf("%d value heads are not a multiple of %d key heads", c.ValueHeads, c.KeyHeads))
	}
	if c.KeyDim <= 0 || c.ValueDim <= 0 {
		bad = append(bad, fmt.Sprintf("linear head dims %dx%d must be positive", c.KeyDim, c.ValueDim))
	}
	if c.Kernel < 0 || c.Kernel == 1 {
		bad = append(bad, fmt.Sprintf("convolution kernel %d must be 0 or at least 2", c.Kernel))
	}
	if c.Separate && c.Family != profile.GDN {
		bad = append(bad, "projections of their own are read for GDN only")
	}
	if c.Rope.Dims != 0 && !c.Slopes() {
		bad = append(bad, "rope inside a linear layer needs a fixed scalar decay")
	}
	return append(bad, ropeProblems(c.Rope, c.KeyDim)...)
}

func (c AttentionConfig) problems() []string {
	var bad []string
	if c.Heads <= 0 || c.KVHeads <= 0 || c.Heads%c.KVHeads != 0 {
		bad = append(bad, fmt.Sprintf("%d heads are not a multiple of %d kv heads", c.Heads, c.KVHeads))
	}
	if c.HeadDim <= 0 {
		bad = append(bad, fmt.Sprintf("head dim %d must be positive", c.HeadDim))
	}
	return append(bad, ropeProblems(c.Rope, c.HeadDim)...)
}

func ropeProblems(r profile.Rope, dim int) []string {
	var bad []string
	if r.Dims < 0 || r.Dims > dim || r.Dims%2 != 0 {
		bad = append(bad, fmt.Sprintf("rope turns %d of %d dims", r.Dims, dim))
	}
	if r.Dims > 0 && r.InvFreq == nil && !(r.Theta > 1 && !math.IsInf(r.Theta, 0)) {
		bad = append(bad, fmt.Sprintf("rope theta %g", r.Theta))
	}
	if r.InvFreq != nil && len(r.InvFreq) != r.Dims/2 {
		bad = append(bad, fmt.Sprintf("rope has %d inverse frequencies for %d dims", len(r.InvFreq), r.Dims))
	}
	return bad
}

// identity describes the reusable state of a model of this shape.
func (c Config) identity(weights [32]byte, slopes [][]float64) profile.Identity {
	id := profile.Identity{Model: c.Name, Weights: weights, Tokenizer: "bytes", TPSize: 1, Tolerance: c.Storage.Tolerance, RowTolerance: c.Storage.RowTolerance}
	for i, kind := range c.Layers {
		layer := profile.Layer{Kind: kind}
		switch kind {
		case profile.KindLinear:
			layer.Linear = c.linearLayer(slopes[i])
		case profile.KindFull:
			layer.Attention = profile.Attention{
				KVHeads: c.Attention.KVHeads, KeyDim: c.Attention.HeadDim, ValueDim: c.Attention.HeadDim,
				DType: c.Storage.KV, Keys: profile.AtZero, Rope: c.Attention.Rope,
			}
		}
		id.Layers = append(id.Layers, layer)
	}
	return id
}

func (c Config) linearLayer(slopes []float64) profile.Linear {
	l := c.Linear
	out := profile.Linear{
		Family: l.Family, KeyHeads: l.KeyHeads, ValueHeads: l.ValueHeads, KeyDim: l.KeyDim, ValueDim: l.ValueDim,
		StateDType: c.Storage.State, TransitionDType: c.Storage.Transition, Rope: l.Rope, Slopes: slopes,
	}
	if l.Family.Transition() == profile.Scalar {
		out.TransitionDType = profile.F32
	}
	if l.Kernel > 0 {
		out.Conv = profile.Conv{
			Kernel:   l.Kernel,
			Channels: []int{l.KeyHeads * l.KeyDim, l.KeyHeads * l.KeyDim, l.ValueHeads * l.ValueDim},
			DType:    c.Storage.Conv,
		}
	}
	return out
}
