package remote_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/remote"
)

const pagedBlock = 16

// lease leases segments together, with block tables.
func lease(t *testing.T, m *connector.Model, keys ...profile.SegmentKey) []*connector.Lease {
	t.Helper()
	rows, err := m.Acquire(t.Context(), keys, connector.AcquireOptions{BlockTokens: pagedBlock, All: true})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]*connector.Lease, len(rows))
	for i, row := range rows {
		if row.Err != nil {
			t.Fatalf("row %d: %v", i, row.Err)
		}
		out[i] = row.Lease
	}
	return out
}

// rowsOf reads a segment's rows through its block table, as if its interior began
// at a prompt position.
type rowsOf struct {
	t     *testing.T
	prof  *profile.Profile
	lease *connector.Lease
	start int
}

// each calls f with the prompt position, key and value of every row; the key is
// turned. Blocks are read where they lie.
func (r rowsOf) each(layer int, f func(at int, key, value []float32)) {
	r.t.Helper()
	a := &r.prof.Layer(layer).Attention
	keys, values := r.prof.RankKVHeads(layer)*a.KeyDim, r.prof.RankKVHeads(layer)*a.ValueDim
	at := r.start
	for i, off := range r.lease.Table(layer, profile.PartK) {
		if off == connector.NoBlock {
			r.t.Fatalf("layer %d: block %d is torn", layer, i)
		}
		k, v := r.lease.Block(layer, profile.PartK, i), r.lease.Block(layer, profile.PartV, i)
		rows := len(k) / (keys * a.DType.Size())
		if rows < 1 || rows > pagedBlock || len(v) != rows*values*a.DType.Size() {
			r.t.Fatalf("layer %d: block %d has %d and %d bytes", layer, i, len(k), len(v))
		}
		for row := range rows {
			key, value := make([]float32, keys), make([]float32, values)
			kernel.ToF32(key, k[row*keys*a.DType.Size():][:keys*a.DType.Size()], kernel.DType(a.DType))
			kernel.ToF32(value, v[row*values*a.DType.Size():][:values*a.DType.Size()], kernel.DType(a.DType))
			// Kept at the segment's own positions: a turn by where token 0 stands.
			turnKey(key, a.KeyDim, r.prof.Rope(layer), r.prof.InvFreq(layer), r.start-r.lease.Begin)
			f(at, key, value)
			at++
		}
	}
	if at != r.start+r.lease.Tokens {
		r.t.Fatalf("layer %d: %d rows in the table of %d tokens", layer, at-r.start, r.lease.Tokens)
	}
}

// turnKey turns each head of a row by a distance.
func turnKey(row []float32, dim int, rope profile.Rope, invFreq []float64, by int) {
	half := rope.Dims / 2
	for head := 0; head < len(row); head += dim {
		x := row[head:]
		for i := range half {
			sin, cos := math.Sincos(float64(by) * invFreq[i])
			s, c := float32(sin), float32(cos)
			lo, hi := i, i+half
			if rope.Interleaved {
				lo, hi = 2*i, 2*i+1
			}
			x[lo], x[hi] = x[lo]*c-x[hi]*s, x[hi]*c+x[lo]*s
		}
	}
}

// softmax is attention of one query over rows as they come, in one pass.
type softmax struct {
	heads      int // of queries
	query      []float32
	top, total []float64
	out        []float64
}

func newSoftmax(query []float32, heads, valueDim int) *softmax {
	s := &softmax{heads: heads, query: query, top: make([]float64, heads), total: make([]float64, heads), out: make([]float64, heads*valueDim)}
	for i := range s.top {
		s.top[i] = math.Inf(-1)
	}
	return s
}

func (s *softmax) add(key, value []float32, kvHeads int) {
	dim, width := len(key)/kvHeads, len(value)/kvHeads
	for h := range s.heads {
		kv := h / (s.heads / kvHeads)
		score := 0.0
		for i := range dim {
			score += float64(s.query[h*dim+i]) * float64(key[kv*dim+i])
		}
		fade := 1.0
		if score > s.top[h] {
			fade = math.Exp(s.top[h] - score)
			s.top[h] = score
		}
		weight := math.Exp(score - s.top[h])
		s.total[h] = s.total[h]*fade + weight
		for i := range width {
			s.out[h*width+i] = s.out[h*width+i]*fade + weight*float64(value[kv*width+i])
		}
	}
}

func (s *softmax) result() []float64 {
	out := slices.Clone(s.out)
	for i := range out {
		out[i] /= s.total[i*s.heads/len(out)]
	}
	return out
}

// Two requests read the same pages at the same time, at different positions and
// in another order. Each attends as it does over rotated copies of its own.
func TestRequestsAliasPagesAtDifferentPositions(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	engines := []*connector.Client{attached(t, socket), attached(t, socket)}
	var models []*connector.Model
	for _, c := range engines {
		r, err := c.Register(m.Profile(), connector.Binding{Connector: "refengine test"})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		models = append(models, r)
	}
	store := remote.New(t.Context(), engines[0], models[0])
	texts := [][]uint32{text(2, 70), text(3, 49)}
	serve(t, m, store, refengine.Request{First: text(1, 20), Mid: texts, Query: text(4, 9), Seam: 8})
	var keys []profile.SegmentKey
	for _, x := range texts {
		spec, ok := m.Profile().MidSpec(len(x), 8)
		if !ok {
			t.Fatal("no interior")
		}
		keys = append(keys, store.Key(spec, x))
	}
	// Where the whole segments begin; interiors begin 8 tokens later.
	at := [][]int{{20, 90}, {170, 300}}
	held := [][]*connector.Lease{lease(t, models[0], keys...), lease(t, models[1], keys[1], keys[0])}
	slices.Reverse(held[1])
	for i := range keys {
		for _, layer := range m.Profile().AttentionLayers() {
			for _, kind := range []profile.PartKind{profile.PartK, profile.PartV} {
				a, b := held[0][i].Table(layer, kind), held[1][i].Table(layer, kind)
				if !slices.Equal(a, b) || len(a) != (held[0][i].Tokens+pagedBlock-1)/pagedBlock {
					t.Fatalf("segment %d, layer %d: tables %v and %v", i, layer, a, b)
				}
			}
		}
	}
	rng := rand.New(rand.NewPCG(5, 5))
	for engine, starts := range at {
		plan := connector.Plan{End: starts[1] + 200}
		last := 0
		for i, start := range starts {
			l := held[engine][i]
			plan.Spans = append(plan.Spans, connector.Span{Start: last, Count: start + l.Begin - last},
				connector.Span{Lease: l, Start: start + l.Begin, Count: l.Tokens})
			last = start + l.Begin + l.Tokens
		}
		plan.Spans = append(plan.Spans, connector.Span{Start: last, Count: plan.End - last})
		slot, err := models[engine].Rotate(t.Context(), &connector.RotateQuery{Layer: connector.AllLayers, Plan: plan})
		if err != nil {
			t.Fatal(err)
		}
		layout := m.Profile().RowsLayout(connector.AllLayers, slot.Rows)
		for _, layer := range m.Profile().AttentionLayers() {
			a, kvHeads := &m.Profile().Layer(layer).Attention, m.Profile().RankKVHeads(layer)
			query := make([]float32, 4*a.KeyDim)
			for i := range query {
				query[i] = float32(rng.NormFloat64())
			}
			tables := newSoftmax(query, 4, a.ValueDim)
			for i, start := range starts {
				l := held[engine][i]
				rowsOf{t, m.Profile(), l, start + l.Begin}.each(layer, func(_ int, k, v []float32) { tables.add(k, v, kvHeads) })
			}
			copies := newSoftmax(query, 4, a.ValueDim)
			k, v := floats(slot.Bytes(), layout, layer, profile.PartK), floats(slot.Bytes(), layout, layer, profile.PartV)
			for row := range slot.Rows {
				copies.add(k[row*kvHeads*a.KeyDim:][:kvHeads*a.KeyDim], v[row*kvHeads*a.ValueDim:][:kvHeads*a.ValueDim], kvHeads)
			}
			for i, want := range copies.result() {
				if got := tables.result()[i]; math.Abs(got-want) > 1e-6 {
					t.Errorf("request %d, layer %d, output %d: %g through tables, %g over copies", engine, layer, i, got, want)
				}
			}
		}
		slot.Release()
	}
	// The first request ends; the second one still reads what it has leased.
	before := slices.Clone(held[1][0].Block(2, profile.PartK, 0))
	connector.Release(held[0]...)
	if held[0][0].Block(2, profile.PartK, 0) != nil {
		t.Error("a block of a released lease can be read")
	}
	if !slices.Equal(held[1][0].Block(2, profile.PartK, 0), before) || !held[1][0].Valid() {
		t.Error("pages went away under a lease")
	}
	connector.Release(held[1]...)
}

func floats(b []byte, layout profile.Layout, layer int, kind profile.PartKind) []float32 {
	p := layout.Parts[layout.Find(layer, kind)]
	out := make([]float32, int(p.Len)/p.DType.Size())
	kernel.ToF32(out, b[p.Off:][:p.Len], kernel.DType(p.DType))
	return out
}

// One key that is not held keeps the others from being leased.
func TestOneMissKeepsAllFromBeingLeased(t *testing.T) {
	socket, _ := started(t)
	m := model(t, profile.GDN, profile.Rope{}, profile.F32)
	c := attached(t, socket)
	store := stored(t, c, m)
	serve(t, m, store, refengine.Request{First: text(1, 20), Mid: [][]uint32{text(2, 70)}, Query: text(4, 9), Seam: 8})
	r, err := c.Register(m.Profile(), connector.Binding{Connector: "refengine test"})
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := m.Profile().MidSpec(70, 8)
	rows, err := r.Acquire(t.Context(), []profile.SegmentKey{store.Key(spec, text(2, 70)), {7}}, connector.AcquireOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(rows[0].Err, connector.ErrCanceled) || !errors.Is(rows[1].Err, connector.ErrMiss) || rows[0].Lease != nil {
		t.Fatalf("%+v", rows)
	}
}
