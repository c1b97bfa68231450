package index

import (
	"encoding/binary"
	"math/bits"
)

// message is a delta. Its encoding:
//
//	byte     kind: changes or piece, | moreFlag
//	8 bytes  incarnation, little-endian
//	uvarint  version that it starts from
//	changes: uvarint  number of versions that it advances
//	piece:   uvarint  cursor that it starts from
//	         uvarint  cursor that it reaches, greater; 2^34 is the end of the set
//	uvarint  n, the number of rows
//	byte     k, the parameter of the Rice code of the rows
//	n times  the distance to the previous row, minus 1: its upper bits in unary (that number
//	         of zeros, then a one), its lower k bits unchanged; then, for changes, one
//	         bit: 1 added, 0 removed. The lowest bit of a byte comes first. The last byte is
//	         padded with zeros.
//
// Rows are sorted and each key occurs once, so n keys spread evenly over a span take
// about log2(span/n) + 1.5 bits each.
type message struct {
	kind byte
	more bool
	from Position
	end  uint64   // changes: the version reached; piece: the cursor reached
	rows []uint64 // piece: keys; changes: key<<1 | 1 if added
}

const (
	kindChanges = 0x10
	kindPiece   = 0x12
	moreFlag    = 1
)

// The method then returns the position of a node that has applied the message.
func (m *message) then() Position {
	p := m.from
	switch {
	case m.kind == kindChanges:
		p.Version = m.end
	case m.end == keyEnd:
		p.Cursor = 0
	default:
		p.Cursor = m.end
	}
	return p
}

// changeBits returns 1 if the lowest bit of a row is its change (1 added, 0 removed),
// otherwise 0.
func (m *message) changeBits() int {
	if m.kind == kindChanges {
		return 1
	}
	return 0
}

// span returns the range that contains all keys of the message.
func (m *message) span() (from, to uint64) {
	if m.kind == kindChanges {
		return 0, keyEnd
	}
	return m.from.Cursor, m.end
}

func (m *message) appendTo(dst []byte) []byte {
	kind := m.kind
	if m.more {
		kind |= moreFlag
	}
	dst = binary.LittleEndian.AppendUint64(append(dst, kind), m.from.Incarnation)
	dst = binary.AppendUvarint(dst, m.from.Version)
	if m.kind == kindChanges {
		dst = binary.AppendUvarint(dst, m.end-m.from.Version)
	} else {
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, m.from.Cursor), m.end)
	}
	dst = binary.AppendUvarint(dst, uint64(len(m.rows)))
	from, to := m.span()
	k := riceParameter(to-from, len(m.rows))
	dst = append(dst, byte(k))
	w := bitWriter{dst: dst}
	tail, next := m.changeBits(), from
	for _, row := range m.rows {
		key := row >> tail
		gap := key - next
		w.unary(gap >> k)
		w.put(gap&(1<<k-1), k)
		if tail == 1 {
			w.put(row&1, 1)
		}
		next = key + 1
	}
	return w.end()
}

// riceParameter returns the k with the shortest code for n keys spread evenly over a span.
func riceParameter(span uint64, n int) int {
	if n == 0 {
		return 0
	}
	mean := span / uint64(n) * 69 / 100
	return max(0, bits.Len64(mean)-1)
}

// parse checks and parses a delta. It appends the message's rows to rows.
func parse(b []byte, rows []uint64) (message, error) {
	if len(b) < 12 || len(b) > MaxDelta {
		return message{}, ErrInvalid
	}
	m := message{kind: b[0] &^ moreFlag, more: b[0]&moreFlag != 0}
	m.from.Incarnation = binary.LittleEndian.Uint64(b[1:])
	r := reader{b: b[9:]}
	m.from.Version = r.uvarint()
	switch m.kind {
	case kindChanges:
		m.end = m.from.Version + r.uvarint()
		r.bad = r.bad || m.end < m.from.Version
	case kindPiece:
		m.from.Cursor, m.end = r.uvarint(), r.uvarint()
		r.bad = r.bad || m.end > keyEnd || m.from.Cursor >= m.end
	default:
		return message{}, ErrInvalid
	}
	n, k := r.uvarint(), int(r.byte())
	if r.bad || m.from.Incarnation == 0 || n > maxMessageKeys || k > keyBits {
		return message{}, ErrInvalid
	}
	if m.kind == kindChanges && n > m.end-m.from.Version {
		return message{}, ErrInvalid
	}
	in := bitReader{b: r.b}
	tail := m.changeBits()
	key, to := m.span()
	for range n {
		upper, ok := in.unary(to >> k)
		low, ok2 := in.take(k)
		change, ok3 := in.take(tail)
		key += upper<<k | low
		if !ok || !ok2 || !ok3 || key >= to {
			return message{}, ErrInvalid
		}
		rows = append(rows, key<<tail|change)
		key++
	}
	if !in.atEnd() {
		return message{}, ErrInvalid
	}
	m.rows = rows
	return m, nil
}

// reader reads numbers and sets bad if one is invalid.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.bad = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// bitWriter appends bits, lowest bit of a byte first.
type bitWriter struct {
	dst []byte
	acc uint64
	n   int // number of bits in acc, below 8 between calls
}

// put writes the lower n bits of v, whose other bits are zero; n is at most 56.
func (w *bitWriter) put(v uint64, n int) {
	w.acc |= v << w.n
	for w.n += n; w.n >= 8; w.n -= 8 {
		w.dst = append(w.dst, byte(w.acc))
		w.acc >>= 8
	}
}

func (w *bitWriter) unary(v uint64) {
	for ; v >= 32; v -= 32 {
		w.put(0, 32)
	}
	w.put(1<<v, int(v)+1)
}

func (w *bitWriter) end() []byte {
	if w.n > 0 {
		w.dst = append(w.dst, byte(w.acc))
	}
	return w.dst
}

// bitReader reads what a bitWriter wrote.
type bitReader struct {
	b   []byte
	acc uint64
	n   int // bits in acc
}

func (r *bitReader) fill() {
	if r.n <= 32 && len(r.b) >= 4 {
		r.acc |= uint64(binary.LittleEndian.Uint32(r.b)) << r.n
		r.b, r.n = r.b[4:], r.n+32
		return
	}
	for r.n <= 56 && len(r.b) > 0 {
		r.acc |= uint64(r.b[0]) << r.n
		r.b, r.n = r.b[1:], r.n+8
	}
}

// take reads n bits, at most 40.
func (r *bitReader) take(n int) (uint64, bool) {
	for r.n < n {
		before := r.n
		if r.fill(); r.n == before {
			return 0, false
		}
	}
	v := r.acc & (1<<n - 1)
	r.acc >>= n
	r.n -= n
	return v, true
}

// unary reads a number in unary; false if it exceeds limit or the bits end.
func (r *bitReader) unary(limit uint64) (v uint64, ok bool) {
	for v <= limit {
		if zeros := bits.TrailingZeros64(r.acc); zeros < r.n {
			r.acc >>= zeros + 1
			r.n -= zeros + 1
			return v + uint64(zeros), true
		}
		v += uint64(r.n)
		r.acc, r.n = 0, 0
		if r.fill(); r.n == 0 {
			return 0, false
		}
	}
	return 0, false
}

// atEnd reports whether only the zero padding of the last byte is left.
func (r *bitReader) atEnd() bool { return len(r.b) == 0 && r.n < 8 && r.acc == 0 }
