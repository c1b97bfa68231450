package refengine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// prompt is a private prefix of begin tokens or a leading segment, segments and a
// query.
type prompt struct {
	begin    int
	tokens   []uint32
	segments [][]uint32
	placed   []Placed
	query    int
}

// newPrompt makes a prompt whose first segment leads it and whose others have
// seams of w tokens.
func newPrompt[F Float](m *Model[F], w int, lengths []int, query int) prompt {
	var p prompt
	for i, n := range lengths {
		spec, held := profile.FirstSpec(n), true
		if i > 0 {
			spec, held = m.Profile().MidSpec(n, w)
		}
		p.add(Placed{Spec: spec, Held: held}, text(uint64(100+i), n))
	}
	p.ask(query)
	return p
}

// newPromptBehind makes a prompt behind a private prefix of begin tokens, which
// may be none. All its segments have seams of w tokens.
func newPromptBehind[F Float](m *Model[F], begin, w int, lengths []int, query int) prompt {
	p := prompt{begin: begin, tokens: text(98, begin)}
	for i, n := range lengths {
		spec, held := m.Profile().MidSpec(n, w)
		p.add(Placed{Spec: spec, Held: held}, text(uint64(100+i), n))
	}
	p.ask(query)
	return p
}

func (p *prompt) add(placed Placed, segment []uint32) {
	p.segments, p.placed = append(p.segments, segment), append(p.placed, placed)
	p.tokens = append(p.tokens, segment...)
}

func (p *prompt) ask(query int) {
	p.query = query
	p.tokens = append(p.tokens, text(99, query)...)
}

func (p prompt) plan(t testing.TB) Plan {
	t.Helper()
	plan, err := MakePlan(p.begin, p.placed, p.query)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func capture[F Float](t testing.TB, m *Model[F], p prompt) []*Segment[F] {
	t.Helper()
	out := make([]*Segment[F], len(p.segments))
	for i, s := range p.segments {
		if !p.placed[i].Held {
			continue
		}
		var err error
		if out[i], err = m.Capture(s, p.placed[i].Spec); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// before is the state after the prompt's private prefix, nil without one.
func before[F Float](t testing.TB, m *Model[F], p prompt) *State[F] {
	t.Helper()
	if p.begin == 0 {
		return nil
	}
	st := m.NewState()
	prefill(t, m, st, p.tokens[:p.begin])
	return st
}

func splice[F Float](t testing.TB, m *Model[F], p prompt, segments []*Segment[F]) ([]F, *State[F]) {
	t.Helper()
	plan := p.plan(t)
	src, err := NewHeld(m, plan, before(t, m, p), segments)
	if err != nil {
		t.Fatal(err)
	}
	logits, st, err := m.Splice(plan, p.tokens, src)
	if err != nil {
		t.Fatal(err)
	}
	return logits, st
}

// With one layer nothing that enters a cached tuple depends on context, so a
// splice must equal a full prefill: interiors and recomputed ends make the whole.
func TestSpliceOfOneLayerEqualsFullPrefill(t *testing.T) {
	for _, layers := range []string{"L", "F"} {
		for _, f := range families {
			for _, w := range []int{0, 2, 8} {
				t.Run(fmt.Sprintf("%s/%s/w=%d", layers, f.name, w), func(t *testing.T) {
					c := tiny(f.family, f.rope, layers)
					m := build[float64](t, c)
					p := newPrompt(m, w, []int{21, 40, 33, 57}, 11)
					logits, st := splice(t, m, p, capture(t, m, p))
					full := m.NewState()
					want := prefill(t, m, full, p.tokens)
					if d := max(distance(logits, want), stateDistance(st, full)); d > 1e-12 {
						t.Errorf("splice is %.2g from a full prefill", d)
					}
				})
			}
		}
	}
}

func TestSpliceWithSeamsWiderThanSegmentsEqualsFullPrefill(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			c := tiny(f.family, f.rope, "LLFLF")
			m := build[float64](t, c)
			p := newPrompt(m, 40, []int{21, 40, 33, 37}, 11)
			segments := capture(t, m, p)
			if segments[0] == nil || segments[1] != nil || segments[2] != nil || segments[3] != nil {
				t.Fatal("expected the leading segment alone to be cached")
			}
			logits, st := splice(t, m, p, segments)
			full := m.NewState()
			want := prefill(t, m, full, p.tokens)
			if d := max(distance(logits, want), stateDistance(st, full)); d > 1e-10 {
				t.Errorf("splice is %.2g from a full prefill", d)
			}
		})
	}
}

func TestReuseOfTheFirstSegmentEqualsPrefixCaching(t *testing.T) {
	for _, f := range families {
		t.Run(f.name+"/fp32", func(t *testing.T) { firstSegment[float32](t, tiny(f.family, f.rope, "LLFLF")) })
		t.Run(f.name+"/fp64", func(t *testing.T) { firstSegment[float64](t, tiny(f.family, f.rope, "LLFLF")) })
	}
}

func firstSegment[F Float](t *testing.T, c modelfile.Config) {
	m := build[F](t, c)
	p := newPrompt(m, 8, []int{70}, 19)
	logits, st := splice(t, m, p, capture(t, m, p))
	checkpoint := m.NewState()
	prefill(t, m, checkpoint, p.tokens[:70])
	want := prefill(t, m, checkpoint, p.tokens[70:])
	if !slices.Equal(logits, want) || !equalStates(st, checkpoint) {
		t.Errorf("differs from prefix caching: logits by %g, state by %g", distance(logits, want), stateDistance(st, checkpoint))
	}
}

func TestMissingMiddleSegmentIsRecomputedInContext(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			one := tiny(f.family, f.rope, "L")
			m := build[float64](t, one)
			p := newPrompt(m, 8, []int{21, 40, 33, 57}, 11)
			p.placed[2].Held = false
			plan := p.plan(t)
			// The missing segment and the seams on both its sides are one span.
			want := Span{Segment: -1, Start: 21 + 40 - 8, Count: 8 + 33 + 8}
			if !slices.Contains(plan.Spans, want) {
				t.Fatalf("plan %v has no span %v", plan.Spans, want)
			}
			logits, st := splice(t, m, p, capture(t, m, p))
			full := m.NewState()
			whole := prefill(t, m, full, p.tokens)
			if d := max(distance(logits, whole), stateDistance(st, full)); d > 1e-12 {
				t.Errorf("splice around a missing segment is %.2g from a full prefill", d)
			}
		})
	}
}

func TestDecodeContinuesASplice(t *testing.T) {
	c := tiny(profile.KDA, profile.Rope{}, "L")
	m := build[float64](t, c)
	p := newPrompt(m, 8, []int{21, 40, 33}, 11)
	logits, st := splice(t, m, p, capture(t, m, p))
	got, err := m.Decode(st, logits, 12)
	if err != nil {
		t.Fatal(err)
	}
	full := m.NewState()
	want, err := m.Decode(full, prefill(t, m, full, p.tokens), 12)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) || st.Tokens != len(p.tokens)+12 {
		t.Errorf("decoded %v at %d tokens, want %v", got, st.Tokens, want)
	}
}

func TestPlanRefusesWhatCannotBeRight(t *testing.T) {
	first := Placed{Spec: profile.FirstSpec(10), Held: true}
	mid := Placed{Spec: profile.SegmentSpec{Role: profile.RoleMid, Head: 8, Tail: 8, Tokens: 16}, Held: true}
	for name, make := range map[string]func() (Plan, error){
		"no query":                 func() (Plan, error) { return MakePlan(0, []Placed{first}, 0) },
		"leading segment not lead": func() (Plan, error) { return MakePlan(5, []Placed{first}, 3) },
		"no interior":              func() (Plan, error) { return MakePlan(0, []Placed{mid}, 3) },
	} {
		if plan, err := make(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: plan %v, error %v", name, plan, err)
		}
	}
	for name, plan := range map[string]Plan{
		"gap":               {0, 10, []Span{{0, 0, 4}, {-1, 5, 5}}},
		"overlap":           {0, 10, []Span{{0, 0, 6}, {-1, 5, 5}}},
		"short":             {0, 10, []Span{{-1, 0, 9}}},
		"ends with segment": {0, 10, []Span{{-1, 0, 4}, {0, 4, 6}}},
		"begins too late":   {0, 10, []Span{{-1, 1, 9}}},
		"empty span":        {0, 10, []Span{{0, 0, 0}, {-1, 0, 10}}},
		"nothing":           {0, 0, nil},
		"recomputed twice":  {0, 10, []Span{{0, 0, 4}, {-1, 4, 2}, {-1, 6, 4}}},
	} {
		if err := plan.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
