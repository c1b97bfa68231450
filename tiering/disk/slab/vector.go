package slab

// iovMax is the maximum number of buffers of one preadv or pwritev (IOV_MAX of Linux).
const iovMax = 1024

// vector iterates over a list of buffers without changing it.
type vector struct {
	bufs [][]byte
	done int // bytes of bufs[0] that were skipped
}

// window returns the next buffers, at most limit; none at the end.
func (v *vector) window(limit int) [][]byte {
	n := min(len(v.bufs), limit)
	if v.done == 0 {
		return v.bufs[:n]
	}
	w := make([][]byte, n)
	copy(w, v.bufs)
	w[0] = w[0][v.done:]
	return w
}

// advance skips n bytes.
func (v *vector) advance(n int) {
	for n > 0 {
		left := len(v.bufs[0]) - v.done
		if n < left {
			v.done += n
			return
		}
		n -= left
		v.bufs, v.done = v.bufs[1:], 0
	}
}

// cut appends the next n bytes to dst as pieces of the buffers, and skips them.
func (v *vector) cut(dst [][]byte, n int) [][]byte {
	for n > 0 {
		b := v.bufs[0][v.done:]
		b = b[:min(n, len(b))]
		dst = append(dst, b)
		v.advance(len(b))
		n -= len(b)
	}
	return dst
}
