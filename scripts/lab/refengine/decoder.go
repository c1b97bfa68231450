package refengine

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// Decoder generates tokens after a state and keeps rows of recent tokens next to the state, as
// in the paper KVBuffer. A step reads the recurrent states without writing them; when enough
// rows are pending, the decoder flushes them into the states. It verifies a tree of drafts in
// one step, and need not store or roll back states for drafts. For a short prompt it has only
// rows and no states.
//
// The results equal those of Prefill token by token, except for rounding: sums have a different
// order. A Decoder owns its State until Settle. It is not safe for concurrent use. A token is
// certain if it is part of the sequence; a draft is not certain until Accept.
type Decoder struct {
	m      *Model[float32]
	st     *State[float32] // Tokens, tails and keys of the certain tokens; recurrent states of the first base ones
	base   int             // number of tokens that the recurrent states include
	alone  bool            // no states exist, only rows of all tokens
	flush  int             // number of pending rows at which they are flushed into the states
	most   int             // largest number of rows for which no states are created
	layers []decoderLayer
	drafts []int // parent of each draft: an earlier one, or -1 for the last certain token
	work   []enginekernel.BufferScratch
	out    [][]float32 // per key head
	in     [][]enginekernel.Input
	ones   []float32
	kept   *Rows // nil = not requested

	// Fields of the current step.
	w      *walk[float32]
	before int  // drafts
	move   int  // pending certain rows that the step flushes into the states first
	settle bool // the rows of the step are certain, and the step flushes them into the states
}

// decoderLayer is the data of a layer next to its State.
type decoderLayer struct {
	heads []*enginekernel.Buffer // linear: by key head
	conv  []float32              // linear: inputs of the convolution [drafts, channels]
}

// Limits for a CPU core. The byte counts of KVBuffer (Eq. 6 and §3.4) apply to processors whose
// time is only spent on memory accesses. A core computes for about as long as it reads, so
// updating states pays off sooner: after coreRows rows, and creating states after coreAlone
// tokens (measured by splicectl bench --suite decode, heads of 128).
const (
	coreRows  = 8
	coreAlone = 64
)

// DecoderOptions configures a Decoder. With the zero value, the decoder compares byte counts of
// the model's profile to decide when to flush rows and when to create states, within limits that
// suit a CPU.
type DecoderOptions struct {
	Rows  int  // rows before a flush into the states: 0 = decide, 1 = every token
	Alone int  // largest number of tokens without states; 0 = decide, -1 = always have states
	Keep  bool // record the rows of certain tokens, for Rows
}

// Rows holds the rows of the certain tokens [Begin, End). If they are saved after the states at
// Begin, the states at any of these tokens can be recomputed without the model.
type Rows struct {
	Begin, End int
	Layers     []RowsLayer
}

// RowsLayer is one linear layer of Rows. Decay is [tokens, gates]. Conv is the inputs of the
// convolution, [tokens, channels]. K is the keys as the recurrence reads them, [tokens,
// KeyHeads, KeyDim]. U is the delta values, [tokens, ValueHeads, ValueDim].
type RowsLayer struct{ Decay, Conv, K, U []float32 }

// Part returns the values of a part of profile.EdgeLayout.
func (l *RowsLayer) Part(k profile.PartKind) []float32 {
	switch k {
	case profile.PartT:
		return l.Decay
	case profile.PartConv:
		return l.Conv
	case profile.PartK:
		return l.K
	}
	return l.U
}

// NewDecoder returns a decoder that continues the state st. The decoder then owns st.
func NewDecoder(m *Model[float32], st *State[float32], o DecoderOptions) *Decoder {
	bytes := m.prof.RowBytes()
	d := &Decoder{m: m, st: st, base: st.Tokens, flush: o.Rows, most: o.Alone, layers: make([]decoderLayer, len(m.layers))}
	if d.flush < 1 {
		d.flush = min(bytes.Flush(), coreRows)
	}
	if d.most == 0 {
		d.most = min(bytes.Alone(), coreAlone)
	}
	if o.Keep {
		d.kept = d.noRows()
	}
	c := m.cfg.Linear
	if bytes.State > 0 {
		d.alone = st.Tokens == 0 && d.most > 0
		d.work, d.out, d.in = make([]enginekernel.BufferScratch, c.KeyHeads), make([][]float32, c.KeyHeads), make([][]enginekernel.Input, c.KeyHeads)
		d.ones = slices.Repeat([]float32{1}, c.ValueHeads)
	}
	for i, kind := range m.cfg.Layers {
		if kind == profile.KindLinear {
			d.layers[i].heads = make([]*enginekernel.Buffer, c.KeyHeads)
			for k := range d.layers[i].heads {
				d.layers[i].heads[k] = d.newBuffer(d.flush)
			}
			if d.alone {
				st.Layers[i].S = nil
			}
		}
	}
	return d
}

// newBuffer returns the buffer of the value heads that share a key head.
func (d *Decoder) newBuffer(capacity int) *enginekernel.Buffer {
	c := d.m.cfg.Linear
	decay := kernel.Scalar
	if c.Family.Decay() == profile.DecayPerKey {
		decay = kernel.Diagonal
	}
	return enginekernel.NewBuffer(c.KeyDim, c.ValueDim, c.ValueHeads/c.KeyHeads, capacity, kernel.F32, decay, c.Delta())
}

// Tokens returns the number of certain tokens.
func (d *Decoder) Tokens() int { return d.st.Tokens }

// Drafts returns the number of verified tokens that are neither accepted nor dropped.
func (d *Decoder) Drafts() int { return len(d.drafts) }

// Pending returns the number of certain tokens that the states do not include yet.
func (d *Decoder) Pending() int { return d.st.Tokens - d.base }

// Alone reports whether only rows exist, without states.
func (d *Decoder) Alone() bool { return d.alone }

// Prefill drops all drafts, adds certain tokens, and returns the logits after the last token.
// After an error nothing has changed.
func (d *Decoder) Prefill(tokens []uint32) ([]float32, error) {
	if err := d.check(tokens); err != nil {
		return nil, err
	}
	d.drop()
	if len(tokens) <= d.flush || d.alone && d.st.Tokens+len(tokens) <= d.most {
		return d.step(tokens, nil, true)
	}
	d.Settle()
	logits, err := d.m.Prefill(d.st, tokens)
	d.base = d.st.Tokens
	if d.kept != nil {
		d.kept = d.noRows()
	}
	return logits, err
}

// Generate adds n tokens greedily, starting from the logits of the last one, and returns
// them.
func (d *Decoder) Generate(logits []float32, n int) ([]uint32, error) {
	out := make([]uint32, 0, n)
	for range n {
		out = append(out, Greedy(logits))
		var err error
		if logits, err = d.Prefill(out[len(out)-1:]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d *Decoder) check(tokens []uint32) error {
	if len(tokens) == 0 {
		return fmt.Errorf("no tokens: %w", ErrInvalid)
	}
	if p := d.st.Pages; p != nil {
		if err := p.reaches(d.st.Tokens + len(d.drafts) + len(tokens)); err != nil {
			return err
		}
	}
	for i, t := range tokens {
		if int(t) >= d.m.cfg.Vocab {
			return fmt.Errorf("token %d at %d, vocabulary is %d: %w", t, i, d.m.cfg.Vocab, ErrInvalid)
		}
	}
	return nil
}

// Verify adds drafts, computes them in one step, and returns the logits [tokens, Vocab] after
// each. parents[i] is the draft that token i follows; -1 = the last certain token. Drafts of all
// calls are numbered from 0. If parents is nil, each token follows the token before it, and the
// first token follows the last existing draft. After an error nothing has changed.
func (d *Decoder) Verify(tokens []uint32, parents []int) ([]float32, error) {
	if err := d.check(tokens); err != nil {
		return nil, err
	}
	if parents != nil && len(parents) != len(tokens) {
		return nil, fmt.Errorf("%d drafts with %d parents: %w", len(tokens), len(parents), ErrInvalid)
	}
	for i, p := range parents {
		if p < -1 || p >= len(d.drafts)+i {
			return nil, fmt.Errorf("draft %d follows draft %d: %w", len(d.drafts)+i, p, ErrInvalid)
		}
	}
	return d.step(tokens, parents, false)
}

// Accept makes the drafts of path certain and drops all other drafts. The path begins with a
// draft that follows the last certain token. An empty path drops all drafts.
func (d *Decoder) Accept(path []int) error {
	last := -1
	for _, at := range path {
		if at < 0 || at >= len(d.drafts) || d.drafts[at] != last {
			return fmt.Errorf("draft %d does not follow draft %d: %w", at, last, ErrInvalid)
		}
		last = at
	}
	d.keep(path)
	d.commit(len(path))
	return nil
}

// Live is for beam search. It keeps the given drafts and all their ancestors, and drops the
// other drafts. Drafts that all given drafts have in their paths become certain. It returns the
// new numbers of the given drafts; -1 = the draft is now the last certain token.
func (d *Decoder) Live(beams []int) ([]int, error) {
	wanted := make([]int, len(d.drafts)) // number of beams that include a draft
	for _, at := range beams {
		if at < 0 || at >= len(d.drafts) {
			return nil, fmt.Errorf("draft %d of %d: %w", at, len(d.drafts), ErrInvalid)
		}
		for ; at >= 0; at = d.drafts[at] {
			wanted[at]++
		}
	}
	to, kept, shared := make([]int, len(d.drafts)), []int(nil), 0
	for i, n := range wanted {
		if n == 0 {
			continue
		}
		to[i] = len(kept)
		kept = append(kept, i)
		if n == len(beams) {
			shared++ // drafts on every path form a chain that starts at the last certain token
		}
	}
	out := make([]int, len(beams))
	for i, at := range beams {
		out[i] = max(-1, to[at]-shared)
	}
	d.keep(kept)
	d.commit(shared)
	return out, nil
}

// Settle drops all drafts, flushes all pending rows into the states, and returns the state as
// Prefill would have left it. The caller may use the state until the next call of the decoder.
func (d *Decoder) Settle() *State[float32] {
	d.drop()
	d.begin()
	for i := range d.layers {
		heads := d.layers[i].heads
		d.m.each(len(heads), func(k int) {
			heads[k].Flush(d.headStates(i, k), &d.work[k])
		})
	}
	d.base = d.st.Tokens
	return d.st
}

// begin creates zero states for rows that had none.
func (d *Decoder) begin() {
	if !d.alone {
		return
	}
	d.alone = false
	for i := range d.layers {
		if d.layers[i].heads != nil {
			d.st.Layers[i].S = make([]float32, d.m.stateSize())
		}
	}
}

// headStates returns the states of the value heads that share key head k; nil if no states
// exist.
func (d *Decoder) headStates(layer, k int) []float32 {
	if d.alone {
		return nil
	}
	size := d.m.stateSize() / d.m.cfg.Linear.KeyHeads
	return d.st.Layers[layer].S[k*size:][:size]
}

// Kept returns the recorded rows of certain tokens, up to the last one. They begin where the
// decoder began, or after the last Prefill that was too long to record rows. Kept returns nil
// unless DecoderOptions.Keep is set. The result is valid until the next call.
func (d *Decoder) Kept() *Rows { return d.kept }

func (d *Decoder) noRows() *Rows {
	return &Rows{Begin: d.st.Tokens, End: d.st.Tokens, Layers: make([]RowsLayer, len(d.layers))}
}

// keepRows copies the rows of the first n drafts.
func (d *Decoder) keepRows(n int) {
	if d.kept == nil {
		return
	}
	first := d.Pending()
	for i := range d.layers {
		to, from := &d.kept.Layers[i], &d.layers[i]
		if from.heads == nil {
			continue
		}
		for r := range n {
			for _, b := range from.heads {
				g, k, u := b.Row(first + r)
				to.Decay, to.K, to.U = append(to.Decay, g...), appendF32(to.K, k), appendF32(to.U, u)
			}
		}
		if len(d.drafts) > 0 {
			to.Conv = append(to.Conv, from.conv[:n*len(from.conv)/len(d.drafts)]...)
		}
	}
	d.kept.End += n
}

func appendF32(to []float32, row []byte) []float32 {
	at, n := len(to), len(row)/4
	to = slices.Grow(to, n)[:at+n]
	kernel.ToF32(to[at:], row, kernel.F32)
	return to
}

// Rows returns the rows of all drafts for a daemon's buffer, in the layout
// profile.BufferLayout(Drafts()).
func (d *Decoder) Rows() []byte {
	n := len(d.drafts)
	layout := d.m.prof.BufferLayout(n)
	out := make([]byte, layout.Bytes)
	for _, p := range layout.Parts {
		l, to := &d.layers[p.Layer], out[p.Off:][:p.Len]
		if p.Kind == profile.PartConv {
			kernel.FromF32(to, l.conv, kernel.DType(p.DType))
			continue
		}
		row := len(to) / n
		part := row / len(l.heads)
		for k, b := range l.heads {
			for i := range n {
				putRow(to[i*row+k*part:][:part], b, p.Kind, b.N-n+i)
			}
		}
	}
	return out
}

// putRow writes one row of a part of a buffer.
func putRow(to []byte, b *enginekernel.Buffer, kind profile.PartKind, row int) {
	g, k, u := b.Row(row)
	switch kind {
	case profile.PartT:
		kernel.FromF32(to, g, kernel.F32)
	case profile.PartK:
		copy(to, k)
	default:
		copy(to, u)
	}
}

// drop drops all drafts.
func (d *Decoder) drop() {
	if len(d.drafts) > 0 {
		d.keep(nil)
	}
}

// keep keeps the drafts whose indices are listed in kept, and drops the other drafts. The list
// is ascending, and includes the parents of its drafts.
func (d *Decoder) keep(kept []int) {
	first, row := d.Pending(), d.m.rowSize()
	rows := make([]int, 0, first+len(kept))
	for i := range first {
		rows = append(rows, i)
	}
	to := make([]int, len(d.drafts))
	for i, at := range kept {
		rows, to[at] = append(rows, first+at), i
	}
	for i := range d.layers {
		l, st := &d.layers[i], &d.st.Layers[i]
		for _, b := range l.heads {
			b.Select(rows)
		}
		l.conv = kept32(l.conv, 0, kept, len(l.conv)/max(1, len(d.drafts)))
		if d.m.layers[i].attn == nil {
			continue
		}
		if d.st.Pages != nil {
			d.st.Pages.keep(i, d.st.Tokens, kept)
		} else {
			st.K, st.V = kept32(st.K, d.st.Tokens, kept, row), kept32(st.V, d.st.Tokens, kept, row)
		}
	}
	parents := make([]int, len(kept))
	for i, at := range kept {
		if parents[i] = d.drafts[at]; parents[i] >= 0 {
			parents[i] = to[parents[i]]
		}
	}
	d.drafts = parents
}

// kept32 keeps the first rows of x; first is their number. Of the rows after them, it keeps
// those whose indices are in kept.
func kept32(x []float32, first int, kept []int, row int) []float32 {
	for i, at := range kept {
		copy(x[(first+i)*row:][:row], x[(first+at)*row:])
	}
	return x[:(first+len(kept))*row]
}

// commit makes the first n drafts certain. They must form a chain, and all other drafts must
// follow it.
func (d *Decoder) commit(n int) {
	d.keepRows(n)
	for i := range d.layers {
		if l := &d.layers[i]; l.heads != nil {
			d.pass(&d.st.Layers[i], l, n)
		}
	}
	d.st.Tokens += n
	d.drafts = slices.Clone(d.drafts[n:])
	for i := range d.drafts {
		d.drafts[i] = max(-1, d.drafts[i]-n)
	}
}

// pass advances the tail of a layer's convolution over the inputs of the first n drafts.
func (d *Decoder) pass(st *LayerState[float32], l *decoderLayer, n int) {
	size := len(st.Conv)
	if size == 0 || n == 0 {
		return
	}
	channels := d.m.cfg.Linear.ConvChannels()
	whole := slices.Concat(st.Conv, l.conv[:n*channels])
	st.Conv = whole[len(whole)-size:]
	l.conv = slices.Clone(l.conv[n*channels:])
}
