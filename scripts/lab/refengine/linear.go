package refengine

import (
	"math"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

func (m *Model[F]) linearLayer(w *walk[F], i int, l *layer[F]) error {
	m.project(w, l.normIn, l.linear.in, l.linear.cols)
	tail, err := m.convolve(w, i, l.linear)
	if err != nil {
		return err
	}
	m.prepare(w, l.linear)
	if w.tap != nil {
		w.tap(i, w)
	}
	if w.beside != nil {
		w.beside.recur(i, l.linear, w)
		m.mix(w, l.linear)
		return nil
	}
	states, err := w.around.states(i, m.ownTuples(w, l.linear))
	if err != nil {
		return err
	}
	m.recur(w, l.linear, states)
	m.mix(w, l.linear)
	w.around.leave(i, states[len(states)-1], tail)
	return nil
}

// convolve runs the causal convolution and SiLU over q|k|v of every span and
// returns the last Kernel-1 inputs of the last span.
func (m *Model[F]) convolve(w *walk[F], layer int, l *linear[F]) (tail []F, err error) {
	c := m.cfg.Linear.ConvChannels()
	mixed := sized(&w.mixed, w.rows*c)
	lefts := make([][]F, len(w.spans))
	if l.conv != nil {
		for s := range w.spans {
			if lefts[s], err = w.around.left(layer, s); err != nil {
				return nil, err
			}
		}
	}
	back := max(m.cfg.Linear.Kernel-1, 0)
	for s, span := range w.spans {
		// input returns the row at distance t from the span's start; t < 0 is a row before the
		// span.
		input := func(t int) []F {
			if t < 0 {
				return lefts[s][(back+t)*c:][:c]
			}
			return w.in[(span.lo+t)*l.cols:][:c]
		}
		m.eachRows(span.hi-span.lo, func(lo, hi int) {
			sum := make([]F, c)
			for t := lo; t < hi; t++ {
				out := mixed[(span.lo+t)*c:][:c]
				if l.conv == nil {
					silu(out, input(t))
					continue
				}
				clear(sum)
				for j := range back + 1 {
					x := input(t - back + j)
					for ch, wt := range l.conv[j*c:][:c] {
						sum[ch] += wt * x[ch]
					}
				}
				silu(out, sum)
			}
		})
		if s == len(w.spans)-1 {
			tail = make([]F, 0, back*c)
			for t := span.hi - span.lo - back; t < span.hi-span.lo; t++ {
				tail = append(tail, input(t)...)
			}
		}
	}
	return tail, nil
}

// prepare converts q, k and the gates of every row into the recurrence's inputs.
func (m *Model[F]) prepare(w *walk[F], l *linear[F]) {
	c := m.cfg.Linear
	width := c.ConvChannels()
	cos, sin := m.linRope.upTo(w.end)
	half := c.Rope.Dims / 2
	gates := max(c.Betas(), c.ValueHeads)
	decay, beta := sized(&w.decay, w.rows*c.Gates()), sized(&w.beta, w.rows*gates)
	scale := F(1 / math.Sqrt(float64(c.KeyDim)))
	for _, span := range w.spans {
		m.eachRows(span.hi-span.lo, func(lo, hi int) {
			for r := span.lo + lo; r < span.lo+hi; r++ {
				pos := span.pos + r - span.lo
				qk := w.mixed[r*width:][:2*c.KeyHeads*c.KeyDim]
				for h := range 2 * c.KeyHeads {
					x := qk[h*c.KeyDim:][:c.KeyDim]
					if c.Delta() {
						unit(x)
					}
					if half > 0 {
						turn(x, cos[pos*half:][:half], sin[pos*half:][:half], c.Rope.Interleaved)
					}
				}
				for j := range qk[:c.KeyHeads*c.KeyDim] {
					qk[j] *= scale
				}
				m.gate(w.in[r*l.cols+width+c.ValueHeads*c.ValueDim:], l,
					decay[r*c.Gates():][:c.Gates()], beta[r*gates:][:gates])
				if c.Erases() {
					m.spread(w.mixed[r*width:][:width], beta[r*gates:][:gates])
				}
			}
		})
	}
}

// gate computes one row's decays and write strengths from the projected columns beta | gate
// (HYPIC Table 1). A decay is exp(-exp(A_log) * softplus(a + dt_bias)), as in engines; a is the
// gate.
func (m *Model[F]) gate(raw []F, l *linear[F], decay, beta []F) {
	c := m.cfg.Linear
	for h := range beta {
		beta[h] = 1
	}
	if c.Delta() {
		copy(beta, raw[:len(beta)])
		sigmoid(beta)
		raw = raw[len(beta):]
	}
	perHead := max(1, len(decay)/c.ValueHeads)
	for j := range decay {
		step := softplus(float64(raw[j]) + l.bias[j])
		decay[j] = F(math.Exp(-l.rate[j/perHead] * step))
		if c.Family == profile.Mamba2 {
			beta[j] = F(step)
		}
	}
}

// spread converts one row's gates per channel, in place, into inputs of the recurrence: the keys
// multiplied by the erase gates, then the values multiplied by the write gates (Gated
// DeltaNet-2, arXiv 2605.22791).
func (m *Model[F]) spread(qkv, gates []F) {
	c := m.cfg.Linear
	keys := c.KeyHeads * c.KeyDim
	for h := range c.ValueHeads {
		key := qkv[keys+h/(c.ValueHeads/c.KeyHeads)*c.KeyDim:]
		for j := range c.KeyDim {
			gates[h*c.KeyDim+j] *= key[j]
		}
	}
	written := gates[c.ValueHeads*c.KeyDim:]
	for j, v := range qkv[2*keys:] {
		written[j] *= v
	}
}

// unit divides x by its length, as the engines' kernels do (eps 1e-6).
func unit[F Float](x []F) {
	var sum F
	for _, v := range x {
		sum += v * v
	}
	scale := F(1 / math.Sqrt(float64(sum)+1e-6))
	for i := range x {
		x[i] *= scale
	}
}

// valueHead returns the inputs of value head h for rows lo to hi-1.
func (m *Model[F]) valueHead(w *walk[F], l *linear[F], h, lo, hi int) head[F] {
	c := m.cfg.Linear
	width := c.ConvChannels()
	key := h / (c.ValueHeads / c.KeyHeads)
	keys := c.KeyHeads * c.KeyDim
	out := head[F]{
		n: hi - lo,
		q: w.mixed[lo*width+key*c.KeyDim:], sq: width,
		k: w.mixed[lo*width+keys+key*c.KeyDim:], sk: width,
		v: w.mixed[lo*width+2*keys+h*c.ValueDim:], sv: width,
		beta: w.beta[lo*c.ValueHeads+h:], sbeta: c.ValueHeads,
		delta: c.Delta(),
	}
	if c.Erases() {
		row, values := c.Betas(), c.ValueHeads*c.KeyDim
		out.erase, out.serase = w.beta[lo*row+h*c.KeyDim:], row
		out.v, out.sv = w.beta[lo*row+values+h*c.ValueDim:], row
		out.beta, out.sbeta = []F{1}, 0
	}
	switch g := c.Gates(); {
	case g == c.ValueHeads:
		out.decay, out.sdecay = w.decay[lo*g+h:], g
	case g > 0:
		out.decay, out.sdecay, out.perKey = w.decay[lo*g+h*c.KeyDim:], g, 1
	case l.fixed != nil:
		out.decay = l.fixed[h:]
	default:
		out.decay = []F{1}
	}
	return out
}

// scratchSize returns the scratch elements that a head needs next to its state.
func scratchSize(c modelfile.LinearConfig) int { return max(c.KeyDim, c.ValueDim) }

// ownTuples computes (T, S) of every span but the last from its own tokens.
func (m *Model[F]) ownTuples(w *walk[F], l *linear[F]) []Tuple[F] {
	own := make([]Tuple[F], len(w.spans)-1)
	for s := range own {
		own[s] = m.newTuple()
	}
	heads := m.cfg.Linear.ValueHeads
	m.each(len(own)*heads, func(i int) {
		span := w.spans[i/heads]
		m.tupleHead(w, l, own[i/heads], i%heads, span.lo, span.hi)
	})
	return own
}

func (m *Model[F]) newTuple() Tuple[F] {
	c := m.cfg.Linear
	return Tuple[F]{T: make([]F, c.ValueHeads*c.TransitionSize()), S: make([]F, m.stateSize())}
}

// tupleHead computes one value head of (T, S) over rows lo to hi-1, from zero.
func (m *Model[F]) tupleHead(w *walk[F], l *linear[F], out Tuple[F], h, lo, hi int) {
	c := m.cfg.Linear
	in := m.valueHead(w, l, h, lo, hi)
	scratch := make([]F, scratchSize(c))
	size := c.KeyDim * c.ValueDim
	in.run(out.S[h*size:][:size], c.KeyDim, c.ValueDim, nil, 0, scratch)
	n := c.TransitionSize()
	in.cumulate(out.T[h*n:][:n], c.Family.Transition(), c.KeyDim, scratch)
}

// recur runs the recurrence of every span, starting from the state before the span.
func (m *Model[F]) recur(w *walk[F], l *linear[F], states [][]F) {
	c := m.cfg.Linear
	so := c.ValueHeads * c.ValueDim
	size := c.KeyDim * c.ValueDim
	out := sized(&w.heads, w.rows*so)
	m.each(len(w.spans)*c.ValueHeads, func(i int) {
		s, h := i/c.ValueHeads, i%c.ValueHeads
		span := w.spans[s]
		in := m.valueHead(w, l, h, span.lo, span.hi)
		in.run(states[s][h*size:][:size], c.KeyDim, c.ValueDim, out[span.lo*so+h*c.ValueDim:], so,
			make([]F, scratchSize(c)))
	})
}

// mix adds out_proj(norm(o) * silu(z)) to the residual stream.
func (m *Model[F]) mix(w *walk[F], l *linear[F]) {
	c, d := m.cfg.Linear, m.cfg.Dim
	values := c.ValueHeads * c.ValueDim
	m.eachRows(w.rows, func(lo, hi int) {
		gate := make([]F, values)
		for r := lo; r < hi; r++ {
			silu(gate, w.in[r*l.cols+c.ConvChannels():][:values])
			o := w.heads[r*values:][:values]
			for h := range c.ValueHeads {
				x := o[h*c.ValueDim:][:c.ValueDim]
				rmsNorm(x, x, l.norm, m.cfg.Eps)
			}
			for j, g := range gate {
				o[j] *= g
			}
		}
		product(w.hidden[lo*d:], d, w.heads[lo*values:], values, l.out, d, hi-lo, d, values)
	})
}
