package refengine

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// The wrong ways below all run without complaint and give plausible states. Each
// must be far from a full prefill where the right way is at rounding error, or a
// test that compares the two would prove nothing.
func TestWrongWaysAreSeen(t *testing.T) {
	dense := func(f profile.Family) bool { return (modelfile.LinearConfig{Family: f}).Delta() }
	ways := []struct {
		name    string
		applies func(f profile.Family, rope bool) bool
		least   float64 // relative error of the final state
		spoil   func(m *Model[float64], p prompt, segments []*Segment[float64])
	}{
		{"seam tokens counted twice", func(profile.Family, bool) bool { return true }, 0.03,
			func(m *Model[float64], p prompt, segments []*Segment[float64]) {
				for i, s := range segments[1:] {
					whole, err := m.Capture(p.segments[i+1], profile.FirstSpec(s.Spec.Tokens))
					if err != nil {
						panic(err)
					}
					s.Layers[0].Tuple = whole.Layers[0].Tuple
				}
			}},
		{"T transposed", func(f profile.Family, _ bool) bool { return dense(f) }, 0.01,
			func(m *Model[float64], _ prompt, segments []*Segment[float64]) {
				d := m.cfg.Linear.KeyDim
				for _, s := range segments {
					t := s.Layers[0].T
					for at := 0; at < len(t); at += d * d {
						for i := range d {
							for j := range i {
								t[at+i*d+j], t[at+j*d+i] = t[at+j*d+i], t[at+i*d+j]
							}
						}
					}
				}
			}},
		{"rope in S but S not moved to its place", func(_ profile.Family, rope bool) bool { return rope }, 0.1,
			func(m *Model[float64], _ prompt, _ []*Segment[float64]) {
				for i := range m.linRope.invFreq {
					m.linRope.invFreq[i] = 0 // the walk's own angles are tabled already
				}
			}},
		{"states added without transitions", func(profile.Family, bool) bool { return true }, 0.1,
			func(m *Model[float64], _ prompt, segments []*Segment[float64]) {
				for _, s := range segments {
					unitTransitions(m.cfg.Linear, s)
				}
			}},
	}
	for _, way := range ways {
		for _, f := range families {
			if !way.applies(f.family, f.rope.Dims > 0) {
				continue
			}
			t.Run(way.name+"/"+f.name, func(t *testing.T) {
				c := tiny(f.family, f.rope, "L")
				m := build[float64](t, c)
				p := newPrompt(m, 8, []int{21, 40, 33, 37}, 11)
				full := m.NewState()
				prefill(t, m, full, p.tokens)
				segments := capture(t, m, p)
				_, right := splice(t, m, p, segments)
				if d := distance(right.Layers[0].S, full.Layers[0].S); d > 1e-12 {
					t.Fatalf("the right way is %.2g off", d)
				}
				way.spoil(m, p, segments)
				_, wrong := splice(t, m, p, segments)
				if d := distance(wrong.Layers[0].S, full.Layers[0].S); d < way.least {
					t.Errorf("error %.3g, expected at least %.3g", d, way.least)
				} else {
					t.Logf("error %.3g", d)
				}
			})
		}
	}
}

// unitTransitions replaces a segment's transitions by the identity.
func unitTransitions(c modelfile.LinearConfig, s *Segment[float64]) {
	for i := range s.Layers {
		t := s.Layers[i].T
		for j := range t {
			t[j] = 1
			if in := j % c.TransitionSize(); c.Family.Transition() == profile.Dense && in%(c.KeyDim+1) != 0 {
				t[j] = 0
			}
		}
	}
}

// Three segments may be joined in any grouping: T and S of a run of segments are
// those of its parts (HYPIC Eq. 6).
func TestThreeSegmentsAssociate(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			c := tiny(f.family, f.rope, "L")
			m := build[float64](t, c)
			tokens := text(5, 90)
			tuple := func(lo, hi int) Tuple[float64] {
				out := m.newTuple()
				w := m.continuing(m.NewState(), len(tokens))
				w.tap = func(_ int, w *walk[float64]) {
					for h := range c.Linear.ValueHeads {
						m.tupleHead(w, m.layers[0].linear, out, h, lo, hi)
					}
				}
				if _, err := m.run(w, tokens); err != nil {
					t.Fatal(err)
				}
				return out
			}
			a, b, d := tuple(0, 25), tuple(25, 60), tuple(60, 90)
			left := m.join(m.join(a, b), d)
			right := m.join(a, m.join(b, d))
			whole := tuple(0, 90)
			for name, pair := range map[string][2]Tuple[float64]{
				"groupings": {left, right}, "joined and whole": {left, whole},
			} {
				if e := max(distance(pair[0].S, pair[1].S), distance(pair[0].T, pair[1].T)); e > 1e-12 {
					t.Errorf("%s differ by %.2g", name, e)
				}
			}
		})
	}
}

// join is the tuple of a followed by b.
func (m *Model[F]) join(a, b Tuple[F]) Tuple[F] {
	c := m.cfg.Linear
	out := Tuple[F]{T: append([]F(nil), a.T...), S: append([]F(nil), a.S...)}
	m.Compose(out.S, b)
	n := c.TransitionSize()
	for h := range c.ValueHeads {
		at := out.T[h*n:][:n]
		switch c.Family.Transition() {
		case profile.Dense:
			composeHead(profile.Dense, at, b.T[h*n:][:n], make([]F, n), c.KeyDim, c.KeyDim)
		default:
			for i := range at {
				at[i] *= b.T[h*n+i]
			}
		}
	}
	return out
}
