package refengine

import (
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

// spliceEqualsPrefill serves what the plan may reuse and compares with a full
// prefill. It holds for one layer, and for any depth without middle segments.
func spliceEqualsPrefill(t *testing.T, m *Model[float64], p prompt, most float64) {
	t.Helper()
	logits, st := splice(t, m, p, capture(t, m, p))
	full := m.NewState()
	want := prefill(t, m, full, p.tokens)
	if d := max(distance(logits, want), stateDistance(st, full)); d > most {
		t.Errorf("splice is %.2g from a full prefill", d)
	}
}

// meetings counts where two reused interiors touch.
func meetings(p Plan) (n int) {
	for i, s := range p.Spans[1:] {
		if s.Segment >= 0 && p.Spans[i].Segment >= 0 {
			n++
		}
	}
	return n
}

// Without a convolution and without seams interiors lie side by side, down to
// segments of one token; a convolution of 2 keeps one token between them.
func TestSpliceOfInteriorsThatMeet(t *testing.T) {
	lengths := []int{21, 40, 33, 1, 2, 7}
	for _, kernel := range []int{0, 2} {
		for _, w := range []int{0, 1} {
			for _, f := range families {
				t.Run(fmt.Sprintf("%s/kernel=%d/w=%d", f.name, kernel, w), func(t *testing.T) {
					c := tiny(f.family, f.rope, "L")
					c.Linear.Kernel = kernel
					m := build[float64](t, c)
					p := newPrompt(m, w, lengths, 1)
					if n := meetings(p.plan(t)); (kernel == 0 && w == 0) != (n == len(lengths)-1) {
						t.Errorf("%d interiors meet", n)
					}
					spliceEqualsPrefill(t, m, p, 1e-12)
				})
			}
		}
	}
	t.Run("attention alone", func(t *testing.T) {
		m := build[float64](t, tiny(profile.GDN, profile.Rope{}, "F"))
		p := newPrompt(m, 0, lengths, 1)
		if n := meetings(p.plan(t)); n != len(lengths)-1 {
			t.Errorf("%d interiors meet", n)
		}
		spliceEqualsPrefill(t, m, p, 1e-12)
	})
}

// The convolution of 4 looks back on 3 tokens: queries and leading segments of
// fewer see through them into what lies left.
func TestSpliceOfPartsShorterThanTheConvolution(t *testing.T) {
	for _, f := range families {
		deep := build[float64](t, tiny(f.family, f.rope, "LLFLF"))
		one := build[float64](t, tiny(f.family, f.rope, "L"))
		for _, query := range []int{1, 2, 9} {
			t.Run(fmt.Sprintf("%s/query=%d", f.name, query), func(t *testing.T) {
				spliceEqualsPrefill(t, deep, newPrompt(deep, 8, nil, query), 1e-12)
				spliceEqualsPrefill(t, deep, newPrompt(deep, 8, []int{40}, query), 1e-10)
				spliceEqualsPrefill(t, one, newPromptBehind(one, 0, 8, []int{40, 33}, query), 1e-12)
			})
		}
		for first := 1; first <= 3; first++ {
			t.Run(fmt.Sprintf("%s/first=%d", f.name, first), func(t *testing.T) {
				spliceEqualsPrefill(t, deep, newPrompt(deep, 8, []int{first}, 2), 1e-10)
				spliceEqualsPrefill(t, one, newPrompt(one, 0, []int{first, 40}, 1), 1e-12)
			})
		}
	}
}

// One middle segment with nothing before it, its interior as small as may be.
func TestSpliceOfASingleMiddleSegment(t *testing.T) {
	for _, f := range families {
		for _, n := range []int{19, 60} {
			t.Run(fmt.Sprintf("%s/%d", f.name, n), func(t *testing.T) {
				m := build[float64](t, tiny(f.family, f.rope, "L"))
				p := newPromptBehind(m, 0, 8, []int{n}, 2)
				if cached, _ := p.plan(t).Counts(); cached != n-16 {
					t.Errorf("%d tokens of the segment are reused", cached)
				}
				spliceEqualsPrefill(t, m, p, 1e-12)
			})
		}
	}
}

func TestSpliceBehindAPrivatePrefix(t *testing.T) {
	for _, f := range families {
		for _, begin := range []int{2, 45} {
			t.Run(fmt.Sprintf("%s/%d", f.name, begin), func(t *testing.T) {
				m := build[float64](t, tiny(f.family, f.rope, "L"))
				p := newPromptBehind(m, begin, 8, []int{40, 33, 57}, 9)
				spliceEqualsPrefill(t, m, p, 1e-12)
				p.placed[1].Held = false
				if spans := p.plan(t).Spans; spans[2] != (Span{Segment: -1, Start: begin + 40 - 8, Count: 8 + 33 + 8}) {
					t.Errorf("a missing segment in the middle gives the plan %v", spans)
				}
				spliceEqualsPrefill(t, m, p, 1e-12)
				p.placed[0].Held = false // now the prefix meets what is computed
				spliceEqualsPrefill(t, m, p, 1e-12)
			})
		}
	}
}
