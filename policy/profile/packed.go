package profile

import (
	"encoding/binary"
	"fmt"
	"math"
)

// MaxTolerance bounds Identity.Tolerance and Identity.RowTolerance: with larger errors a
// state no longer represents the same text.
const MaxTolerance = 0.05

// DefaultTolerance is the Identity.Tolerance that engines request by default.
const DefaultTolerance = 0.02

// MaxPackedBytes bounds the length of a Packed. It is a guess, large enough for the two parts
// of 4,096 layers with three bytes each.
const MaxPackedBytes = 1 << 15

// maxPackedUnits bounds the length of a packed part, in units of PartAlign.
const maxPackedUnits = 1 << 32

// Packed encodes the layout of the packed parts of a segment, whose lengths depend on their
// content. These are the dense transitions and the end-states of linear layers and, with a row
// tolerance, keys and values.
//
// The first eight bytes are two F32: the largest error of any head's transition, and the
// largest error of any head's end-state or any layer's keys or values. Then each part that may
// be packed has its length in units of PartAlign, as an unsigned varint, in the order of the
// layout; 0 means that the part is stored as written. "" means that no part is packed. All
// ranks have the same Packed.
type Packed string

// PackedOf encodes these errors and the lengths, in bytes, of the packed parts.
func PackedOf(transition, state float32, lengths []int64) Packed {
	b := make([]byte, 0, 8+3*len(lengths))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(transition))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(state))
	for _, n := range lengths {
		b = binary.AppendUvarint(b, uint64(n/PartAlign))
	}
	return Packed(b)
}

// Errors returns the largest errors of any head, or 0 if nothing is packed. The error of a
// transition is a bound on the spectral norm of the difference. The error of an end-state, or
// of a layer's keys or values, is the Frobenius norm of the difference divided by the norm of
// the original.
func (k Packed) Errors() (transition, state float32) {
	if len(k) < 8 {
		return 0, 0
	}
	return math.Float32frombits(binary.LittleEndian.Uint32([]byte(k[:4]))), math.Float32frombits(binary.LittleEndian.Uint32([]byte(k[4:8])))
}

// Tolerance returns the error bound of stored transitions and end-states, see Identity. 0
// means that they are stored as written.
func (p *Profile) Tolerance() float64 { return p.id.Tolerance }

// RowTolerance returns the error bound of stored keys and values, see Identity.
func (p *Profile) RowTolerance() float64 { return p.id.RowTolerance }

// MaxError returns the error bound of any part of a stored segment.
func (p *Profile) MaxError() float64 { return max(p.id.Tolerance, p.id.RowTolerance) }

// MayPack reports whether the profile's tolerances allow packing a part.
func (p *Profile) MayPack(part *Part) bool {
	if part.Kind == PartK || part.Kind == PartV {
		return p.id.RowTolerance > 0
	}
	return p.id.Tolerance > 0 && p.ofStates(part)
}

// ofStates reports whether a part is a dense transition or an end-state.
func (p *Profile) ofStates(part *Part) bool {
	return part.Kind == PartS || part.Kind == PartT && p.id.Layers[part.Layer].Linear.Transition() == Dense
}

// PackedShape returns the shape [heads, rows, cols] in which a part is packed. Keys or values
// count as one head, with a row for each token and attention head.
func (p *Part) PackedShape() [3]int {
	if p.Kind == PartK || p.Kind == PartV {
		return [3]int{1, p.Shape[0] * p.Shape[1], p.Shape[2]}
	}
	return p.Shape
}

// PackedLayout returns the layout of a segment with packed parts. It is SegmentLayout with
// other lengths and offsets. The error wraps ErrInvalid if the parameter packed does not fit
// such a segment.
func (p *Profile) PackedLayout(interior int, packed Packed) (Layout, error) {
	plain := p.SegmentLayout(interior)
	if packed == "" {
		return plain, nil
	}
	if p.MaxError() == 0 || len(packed) < 8 || len(packed) > MaxPackedBytes {
		return Layout{}, fmt.Errorf("packed parts of %d bytes, tolerances %v and %v: %w", len(packed), p.id.Tolerance, p.id.RowTolerance, ErrInvalid)
	}
	t, s := packed.Errors()
	const up = 1 + 1e-6 // errors are rounded up to F32
	if !(t >= 0 && float64(t) <= p.id.Tolerance*up && s >= 0 && float64(s) <= p.MaxError()*up) {
		return Layout{}, fmt.Errorf("packed parts with errors of %v and %v: %w", t, s, ErrInvalid)
	}
	rest := []byte(packed[8:])
	out := Layout{Parts: plain.Parts}
	for i := range out.Parts {
		part := &out.Parts[i]
		if p.MayPack(part) {
			units, n := binary.Uvarint(rest)
			most := PackedMost(part)
			if n <= 0 || units >= maxPackedUnits || int64(units)*PartAlign > most {
				return Layout{}, fmt.Errorf("packed part %d of layer %d: %d units, at most %d bytes: %w", part.Kind, part.Layer, units, most, ErrInvalid)
			}
			rest = rest[n:]
			if units > 0 {
				part.Packed, part.Len = true, int64(units)*PartAlign
			}
		}
		part.Off = out.Bytes
		out.Bytes += align(part.Len)
	}
	if len(rest) != 0 {
		return Layout{}, fmt.Errorf("packed parts: %d bytes behind the last: %w", len(rest), ErrInvalid)
	}
	if canonical := p.repacked(t, s, &out); canonical != packed {
		return Layout{}, fmt.Errorf("packed parts: not in canonical form: %w", ErrInvalid)
	}
	return out, nil
}

// WithPlainRows returns the Packed that the same segment would have if its keys and values
// were stored as written. The error is the same as from PackedLayout.
func (p *Profile) WithPlainRows(interior int, packed Packed) (Packed, error) {
	l, err := p.PackedLayout(interior, packed)
	if err != nil || packed == "" {
		return "", err
	}
	for i := range l.Parts {
		if part := &l.Parts[i]; part.Kind == PartK || part.Kind == PartV {
			part.Packed = false
		}
	}
	t, s := packed.Errors()
	return p.repacked(t, s, &l), nil
}

// repacked returns the encoding of a layout with the errors t and s.
func (p *Profile) repacked(t, s float32, l *Layout) Packed {
	var lengths []int64
	for i := range l.Parts {
		switch part := &l.Parts[i]; {
		case part.Packed:
			lengths = append(lengths, part.Len)
		case p.MayPack(part):
			lengths = append(lengths, 0)
		}
	}
	return PackedOf(t, s, lengths)
}

// packedHeader returns the bytes of a packed part's header, padded to PartAlign. For each head
// it has one byte for the head's form, then the head's error and norm as F32.
func packedHeader(heads int) int64 { return align(9 * int64(heads)) }

// PackedMost returns the maximum number of bytes of a packed part, which it has if all its
// heads are stored as written.
func PackedMost(part *Part) int64 {
	shape := part.PackedShape()
	heads := int64(shape[0])
	head := int64(shape[1]) * int64(shape[2]) * int64(part.DType.Size())
	return packedHeader(shape[0]) + heads*align(head)
}

// packedIn8Bits returns the bytes of a segment whose packed parts have 8 bits per number, and
// one F32 for each row and for each head.
func (p *Profile) packedIn8Bits(l Layout) (bytes int64) {
	for i := range l.Parts {
		part := &l.Parts[i]
		n := part.Len
		if p.ofStates(part) || p.MayPack(part) {
			shape := part.PackedShape()
			rows, cols := int64(shape[1]), int64(shape[2])
			n = min(n, packedHeader(shape[0])+int64(shape[0])*align(4+rows*(4+cols)))
		}
		bytes += align(n)
	}
	return bytes
}
