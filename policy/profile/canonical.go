package profile

import (
	"encoding/binary"
	"fmt"
	"math"
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
	b = append(b, canonicalMagic...)
	switch {
	case id.RowTolerance != 0:
		b = append(b, canonicalRows)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(id.Tolerance))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(id.RowTolerance))
	case id.Tolerance != 0:
		b = append(b, canonicalStates)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(id.Tolerance))
	default:
		b = append(b, canonicalExact)
	}
	b = appendString(b, id.Model)
	b = append(b, id.Weights[:]...)
	b = appendString(b, id.Adapter)
	b = appendString(b, id.Tokenizer)
	b = appendInts(b, id.TPSize, len(id.Layers))
	for i := range id.Layers {
		l := &id.Layers[i]
		b = append(b, byte(l.Kind))
		switch l.Kind {
		case KindFull, KindMLA, KindWindow:
			b = l.Attention.appendCanonical(b)
		case KindLinear:
			b = l.Linear.appendCanonical(b)
		case KindConv:
			b = l.Linear.Conv.appendCanonical(b)
		}
	}
	return b
}

func (a *Attention) appendCanonical(b []byte) []byte {
	b = appendInts(b, a.KVHeads, a.KeyDim, a.ValueDim, a.Window)
	b = append(b, byte(a.DType), byte(a.Keys))
	return a.Rope.appendCanonical(b)
}

func (l *Linear) appendCanonical(b []byte) []byte {
	b = append(b, byte(l.Family))
	b = appendInts(b, l.KeyHeads, l.ValueHeads, l.KeyDim, l.ValueDim)
	b = append(b, byte(l.StateDType), byte(l.TransitionDType))
	b = l.Conv.appendCanonical(b)
	b = l.Rope.appendCanonical(b)
	return appendFloats(b, l.Slopes)
}

func (c *Conv) appendCanonical(b []byte) []byte {
	b = appendInts(b, c.Kernel)
	b = append(b, byte(len(c.Channels)))
	b = appendInts(b, c.Channels...)
	return append(b, byte(c.DType))
}

func (r *Rope) appendCanonical(b []byte) []byte {
	b = appendInts(b, r.Dims)
	b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.Theta))
	var interleaved byte
	if r.Interleaved {
		interleaved = 1
	}
	b = append(b, interleaved)
	return appendFloats(b, r.InvFreq)
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func appendInts(b []byte, vs ...int) []byte {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func appendFloats(b []byte, vs []float64) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(vs)))
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b
}

// Parse reads and validates canonical bytes. It is strict and returns ErrInvalid for an unknown
// version or number, for trailing bytes, and for a different encoding of the same identity.
func Parse(canonical []byte) (*Profile, error) {
	if len(canonical) > MaxCanonicalBytes {
		return nil, fmt.Errorf("canonical bytes: %d, at most %d: %w", len(canonical), MaxCanonicalBytes, ErrInvalid)
	}
	r := reader{rest: canonical}
	id := r.identity()
	if r.bad == "" && len(r.rest) != 0 {
		r.fail("%d bytes behind the last layer", len(r.rest))
	}
	if r.bad != "" {
		return nil, fmt.Errorf("canonical bytes, offset %d: %s: %w", len(canonical)-len(r.rest), r.bad, ErrInvalid)
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

// reader consumes canonical bytes. The field bad describes the first problem; after it, all reads
// return zeros.
type reader struct {
	rest []byte
	bad  string
}

func (r *reader) fail(format string, args ...any) {
	if r.bad == "" {
		r.bad = fmt.Sprintf(format, args...)
	}
}

func (r *reader) take(n int) []byte {
	if r.bad != "" || n > len(r.rest) {
		r.fail("ends %d bytes early", n-len(r.rest))
		return make([]byte, min(n, 64))
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) int() int { return int(binary.LittleEndian.Uint32(r.take(4))) }

func (r *reader) float() float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(r.take(8)))
}

// count reads the length of a list; size is the number of bytes of one item. It refuses a length
// that exceeds the remaining bytes, so that callers can allocate this many items.
func (r *reader) count(size int) int {
	n := r.int()
	if r.bad == "" && n > len(r.rest)/size {
		r.fail("%d items of %d bytes in %d bytes", n, size, len(r.rest))
	}
	if r.bad != "" {
		return 0
	}
	return n
}

func (r *reader) string() string {
	n := r.count(1)
	if r.bad != "" {
		return ""
	}
	return string(r.take(n))
}

func (r *reader) floats() []float64 {
	n := r.count(8)
	if n == 0 {
		return nil
	}
	vs := make([]float64, n)
	for i := range vs {
		vs[i] = r.float()
	}
	return vs
}

func (r *reader) identity() (id Identity) {
	if magic := r.take(len(canonicalMagic)); r.bad == "" && string(magic) != canonicalMagic {
		r.fail("not a profile")
	}
	switch v := r.byte(); {
	case r.bad != "" || v == canonicalExact:
	case v == canonicalStates:
		id.Tolerance = r.float()
	case v == canonicalRows:
		id.Tolerance, id.RowTolerance = r.float(), r.float()
	default:
		r.fail("version %d, want %d to %d", v, canonicalExact, canonicalRows)
	}
	id.Model = r.string()
	if w := r.take(32); r.bad == "" {
		id.Weights = [32]byte(w)
	}
	id.Adapter = r.string()
	id.Tokenizer = r.string()
	id.TPSize = r.int()
	n := r.count(1)
	if n > MaxLayers {
		r.fail("%d layers, at most %d", n, MaxLayers)
		return id
	}
	id.Layers = make([]Layer, n)
	for i := range id.Layers {
		r.layer(&id.Layers[i])
	}
	return id
}

func (r *reader) layer(l *Layer) {
	l.Kind = Kind(r.byte())
	switch l.Kind {
	case KindNone:
	case KindFull, KindMLA, KindWindow:
		l.Attention = Attention{
			KVHeads: r.int(), KeyDim: r.int(), ValueDim: r.int(), Window: r.int(),
			DType: DType(r.byte()), Keys: KeyStorage(r.byte()), Rope: r.rope(),
		}
	case KindLinear:
		r.linear(&l.Linear)
	case KindConv:
		l.Linear.Conv = r.conv()
	default:
		r.fail("kind %d is unknown", l.Kind)
	}
}

func (r *reader) linear(l *Linear) {
	l.Family = Family(r.byte())
	l.KeyHeads, l.ValueHeads, l.KeyDim, l.ValueDim = r.int(), r.int(), r.int(), r.int()
	l.StateDType, l.TransitionDType = DType(r.byte()), DType(r.byte())
	l.Conv = r.conv()
	l.Rope = r.rope()
	l.Slopes = r.floats()
}

func (r *reader) conv() Conv {
	c := Conv{Kernel: r.int()}
	if groups := int(r.byte()); groups > 0 && r.bad == "" {
		c.Channels = make([]int, groups)
		for i := range c.Channels {
			c.Channels[i] = r.int()
		}
	}
	c.DType = DType(r.byte())
	return c
}

func (r *reader) rope() Rope {
	p := Rope{Dims: r.int(), Theta: r.float()}
	switch b := r.byte(); b {
	case 0:
	case 1:
		p.Interleaved = true
	default:
		r.fail("flag %d, want 0 or 1", b)
	}
	p.InvFreq = r.floats()
	return p
}
