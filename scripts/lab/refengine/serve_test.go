package refengine

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// halved is Exact with the element types of a serving engine.
func halved(c modelfile.Config) modelfile.Config {
	c.Storage = modelfile.Storage{State: profile.F32, Transition: profile.F16, Conv: profile.F32, KV: profile.BF16}
	return c
}

func serve(t testing.TB, m *Model[float32], c Cache, r Request) *Result {
	t.Helper()
	out, err := Serve(m, c, r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCapturedBehindTwoPrefixesTheBytesAreEqual(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := build[float32](t, halved(tiny(f.family, f.rope, "LLFLF")))
			segment := text(50, 61)
			spec, _ := m.Profile().MidSpec(len(segment), 8)
			var published [][]byte
			for _, before := range [][]uint32{text(1, 30), text(2, 77)} {
				c := NewMemory(m.Profile())
				serve(t, m, c, Request{First: before, Mid: [][]uint32{text(3, 40), segment}, Query: text(4, 9), Seam: 8})
				published = append(published, c.Bytes(c.Key(spec, segment)))
			}
			if published[0] == nil || !bytes.Equal(published[0], published[1]) {
				t.Error("published bytes depend on what stood before")
			}
		})
	}
}

// With the last of a segment's context-dependent inputs exact, packed bytes lose
// no more than their element types.
func TestPackedFollowsHeld(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			c := tiny(f.family, f.rope, "LLFLF")
			m := build[float32](t, c)
			p := newPrompt(m, 8, []int{21, 40, 33, 57}, 11)
			want, wantState := splice(t, m, p, capture(t, m, p))
			out := serve(t, m, NewMemory(m.Profile()), Request{
				First: p.segments[0], Mid: p.segments[1:], Query: p.tokens[len(p.tokens)-p.query:], Seam: 8,
			})
			if d := max(distance(out.Logits, want), stateDistance(out.State, wantState)); d > 2e-5 {
				t.Errorf("packed splice is %.2g from the exact one", d)
			}
		})
	}
}

func TestServedFirstSegmentEqualsPrefixCaching(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			m := build[float32](t, halved(tiny(f.family, f.rope, "LLFLF")))
			c := NewMemory(m.Profile())
			first, query := text(1, 70), text(2, 19)
			var out *Result
			for range 2 { // the second one finds the segment
				out = serve(t, m, c, Request{First: first, Query: query, Seam: 8})
			}
			if out.Reused != 70 || out.Recomputed != 19 || out.Captured != 0 {
				t.Errorf("reused %d, recomputed %d, captured %d", out.Reused, out.Recomputed, out.Captured)
			}
			checkpoint := m.NewState()
			prefill(t, m, checkpoint, first)
			want := prefill(t, m, checkpoint, query)
			if !slices.Equal(out.Logits, want) || !equalStates(out.State, checkpoint) {
				t.Errorf("differs from prefix caching: logits by %g, state by %g",
					distance(out.Logits, want), stateDistance(out.State, checkpoint))
			}
		})
	}
}

// A leading segment shorter than the convolution's look-back leaves a tail that
// begins with the zeros before token 0.
func TestLeadingSegmentsShorterThanTheConvolution(t *testing.T) {
	for _, f := range families {
		for n := 1; n <= 3; n++ {
			t.Run(fmt.Sprintf("%s/%d", f.name, n), func(t *testing.T) {
				m := build[float32](t, halved(tiny(f.family, f.rope, "LLFLF")))
				c := NewMemory(m.Profile())
				first, query := text(1, n), text(2, 2)
				var out *Result
				for range 2 {
					out = serve(t, m, c, Request{First: first, Query: query, Seam: 8})
				}
				if out.Reused != n || out.Recomputed != 2 {
					t.Errorf("reused %d and recomputed %d tokens", out.Reused, out.Recomputed)
				}
				checkpoint := m.NewState()
				prefill(t, m, checkpoint, first)
				want := prefill(t, m, checkpoint, query)
				if !slices.Equal(out.Logits, want) || !equalStates(out.State, checkpoint) {
					t.Errorf("differs from prefix caching: logits by %g, state by %g",
						distance(out.Logits, want), stateDistance(out.State, checkpoint))
				}
			})
		}
	}
}

func TestServeCountsWhatItDid(t *testing.T) {
	m := build[float32](t, halved(tiny(profile.GDN, profile.Rope{}, "LF")))
	c := NewMemory(m.Profile())
	a, b, short := text(1, 50), text(2, 60), text(3, 17)
	first, query := text(4, 20), text(5, 9)
	cold := serve(t, m, c, Request{First: first, Mid: [][]uint32{a, short, a}, Query: query, Seam: 8})
	// a is captured once; short has no room for an interior.
	if cold.Missed != 3 || cold.Captured != 70 || cold.Reused != 0 {
		t.Errorf("cold: %+v", cold)
	}
	if want := 8 + 8 + 17 + 8 + 8 + 9; cold.Recomputed != want {
		t.Errorf("cold recomputed %d tokens, want %d", cold.Recomputed, want)
	}
	warm := serve(t, m, c, Request{First: first, Mid: [][]uint32{b, a}, Query: query, Seam: 8})
	if warm.Missed != 1 || warm.Captured != 60 || warm.Reused != 20+34 || warm.Recomputed != 4*8+9 {
		t.Errorf("second: missed %d, captured %d, reused %d, recomputed %d", warm.Missed, warm.Captured, warm.Reused, warm.Recomputed)
	}
	if len(warm.State.Layers) != 2 || warm.State.Tokens != 20+60+50+9 {
		t.Errorf("state of %d tokens", warm.State.Tokens)
	}
}

func TestServeBehindAPrivatePrefix(t *testing.T) {
	c := tiny(profile.GDN, profile.Rope{}, "L")
	m := build[float32](t, c)
	prefix := text(1, 45)
	from := m.NewState()
	prefill(t, m, from, prefix)
	out := serve(t, m, NewMemory(m.Profile()), Request{
		Prefix: prefix, From: from, Mid: [][]uint32{text(2, 50), text(3, 60)}, Query: text(4, 9), Seam: 8,
	})
	full := m.NewState()
	want := prefill(t, m, full, slices.Concat(prefix, text(2, 50), text(3, 60), text(4, 9)))
	if d := max(distance(out.Logits, want), stateDistance(out.State, full)); d > 1e-5 {
		t.Errorf("one layer behind a prefix is %.2g from a full prefill", d)
	}
	if from.Tokens != 45 || out.State.Tokens != 45+50+60+9 {
		t.Errorf("prefix state at %d, result at %d", from.Tokens, out.State.Tokens)
	}
}

// The engine rounds rows itself; it must agree with the kernels that store them.
func TestRoundingIsThatOfTheKernels(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	x := []float32{0, float32(math.Copysign(0, -1)), 65519, 65520, -1e30, 1e-30, 6e-8, 3e-8, float32(math.Inf(1))}
	for range 100000 {
		x = append(x, math.Float32frombits(rng.Uint32()&^(1<<30)), float32(rng.NormFloat64()), float32(rng.NormFloat64()*1e-5))
	}
	for dt, round := range map[kernel.DType]func([]float32){kernel.F16: roundF16, kernel.BF16: roundBF16} {
		got, want := slices.Clone(x), make([]float32, len(x))
		round(got)
		b := make([]byte, len(x)*dt.Size())
		kernel.FromF32(b, x, dt)
		kernel.ToF32(want, b, dt)
		for i := range x {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("type %d: %g rounds to %g, the kernel says %g", dt, x[i], got[i], want[i])
			}
		}
	}
}
