package refengine

import (
	"fmt"
	"math"
)

// surroundings provides the state before the spans of a walk, layer by layer in order, and
// receives the state after them.
type surroundings[F Float] interface {
	// left returns the last Kernel-1 convolution inputs before a span.
	left(layer, span int) ([]F, error)
	// states returns the running state before each span. The walk advances each state over its
	// span, in place. The parameter own has the tuples of all spans except the last.
	states(layer int, own []Tuple[F]) ([][]F, error)
	// rows returns the keys and values of positions 0 to end-1. It has filled the rows that the
	// walk does not compute; the walk writes the others.
	rows(layer, end int) (kept[F], error)
	// leave receives the linear state and convolution tail after the last span.
	leave(layer int, state, conv []F)
}

// beside computes the operations of a walk that are different in a Decoder, which has rows next
// to its states.
type beside[F Float] interface {
	// recur runs the recurrence of a linear layer.
	recur(layer int, l *linear[F], w *walk[F])
	// branches reports whether the rows form a tree and not a chain. If so, the walk calls
	// attend to compute attention.
	branches() bool
	attend(l *attention[F], w *walk[F], rows *kept[F])
}

// rowSpan is a run of rows of a walk whose first row is at prompt position pos.
type rowSpan struct{ lo, hi, pos int }

// walk moves rows through the layers.
type walk[F Float] struct {
	*workspace[F]
	spans  []rowSpan
	rows   int
	end    int // prompt position after every row
	around surroundings[F]
	// tap, if set, receives the inputs of each linear layer's recurrence.
	tap func(layer int, w *walk[F])
	// beside, if set, is a Decoder. The walk then does not call the methods states and leave of
	// around.
	beside beside[F]
	every  bool // return the logits of every row
}

// run computes all layers and returns the logits of the last row, or of every row.
func (m *Model[F]) run(w *walk[F], tokens []uint32) ([]F, error) {
	w.workspace = m.spare.Get().(*workspace[F])
	defer m.spare.Put(w.workspace)
	d := m.cfg.Dim
	w.rows = len(tokens)
	for _, s := range w.spans {
		w.end = max(w.end, s.pos+s.hi-s.lo)
	}
	h := sized(&w.hidden, w.rows*d)
	for i, t := range tokens {
		if int(t) >= m.cfg.Vocab {
			return nil, fmt.Errorf("token %d at row %d, vocabulary is %d: %w", t, i, m.cfg.Vocab, ErrInvalid)
		}
		copy(h[i*d:], m.embed[int(t)*d:][:d])
	}
	for i := range m.layers {
		l := &m.layers[i]
		var err error
		if l.linear != nil {
			err = m.linearLayer(w, i, l)
		} else {
			err = m.attentionLayer(w, i, l)
		}
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		m.mlp(w, l)
	}
	first := w.rows - 1
	if w.every {
		first = 0
	}
	n, x := w.rows-first, sized(&w.normed, (w.rows-first)*d)
	for i := range n {
		rmsNorm(x[i*d:][:d], h[(first+i)*d:], m.norm, m.cfg.Eps)
	}
	logits := make([]F, n*m.cfg.Vocab)
	product(logits, m.cfg.Vocab, x, d, m.head, m.cfg.Vocab, n, m.cfg.Vocab, d)
	return logits, nil
}

// project writes norm(hidden)*weights to w.in.
func (m *Model[F]) project(w *walk[F], norm, weights []F, cols int) {
	d := m.cfg.Dim
	x, in := sized(&w.normed, w.rows*d), sized(&w.in, w.rows*cols)
	m.eachRows(w.rows, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			rmsNorm(x[r*d:][:d], w.hidden[r*d:], norm, m.cfg.Eps)
		}
		clear(in[lo*cols : hi*cols])
		product(in[lo*cols:], cols, x[lo*d:], d, weights, cols, hi-lo, cols, d)
	})
}

func (m *Model[F]) mlp(w *walk[F], l *layer[F]) {
	d, n := m.cfg.Dim, m.cfg.Hidden
	x := sized(&w.normed, w.rows*d)
	wide, narrow := sized(&w.wide, w.rows*2*n), sized(&w.narrow, w.rows*n)
	m.eachRows(w.rows, func(lo, hi int) {
		for r := lo; r < hi; r++ {
			rmsNorm(x[r*d:][:d], w.hidden[r*d:], l.normMLP, m.cfg.Eps)
		}
		clear(wide[lo*2*n : hi*2*n])
		product(wide[lo*2*n:], 2*n, x[lo*d:], d, l.gateUp, 2*n, hi-lo, 2*n, d)
		for r := lo; r < hi; r++ {
			g := narrow[r*n:][:n]
			silu(g, wide[r*2*n:][:n])
			for j, u := range wide[r*2*n+n:][:n] {
				g[j] *= u
			}
		}
		product(w.hidden[lo*d:], d, narrow[lo*n:], n, l.down, d, hi-lo, d, n)
	})
}

// rmsNorm writes x / rms(x) * weight to dst, over len(dst) elements.
func rmsNorm[F Float](dst, x, weight []F, eps float64) {
	x = x[:len(dst)]
	var sum F
	for _, v := range x {
		sum += v * v
	}
	scale := F(1 / math.Sqrt(float64(sum)/float64(len(x))+eps))
	for i, v := range x {
		dst[i] = v * scale * weight[i]
	}
}
