package refengine

import (
	"math"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

func (m *Model[F]) attentionLayer(w *walk[F], i int, l *layer[F]) error {
	m.project(w, l.normIn, l.attn.in, l.attn.cols)
	rows, err := w.around.rows(i, w.end)
	if err != nil {
		return err
	}
	if w.beside != nil && w.beside.branches() {
		w.beside.attend(l.attn, w, &rows)
	} else {
		m.place(w, l.attn, &rows)
		m.attend(w, &rows)
	}
	m.gatedOutput(w, l.attn)
	return nil
}

// place normalises and rotates queries and keys, and writes the rows' keys and values at
// their positions.
func (m *Model[F]) place(w *walk[F], l *attention[F], to *kept[F]) {
	a := m.cfg.Attention
	queries, row := a.Heads*a.HeadDim, m.rowSize()
	q := sized(&w.mixed, w.rows*queries)
	cos, sin := m.attnRope.upTo(w.end)
	half := a.Rope.Dims / 2
	scale := F(1 / math.Sqrt(float64(a.HeadDim)))
	for _, span := range w.spans {
		m.eachRows(span.hi-span.lo, func(lo, hi int) {
			var scratch []F
			for r := span.lo + lo; r < span.lo+hi; r++ {
				pos := span.pos + r - span.lo
				in := w.in[r*l.cols:][:l.cols]
				c, s := cos[pos*half:][:half], sin[pos*half:][:half]
				for h := range a.Heads {
					x := q[r*queries+h*a.HeadDim:][:a.HeadDim]
					rmsNorm(x, in[h*a.HeadDim:], l.normQ, m.cfg.Eps)
					turn(x, c, s, a.Rope.Interleaved)
					for j := range x {
						x[j] *= scale
					}
				}
				k, v, at := to.row(pos, row, &scratch)
				c, s = cos[at*half:][:half], sin[at*half:][:half]
				for h := range a.KVHeads {
					x := k[h*a.HeadDim:][:a.HeadDim]
					rmsNorm(x, in[queries+h*a.HeadDim:], l.normK, m.cfg.Eps)
					turn(x, c, s, a.Rope.Interleaved)
				}
				copy(v, in[queries+row:])
				m.roundRows(k)
				m.roundRows(v)
				to.put(pos, k, v)
			}
		})
	}
}

// queryBlock and keyBlock are the numbers of rows and keys that are processed together, so that
// their scores stay in the second-level cache. Key blocks start at fixed positions, so that the
// result of a row does not depend on the other rows of its query block.
const (
	queryBlock = 64
	keyBlock   = 256
)

// attend computes causal softmax attention of every row over all positions up to its own,
// in one pass over the keys (running maximum and sum).
func (m *Model[F]) attend(w *walk[F], rows *kept[F]) {
	a := m.cfg.Attention
	out := sized(&w.heads, w.rows*a.Heads*a.HeadDim)
	clear(out)
	var blocks []rowSpan
	for _, s := range w.spans {
		for lo := s.lo; lo < s.hi; lo += queryBlock {
			blocks = append(blocks, rowSpan{lo, min(lo+queryBlock, s.hi), s.pos + lo - s.lo})
		}
	}
	// Longest blocks first, so that the workers end together.
	if w, ok := any(w).(*walk[float32]); ok {
		runs, t := keptRuns(any(rows).(*kept[float32]), w.end, m.rowSize())
		m.each(len(blocks)*a.KVHeads, func(i int) {
			m.attendRuns(w, blocks[len(blocks)-1-i/a.KVHeads], i%a.KVHeads, runs, t)
		})
		return
	}
	m.each(len(blocks)*a.Heads, func(i int) {
		m.attendBlock(w, blocks[len(blocks)-1-i/a.Heads], i%a.Heads, rows.k, rows.v)
	})
}

// attendRuns computes attention for the rows of b, for the query heads that share one head of
// keys and values.
func (m *Model[F]) attendRuns(w *walk[float32], b rowSpan, head int, runs []enginekernel.Run, t kernel.DType) {
	a := m.cfg.Attention
	group, stride := a.Heads/a.KVHeads, a.Heads*a.HeadDim
	shape := enginekernel.Attention{Group: group, KeyDim: a.HeadDim, ValueDim: a.HeadDim, Type: t}
	at := head * group * a.HeadDim
	sc := m.attending.Get().(*enginekernel.AttendScratch)
	defer m.attending.Put(sc)
	q := enginekernel.Queries{Q: w.mixed[b.lo*stride+at:], LD: stride, Rows: b.hi - b.lo, Begin: b.pos}
	shape.Attend(w.heads[b.lo*stride+at:], stride, q, runs, head, sc)
}

// attendBlock computes the attention of head h for the rows of b in the oracle's arithmetic,
// float64.
func (m *Model[F]) attendBlock(w *walk[F], b rowSpan, h int, k, v []F) {
	a := m.cfg.Attention
	dim, stride, row := a.HeadDim, a.Heads*a.HeadDim, m.rowSize()
	kv := h / (a.Heads / a.KVHeads) * dim
	n := b.hi - b.lo
	q, out := w.mixed[b.lo*stride+h*dim:], w.heads[b.lo*stride+h*dim:]
	scores := make([]F, n*keyBlock)
	top, total := make([]F, n), make([]F, n)
	for i := range top {
		top[i] = F(math.Inf(-1))
	}
	for j0 := 0; j0 < b.pos+n; j0 += keyBlock {
		cols := min(keyBlock, b.pos+n-j0)
		clear(scores)
		productT(scores, keyBlock, q, stride, k[j0*row+kv:], row, n, cols, dim)
		for i := range n {
			seen := min(cols, b.pos+i+1-j0) // keys of this block the row may see
			s := scores[i*keyBlock:][:cols]
			if seen <= 0 {
				clear(s)
				continue
			}
			clear(s[seen:])
			softmaxStep(s[:seen], &top[i], &total[i], out[i*stride:][:dim])
		}
		product(out, stride, scores, keyBlock, v[j0*row+kv:], row, n, dim, cols)
	}
	for i := range n {
		inv := 1 / total[i]
		o := out[i*stride:][:dim]
		for j := range o {
			o[j] *= inv
		}
	}
}

// softmaxStep is enginekernel.SoftmaxStep in the model's arithmetic.
func softmaxStep[F Float](s []F, top, total *F, out []F) {
	if s, ok := any(s).([]float32); ok {
		enginekernel.SoftmaxStep(s, any(top).(*float32), any(total).(*float32), any(out).([]float32))
		return
	}
	if peak := max(*top, slices.Max(s)); peak > *top {
		fade := F(math.Exp(float64(*top - peak)))
		for j := range out {
			out[j] *= fade
		}
		*total *= fade
		*top = peak
	}
	for i, x := range s {
		s[i] = F(math.Exp(float64(x - *top)))
		*total += s[i]
	}
}

// gatedOutput adds o_proj(heads * sigmoid(gate)) to the residual stream.
func (m *Model[F]) gatedOutput(w *walk[F], l *attention[F]) {
	a, d := m.cfg.Attention, m.cfg.Dim
	n := a.Heads * a.HeadDim
	m.eachRows(w.rows, func(lo, hi int) {
		if a.Gate {
			gate := make([]F, n)
			for r := lo; r < hi; r++ {
				copy(gate, w.in[r*l.cols+n+2*m.rowSize():])
				sigmoid(gate)
				for j, g := range gate {
					w.heads[r*n+j] *= g
				}
			}
		}
		product(w.hidden[lo*d:], d, w.heads[lo*n:], n, l.out, d, hi-lo, d, n)
	})
}
