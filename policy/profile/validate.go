package profile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrInvalid is the error of an identity, segment or encoding that can never be
// valid.
var ErrInvalid = errors.New("invalid profile")

// Bounds on identities, so that a hostile peer cannot make sizes overflow or allocations
// grow. They are guesses, well above what today's models need.
const (
	MaxLayers         = 4096
	MaxHeads          = 1 << 16
	MaxDim            = 1 << 16
	MaxTPSize         = 1024
	MaxTokens         = 1 << 24 // of one segment or checkpoint edge
	MaxCanonicalBytes = 96 << 10
	maxName           = 1 << 10
	maxRowElements    = 1 << 22 // of one token in one attention layer
	maxStateElements  = 1 << 32 // of one linear layer
	maxConvKernel     = 64
	maxConvGroups     = 8
	maxProblems       = 64
)

// problems collects errors, so that all of them are returned together, each once. It keeps
// at most maxProblems.
type problems []error

func (ps *problems) add(format string, args ...any) {
	if len(*ps) > maxProblems {
		return
	}
	err := fmt.Errorf(format, args...)
	if slices.ContainsFunc(*ps, func(p error) bool { return p.Error() == err.Error() }) {
		return
	}
	if len(*ps) == maxProblems {
		err = errors.New("and more")
	}
	*ps = append(*ps, err)
}

func (ps *problems) check(ok bool, format string, args ...any) {
	if !ok {
		ps.add(format, args...)
	}
}

func (id *Identity) validate() error {
	var ps problems
	ps.check(id.Model != "", "model: no name")
	for _, n := range []struct{ field, value string }{
		{"model", id.Model}, {"adapter", id.Adapter}, {"tokenizer", id.Tokenizer},
	} {
		ps.check(len(n.value) <= maxName, "%s: %d bytes, at most %d", n.field, len(n.value), maxName)
		ps.check(text(n.value), "%s: %.64q has bytes that are not UTF-8, or control characters", n.field, n.value)
	}
	ps.check(id.Weights != [32]byte{}, "weights: digest unknown")
	ps.check(id.Tolerance >= 0 && id.Tolerance <= MaxTolerance, "tolerance: %v, want 0 to %v", id.Tolerance, MaxTolerance)
	ps.check(id.RowTolerance >= 0 && id.RowTolerance <= MaxTolerance, "row tolerance: %v, want 0 to %v", id.RowTolerance, MaxTolerance)
	ps.check(id.TPSize >= 1 && id.TPSize <= MaxTPSize, "tp size: %d, want 1 to %d", id.TPSize, MaxTPSize)
	ps.check(len(id.Layers) >= 1 && len(id.Layers) <= MaxLayers, "layers: %d, want 1 to %d", len(id.Layers), MaxLayers)
	if id.TPSize >= 1 && len(id.Layers) <= MaxLayers {
		for i := range id.Layers {
			id.Layers[i].validate(i, id.TPSize, &ps)
		}
	}
	if len(ps) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalid, errors.Join(ps...))
}

// text reports whether a name can be shown to people and in metrics as it is.
func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

func (l *Layer) validate(i, tp int, ps *problems) {
	at := fmt.Sprintf("layer %d", i)
	switch l.Kind {
	case KindNone:
	case KindFull, KindMLA, KindWindow:
		l.Attention.validate(at, l.Kind, tp, ps)
	case KindLinear:
		l.Linear.validate(at, tp, ps)
	case KindConv:
		checkRange(ps, at+": convolution kernel", l.Linear.Conv.Kernel, 2, maxConvKernel) // a kernel of 1 has no tail
		l.Linear.Conv.validate(at, tp, ps)
	default:
		ps.add("%s: kind %d is unknown", at, l.Kind)
	}
}

func (a *Attention) validate(at string, kind Kind, tp int, ps *problems) {
	checkRange(ps, at+": key-value heads", a.KVHeads, 1, MaxHeads)
	checkRange(ps, at+": value dim", a.ValueDim, 1, MaxDim)
	checkRange(ps, at+": key dim", a.KeyDim, 1, MaxDim)
	ps.check(a.KVHeads*(a.KeyDim+a.ValueDim) <= maxRowElements, "%s: more than %d elements a token", at, maxRowElements)
	ps.check(a.DType.Size() > 0, "%s: element type %d is unknown", at, a.DType)
	ps.check(a.Keys == AtZero || a.Keys == Unrotated, "%s: key storage %d is unknown", at, a.Keys)
	if kind == KindMLA {
		ps.check(a.KVHeads == 1, "%s: MLA has one latent row a token, not %d", at, a.KVHeads)
	} else {
		checkSplit(ps, at+": key-value heads", a.KVHeads, tp)
	}
	if kind == KindWindow {
		checkRange(ps, at+": window", a.Window, 1, MaxTokens)
	} else {
		ps.check(a.Window == 0, "%s: window %d on a layer without one", at, a.Window)
	}
	a.Rope.validate(at, a.KeyDim, ps)
}

func (l *Linear) validate(at string, tp int, ps *problems) {
	form := l.Family.Transition()
	ps.check(form != TransitionNone, "%s: linear family %d has no kernels", at, l.Family)
	checkRange(ps, at+": key heads", l.KeyHeads, 1, MaxHeads)
	checkRange(ps, at+": value heads", l.ValueHeads, 1, MaxHeads)
	checkRange(ps, at+": key dim", l.KeyDim, 1, MaxDim)
	checkRange(ps, at+": value dim", l.ValueDim, 1, MaxDim)
	if max(l.ValueHeads, l.KeyDim, l.ValueDim) <= MaxDim {
		ps.check(l.ValueHeads*l.KeyDim*max(l.KeyDim, l.ValueDim) <= maxStateElements,
			"%s: more than %d elements of state", at, maxStateElements)
	}
	if l.KeyHeads >= 1 {
		ps.check(l.ValueHeads%l.KeyHeads == 0, "%s: %d value heads are no multiple of %d key heads", at, l.ValueHeads, l.KeyHeads)
	}
	checkSplit(ps, at+": key heads", l.KeyHeads, tp)
	ps.check(l.ValueHeads%tp == 0, "%s: %d value heads over %d ranks", at, l.ValueHeads, tp)
	ps.check(l.StateDType.Size() > 0, "%s: state type %d is unknown", at, l.StateDType)
	ps.check(l.TransitionDType.Size() > 0, "%s: transition type %d is unknown", at, l.TransitionDType)
	ps.check(form != Scalar || l.TransitionDType == F32, "%s: scalar transitions are kept in F32", at)
	ps.check(l.Family != Mamba1 || l.ValueDim == 1, "%s: Mamba1 heads are channels with value dim 1, not %d", at, l.ValueDim)
	ps.check(l.Rope.Dims == 0 || form == Scalar,
		"%s: rope inside a linear layer commutes with scalar transitions only", at)
	l.Rope.validate(at, l.KeyDim, ps)
	l.Conv.validate(at, tp, ps)
	slopes := 0
	if l.Family.Decay() == DecayFixed {
		slopes = l.ValueHeads
	}
	ps.check(len(l.Slopes) == slopes, "%s: %d slopes for %d %s value heads, want %d", at, len(l.Slopes), l.ValueHeads, l.Family, slopes)
	ps.check(allFinite(l.Slopes), "%s: a slope is not a finite number", at)
}

func (c *Conv) validate(at string, tp int, ps *problems) {
	if c.Kernel == 0 && len(c.Channels) == 0 {
		ps.check(c.DType == 0, "%s: convolution type without a convolution", at)
		return
	}
	checkRange(ps, at+": convolution kernel", c.Kernel, 1, maxConvKernel)
	checkRange(ps, at+": convolution groups", len(c.Channels), 1, maxConvGroups)
	ps.check(c.DType.Size() > 0, "%s: convolution type %d is unknown", at, c.DType)
	for g, n := range c.Channels {
		checkRange(ps, fmt.Sprintf("%s: convolution group %d", at, g), n, 1, MaxHeads*16)
		ps.check(n%tp == 0, "%s: convolution group %d of %d channels over %d ranks", at, g, n, tp)
	}
}

func (r *Rope) validate(at string, dim int, ps *problems) {
	if r.Dims == 0 {
		ps.check(r.Theta == 0 && !r.Interleaved && len(r.InvFreq) == 0, "%s: rope parameters without rotated dimensions", at)
		return
	}
	ps.check(r.Dims > 0 && r.Dims%2 == 0 && r.Dims <= dim, "%s: rope turns %d of %d dimensions, want an even number", at, r.Dims, dim)
	if r.InvFreq != nil {
		ps.check(len(r.InvFreq) == r.Dims/2, "%s: %d inverse frequencies for %d rotated dimensions", at, len(r.InvFreq), r.Dims)
		ps.check(allFinite(r.InvFreq), "%s: an inverse frequency is not a finite number", at)
		ps.check(r.Theta == 0, "%s: rope theta %g beside inverse frequencies", at, r.Theta)
		return
	}
	ps.check(r.Theta > 0 && !math.IsInf(r.Theta, 0), "%s: rope theta %g", at, r.Theta)
}

func checkRange(ps *problems, what string, v, low, high int) {
	ps.check(v >= low && v <= high, "%s: %d, want %d to %d", what, v, low, high)
}

// checkSplit accepts heads that divide evenly over ranks. It also accepts fewer heads than
// ranks, if each head is replicated the same number of times.
func checkSplit(ps *problems, what string, heads, tp int) {
	if heads >= 1 {
		ps.check(heads%tp == 0 || tp%heads == 0, "%s: %d over %d ranks", what, heads, tp)
	}
}

func allFinite(vs []float64) bool {
	for _, v := range vs {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}
