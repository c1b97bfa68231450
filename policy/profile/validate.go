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
		id.validateLayers(&ps)
		id.validateSplit(&ps)
	}
	if len(ps) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalid, errors.Join(ps...))
}

// validateLayers adds a problem of several layers once.
func (id *Identity) validateLayers(ps *problems) {
	var texts []string
	layers := map[string][]int{}
	for i := range id.Layers {
		var found problems
		id.Layers[i].validate(&found)
		for _, err := range found {
			text := err.Error()
			if layers[text] == nil {
				if len(texts) > maxProblems {
					continue
				}
				texts = append(texts, text)
			}
			layers[text] = append(layers[text], i)
		}
	}
	for _, text := range texts {
		others := ""
		if n := len(layers[text]) - 1; n > 0 {
			others = fmt.Sprintf(" and %d more", n)
		}
		ps.add("layer %d%s: %s", layers[text][0], others, text)
	}
}

// validateSplit checks that heads and channels can be divided among ranks.
func (id *Identity) validateSplit(ps *problems) {
	tp := id.TPSize
	var uneven problems
	for i := range id.Layers {
		l := &id.Layers[i]
		switch l.Kind {
		case KindFull, KindWindow:
			uneven.check(splits(l.Attention.KVHeads, tp), "%d key-value heads", l.Attention.KVHeads)
		case KindLinear:
			uneven.check(splits(l.Linear.KeyHeads, tp), "%d key heads", l.Linear.KeyHeads)
			uneven.check(l.Linear.ValueHeads%tp == 0, "%d value heads", l.Linear.ValueHeads)
		}
		if l.Kind != KindLinear && l.Kind != KindConv {
			continue
		}
		for _, n := range l.Linear.Conv.Channels {
			uneven.check(n%tp == 0, "%d convolution channels", n)
		}
	}
	if len(uneven) > 0 {
		ps.add("tp size: %d ranks cannot share %s", tp, strings.ReplaceAll(errors.Join(uneven...).Error(), "\n", ", "))
	}
}

// splits returns whether heads divide evenly over ranks, or are fewer than ranks and each is
// replicated the same number of times.
func splits(heads, ranks int) bool { return heads < 1 || heads%ranks == 0 || ranks%heads == 0 }

// text reports whether a name can be shown to people and in metrics as it is.
func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }

func (l *Layer) validate(ps *problems) {
	switch l.Kind {
	case KindNone:
	case KindFull, KindMLA, KindWindow:
		l.Attention.validate(l.Kind, ps)
	case KindLinear:
		l.Linear.validate(ps)
	case KindConv:
		checkRange(ps, "convolution kernel", l.Linear.Conv.Kernel, 2, maxConvKernel) // a kernel of 1 has no tail
		l.Linear.Conv.validate(ps)
	default:
		ps.add("kind %d is unknown", l.Kind)
	}
}

func (a *Attention) validate(kind Kind, ps *problems) {
	checkRange(ps, "key-value heads", a.KVHeads, 1, MaxHeads)
	checkRange(ps, "value dim", a.ValueDim, 1, MaxDim)
	checkRange(ps, "key dim", a.KeyDim, 1, MaxDim)
	ps.check(a.KVHeads*(a.KeyDim+a.ValueDim) <= maxRowElements, "more than %d elements a token", maxRowElements)
	ps.check(a.DType.Size() > 0, "element type %d is unknown", a.DType)
	ps.check(a.Keys == AtZero || a.Keys == Unrotated, "key storage %d is unknown", a.Keys)
	if kind == KindMLA {
		ps.check(a.KVHeads == 1, "MLA has one latent row a token, not %d", a.KVHeads)
	}
	if kind == KindWindow {
		checkRange(ps, "window", a.Window, 1, MaxTokens)
	} else {
		ps.check(a.Window == 0, "window %d on a layer without one", a.Window)
	}
	a.Rope.validate(a.KeyDim, ps)
}

func (l *Linear) validate(ps *problems) {
	form := l.Family.Transition()
	ps.check(form != TransitionNone, "linear family %d has no kernels", l.Family)
	checkRange(ps, "key heads", l.KeyHeads, 1, MaxHeads)
	checkRange(ps, "value heads", l.ValueHeads, 1, MaxHeads)
	checkRange(ps, "key dim", l.KeyDim, 1, MaxDim)
	checkRange(ps, "value dim", l.ValueDim, 1, MaxDim)
	if max(l.ValueHeads, l.KeyDim, l.ValueDim) <= MaxDim {
		ps.check(l.ValueHeads*l.KeyDim*max(l.KeyDim, l.ValueDim) <= maxStateElements,
			"more than %d elements of state", maxStateElements)
	}
	if l.KeyHeads >= 1 {
		ps.check(l.ValueHeads%l.KeyHeads == 0, "%d value heads are no multiple of %d key heads", l.ValueHeads, l.KeyHeads)
	}
	ps.check(l.StateDType.Size() > 0, "state type %d is unknown", l.StateDType)
	ps.check(l.TransitionDType.Size() > 0, "transition type %d is unknown", l.TransitionDType)
	ps.check(form != Scalar || l.TransitionDType == F32, "scalar transitions are kept in F32")
	ps.check(l.Family != Mamba1 || l.ValueDim == 1, "Mamba1 heads are channels with value dim 1, not %d", l.ValueDim)
	ps.check(l.Rope.Dims == 0 || form == Scalar,
		"rope inside a linear layer commutes with scalar transitions only")
	l.Rope.validate(l.KeyDim, ps)
	l.Conv.validate(ps)
	slopes := 0
	if l.Family.Decay() == DecayFixed {
		slopes = l.ValueHeads
	}
	ps.check(len(l.Slopes) == slopes, "%d slopes for %d %s value heads, want %d", len(l.Slopes), l.ValueHeads, l.Family, slopes)
	ps.check(allFinite(l.Slopes), "a slope is not a finite number")
}

func (c *Conv) validate(ps *problems) {
	if c.Kernel == 0 && len(c.Channels) == 0 {
		ps.check(c.DType == 0, "convolution type without a convolution")
		return
	}
	checkRange(ps, "convolution kernel", c.Kernel, 1, maxConvKernel)
	checkRange(ps, "convolution groups", len(c.Channels), 1, maxConvGroups)
	ps.check(c.DType.Size() > 0, "convolution type %d is unknown", c.DType)
	for g, n := range c.Channels {
		checkRange(ps, fmt.Sprintf("convolution group %d", g), n, 1, MaxHeads*16)
	}
}

func (r *Rope) validate(dim int, ps *problems) {
	if r.Dims == 0 {
		ps.check(r.Theta == 0 && !r.Interleaved && len(r.InvFreq) == 0, "rope parameters without rotated dimensions")
		return
	}
	ps.check(r.Dims > 0 && r.Dims%2 == 0 && r.Dims <= dim, "rope turns %d of %d dimensions, want an even number", r.Dims, dim)
	if r.InvFreq != nil {
		ps.check(len(r.InvFreq) == r.Dims/2, "%d inverse frequencies for %d rotated dimensions", len(r.InvFreq), r.Dims)
		ps.check(allFinite(r.InvFreq), "an inverse frequency is not a finite number")
		ps.check(r.Theta == 0, "rope theta %g beside inverse frequencies", r.Theta)
		return
	}
	ps.check(r.Theta > 0 && !math.IsInf(r.Theta, 0), "rope theta %g", r.Theta)
}

func checkRange(ps *problems, what string, v, low, high int) {
	ps.check(v >= low && v <= high, "%s: %d, want %d to %d", what, v, low, high)
}

func allFinite(vs []float64) bool {
	for _, v := range vs {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return false
		}
	}
	return true
}
