package profile

import (
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
)

// Profile is a validated identity with derived data. It is immutable and safe
// for concurrent use.
type Profile struct {
	id          Identity
	canonical   []byte
	fingerprint Fingerprint
	linear      []int // indexes of the linear layers
	attention   []int // indexes of the full, MLA and window layers
	conv        []int // indexes of the convolution layers
	headMin     int   // largest convolution kernel minus one
}

// New validates id and derives its fingerprint. The error wraps ErrInvalid and
// lists every problem found.
func New(id Identity) (*Profile, error) {
	if err := id.checkLists(); err != nil {
		return nil, err
	}
	id = id.clone()
	id.normalise()
	if err := id.validate(); err != nil {
		return nil, err
	}
	p := &Profile{id: id, canonical: appendCanonical(nil, &id)}
	if len(p.canonical) > MaxCanonicalBytes {
		return nil, fmt.Errorf("canonical bytes: %d, at most %d: %w", len(p.canonical), MaxCanonicalBytes, ErrInvalid)
	}
	p.fingerprint = sha256.Sum256(p.canonical)
	for i := range id.Layers {
		switch l := &id.Layers[i]; l.Kind {
		case KindLinear:
			p.linear = append(p.linear, i)
			p.headMin = max(p.headMin, l.Linear.Conv.rows())
		case KindFull, KindMLA, KindWindow:
			p.attention = append(p.attention, i)
		case KindConv:
			p.conv = append(p.conv, i)
			p.headMin = max(p.headMin, l.Linear.Conv.rows())
		}
	}
	return p, nil
}

// Identity returns a copy of the profile's identity.
func (p *Profile) Identity() Identity { return p.id.clone() }

// Canonical returns the encoding of the identity that is hashed and sent to the
// daemon. The caller must not change it.
func (p *Profile) Canonical() []byte { return p.canonical }

// Fingerprint returns the SHA-256 of the canonical bytes.
func (p *Profile) Fingerprint() Fingerprint { return p.fingerprint }

// Model returns the model's name, for people.
func (p *Profile) Model() string { return p.id.Model }

// TPSize returns the number of tensor-parallel ranks.
func (p *Profile) TPSize() int { return p.id.TPSize }

// Layers returns the number of decoder layers.
func (p *Profile) Layers() int { return len(p.id.Layers) }

// Layer returns layer i, to be read only.
func (p *Profile) Layer(i int) *Layer { return &p.id.Layers[i] }

// LinearLayers returns the indexes of the linear-attention layers, in order. The caller
// must not change the slice.
func (p *Profile) LinearLayers() []int { return p.linear }

// AttentionLayers returns the indexes of the full, MLA and window layers, in order. The
// caller must not change the slice.
func (p *Profile) AttentionLayers() []int { return p.attention }

// ConvLayers returns the indexes of the convolution layers, in order. The caller must not
// change the slice.
func (p *Profile) ConvLayers() []int { return p.conv }

// RankHeads returns the number of key and value heads of a linear layer on one
// rank.
func (p *Profile) RankHeads(layer int) (keyHeads, valueHeads int) {
	l := &p.id.Layers[layer].Linear
	return max(1, l.KeyHeads/p.id.TPSize), l.ValueHeads / p.id.TPSize
}

// RankKVHeads returns the number of key-value heads of an attention layer on one rank. If
// there are fewer heads than ranks, the heads are replicated. The rows of MLA are always
// replicated.
func (p *Profile) RankKVHeads(layer int) int {
	return max(1, p.id.Layers[layer].Attention.KVHeads/p.id.TPSize)
}

// InvFreq returns the inverse frequencies of a layer's rope, one per rotated pair; nil if
// the layer has no rope.
func (p *Profile) InvFreq(layer int) []float64 {
	r := p.Rope(layer)
	switch {
	case r.Dims == 0:
		return nil
	case r.InvFreq != nil:
		return slices.Clone(r.InvFreq)
	}
	f := make([]float64, r.Dims/2)
	for i := range f {
		f[i] = math.Pow(r.Theta, -2*float64(i)/float64(r.Dims))
	}
	return f
}

// Rope returns the rotary embedding of a layer of any kind. The zero Rope means that the
// layer has none.
func (p *Profile) Rope(layer int) Rope {
	switch l := &p.id.Layers[layer]; l.Kind {
	case KindLinear:
		return l.Linear.Rope
	case KindNone:
		return Rope{}
	default:
		return l.Attention.Rope
	}
}

// Size returns the bytes of one element, 0 for an unknown type.
func (d DType) Size() int {
	switch d {
	case F32:
		return 4
	case F16, BF16:
		return 2
	}
	return 0
}

// Transition returns the form of the layer's transition operator.
func (l *Linear) Transition() Transition { return l.Family.Transition() }

// rows returns the number of earlier inputs that the convolution reads.
func (c *Conv) rows() int { return max(0, c.Kernel-1) }

// checkLists refuses identities whose canonical bytes would be too long. New calls it
// before it copies the lists: many layers may share one list, so that a small identity has
// large copies.
func (id *Identity) checkLists() error {
	if len(id.Layers) > MaxLayers {
		return fmt.Errorf("layers: %d, want 1 to %d: %w", len(id.Layers), MaxLayers, ErrInvalid)
	}
	n := 0
	for i := range id.Layers {
		l := &id.Layers[i]
		n += len(l.Attention.Rope.InvFreq) + len(l.Linear.Rope.InvFreq) + len(l.Linear.Slopes) + len(l.Linear.Conv.Channels)
	}
	if 8*n > 2*MaxCanonicalBytes {
		return fmt.Errorf("layers: %d frequencies, slopes and channels, canonical bytes are at most %d: %w", n, MaxCanonicalBytes, ErrInvalid)
	}
	return nil
}

// normalise clears fields that a layer's kind does not use, so that equal
// identities have equal canonical bytes.
func (id *Identity) normalise() {
	if id.Tolerance == 0 {
		id.Tolerance = 0 // turns -0 into +0
	}
	if id.RowTolerance == 0 {
		id.RowTolerance = 0
	}
	for i := range id.Layers {
		l := &id.Layers[i]
		switch l.Kind {
		case KindNone:
			*l = Layer{}
		case KindFull, KindMLA, KindWindow:
			l.Linear = Linear{}
		case KindLinear:
			l.Attention = Attention{}
		case KindConv:
			*l = Layer{Kind: KindConv, Linear: Linear{Conv: l.Linear.Conv}}
		}
		for _, f := range []*[]float64{&l.Attention.Rope.InvFreq, &l.Linear.Rope.InvFreq, &l.Linear.Slopes} {
			if len(*f) == 0 {
				*f = nil
			}
		}
		if len(l.Linear.Conv.Channels) == 0 {
			l.Linear.Conv.Channels = nil
		}
	}
}

func (id *Identity) clone() Identity {
	c := *id
	c.Layers = slices.Clone(id.Layers)
	for i := range c.Layers {
		l := &c.Layers[i]
		l.Attention.Rope.InvFreq = slices.Clone(l.Attention.Rope.InvFreq)
		l.Linear.Rope.InvFreq = slices.Clone(l.Linear.Rope.InvFreq)
		l.Linear.Conv.Channels = slices.Clone(l.Linear.Conv.Channels)
		l.Linear.Slopes = slices.Clone(l.Linear.Slopes)
	}
	return c
}
