package tiering

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// row is what one token's keys (or values) of one layer should be at their
// destination: src are the stored numbers [heads, dim].
func (b *bench) wantRow(layer int, kind profile.PartKind, src []float64, local, head, start int) []float64 {
	a := &b.profile.Layer(layer).Attention
	if kind == profile.PartV || a.Rope.Dims == 0 {
		return src
	}
	position := start - head // one turn for all rows
	if a.Keys == profile.Unrotated {
		position = start + local
	}
	var out []float64
	for h := range len(src) / a.KeyDim {
		out = append(out, turnRows(src[h*a.KeyDim:(h+1)*a.KeyDim], a.KeyDim, 1, a.Rope, b.profile.InvFreq(layer), position)...)
	}
	return out
}

// eachRow calls f with every row of every segment of a prompt, as it should be:
// row counts rows of the plan, at is the prompt position.
func (b *bench) eachRow(pr *prompt, layer int, kind profile.PartKind, f func(row, at int, want []float64)) {
	row := 0
	for i, p := range pr.pieces {
		if p == nil {
			continue
		}
		sp := pr.plan.Spans[i]
		all := numbers(&p.layout, contentOf(*p, 0), p.layout.Find(layer, kind))
		width := len(all) / sp.Count
		for local := range sp.Count {
			f(row, sp.Start+local, b.wantRow(layer, kind, all[local*width:(local+1)*width], local, p.spec.Head, sp.Start))
			row++
		}
	}
}

// tolerance of one number: bf16 rows without rope are copies.
func (b *bench) wantNumbers(what string, got, want []float64) {
	b.Helper()
	for i := range want {
		if math.Abs(got[i]-want[i]) > 2e-6 {
			b.Fatalf("%s: number %d is %g, want %g", what, i, got[i], want[i])
		}
	}
}

var rowKinds = []profile.PartKind{profile.PartK, profile.PartV}

func TestRotatePacksTurnedRows(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	pr := b.lay(c, noInputs, 0, 30, b.three(c)...)
	for _, layer := range append([]int{profile.AllLayers}, b.profile.AttentionLayers()...) {
		t.Run(fmt.Sprintf("layer=%d", layer), func(t *testing.T) {
			q := &plan.RotateQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: layer, Plan: pr.plan}
			bytes, rows, err := b.geometry().RotateBytes(q)
			b.must(err)
			if rows != 20+48+32 {
				t.Fatalf("%d rows", rows)
			}
			q.Dest.Out = b.slot(0, bytes)
			b.must(c.Plans().Rotate(b.ctx, q))
			layout, data := b.profile.RowsLayout(layer, rows), b.load(q.Dest.Out)
			compared := 0
			for i, part := range layout.Parts {
				got := numbers(&layout, data, i)
				width := len(got) / rows
				b.eachRow(pr, part.Layer, part.Kind, func(row, at int, want []float64) {
					b.wantNumbers(fmt.Sprintf("layer %d part %d row %d", part.Layer, part.Kind, row), got[row*width:(row+1)*width], want)
					compared++
				})
			}
			if compared != rows*len(layout.Parts) || compared == 0 {
				t.Fatalf("compared %d rows", compared)
			}
		})
	}
	if n := b.Counters().Rotated; n != 5 {
		t.Fatalf("%d rotations counted", n)
	}
}

// engine is engine memory for every attention layer: [block, head, token, dim]
// for keys and [block, token, head, dim] for values, layer after layer.
type engine struct {
	*bench
	memory plan.EngineMemory
	blocks []uint32
}

func (b *bench) engine(blockTokens, blocks int, table []uint32) *engine {
	b.Helper()
	e := &engine{bench: b, memory: plan.EngineMemory{Region: b.region("engine", 8<<20), BlockTokens: blockTokens}, blocks: table}
	b.Cleanup(func() { _ = e.memory.Region.Close() })
	off := int64(256)
	for _, layer := range b.profile.AttentionLayers() {
		a, heads := &b.profile.Layer(layer).Attention, int64(b.profile.RankKVHeads(layer))
		k, v := int64(a.KeyDim*a.DType.Size()), int64(a.ValueDim*a.DType.Size())
		ml := plan.EngineLayer{
			Layer: layer, KBase: off, VBase: off + int64(blockTokens)*heads*k,
			BlockStride:  int64(blockTokens) * heads * (k + v),
			KTokenStride: k, KHeadStride: int64(blockTokens) * k,
			VTokenStride: heads * v, VHeadStride: v,
		}
		off += ml.BlockStride * int64(blocks)
		e.memory.Layers = append(e.memory.Layers, ml)
	}
	b.must(b.geometry().CheckMemory(&e.memory))
	return e
}

// row reads one token's keys or values as [heads, dim].
func (e *engine) row(layer int, kind profile.PartKind, at int) (out []float64) {
	e.Helper()
	a := &e.profile.Layer(layer).Attention
	i := slices.IndexFunc(e.memory.Layers, func(ml plan.EngineLayer) bool { return ml.Layer == layer })
	ml := e.memory.Layers[i]
	base, token, head, dim := ml.KBase, ml.KTokenStride, ml.KHeadStride, a.KeyDim
	if kind == profile.PartV {
		base, token, head, dim = ml.VBase, ml.VTokenStride, ml.VHeadStride, a.ValueDim
	}
	n := e.memory.BlockTokens
	for h := range e.profile.RankKVHeads(layer) {
		off := base + int64(e.blocks[at/n])*ml.BlockStride + int64(at%n)*token + int64(h)*head
		raw := e.load(gpuipc.Ref{Region: e.memory.Region, Extents: []gpuipc.Extent{{Off: off, Len: int64(dim * a.DType.Size())}}})
		for k := range dim {
			out = append(out, getFloat(raw[k*a.DType.Size():], a.DType))
		}
	}
	return out
}

// untouched checks that tokens that nothing was placed at are still zero.
func (e *engine) untouched(begin, end int) {
	e.Helper()
	for _, layer := range e.profile.AttentionLayers() {
		for at := begin; at < end; at++ {
			for _, kind := range rowKinds {
				for _, v := range e.row(layer, kind, at) {
					if v != 0 {
						e.Fatalf("layer %d: token %d was written", layer, at)
					}
				}
			}
		}
	}
}

// table is a block table that goes through memory out of order.
func table(n int) []uint32 {
	blocks := make([]uint32, n)
	for i := range blocks {
		blocks[i] = uint32((i*7 + 3) % n)
	}
	return blocks
}

func TestRotateScattersToEngineMemory(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	b.save(c, b.saveQuery(1, 10, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(1, 37, 10, tier.Exact), 10)
	first, last := b.mid(2, 64, 8), b.mid(3, 40, 4)
	b.publish(c, first)
	b.publish(c, last)
	pr := b.lay(c, noInputs, 37, 12, first, last)
	e := b.engine(16, 17, table(17))
	loaded := b.loadPrefix(c, hashOf(1, 37), tier.Exact)
	q := &plan.RotateQuery{
		Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: pr.plan,
		From: plan.From{Kind: plan.FromCheckpoint, Lease: loaded.Lease},
		Dest: plan.Destination{Memory: &e.memory, Blocks: e.blocks},
	}
	if bytes, _, err := b.geometry().RotateBytes(q); err != nil || bytes != 0 {
		t.Fatalf("%d bytes of slot, %v", bytes, err)
	}
	b.must(c.Plans().Rotate(b.ctx, q))
	e.wantPlan(pr)
	e.wantChain(loaded)
	for i, sp := range pr.plan.Spans {
		if pr.pieces[i] == nil {
			e.untouched(sp.Start, sp.Start+sp.Count)
		}
	}
}

func (e *engine) wantPlan(pr *prompt) {
	e.Helper()
	for _, layer := range e.profile.AttentionLayers() {
		for _, kind := range rowKinds {
			e.eachRow(pr, layer, kind, func(_, at int, want []float64) {
				e.wantNumbers(fmt.Sprintf("layer %d part %d token %d", layer, kind, at), e.row(layer, kind, at), want)
			})
		}
	}
}

// wantChain checks that a checkpoint's rows lie unturned at their positions.
func (e *engine) wantChain(l Loaded) {
	e.Helper()
	for _, node := range l.Nodes {
		layout := e.profile.CheckpointLayout(node.End - node.Begin)
		data := e.load(gpuipc.Ref{Region: e.Arena(), Extents: node.Extents})
		for i, part := range layout.Parts {
			if !slices.Contains(rowKinds, part.Kind) {
				continue
			}
			all := numbers(&layout, data, i)
			width := len(all) / (node.End - node.Begin)
			for r := range node.End - node.Begin {
				e.wantNumbers(fmt.Sprintf("layer %d token %d", part.Layer, node.Begin+r), e.row(part.Layer, part.Kind, node.Begin+r), all[r*width:(r+1)*width])
			}
		}
	}
}

func TestRotateRefusesBlocksOutsideTheMemory(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(2, 64, 8)
	b.publish(c, p)
	pr := b.lay(c, noInputs, 0, 12, p)
	e := b.engine(16, 5, table(5))
	run := func(blocks []uint32) error {
		return c.Plans().Rotate(b.ctx, &plan.RotateQuery{
			Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: pr.plan, Dest: plan.Destination{Memory: &e.memory, Blocks: blocks},
		})
	}
	b.must(run([]uint32{0, 1, 2, 3})) // tokens 8 to 56; the query's block is not needed
	b.wantErr(run([]uint32{0, 1, 2}), tier.ErrInvalid)
	b.wantErr(run(nil), tier.ErrInvalid)
	b.wantErr(run([]uint32{0, 1, 1 << 30, 3, 4}), tier.ErrInvalid)
	b.wantErr(run([]uint32{0, 1, math.MaxUint32, 3, 4}), tier.ErrInvalid)
	// Every span is checked before the first row of any layer moves.
	calls := b.dev.Calls(gpuipc.OpRotate)
	b.wantErr(run([]uint32{0, 1, 2, 1 << 20, 4}), tier.ErrInvalid)
	if n := b.dev.Calls(gpuipc.OpRotate); n != calls {
		t.Fatalf("%d jobs ran with a block outside the memory", n-calls)
	}
	if got := b.Pools()[0].LeasedBytes; got != b.cost(p) {
		t.Fatalf("%d bytes leased", got)
	}
}

// Memory of exactly five blocks has no sixth.
func TestBlocksReachToTheLastByte(t *testing.T) {
	b := newBench(t, profiletest.Wide(profile.F32))
	c := b.NewSession("c")
	p := b.piece(1, profile.FirstSpec(16))
	b.publish(c, p)
	const k, v = 64 * 4, 1024 * 4
	m := plan.EngineMemory{Region: b.region("engine", 5*16*(k+v)), BlockTokens: 16, Layers: []plan.EngineLayer{{
		VBase: 16 * k, BlockStride: 16 * (k + v), KTokenStride: k, KHeadStride: k, VTokenStride: v, VHeadStride: v,
	}}}
	t.Cleanup(func() { b.must(m.Region.Close()) })
	b.must(b.geometry().CheckMemory(&m))
	q := &plan.RotateQuery{
		Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Dest: plan.Destination{Memory: &m, Blocks: []uint32{4}},
		Plan: plan.Plan{End: 16, Spans: []plan.Span{{Kind: plan.SpanSegment, Lease: b.lease(c, p), Count: 16}}},
	}
	b.must(c.Plans().Rotate(b.ctx, q))
	calls := b.dev.Calls(gpuipc.OpRotate)
	q.Dest.Blocks = []uint32{5}
	b.wantErr(c.Plans().Rotate(b.ctx, q), tier.ErrInvalid)
	if n := b.dev.Calls(gpuipc.OpRotate); n != calls {
		t.Fatalf("%d jobs ran with a block outside the memory", n-calls)
	}
}

func TestCheckMemoryRefusesWhatRowsDoNotFit(t *testing.T) {
	b := newBench(t, hybrid(1))
	good := b.engine(16, 5, nil).memory
	for name, change := range map[string]func(m *plan.EngineMemory){
		"no layers":              func(m *plan.EngineMemory) { m.Layers = nil },
		"a layer missing":        func(m *plan.EngineMemory) { m.Layers = m.Layers[1:] },
		"a layer twice":          func(m *plan.EngineMemory) { m.Layers[1] = m.Layers[0] },
		"a linear layer":         func(m *plan.EngineMemory) { m.Layers[0].Layer = 0 },
		"all layers at once":     func(m *plan.EngineMemory) { m.Layers[0].Layer = profile.AllLayers },
		"no block size":          func(m *plan.EngineMemory) { m.BlockTokens = 0 },
		"absurd block size":      func(m *plan.EngineMemory) { m.BlockTokens = 1 << 30 },
		"negative base":          func(m *plan.EngineMemory) { m.Layers[0].KBase = -64 },
		"base past the end":      func(m *plan.EngineMemory) { m.Layers[0].VBase = 8 << 20 },
		"unaligned base":         func(m *plan.EngineMemory) { m.Layers[0].VBase++ },
		"absurd stride":          func(m *plan.EngineMemory) { m.Layers[0].BlockStride = math.MaxInt64 },
		"no token stride":        func(m *plan.EngineMemory) { m.Layers[0].KTokenStride = 0 },
		"head stride too small":  func(m *plan.EngineMemory) { m.Layers[0].VHeadStride = 4 },
		"block larger than all":  func(m *plan.EngineMemory) { m.Layers[0].VTokenStride = 1 << 20 },
		"no block stride at all": func(m *plan.EngineMemory) { m.Layers[0].BlockStride = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			m := good
			m.Layers = slices.Clone(good.Layers)
			change(&m)
			b.wantErr(b.geometry().CheckMemory(&m), tier.ErrInvalid)
		})
	}
	_, err := b.Store.Geometry(9)
	b.wantErr(err, tier.ErrInvalid)
}

func TestRotateRefusals(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(2, 64, 8)
	b.publish(c, p)
	pr := b.lay(c, noInputs, 0, 12, p)
	base := &plan.RotateQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: pr.plan}
	bytes, _, err := b.geometry().RotateBytes(base)
	b.must(err)
	for name, change := range map[string]func(q *plan.RotateQuery){
		"linear layer":      func(q *plan.RotateQuery) { q.Layer = 0 },
		"no such layer":     func(q *plan.RotateQuery) { q.Layer = 99 },
		"answer too small":  func(q *plan.RotateQuery) { q.Dest.Out = b.slot(0, bytes-64) },
		"unknown beginning": func(q *plan.RotateQuery) { q.From.Kind = 7 },
		"gap":               func(q *plan.RotateQuery) { q.Plan.End++ },
		"no such rank":      func(q *plan.RotateQuery) { q.Rank = 3 },
		"no such tenant":    func(q *plan.RotateQuery) { q.Tenant = 9 },
	} {
		t.Run(name, func(t *testing.T) {
			q := *base
			q.Dest.Out = b.slot(0, bytes)
			change(&q)
			b.wantErr(c.Plans().Rotate(b.ctx, &q), tier.ErrInvalid)
		})
	}
}

func TestAssembleIsComposeAndRotateAndTails(t *testing.T) {
	for _, from := range []plan.FromKind{plan.FromZero, plan.FromCheckpoint} {
		for _, paged := range []bool{false, true} {
			t.Run(fmt.Sprintf("from=%d/paged=%v", from, paged), func(t *testing.T) { newBench(t, hybrid(1)).assembleOnce(from, paged) })
		}
	}
}

// assembleOnce assembles what can be without seams: a first segment and the
// query, or a checkpoint, a mid segment whose head the checkpoint covers, and
// the query.
func (b *bench) assembleOnce(from plan.FromKind, paged bool) {
	b.Helper()
	c := b.NewSession("c")
	begin, start := 0, map[int][]float64{}
	q := &plan.AssembleQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}}
	p := b.piece(1, profile.FirstSpec(33))
	var loaded Loaded
	if from == plan.FromCheckpoint {
		begin, p = 40, b.mid(2, 64, 8)
		data := b.save(c, b.saveQuery(1, begin, 0, tier.Exact), 0)[0]
		layout := b.profile.CheckpointLayout(begin)
		for _, l := range b.profile.LinearLayers() {
			start[l] = numbers(&layout, data, layout.Find(l, profile.PartS))
		}
		loaded = b.loadPrefix(c, hashOf(1, begin), tier.Exact)
		q.From = plan.From{Kind: plan.FromCheckpoint, Lease: loaded.Lease}
	}
	b.publish(c, p)
	_, n := p.spec.Interior()
	end := begin + n + 20
	pr := &prompt{pieces: []*piece{&p, nil}, inputs: [][]byte{nil, nil}, plan: plan.Plan{Begin: begin, End: end, Spans: []plan.Span{
		{Kind: plan.SpanSegment, Lease: b.lease(c, p), Start: begin, Count: n},
		{Kind: plan.SpanRecompute, Start: begin + n, Count: 20},
	}}}
	q.Plan = pr.plan
	e := b.engine(16, 13, table(13))
	rows := n
	if paged {
		q.Dest.Memory, q.Dest.Blocks, rows = &e.memory, e.blocks, 0
	}
	bytes, total, err := b.geometry().AssembleBytes(q)
	layout := b.profile.CheckpointLayout(rows)
	if err != nil || total != n || bytes != layout.Bytes {
		b.Fatalf("%d bytes for %d rows, %v", bytes, total, err)
	}
	q.Dest.Out = b.slot(0, bytes)
	b.must(c.Plans().Assemble(b.ctx, q))

	data := b.load(q.Dest.Out)
	for _, l := range b.profile.LinearLayers() {
		states := b.walk(pr, l, profile.AllLayers, start[l])
		b.wantClose(fmt.Sprintf("state of layer %d", l), numbers(&layout, data, layout.Find(l, profile.PartS)), states[len(states)-1])
		if i := layout.Find(l, profile.PartConv); i >= 0 {
			want := numbers(&p.layout, contentOf(p, 0), p.layout.Find(l, profile.PartConv))
			b.wantNumbers("convolution tail", numbers(&layout, data, i), want)
		}
	}
	if paged {
		e.wantPlan(pr)
		if from == plan.FromCheckpoint {
			e.wantChain(loaded)
		}
		e.untouched(begin+n, end)
		return
	}
	for i, part := range layout.Parts {
		if !slices.Contains(rowKinds, part.Kind) {
			continue
		}
		got := numbers(&layout, data, i)
		width := len(got) / n
		b.eachRow(pr, part.Layer, part.Kind, func(row, _ int, want []float64) {
			b.wantNumbers(fmt.Sprintf("layer %d row %d", part.Layer, row), got[row*width:(row+1)*width], want)
		})
	}
}

// Without a segment the tails are the checkpoint's, and without a checkpoint
// either they and the states are zero, whatever the slot held before.
func TestAssembleWithoutSegments(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	saved := b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)[0]
	loaded := b.loadPrefix(c, hashOf(1, 16), tier.Exact)
	savedLayout, layout := b.profile.CheckpointLayout(16), b.profile.CheckpointLayout(0)
	for _, from := range []plan.From{{}, {Kind: plan.FromCheckpoint, Lease: loaded.Lease}} {
		begin := 0
		if from.Kind == plan.FromCheckpoint {
			begin = 16
		}
		out := b.slot(0, layout.Bytes)
		b.must(b.dev.Store(b.ctx, out, content(&layout, 99)))
		b.must(c.Plans().Assemble(b.ctx, &plan.AssembleQuery{
			Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, From: from, Dest: plan.Destination{Out: out},
			Plan: plan.Plan{Begin: begin, End: begin + 5, Spans: []plan.Span{{Kind: plan.SpanRecompute, Start: begin, Count: 5}}},
		}))
		data := b.load(out)
		for i, part := range layout.Parts {
			if part.Len == 0 {
				continue
			}
			want := make([]float64, part.Len/int64(part.DType.Size()))
			if begin > 0 {
				want = numbers(&savedLayout, saved, savedLayout.Find(part.Layer, part.Kind))
			}
			b.wantNumbers(fmt.Sprintf("layer %d part %d", part.Layer, part.Kind), numbers(&layout, data, i), want)
		}
	}
}

func TestAssembleRefusals(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.piece(1, profile.FirstSpec(33))
	b.publish(c, p)
	base := &plan.AssembleQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Plan: plan.Plan{End: 40, Spans: []plan.Span{
		{Kind: plan.SpanSegment, Lease: b.lease(c, p), Start: 0, Count: 33},
		{Kind: plan.SpanRecompute, Start: 33, Count: 7},
	}}}
	bytes, _, err := b.geometry().AssembleBytes(base)
	b.must(err)
	for name, change := range map[string]func(q *plan.AssembleQuery){
		"answer too small":       func(q *plan.AssembleQuery) { q.Dest.Out = b.slot(0, bytes-64) },
		"from a bare state":      func(q *plan.AssembleQuery) { q.From = plan.From{Kind: plan.FromState, State: b.slot(1<<20, 64)} },
		"unknown beginning":      func(q *plan.AssembleQuery) { q.From.Kind = 7 },
		"last span has an input": func(q *plan.AssembleQuery) { q.Plan.Spans[1].Input = b.seam(profile.AllLayers, 1) },
		"recomputed in between": func(q *plan.AssembleQuery) {
			q.Plan.Spans = append(q.Plan.Spans, plan.Span{Kind: plan.SpanRecompute, Start: 40, Count: 1})
			q.Plan.End++
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := *base
			q.Plan.Spans = slices.Clone(base.Plan.Spans)
			q.Dest.Out = b.slot(0, bytes)
			change(&q)
			b.wantErr(c.Plans().Assemble(b.ctx, &q), tier.ErrInvalid)
		})
	}
}

// The blocks of a layer lie in one run of addresses of memory that has several.
func TestRowsStayInTheirRunOfEngineMemory(t *testing.T) {
	b := newBench(t, hybrid(1))
	e := b.engine(16, 2, []uint32{0, 1})
	first := &e.memory.Layers[0]
	e.memory.Chunks = []int64{first.VBase + first.BlockStride, e.memory.Region.Bytes()}
	b.must(b.geometry().CheckMemory(&e.memory))
	c := b.NewSession("c")
	p := b.piece(1, profile.FirstSpec(32))
	b.publish(c, p)
	q := &plan.RotateQuery{
		Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers,
		Plan: plan.Plan{End: 32, Spans: []plan.Span{{Kind: plan.SpanSegment, Lease: b.lease(c, p), Count: 32}}},
		Dest: plan.Destination{Memory: &e.memory, Blocks: e.blocks},
	}
	b.wantErr(c.Plans().Rotate(b.ctx, q), tier.ErrInvalid)
	e.memory.Chunks[0] = first.VBase + first.VTokenStride
	b.wantErr(b.geometry().CheckMemory(&e.memory), tier.ErrInvalid)
	e.memory.Chunks = nil
	b.must(c.Plans().Rotate(b.ctx, q))
}
