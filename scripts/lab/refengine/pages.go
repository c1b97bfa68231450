package refengine

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/pages"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/enginekernel"
)

// Pages is an engine's paged memory for keys and values, whose blocks package pages assigns to
// requests. The shared rows of leased segments stay in the cache's memory. Any number of
// requests may read them there at the same time, each at its own position (MEPIC, arXiv
// 2512.16822, §3.2-3.3). The blocks hold the rows that belong to a request: those of tokens
// before segments, of the first tokens of a segment, of the question and of the answer.
//
// Pages is not safe for concurrent use.
type Pages struct {
	m      *Model[float32]
	pool   *pages.Pool
	config PagesConfig
	dtype  kernel.DType
	row    int      // bytes of a token's keys in one layer; values have the same size
	mem    [][]byte // of attention layers: blocks of [BlockTokens] keys, then values
	next   pages.RequestID
	leased map[profile.SegmentKey]*leasedRows
	copied int64
}

// PagesConfig sizes an engine's paged memory. NewPages sets Outside and Least.
type PagesConfig struct {
	pages.Config
	// Copies gives each request rotated copies of all rows. Position-independent caches whose
	// pages hold rotated keys do this; it is the baseline for sharing.
	Copies bool
}

// leasedRows is the rows of a segment that requests read in the cache's memory.
type leasedRows struct {
	requests int
	bytes    int64
}

// NewPages returns paged memory of c.Blocks blocks.
func NewPages(m *Model[float32], c PagesConfig) (*Pages, error) {
	c.Outside, c.Least = !c.Copies, m.prof.HeadExclusion(0)
	pool, err := pages.New(c.Config)
	if err != nil {
		return nil, err
	}
	p := &Pages{m: m, pool: pool, config: c, dtype: kernel.DType(m.cfg.Storage.KV), leased: map[profile.SegmentKey]*leasedRows{}}
	p.row = m.rowSize() * p.dtype.Size()
	p.mem = make([][]byte, len(m.layers))
	for _, i := range m.prof.AttentionLayers() {
		p.mem[i] = bytesOf(make([]float32, (c.Blocks*p.blockBytes()+3)/4))
	}
	return p, nil
}

// blockBytes returns the bytes of a block in one layer.
func (p *Pages) blockBytes() int { return 2 * p.config.BlockTokens * p.row }

// PagesHeld counts the bytes of keys and values that resident requests read. Own is in blocks.
// Leased is in the cache's memory, with each segment counted once. Copied is the size of copies
// of segments that are not contiguous in the cache's memory.
type PagesHeld struct{ Own, Leased, Copied int64 }

// Total returns the sum.
func (h PagesHeld) Total() int64 { return h.Own + h.Leased + h.Copied }

// Held returns the current counts.
func (p *Pages) Held() PagesHeld {
	layers := len(p.m.prof.AttentionLayers())
	h := PagesHeld{Own: int64(p.pool.Stats().Referenced) * int64(layers*p.blockBytes())}
	for _, l := range p.leased {
		h.Leased += l.bytes
	}
	h.Copied = p.copied
	return h
}

// slot is the location of the row of one position of a request.
type slot struct {
	at     int  // block * BlockTokens + slot; -1 = in the cache's memory
	origin int  // position from which its keys are rotated
	shared bool // shared and already written, so this request must not write it
}

// Table is the pages of one request: the locations of its attention rows. The rows of one
// position have the same location in all layers.
type Table struct {
	mem    *Pages
	id     pages.RequestID
	slots  []slot               // by position
	runs   [][]enginekernel.Run // by layer, ascending
	prefix *State[float32]
	copied int64 // bytes of segments that are not contiguous
	gone   bool  // released: other requests may have the blocks
}

// table returns the pages of an admitted request. The runs, including the rows in the cache, are
// added later.
func (p *Pages) table(id pages.RequestID, a *pages.Admitted, tokens int, origins []int) *Table {
	t := &Table{mem: p, id: id, slots: make([]slot, tokens), runs: make([][]enginekernel.Run, len(p.m.layers))}
	for i := range t.slots {
		t.slots[i].at = -1
	}
	for _, e := range a.Table {
		for i := range e.Tokens {
			s := slot{at: e.Block*p.config.BlockTokens + e.Slot + i, shared: e.Shared && !e.Compute}
			if e.Shared {
				s.origin = origins[e.Begin]
			}
			t.slots[e.Begin+i] = s
		}
	}
	return t
}

// reaches returns an error if the pages have no room for the positions before end.
func (t *Table) reaches(end int) error {
	if t.gone {
		return fmt.Errorf("pages that were released: %w", ErrInvalid)
	}
	if end > len(t.slots) {
		return fmt.Errorf("%d tokens in pages for %d: %w", end, len(t.slots), ErrInvalid)
	}
	return nil
}

// own returns the rows of a layer in the engine's blocks, ascending and without gaps.
func (t *Table) own(layer int) []enginekernel.Run {
	p := t.mem
	per := p.config.BlockTokens
	var runs []enginekernel.Run
	for pos := 0; pos < len(t.slots); {
		s := t.slots[pos]
		n := 1
		for s.at >= 0 && pos+n < len(t.slots) && t.slots[pos+n].at == s.at+n && (s.at+n)%per != 0 && t.slots[pos+n].origin == s.origin {
			n++
		}
		if s.at >= 0 {
			runs = append(runs, t.run(layer, pos, n))
		}
		pos += n
	}
	return runs
}

// run returns the rows of n positions, which are consecutive in a block.
func (t *Table) run(layer, pos, n int) enginekernel.Run {
	p, s := t.mem, t.slots[pos]
	k, v := p.at(layer, s.at)
	return enginekernel.Run{K: k[:n*p.row], V: v[:n*p.row], KStride: p.row, VStride: p.row, Rows: n, Begin: pos, Turn: p.m.shift(s.origin)}
}

// at returns the keys and values of a layer from a slot on.
func (p *Pages) at(layer, slot int) (k, v []byte) {
	per := p.config.BlockTokens
	block := p.mem[layer][slot/per*p.blockBytes():][:p.blockBytes()]
	return block[slot%per*p.row : per*p.row], block[(per+slot%per)*p.row:]
}

// upTo returns the runs of a layer before a position.
func (t *Table) upTo(layer, end int) []enginekernel.Run {
	var out []enginekernel.Run
	for _, r := range t.runs[layer] {
		if r.Rows = min(r.Rows, end-r.Begin); r.Rows > 0 {
			out = append(out, r)
		}
	}
	return out
}

// keep moves the rows at first+kept[i] to first+i, for each i.
func (t *Table) keep(layer, first int, kept []int) {
	for i, at := range kept {
		toK, toV := t.mem.at(layer, t.slots[first+i].at)
		k, v := t.mem.at(layer, t.slots[first+at].at)
		copy(toK[:t.mem.row], k)
		copy(toV[:t.mem.row], v)
	}
}

// shift returns the rotation by origin tokens, for keys that were rotated as if position origin
// were position 0.
func (m *Model[F]) shift(origin int) kernel.Turn {
	rope := m.cfg.Attention.Rope
	half := rope.Dims / 2
	if origin == 0 || half == 0 {
		return kernel.Turn{}
	}
	cos, sin := m.attnRope.upTo(origin + 1)
	return kernel.Turn{
		Dims: rope.Dims, Interleaved: rope.Interleaved,
		Cos: any(cos[origin*half:]).([]float32), Sin: any(sin[origin*half:]).([]float32),
	}
}

// put writes a computed row, unless it is shared and already written.
func (t *Table) put(layer, pos int, k, v []float32) {
	s, p := t.slots[pos], t.mem
	if s.shared {
		return
	}
	toK, toV := p.at(layer, s.at)
	kernel.FromF32(toK, k, p.dtype)
	kernel.FromF32(toV, v, p.dtype)
}

// fill writes the rows of a layer that the walk does not compute and that are not read in the
// cache: the rows of the prefix and, with Copies, of all segments. The function rows writes
// segment rows, rotated to their positions, into k and v.
func (t *Table) fill(layer int, plan *Plan, rows func(k, v []float32) error) error {
	size := t.mem.m.rowSize()
	if t.prefix != nil {
		l := &t.prefix.Layers[layer]
		t.putAll(layer, 0, plan.Begin, l.K, l.V, size)
	}
	if !t.mem.config.Copies {
		return nil
	}
	k, v := make([]float32, plan.End*size), make([]float32, plan.End*size)
	if err := rows(k, v); err != nil {
		return err
	}
	for _, s := range plan.Spans {
		if s.Segment >= 0 {
			t.putAll(layer, s.Start, s.Count, k, v, size)
		}
	}
	return nil
}

func (t *Table) putAll(layer, begin, n int, k, v []float32, size int) {
	for pos := begin; pos < begin+n; pos++ {
		t.put(layer, pos, k[pos*size:][:size], v[pos*size:][:size])
	}
}

// copyOut copies all rows of the request from its pages and the cache into the state to, which
// then has its own rows.
func (t *Table) copyOut(to *State[float32]) {
	m := t.mem.m
	size, dim := m.rowSize(), m.cfg.Attention.HeadDim
	for i, runs := range t.runs {
		if runs == nil {
			continue
		}
		l := &to.Layers[i]
		l.K, l.V = make([]float32, to.Tokens*size), make([]float32, to.Tokens*size)
		for _, r := range runs {
			for row := 0; row < r.Rows && r.Begin+row < to.Tokens; row++ {
				k := l.K[(r.Begin+row)*size:][:size]
				kernel.ToF32(k, r.K[row*r.KStride:], t.mem.dtype)
				kernel.ToF32(l.V[(r.Begin+row)*size:][:size], r.V[row*r.VStride:], t.mem.dtype)
				for h := 0; h < size; h += dim {
					turn(k[h:][:dim], r.Turn.Cos, r.Turn.Sin, r.Turn.Interleaved)
				}
			}
		}
	}
}
