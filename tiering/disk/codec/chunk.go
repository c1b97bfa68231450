package codec

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/klauspost/compress/huff0"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// huff0 is used as follows, for these reasons (measured). Four streams decode three times
// as fast as one (2.7 instead of 0.9 GB/s of BF16) and encode equally fast. Shorter codes
// (8 to 10 bits) are not faster and save up to 0.2 % less. Reusing the code table of the previous
// chunk saves no time and less than 0.1 %, and would make chunks depend on each other.

// wantLogLess makes huff0 refuse a plane unless it saves at least an eighth (2^-3) of it.
// With a smaller saving, decoding takes longer than reading the saved bytes from the disk.
const wantLogLess = 3

// worker holds the scratch memory of one goroutine, for one chunk at a time.
type worker struct {
	huff   huff0.Scratch
	planes [maxPlanes][]byte
}

var workers = sync.Pool{New: func() any {
	return &worker{huff: huff0.Scratch{Reuse: huff0.ReusePolicyNone, WantLogLess: wantLogLess}}
}}

// plane returns n bytes of scratch for plane p.
func (w *worker) plane(p, n int) []byte {
	if cap(w.planes[p]) < n {
		w.planes[p] = make([]byte, n, max(n, DefaultChunk/2))
	}
	return w.planes[p][:n]
}

// encode writes one chunk to dst, which has at least len(src) bytes.
func (w *worker) encode(dst, src []byte, dt kernel.DType) entry {
	n := len(src) / dt.Size()
	if e, ok := w.encodeSplit(dst[:len(src)], src, dt, n); ok {
		return e
	}
	copy(dst, src)
	return newEntry(len(src), [maxPlanes]form{})
}

// encodeSplit encodes a chunk of n numbers as planes. It returns false if the result would
// not be smaller than the chunk.
func (w *worker) encodeSplit(dst, src []byte, dt kernel.DType, n int) (entry, bool) {
	if n == 0 {
		return 0, false
	}
	// Planes 1 and up nearly always stay raw, so split writes them directly to their place.
	p := planes{w.plane(0, n)}
	for i := 1; i < dt.Size(); i++ {
		p[i] = dst[(i-1)*n : i*n]
	}
	split(&p, src, dt)
	at := 0
	var forms [maxPlanes]form
	for i := 1; i < dt.Size(); i++ {
		if constant(p[i]) {
			forms[i] = oneForm
			p[i] = p[i][:1]
		}
		at += copy(dst[at:], p[i]) // does nothing if it is already in place
	}
	at += copy(dst[at:], src[n*dt.Size():])
	var first int
	forms[0], first = w.first(dst[at:], p[0])
	at += first
	return newEntry(at, forms), at < len(src)
}

// The method first writes plane 0 to dst, in its smallest form.
func (w *worker) first(dst, p []byte) (form, int) {
	if constant(p) {
		return oneForm, copy(dst, p[:1])
	}
	w.huff.Out = dst[:0:len(dst)]
	block, _, err := huff0.Compress4X(p, &w.huff)
	w.huff.Out, w.huff.OutTable, w.huff.OutData = nil, nil, nil
	if err != nil || len(block) > len(dst) { // any error means that the plane does not compress
		return rawForm, copy(dst, p)
	}
	return huffForm, copy(dst, block) // copies nothing unless huff0 needed more room
}

func constant(p []byte) bool { return bytes.Equal(p[1:], p[:len(p)-1]) }

// decode decodes one chunk to dst. The table entry has been checked, and src has the
// length that it states.
func (w *worker) decode(dst, src []byte, e entry, dt kernel.DType) error {
	if e.verbatim() {
		copy(dst, src)
		return nil
	}
	n := len(dst) / dt.Size()
	var p planes
	for i := 1; i < dt.Size(); i++ {
		p[i], src = w.unpacked(i, n, src, e.form(i))
	}
	src = src[copy(dst[n*dt.Size():], src):]
	if e.form(0) != huffForm {
		p[0], _ = w.unpacked(0, n, src, e.form(0))
	} else if err := w.decodeBlock(n, src); err != nil {
		return err
	} else {
		p[0] = w.plane(0, n)
	}
	join(dst, &p, dt)
	return nil
}

// unpacked returns plane i, of n bytes, decoded from the start of src, and the remaining
// bytes of src.
func (w *worker) unpacked(i, n int, src []byte, f form) (plane, rest []byte) {
	if f == rawForm {
		return src[:n], src[n:]
	}
	plane = w.plane(i, n)
	fill(plane, src[0])
	return plane, src[1:]
}

func fill(p []byte, v byte) {
	p[0] = v
	for n := 1; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
}

// decodeBlock decodes a huff0 block to plane 0, of n bytes.
func (w *worker) decodeBlock(n int, block []byte) error {
	_, streams, err := huff0.ReadTable(block, &w.huff)
	if err != nil {
		return fmt.Errorf("table of %d bytes: %w: %v", len(block), ErrCorrupt, err)
	}
	w.huff.Out = w.plane(0, n)
	_, err = w.huff.Decompress4X(streams, n)
	w.huff.Out = nil
	if err != nil {
		return fmt.Errorf("%d numbers in %d bytes: %w: %v", n, len(block), ErrCorrupt, err)
	}
	return nil
}
