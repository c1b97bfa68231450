package codec

import (
	"encoding/binary"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

const (
	magic       = "PLH1"
	headerBytes = 16
	entryBytes  = 4
	maxPlanes   = 4
)

// form is the encoding of a plane.
type form uint8

const (
	rawForm  form = 0
	huffForm form = 1
	oneForm  form = 2
)

// entry is one row of the chunk table.
type entry uint32

func newEntry(stored int, forms [maxPlanes]form) entry {
	e := entry(stored)
	for p, f := range forms {
		e |= entry(f) << (24 + 2*p)
	}
	return e
}

func (e entry) stored() int     { return int(e & 0xffffff) }
func (e entry) form(p int) form { return form(e >> (24 + 2*p) & 3) }
func (e entry) verbatim() bool  { return e>>24 == 0 }

// header is the header of a stream, which precedes the table.
type header struct {
	dt    kernel.DType
	chunk int // raw bytes of each chunk except the last
	raw   int
}

func (h header) chunks() int    { return (h.raw + h.chunk - 1) / h.chunk }
func (h header) bodyBytes() int { return headerBytes + h.chunks()*entryBytes }

// rawBytes returns the raw length of chunk i.
func (h header) rawBytes(i int) int { return min(h.chunk, h.raw-i*h.chunk) }

func (h header) put(b []byte) {
	copy(b, magic)
	b[4], b[5] = byte(h.dt), 0
	binary.LittleEndian.PutUint16(b[6:], uint16(h.chunk/chunkUnit))
	binary.LittleEndian.PutUint64(b[8:], uint64(h.raw))
}

// parse reads the header of a stream and checks that the whole table follows it.
func parse(b []byte) (header, error) {
	if len(b) < headerBytes || string(b[:4]) != magic {
		return header{}, fmt.Errorf("no stream: %w", ErrCorrupt)
	}
	h := header{dt: kernel.DType(b[4]), chunk: int(binary.LittleEndian.Uint16(b[6:])) * chunkUnit}
	raw := binary.LittleEndian.Uint64(b[8:])
	if h.dt.Size() == 0 || b[5] != 0 || h.chunk == 0 || h.chunk > maxChunk {
		return header{}, fmt.Errorf("element type %d, chunk of %d bytes: %w", h.dt, h.chunk, ErrCorrupt)
	}
	// A table that fits in b cannot describe more raw bytes. Larger values would overflow
	// below.
	if raw > uint64(len(b))/entryBytes*uint64(h.chunk) {
		return header{}, fmt.Errorf("%d raw bytes in %d: %w", raw, len(b), ErrCorrupt)
	}
	h.raw = int(raw)
	if len(b) < h.bodyBytes() {
		return header{}, fmt.Errorf("%d bytes, cut in the table: %w", len(b), ErrCorrupt)
	}
	return h, nil
}

func getEntry(table []byte, i int) entry {
	return entry(binary.LittleEndian.Uint32(table[i*entryBytes:]))
}

func putEntry(table []byte, i int, e entry) {
	binary.LittleEndian.PutUint32(table[i*entryBytes:], uint32(e))
}

// The method plain returns the stored size of a split chunk without its huff0 block, if it
// has one.
func (h header) plain(e entry, raw int) int {
	n, sum := raw/h.dt.Size(), raw%h.dt.Size()
	for p := range h.dt.Size() {
		switch e.form(p) {
		case rawForm:
			sum += n
		case oneForm:
			sum++
		}
	}
	return sum
}

// check returns an error if no chunk of the given raw length can have this table entry.
func (h header) check(e entry, raw int) error {
	if e.verbatim() {
		if e.stored() != raw {
			return fmt.Errorf("%d of %d bytes: %w", e.stored(), raw, ErrCorrupt)
		}
		return nil
	}
	for p := range maxPlanes {
		f := e.form(p)
		if f > oneForm || f == huffForm && p > 0 || f != rawForm && p >= h.dt.Size() {
			return fmt.Errorf("plane %d of form %d: %w", p, f, ErrCorrupt)
		}
	}
	plain := h.plain(e, raw)
	if raw < h.dt.Size() || e.stored() >= raw || e.stored() < plain || (e.form(0) == huffForm) != (e.stored() > plain) {
		return fmt.Errorf("%d bytes of which %d are not coded, for %d: %w", e.stored(), plain, raw, ErrCorrupt)
	}
	return nil
}

// walk checks the table of a stream, and calls the function visit for each chunk with its
// table entry and its offset in the stream.
func (h header) walk(stream []byte, visit func(i int, e entry, from int)) error {
	at := h.bodyBytes()
	for i := range h.chunks() {
		e := getEntry(stream[headerBytes:], i)
		if err := h.check(e, h.rawBytes(i)); err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
		visit(i, e, at)
		at += e.stored()
	}
	if at != len(stream) {
		return fmt.Errorf("chunks end at %d of %d: %w", at, len(stream), ErrCorrupt)
	}
	return nil
}
