package enginekernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// decoding is tokens of some heads and what decoding them one by one in float64
// gives: the outputs, and the states after every number of tokens.
type decoding struct {
	dk, dv, heads int
	decay         kernel.Transition
	delta         bool
	start         []float32
	tokens        []Input
	outputs       [][]float64
	states        [][]float64
}

func newDecoding(r *rand.Rand, dk, dv, heads, n int, decay kernel.Transition, delta bool) *decoding {
	d := &decoding{dk: dk, dv: dv, heads: heads, decay: decay, delta: delta, start: make([]float32, heads*dk*dv)}
	normal(r, d.start, 1)
	decays := heads
	if decay == kernel.Diagonal {
		decays = heads * dk
	}
	for range n {
		t := Input{Q: make([]float32, dk), K: make([]float32, dk), V: make([]float32, heads*dv), G: make([]float32, decays), Beta: make([]float32, heads)}
		normal(r, t.Q, 1/math.Sqrt(float64(dk)))
		normal(r, t.K, 1/math.Sqrt(float64(dk)))
		normal(r, t.V, 1)
		for i := range t.G {
			t.G[i] = 0.8 + 0.2*r.Float32()
		}
		for i := range t.Beta {
			t.Beta[i] = r.Float32()
		}
		d.tokens = append(d.tokens, t)
	}
	d.solve()
	return d
}

// solve is the recurrence as HYPIC Eq. 2 and KVBuffer Eq. 11-12 write it.
func (d *decoding) solve() {
	state := make([]float64, len(d.start))
	for i, v := range d.start {
		state[i] = float64(v)
	}
	d.states, d.outputs = [][]float64{append([]float64(nil), state...)}, nil
	for _, t := range d.tokens {
		out := make([]float64, d.heads*d.dv)
		for h := range d.heads {
			s := state[h*d.dk*d.dv:]
			for j := range d.dv {
				mem := 0.0
				for i := range d.dk {
					g := t.G[h]
					if d.decay == kernel.Diagonal {
						g = t.G[h*d.dk+i]
					}
					s[i*d.dv+j] *= float64(g)
					mem += float64(t.reader(h, d.dk)[i]) * s[i*d.dv+j]
				}
				if !d.delta {
					mem = 0
				}
				u := float64(t.Beta[h]) * (float64(t.V[h*d.dv+j]) - mem)
				for i := range d.dk {
					s[i*d.dv+j] += float64(t.K[i]) * u
					out[h*d.dv+j] += float64(t.Q[i]) * s[i*d.dv+j]
				}
			}
		}
		d.outputs = append(d.outputs, out)
		d.states = append(d.states, append([]float64(nil), state...))
	}
}

func (d *decoding) buffer(capacity int, t kernel.DType) *Buffer {
	return NewBuffer(d.dk, d.dv, d.heads, capacity, t, d.decay, d.delta)
}

func (d *decoding) states0() []float32 { return append([]float32(nil), d.start...) }

// closeTo fails unless got is want to the given part of the largest number, or of
// the largest output of all tokens: a head of one number may come out as almost
// nothing where two large ones cancel.
func (d *decoding) closeTo(t testing.TB, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	largest := 0.0
	for _, some := range append([][]float64{want}, d.outputs...) {
		for _, v := range some {
			largest = max(largest, math.Abs(v))
		}
	}
	for i, v := range want {
		if !(math.Abs(float64(got[i])-v) <= tolerance*largest) {
			t.Fatalf("%s: number %d is %v, want %v to %g of %v", what, i, got[i], v, tolerance, largest)
		}
	}
}

func eachDecoding(t *testing.T, n int, f func(t *testing.T, r *rand.Rand, d *decoding)) {
	eachISA(t, func(t *testing.T) {
		for _, size := range [][3]int{{1, 1, 1}, {4, 16, 1}, {3, 5, 2}, {16, 1, 3}, {17, 33, 1}, {32, 64, 2}, {37, 70, 1}, {128, 128, 2}} {
			for _, decay := range []kernel.Transition{kernel.Scalar, kernel.Diagonal} {
				for _, delta := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v/%s/delta=%v", size, decayNames[decay], delta), func(t *testing.T) {
						r := rng(t)
						f(t, r, newDecoding(r, size[0], size[1], size[2], n, decay, delta))
					})
				}
			}
		}
	})
}

// The recurrent form writes the states at every token, the chunkwise one after some,
// the parallel one has none.
func TestFormsOfDecodingAgree(t *testing.T) {
	const tokens, tolerance = 40, 1e-5
	eachDecoding(t, tokens, func(t *testing.T, _ *rand.Rand, d *decoding) {
		var sc BufferScratch
		out := make([]float32, d.heads*d.dv)
		for _, capacity := range []int{1, 2, 7, 16, tokens} {
			b, states := d.buffer(capacity, kernel.F32), d.states0()
			for i := range d.tokens {
				flush := b.N == capacity-1
				b.Decode(states, d.tokens[i:i+1], out, flush, &sc)
				d.closeTo(t, fmt.Sprintf("capacity %d: output %d", capacity, i), out, d.outputs[i], tolerance)
				if flush {
					d.closeTo(t, fmt.Sprintf("capacity %d: states %d", capacity, i+1), states, d.states[i+1], tolerance)
				}
			}
			b.Flush(states, &sc)
			d.closeTo(t, fmt.Sprintf("capacity %d: last states", capacity), states, d.states[tokens], tolerance)
		}
		clear(d.start)
		d.solve()
		b := d.buffer(tokens, kernel.F32)
		for i := range d.tokens {
			b.Decode(nil, d.tokens[i:i+1], out, false, &sc)
			d.closeTo(t, fmt.Sprintf("parallel: output %d", i), out, d.outputs[i], tolerance)
		}
	})
}

// Drafts are decoded at once; whatever prefix of them is kept, the states and what
// is decoded next are those of decoding token by token.
func TestAnyAcceptedPrefixOfDraftsIsSequentialDecoding(t *testing.T) {
	const before, drafts, after, tolerance = 5, 6, 3, 1e-5
	eachDecoding(t, before+drafts+after, func(t *testing.T, r *rand.Rand, d *decoding) {
		var sc BufferScratch
		for accepted := 0; accepted <= drafts; accepted++ {
			b, states := d.buffer(before+drafts+after, kernel.F32), d.states0()
			out := make([]float32, drafts*d.heads*d.dv)
			one := d.heads * d.dv
			for i := range before {
				b.Decode(states, d.tokens[i:i+1], out[:one], r.IntN(3) == 0, &sc)
			}
			b.Decode(states, d.tokens[before:before+drafts], out, false, &sc)
			for i := range drafts {
				d.closeTo(t, "draft's output", out[i*one:][:one], d.outputs[before+i], tolerance)
			}
			b.Keep(b.N - drafts + accepted)
			kept := append([]float32(nil), states...)
			whole := *b
			whole.Flush(kept, &sc)
			d.closeTo(t, fmt.Sprintf("states after %d drafts", accepted), kept, d.states[before+accepted], tolerance)
			next := before + accepted
			for i := next; i < min(next+after, len(d.tokens)); i++ {
				b.Decode(states, d.tokens[i:i+1], out[:one], i == next+1, &sc)
				d.closeTo(t, fmt.Sprintf("output %d after %d drafts", i, accepted), out[:one], d.outputs[i], tolerance)
			}
		}
	})
}

// Rows in half the bytes lose nothing when keys and values are of that type, as
// they are for families without a delta rule. Delta values are rounded.
func TestRowsOfHalfTheBytes(t *testing.T) {
	const tokens = 20
	eachDecoding(t, tokens, func(t *testing.T, _ *rand.Rand, d *decoding) {
		for _, dt := range []kernel.DType{kernel.F16, kernel.BF16} {
			tolerance := 1e-5
			if d.delta {
				tolerance = 4 * [...]float64{kernel.F16: 0x1p-11, kernel.BF16: 0x1p-8}[dt]
			}
			for i := range d.tokens {
				tok := &d.tokens[i]
				for _, v := range [][]float32{tok.K, tok.V} {
					half := make([]byte, 2*len(v))
					kernel.FromF32(half, v, dt)
					kernel.ToF32(v, half, dt)
				}
				for h := range tok.Beta {
					tok.Beta[h] = 1
				}
			}
			d.solve()
			var sc BufferScratch
			b, states, out := d.buffer(8, dt), d.states0(), make([]float32, d.heads*d.dv)
			for i := range d.tokens {
				b.Decode(states, d.tokens[i:i+1], out, b.N == 7, &sc)
				d.closeTo(t, fmt.Sprintf("%s: output %d", typeNames[dt], i), out, d.outputs[i], tolerance)
			}
			b.Flush(states, &sc)
			d.closeTo(t, typeNames[dt]+": states", states, d.states[tokens], tolerance)
		}
	})
}

// Gated DeltaNet-2 reads the states with keys that have gates per channel.
func TestReadersOfTheirOwn(t *testing.T) {
	eachDecoding(t, 12, func(t *testing.T, r *rand.Rand, d *decoding) {
		for i := range d.tokens {
			d.tokens[i].E = make([]float32, d.heads*d.dk)
			normal(r, d.tokens[i].E, 1/math.Sqrt(float64(d.dk)))
		}
		d.solve()
		var sc BufferScratch
		one := d.heads * d.dv
		b, states, out := d.buffer(5, kernel.F32), d.states0(), make([]float32, 3*one)
		for at := 0; at < 12; at += 3 {
			if b.N+3 > 5 {
				b.Flush(states, &sc)
			}
			b.Decode(states, d.tokens[at:at+3], out, false, &sc)
			for i := range 3 {
				d.closeTo(t, fmt.Sprintf("output %d", at+i), out[i*one:][:one], d.outputs[at+i], 1e-5)
			}
		}
		b.Flush(states, &sc)
		d.closeTo(t, "states", states, d.states[12], 1e-5)
	})
}

func TestDecodingAllocatesNothing(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		d := newDecoding(rng(t), 32, 32, 2, 4, kernel.Diagonal, true)
		b, states, out, sc := d.buffer(4, kernel.F16), d.states0(), make([]float32, 4*2*32), new(BufferScratch)
		if n := testing.AllocsPerRun(100, func() { b.Decode(states, d.tokens, out, true, sc) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// Keys, values and states lie between guards: nothing beside them is written, and
// rows that are not pending are not read.
func TestDecodingStaysInsideItsMemory(t *testing.T) {
	eachDecoding(t, 5, func(t *testing.T, _ *rand.Rand, d *decoding) {
		b := d.buffer(5, kernel.F32)
		nan := float32(math.NaN())
		var checks []func()
		guard := func(n int) []float32 {
			v, check := guardedF32(t, n)
			checks = append(checks, check)
			for i := range v {
				v[i] = nan
			}
			return v
		}
		b.K, b.U, b.G = bytesOf(guard(5*d.dk)), bytesOf(guard(5*d.heads*d.dv)), guard(len(b.G))
		states, out := guard(len(d.start)), guard(d.heads*d.dv)
		copy(states, d.start)
		for i := range d.tokens {
			b.Decode(states, d.tokens[i:i+1], out, i == 2, nil)
			d.closeTo(t, "output", out, d.outputs[i], 1e-5)
		}
		b.Flush(states, nil)
		d.closeTo(t, "states", states, d.states[5], 1e-5)
		for _, check := range checks {
			check()
		}
	})
}

func TestBadBuffersPanic(t *testing.T) {
	for name, spoil := range map[string]func(b *Buffer, toks []Input, states, out *[]float32){
		"no heads":        func(b *Buffer, _ []Input, _, _ *[]float32) { b.Heads = 0 },
		"no type":         func(b *Buffer, _ []Input, _, _ *[]float32) { b.Type = 9 },
		"dense decay":     func(b *Buffer, _ []Input, _, _ *[]float32) { b.Decay = kernel.Dense },
		"full":            func(b *Buffer, _ []Input, _, _ *[]float32) { b.N = 3 },
		"negative":        func(b *Buffer, _ []Input, _, _ *[]float32) { b.N = -1 },
		"few keys":        func(b *Buffer, _ []Input, _, _ *[]float32) { b.K = b.K[4:] },
		"few values":      func(b *Buffer, _ []Input, _, _ *[]float32) { b.U = b.U[4:] },
		"short states":    func(_ *Buffer, _ []Input, s, _ *[]float32) { *s = (*s)[1:] },
		"short outputs":   func(_ *Buffer, _ []Input, _, o *[]float32) { *o = (*o)[1:] },
		"short query":     func(_ *Buffer, k []Input, _, _ *[]float32) { k[0].Q = nil },
		"short key":       func(_ *Buffer, k []Input, _, _ *[]float32) { k[0].K = k[0].K[1:] },
		"short value":     func(_ *Buffer, k []Input, _, _ *[]float32) { k[0].V = k[0].V[1:] },
		"short decay":     func(_ *Buffer, k []Input, _, _ *[]float32) { k[0].G = nil },
		"short beta":      func(_ *Buffer, k []Input, _, _ *[]float32) { k[0].Beta = nil },
		"one reader":      func(_ *Buffer, k []Input, _, _ *[]float32) { k[0].E = k[0].K[1:] },
		"keep more":       func(b *Buffer, _ []Input, _, _ *[]float32) { b.Keep(1) },
		"keep fewer than": func(b *Buffer, _ []Input, _, _ *[]float32) { b.Keep(-1) },
	} {
		d := newDecoding(rng(t), 4, 4, 1, 1, kernel.Scalar, true)
		b, states, out := d.buffer(3, kernel.F32), d.states0(), make([]float32, 4)
		wantPanic(t, name, func() {
			spoil(b, d.tokens, &states, &out)
			b.Decode(states, d.tokens, out, false, nil)
		})
	}
	b := NewBuffer(4, 4, 1, 1, kernel.F32, kernel.Scalar, true)
	wantPanic(t, "flush into no states", func() { b.Flush(nil, nil) })
}

// Tolerance: each of n+1 roundings loses at most one unit of the sum of magnitudes.
func TestDotAgreesWithFloat64(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for n := range 300 {
			x, y := make([]float32, n), make([]float32, n)
			normal(r, x, 1)
			normal(r, y, 1)
			var sum, size float64
			for i := range x {
				p := float64(x[i]) * float64(y[i])
				sum, size = sum+p, size+math.Abs(p)
			}
			if got := dot(x, y); math.Abs(float64(got)-sum) > float64(n+1)*0x1p-24*size {
				t.Fatalf("n=%d: dot is %v, want %v", n, got, sum)
			}
		}
	})
}
