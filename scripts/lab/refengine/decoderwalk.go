package refengine

import (
	"math"
	"slices"

	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// step adds tokens and computes them. It returns the logits after each token or, for certain
// tokens, only after the last. Certain tokens must form a chain, and no drafts may exist.
func (d *Decoder) step(tokens []uint32, parents []int, certain bool) ([]float32, error) {
	d.before = len(d.drafts)
	for i := range tokens {
		p := d.before + i - 1
		if parents != nil {
			p = parents[i]
		}
		d.drafts = append(d.drafts, p)
	}
	if d.st.Tokens+len(d.drafts) > d.most {
		d.begin()
	}
	d.settle = certain && d.kept == nil && !d.alone && d.Pending()+len(tokens) >= d.flush
	if d.move = 0; !d.alone && !d.settle && d.Pending() >= d.flush {
		d.move = d.Pending()
	}
	d.grow(d.Pending() + len(d.drafts))
	w := &walk[float32]{around: decoding{d}, beside: d, every: !certain}
	w.spans = []rowSpan{{0, len(tokens), d.st.Tokens + d.before}}
	if d.branches() {
		w.spans = w.spans[:0]
		for i := range tokens {
			w.spans = append(w.spans, rowSpan{i, i + 1, d.st.Tokens + d.depth(d.before+i)})
		}
	}
	d.w = w
	logits, err := d.m.run(w, tokens)
	if err != nil { // check has excluded all possible errors
		panic(err)
	}
	d.base += d.move
	if certain {
		d.commit(len(tokens))
	}
	if d.settle {
		d.base = d.st.Tokens
	}
	return logits, nil
}

// depth returns the number of ancestors that a draft has among the drafts.
func (d *Decoder) depth(draft int) int {
	n := 0
	for p := d.drafts[draft]; p >= 0; p = d.drafts[p] {
		n++
	}
	return n
}

// branches reports whether the drafts do not form a chain.
func (d *Decoder) branches() bool {
	for i, p := range d.drafts {
		if p != i-1 {
			return true
		}
	}
	return false
}

// grow makes room for a number of rows.
func (d *Decoder) grow(rows int) {
	for i := range d.layers {
		for k, b := range d.layers[i].heads {
			if b.Capacity() < rows {
				d.layers[i].heads[k] = b.Grown(rows + rows/2)
			}
		}
	}
}

// decoding is a Decoder as the surroundings of a walk.
type decoding struct{ *Decoder }

// left returns the convolution inputs before the first row of a span: the inputs of the drafts
// that this row follows, preceded by the tail of the certain tokens.
func (d decoding) left(layer, span int) ([]float32, error) {
	tail := d.st.Layers[layer].Conv
	if len(tail) == 0 {
		return nil, nil
	}
	l, channels := &d.layers[layer], d.m.cfg.Linear.ConvChannels()
	for r := len(l.conv)/channels - d.before; r < d.w.rows; r++ {
		l.conv = append(l.conv, d.w.in[r*d.m.layers[layer].linear.cols:][:channels]...)
	}
	out := make([]float32, len(tail))
	at := len(out)
	for p := d.drafts[d.before+span]; p >= 0 && at > 0; p = d.drafts[p] {
		at -= channels
		copy(out[at:], l.conv[p*channels:][:channels])
	}
	copy(out[:at], tail[len(tail)-at:])
	return out, nil
}

func (d decoding) rows(layer, _ int) (kept[float32], error) {
	return d.st.rows(layer, d.st.Tokens+len(d.drafts), d.m.rowSize())
}

func (decoding) states(int, []Tuple[float32]) ([][]float32, error) { panic("refengine: of rows") }
func (decoding) leave(int, []float32, []float32)                   { panic("refengine: of rows") }

// recur runs the recurrence of a linear layer over its buffers.
func (d *Decoder) recur(layer int, l *linear[float32], w *walk[float32]) {
	c := d.m.cfg.Linear
	width := c.ValueHeads / c.KeyHeads * c.ValueDim
	heads := sized(&w.heads, w.rows*c.ValueHeads*c.ValueDim)
	parents := make([]int, w.rows)
	for i := range parents {
		parents[i] = d.Pending() - d.move + d.drafts[d.before+i]
	}
	d.m.each(c.KeyHeads, func(k int) {
		in, states := d.inputs(l, w, k), d.headStates(layer, k)
		out, b := sized(&d.out[k], w.rows*width), d.layers[layer].heads[k]
		if d.move > 0 {
			b.FlushFirst(states, d.move, &d.work[k]) // the state is now in the CPU cache
		}
		if d.settle {
			b.Decode(states, in, out, true, &d.work[k])
		} else {
			b.DecodeTree(states, in, parents, out, &d.work[k])
		}
		for r := range w.rows {
			copy(heads[(r*c.KeyHeads+k)*width:][:width], out[r*width:])
		}
	})
}

// inputs returns, for each row of the walk, the inputs of the value heads that share key head k.
func (d *Decoder) inputs(l *linear[float32], w *walk[float32], k int) []enginekernel.Input {
	c := d.m.cfg.Linear
	group, keys, row := c.ValueHeads/c.KeyHeads, c.KeyHeads*c.KeyDim, c.ConvChannels()
	values := group * c.ValueDim
	in := d.in[k][:0]
	for r := range w.rows {
		x := w.mixed[r*row:][:row]
		t := enginekernel.Input{
			Q: x[k*c.KeyDim:][:c.KeyDim], K: x[keys+k*c.KeyDim:][:c.KeyDim], V: x[2*keys+k*values:][:values],
			G: d.decays(l, w, r, k, group),
		}
		if c.Erases() {
			gates := w.beta[r*c.Betas():][:c.Betas()]
			t.E, t.V = gates[k*group*c.KeyDim:][:group*c.KeyDim], gates[c.ValueHeads*c.KeyDim+k*values:][:values]
			t.Beta = d.ones[:group]
		} else {
			t.Beta = w.beta[r*c.ValueHeads+k*group:][:group]
		}
		in = append(in, t)
	}
	d.in[k] = in
	return in
}

// decays returns the decays of a row for the value heads of a key head.
func (d *Decoder) decays(l *linear[float32], w *walk[float32], r, k, group int) []float32 {
	switch g := d.m.cfg.Linear.Gates(); {
	case g > 0:
		n := g / d.m.cfg.Linear.ValueHeads * group
		return w.decay[r*g+k*n:][:n]
	case l.fixed != nil:
		return l.fixed[k*group:][:group]
	}
	return d.ones[:group]
}

// attend computes attention for drafts that branch. Each draft sees all certain tokens and its
// ancestors. Keys are stored in the order of drafts, and are rotated to the position that
// follows from the draft's depth.
func (d *Decoder) attend(l *attention[float32], w *walk[float32], rows *kept[float32]) {
	for r := range w.rows {
		to := *rows
		to.ahead = d.st.Tokens + d.before + r - w.spans[r].pos
		d.m.place(&walk[float32]{workspace: w.workspace, spans: w.spans[r : r+1], rows: w.rows, end: w.end}, l, &to)
	}
	clear(sized(&w.heads, w.rows*d.m.cfg.Attention.Heads*d.m.cfg.Attention.HeadDim))
	if rows.pages != nil {
		d.attendPages(w, rows, d.mask(w.rows))
	} else {
		d.attendRows(w, rows.k, rows.v, d.mask(w.rows))
	}
}

// attendRows does what attend does, for contiguous rows. It computes scores for all rows at
// once, and gives hidden drafts no weight.
func (d *Decoder) attendRows(w *walk[float32], k, v []float32, hidden []bool) {
	m, a := d.m, d.m.cfg.Attention
	row, certain, out := m.rowSize(), d.st.Tokens, w.heads
	total := certain + len(d.drafts)
	stride := a.Heads * a.HeadDim
	m.each(a.Heads, func(h int) {
		kv := h / (a.Heads / a.KVHeads) * a.HeadDim
		scores := make([]float32, w.rows*total)
		productT(scores, total, w.mixed[h*a.HeadDim:], stride, k[kv:], row, w.rows, total, a.HeadDim)
		for r := range w.rows {
			s, o := scores[r*total:][:total], out[r*stride+h*a.HeadDim:][:a.HeadDim]
			for j, not := range hidden[r*len(d.drafts):][:len(d.drafts)] {
				if not {
					s[certain+j] = float32(math.Inf(-1))
				}
			}
			top, sum := float32(math.Inf(-1)), float32(0)
			softmaxStep(s, &top, &sum, o)
			for j := range s {
				s[j] /= sum
			}
		}
		product(out[h*a.HeadDim:], stride, scores, total, v[kv:], row, w.rows, a.HeadDim, total)
	})
}

// attendPages does what attend does, for rows in pages. For each draft it reads only the rows
// that the draft sees.
func (d *Decoder) attendPages(w *walk[float32], rows *kept[float32], hidden []bool) {
	m, certain := d.m, d.st.Tokens
	before := rows.pages.upTo(rows.layer, certain)
	for r := range w.rows {
		runs := slices.Clone(before)
		for j, not := range hidden[r*len(d.drafts):][:len(d.drafts)] {
			if !not {
				runs = append(runs, rows.pages.run(rows.layer, certain+j, 1))
			}
		}
		// With a position after all rows, the row sees exactly the rows in runs.
		b := rowSpan{r, r + 1, certain + len(d.drafts)}
		m.each(m.cfg.Attention.KVHeads, func(head int) { m.attendRuns(w, b, head, runs, rows.pages.mem.dtype) })
	}
}

// mask returns, for each of the last n drafts, which drafts are hidden from it: [n, drafts].
func (d *Decoder) mask(n int) []bool {
	out := make([]bool, n*len(d.drafts))
	for i := range out {
		out[i] = true
	}
	for r := range n {
		for p := d.before + r; p >= 0; p = d.drafts[p] {
			out[r*len(d.drafts)+p] = false
		}
	}
	return out
}
