package tiering

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The oracle keeps states as float64 [heads, dk, dv] and applies HYPIC Eq. 6
// and 7 with plain loops.

type oracle struct {
	p     *profile.Profile
	layer int
	state []float64
}

func newOracle(p *profile.Profile, layer int) *oracle {
	_, heads := p.RankHeads(layer)
	l := &p.Layer(layer).Linear
	return &oracle{p: p, layer: layer, state: make([]float64, heads*l.KeyDim*l.ValueDim)}
}

// apply is state = T*state + R(turn)*S.
func (o *oracle) apply(layout *profile.Layout, data []byte, turn int) {
	lin := &o.p.Layer(o.layer).Linear
	dk, dv := lin.KeyDim, lin.ValueDim
	t := numbers(layout, data, layout.Find(o.layer, profile.PartT))
	s := numbers(layout, data, layout.Find(o.layer, profile.PartS))
	next := make([]float64, len(o.state))
	for h := range len(o.state) / (dk * dv) {
		turned := turnRows(s[h*dk*dv:(h+1)*dk*dv], dk, dv, o.p.Rope(o.layer), o.p.InvFreq(o.layer), turn)
		for i := range dk {
			for j := range dv {
				sum := turned[i*dv+j]
				for k := range dk {
					sum += coefficient(lin.Transition(), t, h, dk, i, k) * o.state[(h*dk+k)*dv+j]
				}
				next[(h*dk+i)*dv+j] = sum
			}
		}
	}
	o.state = next
}

func coefficient(form profile.Transition, t []float64, h, dk, i, k int) float64 {
	switch {
	case form == profile.Dense:
		return t[(h*dk+i)*dk+k]
	case i != k:
		return 0
	case form == profile.Diagonal:
		return t[h*dk+i]
	}
	return t[h]
}

// turnRows turns a [dk, dv] matrix on its key axis by position.
func turnRows(s []float64, dk, dv int, rope profile.Rope, freq []float64, position int) []float64 {
	out := append([]float64(nil), s...)
	for i := range rope.Dims / 2 {
		a, b := i, i+rope.Dims/2
		if rope.Interleaved {
			a, b = 2*i, 2*i+1
		}
		sin, cos := math.Sincos(float64(position) * freq[i])
		for j := range dv {
			x, y := s[a*dv+j], s[b*dv+j]
			out[a*dv+j], out[b*dv+j] = x*cos-y*sin, x*sin+y*cos
		}
	}
	return out
}

// distance is the relative Frobenius error.
func distance(got, want []float64) float64 {
	var d, n float64
	for i := range want {
		d += (got[i] - want[i]) * (got[i] - want[i])
		n += want[i] * want[i]
	}
	return math.Sqrt(d / max(n, 1e-300))
}

func (b *bench) wantClose(what string, got, want []float64) {
	b.Helper()
	if len(got) != len(want) {
		b.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	if d := distance(got, want); !(d <= 1e-5) {
		b.Fatalf("%s: relative error %g", what, d)
	}
}

// prompt is a plan over published pieces with seams between them.
type prompt struct {
	plan   plan.Plan
	pieces []*piece // by span, nil = recomputed
	inputs [][]byte // by span, of SeamLayout(layer)
}

// noInputs, given to lay as the layer, leaves recomputed spans without input.
const noInputs = math.MinInt

// lay places pieces one after another: what a piece's interior leaves out is
// recomputed, and so are the query's tokens at the end.
func (b *bench) lay(c *Session, layer, begin, query int, pieces ...piece) *prompt {
	b.Helper()
	pr := &prompt{plan: plan.Plan{Begin: begin}}
	at, gap := begin, 0
	recompute := func(last bool) {
		if gap == 0 {
			return
		}
		sp := plan.Span{Kind: plan.SpanRecompute, Start: at, Count: gap}
		var data []byte
		if layer != noInputs && !last {
			seed := uint64(len(pr.plan.Spans) + 1)
			l := b.profile.SeamLayout(layer)
			data = content(&l, seed)
			sp.Input = b.seam(layer, seed)
		}
		pr.plan.Spans = append(pr.plan.Spans, sp)
		pr.pieces = append(pr.pieces, nil)
		pr.inputs = append(pr.inputs, data)
		at += gap
		gap = 0
	}
	for i := range pieces {
		head, n := pieces[i].spec.Interior()
		gap += head
		recompute(false)
		pr.plan.Spans = append(pr.plan.Spans, plan.Span{Kind: plan.SpanSegment, Lease: b.lease(c, pieces[i]), Start: at, Count: n})
		pr.pieces = append(pr.pieces, &pieces[i])
		pr.inputs = append(pr.inputs, nil)
		at += n
		gap = pieces[i].spec.Tail
	}
	gap += query
	recompute(true)
	pr.plan.End = at
	return pr
}

// walk is the oracle's way through a prompt: the states before each recomputed
// span and the final one.
func (b *bench) walk(pr *prompt, layer, asked int, start []float64) (states [][]float64) {
	o := newOracle(b.profile, layer)
	if start != nil {
		o.state = start
	}
	seam := b.profile.SeamLayout(asked)
	for i, p := range pr.pieces {
		if p != nil {
			o.apply(&p.layout, contentOf(*p, 0), pr.plan.Spans[i].Start-p.spec.Head)
			continue
		}
		states = append(states, o.state)
		if pr.inputs[i] != nil {
			o.apply(&seam, pr.inputs[i], 0)
		}
	}
	return append(states, o.state)
}

// three publishes a first segment and two mid ones.
func (b *bench) three(c *Session) []piece {
	ps := []piece{b.piece(1, profile.FirstSpec(20)), b.mid(2, 64, 8), b.mid(3, 40, 4)}
	for _, p := range ps {
		b.publish(c, p)
	}
	return ps
}

func TestComposeAgreesWithTheRecurrence(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	ps := b.three(c)
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	saved := b.save(c, b.saveQuery(1, 50, 16, tier.Exact), 16)[0]
	loaded, short := b.loadPrefix(c, hashOf(1, 50), tier.Exact), b.loadPrefix(c, hashOf(1, 16), tier.Exact)
	checkpoint, states := b.profile.CheckpointLayout(50-16), b.profile.StatesLayout(profile.AllLayers, 0)
	given := content(&states, 5)
	startOf := func(layout *profile.Layout, data []byte) map[int][]float64 {
		start := map[int][]float64{}
		for _, l := range b.profile.LinearLayers() {
			start[l] = numbers(layout, data, layout.Find(l, profile.PartS))
		}
		return start
	}
	type beginning struct {
		name  string
		layer int
		query int // tokens
		from  plan.From
		start map[int][]float64 // nil = zero, at token 0
	}
	rows := []beginning{
		{"checkpoint", profile.AllLayers, 9, plan.From{Kind: plan.FromCheckpoint, Lease: loaded.Lease}, startOf(&checkpoint, saved)},
		{"state", profile.AllLayers, 0, plan.From{Kind: plan.FromState, State: b.put(b.slots, 0, given)}, startOf(&states, given)},
	}
	for _, layer := range append([]int{profile.AllLayers}, b.profile.LinearLayers()...) {
		for _, query := range []int{0, 30} {
			rows = append(rows, beginning{fmt.Sprintf("layer=%d/query=%d", layer, query), layer, query, plan.From{}, nil})
		}
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			at, pieces := 0, ps
			if row.start != nil {
				at, pieces = 50, ps[1:] // ps[0] stands at token 0 alone
			}
			pr := b.lay(c, row.layer, at, row.query, pieces...)
			q := &plan.ComposeQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: row.layer, From: row.from, Plan: pr.plan}
			b.compareCompose(c, q, pr, row.layer, row.start)
			if row.from.Kind == plan.FromCheckpoint {
				q.From.Lease = short.Lease
				b.wantErr(c.Plans().Compose(b.ctx, q), tier.ErrInvalid) // of 16 tokens, the plan begins at 50
				q.From.Lease = pr.plan.Spans[1].Lease
				b.wantErr(c.Plans().Compose(b.ctx, q), tier.ErrInvalid) // a segment is no beginning
			}
		})
	}
	if n := b.Counters().Composed; n != 10 {
		t.Fatalf("%d composes counted", n)
	}
}

// compareCompose runs a query and compares every state of its answer.
func (b *bench) compareCompose(c *Session, q *plan.ComposeQuery, pr *prompt, layer int, start map[int][]float64) {
	b.Helper()
	bytes, err := b.geometry().ComposeBytes(q)
	b.must(err)
	q.Out = b.slot(1<<20, bytes)
	b.must(c.Plans().Compose(b.ctx, q))
	got := b.load(q.Out)
	seams := 0
	for i := range q.Plan.Spans {
		if q.Plan.Spans[i].Kind == plan.SpanRecompute {
			seams++
		}
	}
	layout := b.profile.StatesLayout(layer, seams)
	i := 0
	for _, l := range b.profile.LinearLayers() {
		if layer != profile.AllLayers && l != layer {
			continue
		}
		for k, want := range b.walk(pr, l, layer, start[l]) {
			b.wantClose(fmt.Sprintf("layer %d state %d", l, k), numbers(&layout, got, i), want)
			i++
		}
	}
	if i != len(layout.Parts) {
		b.Fatalf("compared %d states of %d", i, len(layout.Parts))
	}
}

func TestComposeInPlaceOrNotAtAll(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	from10 := plan.Plan{Begin: 10, End: 58, Spans: []plan.Span{{Kind: plan.SpanSegment, Lease: b.lease(c, p), Start: 10, Count: 48}}}
	bytes, err := b.geometry().StateBytes(profile.AllLayers)
	b.must(err)
	state := b.slot(0, bytes)
	q := &plan.ComposeQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, From: plan.From{Kind: plan.FromState, State: state}, Plan: from10, Out: state}
	b.must(c.Plans().Compose(b.ctx, q))
	// Off by the first layer's state: what that layer answers is what the next
	// one begins from, and no job alone has an overlap.
	first, err := b.geometry().StateBytes(b.profile.LinearLayers()[0])
	b.must(err)
	calls := b.dev.Calls(gpuipc.OpCompose)
	for _, off := range []int64{64, first} {
		q.Out = gpuipc.Ref{Region: b.slots, Extents: []gpuipc.Extent{{Off: off, Len: bytes}}}
		b.wantErr(c.Plans().Compose(b.ctx, q), tier.ErrInvalid)
	}
	if n := b.dev.Calls(gpuipc.OpCompose); n != calls {
		t.Fatalf("%d jobs ran before the overlap was noticed", n-calls)
	}
	from10.Spans = append(from10.Spans, plan.Span{Kind: plan.SpanRecompute, Start: 58, Count: 2})
	from10.End = 60
	q.Plan, q.Out = from10, gpuipc.Ref{Region: b.slots, Extents: []gpuipc.Extent{{Off: 0, Len: 2 * bytes}}}
	b.wantErr(c.Plans().Compose(b.ctx, q), tier.ErrInvalid)
}

func TestPlansThatCannotBeRight(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	ps := b.three(c)
	good := b.lay(c, profile.AllLayers, 0, 5, ps...)
	bytes, err := b.geometry().ComposeBytes(&plan.ComposeQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: good.plan})
	b.must(err)
	run := func(change func(q *plan.ComposeQuery)) error {
		q := &plan.ComposeQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: good.plan, Out: b.slot(0, bytes)}
		q.Plan.Spans = append([]plan.Span(nil), good.plan.Spans...)
		change(q)
		return c.Plans().Compose(b.ctx, q)
	}
	b.must(run(func(*plan.ComposeQuery) {}))
	// Spans: 0 first segment, 1 seam, 2 mid, 3 seam, 4 mid, 5 query.
	shift := func(q *plan.ComposeQuery, from, by int) {
		for i := from; i < len(q.Plan.Spans); i++ {
			q.Plan.Spans[i].Start += by
		}
		q.Plan.End += by
	}
	for name, bad := range map[string]func(q *plan.ComposeQuery){
		"gap":                     func(q *plan.ComposeQuery) { shift(q, 2, 1) },
		"overlap":                 func(q *plan.ComposeQuery) { shift(q, 2, -1) },
		"span missing":            func(q *plan.ComposeQuery) { q.Plan.Spans = append(q.Plan.Spans[:1], q.Plan.Spans[2:]...) },
		"span twice":              func(q *plan.ComposeQuery) { q.Plan.Spans = append(q.Plan.Spans[:2], q.Plan.Spans[1:]...) },
		"ends early":              func(q *plan.ComposeQuery) { q.Plan.End++ },
		"ends late":               func(q *plan.ComposeQuery) { q.Plan.End-- },
		"begins late":             func(q *plan.ComposeQuery) { q.Plan.Begin = 1 },
		"negative begin":          func(q *plan.ComposeQuery) { q.Plan.Begin = -1 },
		"absurd end":              func(q *plan.ComposeQuery) { q.Plan.End = math.MaxInt },
		"empty span":              func(q *plan.ComposeQuery) { q.Plan.Spans[1].Count = 0; shift(q, 2, -8) },
		"negative span":           func(q *plan.ComposeQuery) { q.Plan.Spans[1].Count = -8; shift(q, 2, -16) },
		"absurd span":             func(q *plan.ComposeQuery) { q.Plan.Spans[5].Count = math.MaxInt },
		"unknown kind":            func(q *plan.ComposeQuery) { q.Plan.Spans[1].Kind = 3 },
		"segment cut short":       func(q *plan.ComposeQuery) { q.Plan.Spans[2].Count--; q.Plan.Spans[3].Start--; q.Plan.Spans[3].Count++ },
		"seam without input":      func(q *plan.ComposeQuery) { q.Plan.Spans[3].Input = gpuipc.Ref{} },
		"input of another size":   func(q *plan.ComposeQuery) { q.Plan.Spans[3].Input = q.Plan.Spans[3].Input.Slice(0, 64) },
		"segment with an input":   func(q *plan.ComposeQuery) { q.Plan.Spans[2].Input = q.Plan.Spans[3].Input },
		"another segment's lease": func(q *plan.ComposeQuery) { q.Plan.Spans[2].Lease = q.Plan.Spans[4].Lease },
		"first segment not first": func(q *plan.ComposeQuery) {
			q.Plan.Spans = []plan.Span{{Kind: plan.SpanRecompute, Start: 0, Count: 5, Input: q.Plan.Spans[1].Input}, q.Plan.Spans[0]}
			q.Plan.Spans[1].Start, q.Plan.End = 5, 25
		},
		"no room for a head": func(q *plan.ComposeQuery) {
			q.Plan.Spans = []plan.Span{q.Plan.Spans[2]}
			q.Plan.Spans[0].Start, q.Plan.End = 0, 48
		},
		"whole segments overlap": func(q *plan.ComposeQuery) {
			q.Plan.Spans[1].Count--
			shift(q, 2, -1)
		},
		"head in the tail before": func(q *plan.ComposeQuery) { // a seam of 12 for a tail of 8 and a head of 4
			q.Plan.Spans[3].Count--
			shift(q, 4, -1)
		},
		"checkpoint as a segment": func(q *plan.ComposeQuery) {
			b.save(c, b.saveQuery(1, 20, 0, tier.Exact), 0)
			q.Plan.Spans[0].Lease = b.loadPrefix(c, hashOf(1, 20), tier.Exact).Lease
		},
		"interiors side by side": func(q *plan.ComposeQuery) {
			q.Plan.Spans = append(q.Plan.Spans[:1], q.Plan.Spans[2])
			q.Plan.Spans[1].Start, q.Plan.End = 20, 68
		},
		"answer too small":     func(q *plan.ComposeQuery) { q.Out = b.slot(0, bytes-64) },
		"no answer":            func(q *plan.ComposeQuery) { q.Out = gpuipc.Ref{} },
		"attention layer":      func(q *plan.ComposeQuery) { q.Layer = 1 },
		"layer past the last":  func(q *plan.ComposeQuery) { q.Layer = 8 },
		"layer before AllOnes": func(q *plan.ComposeQuery) { q.Layer = -2 },
		"no such rank":         func(q *plan.ComposeQuery) { q.Rank = 1 },
		"no such profile":      func(q *plan.ComposeQuery) { q.Profile = 2 },
		"unknown beginning":    func(q *plan.ComposeQuery) { q.From.Kind = 3 },
		"zero state in the middle": func(q *plan.ComposeQuery) {
			q.Plan.Spans = q.Plan.Spans[1:]
			q.Plan.Begin = 20
		},
		"state of another size": func(q *plan.ComposeQuery) { q.From = plan.From{Kind: plan.FromState, State: b.slot(8<<20, 64)} },
	} {
		t.Run(name, func(t *testing.T) { b.wantErr(run(bad), tier.ErrInvalid) })
	}
	for name, bad := range map[string]func(q *plan.ComposeQuery){
		"no such lease":   func(q *plan.ComposeQuery) { q.Plan.Spans[2].Lease = 1 << 40 },
		"another tenant":  func(q *plan.ComposeQuery) { q.Tenant = tenantB },
		"no lease at all": func(q *plan.ComposeQuery) { q.Plan.Spans[2].Lease = 0 },
	} {
		t.Run(name, func(t *testing.T) { b.wantErr(run(bad), tier.ErrGone) })
	}
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	q := &plan.ComposeQuery{Scope: plan.Scope{Profile: b.id, Tenant: tenantA}, Layer: profile.AllLayers, Plan: good.plan, Out: b.slot(0, bytes)}
	b.wantErr(c.Plans().Compose(ctx, q), context.Canceled)
	if n := b.Counters().Composed; n != 1 {
		t.Fatalf("%d composes counted, one succeeded", n)
	}
	for _, id := range []int{0, 2, 4} {
		b.must(c.Release(good.plan.Spans[id].Lease))
	}
	if got := b.Pools()[0].LeasedBytes; got != 0 {
		t.Fatalf("refused plans keep %d bytes leased", got)
	}
}
