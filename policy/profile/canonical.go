package profile

import (
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/policy/coding"
)

// Canonical bytes, little-endian:
//
//	"SPLPROF" u8 version: 3 with a row tolerance, else 2 with a tolerance, else 1
//	version 2: f64 tolerance
//	version 3: f64 tolerance, f64 row tolerance
//	str model | 32 B weights | str adapter | str tokenizer | u32 tp size | u32 layers
//	per layer: u8 kind, then
//	  full, MLA, window: u32 kv heads, key dim, value dim, window | u8 dtype, u8 key storage | rope
//	  linear: u8 family | u32 key heads, value heads, key dim, value dim | u8 state, u8 transition dtype
//	          | conv | rope | u32 slopes, slopes x f64
//	  convolution alone: conv
//	conv: u32 kernel | u8 groups, groups x u32 | u8 dtype
//	rope: u32 dims | f64 theta | u8 interleaved | u32 n, n x f64
//	str:  u32 length | bytes
//
// Two identities are equal exactly if their canonical bytes are.
const (
	canonicalMagic  = "SPLPROF"
	canonicalExact  = 1
	canonicalStates = 2
	canonicalRows   = 3
)

func appendCanonical(b []byte, id *Identity) []byte {
	c := coding.Writer(b)
	id.fields(&c)
	return c.Bytes()
}

// Parse reads and validates canonical bytes. It is strict and returns ErrInvalid for an unknown
// version or number, for trailing bytes, and for a different encoding of the same identity.
func Parse(canonical []byte) (*Profile, error) {
	if len(canonical) > MaxCanonicalBytes {
		return nil, fmt.Errorf("canonical bytes: %d, at most %d: %w", len(canonical), MaxCanonicalBytes, ErrInvalid)
	}
	c, id := coding.Reader(canonical), Identity{}
	id.fields(&c)
	if err := c.End(); err != nil {
		return nil, fmt.Errorf("canonical bytes, offset %d: %w: %w", len(canonical)-c.Left(), err, ErrInvalid)
	}
	p, err := New(id)
	if err != nil {
		return nil, err
	}
	if string(p.canonical) != string(canonical) {
		return nil, fmt.Errorf("canonical bytes: not in canonical form: %w", ErrInvalid)
	}
	return p, nil
}

func (id *Identity) fields(c *coding.Cursor) {
	magic := []byte(canonicalMagic)
	if c.Raw(magic); string(magic) != canonicalMagic {
		c.Fail("not a profile")
	}
	v := canonicalExact
	if id.RowTolerance != 0 {
		v = canonicalRows
	} else if id.Tolerance != 0 {
		v = canonicalStates
	}
	if coding.U8(c, &v); v < canonicalExact || v > canonicalRows {
		c.Fail("version %d, want %d to %d", v, canonicalExact, canonicalRows)
	}
	if v >= canonicalStates {
		coding.F64(c, &id.Tolerance)
	}
	if v == canonicalRows {
		coding.F64(c, &id.RowTolerance)
	}
	coding.Text(c, &id.Model, 4, MaxCanonicalBytes)
	c.Raw(id.Weights[:])
	coding.Text(c, &id.Adapter, 4, MaxCanonicalBytes)
	coding.Text(c, &id.Tokenizer, 4, MaxCanonicalBytes)
	coding.U32(c, &id.TPSize)
	coding.List(c, &id.Layers, 4, 1, MaxLayers)
	for i := range id.Layers {
		l := &id.Layers[i]
		coding.U8(c, &l.Kind)
		switch l.Kind {
		case KindNone:
		case KindFull, KindMLA, KindWindow:
			l.Attention.fields(c)
		case KindLinear:
			l.Linear.fields(c)
		case KindConv:
			convFields(c, &l.Linear.Conv)
		default:
			c.Fail("kind %d is unknown", l.Kind)
		}
	}
}

func (a *Attention) fields(c *coding.Cursor) {
	coding.U32(c, &a.KVHeads, &a.KeyDim, &a.ValueDim, &a.Window)
	coding.U8(c, &a.DType)
	coding.U8(c, &a.Keys)
	a.Rope.fields(c)
}

func (l *Linear) fields(c *coding.Cursor) {
	coding.U8(c, &l.Family)
	coding.U32(c, &l.KeyHeads, &l.ValueHeads, &l.KeyDim, &l.ValueDim)
	coding.U8(c, &l.StateDType, &l.TransitionDType)
	convFields(c, &l.Conv)
	l.Rope.fields(c)
	floats(c, &l.Slopes)
}

func convFields(c *coding.Cursor, v *Conv) {
	coding.U32(c, &v.Kernel)
	coding.List(c, &v.Channels, 1, 4, math.MaxUint8)
	for i := range v.Channels {
		coding.U32(c, &v.Channels[i])
	}
	coding.U8(c, &v.DType)
}

func (r *Rope) fields(c *coding.Cursor) {
	coding.U32(c, &r.Dims)
	coding.F64(c, &r.Theta)
	c.Flag(&r.Interleaved)
	floats(c, &r.InvFreq)
}

func floats(c *coding.Cursor, list *[]float64) {
	coding.List(c, list, 4, 8, MaxCanonicalBytes)
	for i := range *list {
		coding.F64(c, &(*list)[i])
	}
}
