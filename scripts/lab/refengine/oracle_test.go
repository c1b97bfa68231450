package refengine

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

// replay is the meaning of a splice without transitions: the state before a
// span is reached by running the recurrence token by token over everything left
// of it, with the inputs that each cached token had in its segment's own pass.
type replay struct {
	*Held[float64]
	w      *walk[float64]
	passes []*recorded
}

// recorded holds the recurrence's inputs of one isolated pass, per layer.
type recorded struct{ mixed, decay, beta, in [][]float64 }

func record(t *testing.T, m *Model[float64], tokens []uint32) *recorded {
	n := len(m.layers)
	r := &recorded{make([][]float64, n), make([][]float64, n), make([][]float64, n), make([][]float64, n)}
	w := m.continuing(m.NewState(), len(tokens))
	w.tap = func(i int, w *walk[float64]) {
		r.mixed[i], r.decay[i] = slices.Clone(w.mixed), slices.Clone(w.decay)
		r.beta[i], r.in[i] = slices.Clone(w.beta), slices.Clone(w.in)
	}
	if _, err := m.run(w, tokens); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *replay) Left(layer, span int) ([]float64, error) {
	l := r.m.layers[layer].linear
	c := r.m.cfg.Linear.ConvChannels()
	tail := slices.Clone(r.from.Layers[layer].Conv)
	for _, p := range r.plan.Spans {
		if p.Segment < 0 {
			if span == 0 {
				return tail, nil
			}
			span--
			continue
		}
		tail = tail[:0]
		end := r.segments[p.Segment].Spec.Head + p.Count
		for t := end - (r.m.cfg.Linear.Kernel - 1); t < end; t++ {
			tail = append(tail, r.passes[p.Segment].in[layer][t*l.cols:][:c]...)
		}
	}
	return tail, nil
}

func (r *replay) States(layer int, _ []Tuple[float64]) ([][]float64, error) {
	state := slices.Clone(r.from.Layers[layer].S)
	var before [][]float64
	for _, p := range r.plan.Spans {
		if p.Segment < 0 {
			span := r.w.spans[len(before)]
			before = append(before, slices.Clone(state))
			r.advance(layer, state, r.w.workspace, span.lo, span.hi)
			continue
		}
		pass, spec := r.passes[p.Segment], r.segments[p.Segment].Spec
		ws := &workspace[float64]{
			mixed: slices.Clone(pass.mixed[layer]), decay: pass.decay[layer], beta: pass.beta[layer],
		}
		r.turnKeys(ws.mixed, p.Start-spec.Head)
		r.advance(layer, state, ws, spec.Head, spec.Head+p.Count)
	}
	return before, nil
}

// turnKeys gives keys the rotation of their true position.
func (r *replay) turnKeys(mixed []float64, start int) {
	c := r.m.cfg.Linear
	if c.Rope.Dims == 0 {
		return
	}
	cos, sin := anglesAt[float64](r.m.linRope.invFreq, start)
	for at := c.KeyHeads * c.KeyDim; at < len(mixed); at += c.ConvChannels() {
		for h := range c.KeyHeads {
			turn(mixed[at+h*c.KeyDim:][:c.KeyDim], cos, sin, c.Rope.Interleaved)
		}
	}
}

func (r *replay) advance(layer int, state []float64, ws *workspace[float64], lo, hi int) {
	c := r.m.cfg.Linear
	size := c.KeyDim * c.ValueDim
	for h := range c.ValueHeads {
		in := r.m.valueHead(&walk[float64]{workspace: ws}, r.m.layers[layer].linear, h, lo, hi)
		in.run(state[h*size:][:size], c.KeyDim, c.ValueDim, nil, 0, make([]float64, scratchSize(c)))
	}
}

// A deep splice is not a full prefill: interiors have not seen their context.
// What it must equal is the same rows run one by one without any composition.
func TestDeepSpliceEqualsRunningItsTokensOneByOne(t *testing.T) {
	lengths := []int{21, 40, 33, 57}
	for _, f := range families {
		c := tiny(f.family, f.rope, "LLFLLF")
		plain := c
		plain.Linear.Kernel = 0
		seams, none := build[float64](t, c), build[float64](t, plain)
		p := newPrompt(seams, 8, lengths, 11)
		p.placed[2].Held = false
		behind := newPromptBehind(seams, 26, 8, lengths[1:], 2)
		behind.placed[1].Held = false
		t.Run(f.name, func(t *testing.T) { oneByOne(t, seams, p) })
		if raceEnabled && f.family != profile.GDN {
			continue // the same goroutines, at ten times the cost
		}
		t.Run(f.name+"/behind a prefix", func(t *testing.T) { oneByOne(t, seams, behind) })
		t.Run(f.name+"/interiors that meet", func(t *testing.T) { oneByOne(t, none, newPrompt(none, 0, lengths, 1)) })
	}
}

func oneByOne(t *testing.T, m *Model[float64], p prompt) {
	segments := capture(t, m, p)
	got, gotState := splice(t, m, p, segments)
	plan := p.plan(t)
	held, err := NewHeld(m, plan, before(t, m, p), segments)
	if err != nil {
		t.Fatal(err)
	}
	r := &replay{Held: held, passes: make([]*recorded, len(segments))}
	for i, s := range segments {
		if s != nil {
			r.passes[i] = record(t, m, p.segments[i])
		}
	}
	want, wantState := r.run(t, plan, p.tokens)
	if d := max(distance(got, want), stateDistance(gotState, wantState)); d > 1e-12 {
		t.Errorf("splice is %.2g from running its tokens one by one", d)
	}
	full := m.NewState()
	if d := distance(got, prefill(t, m, full, p.tokens)); d > 0.5 {
		t.Errorf("splice is %.2g from a full prefill", d)
	}
}

// run is Splice with the walk visible to States.
func (r *replay) run(t *testing.T, plan Plan, prompt []uint32) ([]float64, *State[float64]) {
	t.Helper()
	st := &State[float64]{Tokens: plan.End, Layers: make([]LayerState[float64], len(r.m.layers))}
	r.w = &walk[float64]{around: spliced[float64]{r.m, &plan, r, st}}
	var tokens []uint32
	for _, s := range plan.Recomputed() {
		r.w.spans = append(r.w.spans, rowSpan{len(tokens), len(tokens) + s.Count, s.Start})
		tokens = append(tokens, prompt[s.Start:][:s.Count]...)
	}
	logits, err := r.m.run(r.w, tokens)
	if err != nil {
		t.Fatal(err)
	}
	return logits, st
}
