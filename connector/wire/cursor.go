package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"
)

// A body is scalars, then columns. Scalars are in field order, each aligned to its size, and
// padded with zeros to a multiple of 8 bytes. A column is a count, four zero bytes, the
// elements, and zero bytes up to a multiple of 8:
//
//	+-------+---+--------------------------+-----+
//	| count | 0 | count elements           | pad |
//	+-------+---+--------------------------+-----+
//	 u32     u32  8-byte aligned             0..7
//
// A list of texts is two columns: u32 lengths, then the joined bytes of all texts. Alignment
// counts from the start of the body. Optional sections may follow at the end of a body. A
// section begins at a multiple of 8 with a u32, the number of the feature bit that it needs, and
// four zero bytes; scalars and columns follow as in a body. Invariant: a body has exactly one
// encoding, so that decode followed by append gives the same bytes.

// element is a type that a column can have.
type element interface {
	uint8 | uint16 | uint32 | uint64 | float64 | [32]byte
}

// writer appends one body to b.
type writer struct {
	b     []byte
	start int
}

func begin(b []byte) writer { return writer{b: b, start: len(b)} }

func (w *writer) align(n int) {
	for (len(w.b)-w.start)%n != 0 {
		w.b = append(w.b, 0)
	}
}

func (w *writer) u8(v uint8) { w.b = append(w.b, v) }

func (w *writer) u16(v uint16) {
	w.align(2)
	w.b = binary.LittleEndian.AppendUint16(w.b, v)
}

func (w *writer) u32(v uint32) {
	w.align(4)
	w.b = binary.LittleEndian.AppendUint32(w.b, v)
}

func (w *writer) u64(v uint64) {
	w.align(8)
	w.b = binary.LittleEndian.AppendUint64(w.b, v)
}

func (w *writer) hash(v *[32]byte) { w.b = append(w.b, v[:]...) }

func (w *writer) text(s string) {
	w.count(len(s))
	w.b = append(w.b, s...)
	w.align(8)
}

// texts writes n texts as lengths and joined bytes.
func (w *writer) texts(n int, at func(i int) string) {
	total := 0
	w.count(n)
	for i := range n {
		w.u32(uint32(len(at(i))))
		total += len(at(i))
	}
	w.align(8)
	w.count(total)
	for i := range n {
		w.b = append(w.b, at(i)...)
	}
	w.align(8)
}

// section starts a section.
func (w *writer) section(bit uint32) {
	w.align(8)
	w.u32(bit)
	w.u32(0)
}

// count starts a column.
func (w *writer) count(n int) {
	w.align(8)
	w.u32(uint32(n))
	w.u32(0)
}

func put[T element](w *writer, v []T) {
	w.count(len(v))
	at := len(w.b)
	w.b = append(w.b, rawBytes(v)...)
	if !nativeLittle() {
		swap(w.b[at:], int(unsafe.Alignof(*new(T))))
	}
	w.align(8)
}

// reader decodes one body. The first failure sticks; later reads return zero.
type reader struct {
	message string
	body    []byte
	off     int
	err     error
}

func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %s: %s: %w", r.message, field, fmt.Sprintf(format, args...), ErrMalformed)
	}
}

// take returns the next n bytes, nil after a failure.
func (r *reader) take(field string, n int) []byte {
	if r.err != nil {
		return nil
	}
	if left := len(r.body) - r.off; n > left {
		r.fail(field, "%d bytes at offset %d, %d left", n, r.off, left)
		return nil
	}
	b := r.body[r.off : r.off+n : r.off+n]
	r.off += n
	return b
}

// align skips padding to a multiple of n, which must be zero.
func (r *reader) align(field string, n int) {
	for _, v := range r.take(field, -r.off&(n-1)) {
		if v != 0 {
			r.fail(field, "padding byte %d before offset %d", v, r.off)
		}
	}
}

func (r *reader) u8(field string) uint8 {
	if b := r.take(field, 1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16(field string) uint16 {
	r.align(field, 2)
	if b := r.take(field, 2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32(field string) uint32 {
	r.align(field, 4)
	if b := r.take(field, 4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64(field string) uint64 {
	r.align(field, 8)
	if b := r.take(field, 8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) hash(field string) (v [32]byte) {
	copy(v[:], r.take(field, len(v)))
	return v
}

// more reports whether bytes are left. It is small, so that it is inlined.
func (r *reader) more() bool { return r.err == nil && r.off < len(r.body) }

// section reports whether the section of the given feature bit comes next, and moves past its
// first 8 bytes. If another section or nothing comes next, section does not move; the method end
// later refuses bytes that no section has read.
func (r *reader) section(bit uint32) bool {
	at := r.off + -r.off&7
	if len(r.body)-at < 8 || binary.LittleEndian.Uint64(r.body[at:]) != uint64(bit) {
		return false
	}
	r.align("section", 8)
	r.off += 8
	return r.err == nil
}

// count reads the start of a column.
func (r *reader) count(field string, most int) int {
	r.align(field, 8)
	b := r.take(field, 8)
	if b == nil {
		return 0
	}
	n, zero := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if zero != 0 {
		r.fail(field, "bytes after the count are %#x", zero)
		return 0
	}
	if int64(n) > int64(most) {
		r.fail(field, "count %d, at most %d", n, most)
		return 0
	}
	return int(n)
}

// get reads a column. The result is a view of the body if alignment and byte order allow that,
// else a copy. An empty column is nil.
func get[T element](r *reader, field string, most int) []T {
	n := r.count(field, most)
	raw := r.take(field, n*int(unsafe.Sizeof(*new(T))))
	r.align(field, 8)
	if len(raw) == 0 || r.err != nil {
		return nil
	}
	align := unsafe.Alignof(*new(T))
	p := unsafe.Pointer(unsafe.SliceData(raw))
	if nativeLittle() && uintptr(p)%align == 0 {
		return unsafe.Slice((*T)(p), n)
	}
	v := make([]T, n)
	copy(rawBytes(v), raw)
	if !nativeLittle() {
		swap(rawBytes(v), int(align))
	}
	return v
}

func (r *reader) text(field string, most int) string {
	return string(get[uint8](r, field, most))
}

// texts reads a list of texts. All texts are parts of one copied string.
func (r *reader) texts(field string, rows, most int) []string {
	lengths := get[uint32](r, field, rows)
	joined := string(get[uint8](r, field, MaxBody))
	r.sum(field, lengths, len(joined))
	if len(lengths) == 0 || r.err != nil {
		return nil
	}
	v := make([]string, len(lengths))
	for i, n := range lengths {
		if int64(n) > int64(most) {
			r.fail(field, "text %d has %d bytes, at most %d", i, n, most)
			return nil
		}
		v[i], joined = joined[:n], joined[n:]
	}
	return v
}

// same checks that a column has the message's n rows.
func (r *reader) same(field string, got, n int) {
	if got != n {
		r.fail(field, "%d rows, want %d", got, n)
	}
}

// only returns the number of elements that an optional column must have: n if has, else 0.
func only(has bool, n int) int {
	if has {
		return n
	}
	return 0
}

// sum checks that counts add up to n, the length of the column that they divide into parts.
func (r *reader) sum(field string, counts []uint32, n int) {
	total := uint64(0)
	for _, c := range counts {
		total += uint64(c)
	}
	if total != uint64(n) {
		r.fail(field, "counts add up to %d, %d elements", total, n)
	}
}

// end checks that no bytes are left and returns the first failure.
func (r *reader) end() error {
	r.align("end", 8)
	if left := len(r.body) - r.off; left != 0 {
		r.fail("end", "%d bytes left", left)
	}
	return r.err
}

// rawBytes returns the memory of v.
func rawBytes[T element](v []T) []byte {
	p := (*byte)(unsafe.Pointer(unsafe.SliceData(v)))
	return unsafe.Slice(p, len(v)*int(unsafe.Sizeof(*new(T))))
}

// nativeLittle reports whether this machine is little-endian. The compiler evaluates it at
// compile time.
func nativeLittle() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}

// swap reverses the bytes of each element of b. size is the number of bytes of an element. For
// columns of byte arrays the caller passes 1, and nothing changes.
func swap(b []byte, size int) {
	for ; len(b) >= size && size > 1; b = b[size:] {
		slices.Reverse(b[:size])
	}
}
