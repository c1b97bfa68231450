package enginekernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// metered is memory of numbers that records which of them are read and written.
type metered struct {
	v             []float64
	read, written []bool
	size          int // bytes of a number
}

func newMetered(n, size int) *metered {
	return &metered{make([]float64, n), make([]bool, n), make([]bool, n), size}
}

func (m *metered) load(i int) float64     { m.read[i] = true; return m.v[i] }
func (m *metered) store(i int, v float64) { m.written[i] = true; m.v[i] = v }

// bytes is what was read and written since the last call, each number once. What
// was written before it was read did not come from memory.
func (m *metered) bytes() (read, written int) {
	for i := range m.v {
		if m.read[i] {
			read += m.size
		}
		if m.written[i] {
			written += m.size
		}
		m.read[i], m.written[i] = false, false
	}
	return read, written
}

// meteredBuffer is a Buffer and its states in metered memory, with scalar decays
// and the delta rule.
type meteredBuffer struct {
	dk, dv, heads, n int
	s, k, u, g       *metered
}

// decode is Decode of one token: every number of a state is loaded once for the
// token, and once more for a flush, when it is in cache.
func (b *meteredBuffer) decode(t *Input, flush bool) []float64 {
	out := make([]float64, b.heads*b.dv)
	for i, v := range t.K {
		b.k.store(b.n*b.dk+i, float64(v))
	}
	for h := range b.heads {
		decay := func(r int) float64 { return b.g.load(r*b.heads + h) }
		all := float64(t.G[h])
		for r := range b.n {
			all *= decay(r)
		}
		mem, o := make([]float64, b.dv), out[h*b.dv:][:b.dv]
		for i := range b.dk {
			for j := range b.dv {
				v := all * b.s.load((h*b.dk+i)*b.dv+j)
				mem[j] += float64(t.K[i]) * v
				o[j] += float64(t.Q[i]) * v
			}
		}
		w := float64(t.G[h])
		for r := b.n - 1; r >= 0; r-- {
			var qk, kk float64
			for i := range b.dk {
				k := b.k.load(r*b.dk + i)
				qk, kk = qk+float64(t.Q[i])*k, kk+float64(t.K[i])*k
			}
			for j := range b.dv {
				u := b.u.load((r*b.heads+h)*b.dv + j)
				o[j], mem[j] = o[j]+w*qk*u, mem[j]+w*kk*u
			}
			w *= decay(r)
		}
		var own float64
		for i, q := range t.Q {
			own += float64(q) * float64(t.K[i])
		}
		for j := range b.dv {
			u := float64(t.Beta[h]) * (float64(t.V[h*b.dv+j]) - mem[j])
			o[j] += own * u
			b.u.store((b.n*b.heads+h)*b.dv+j, u)
		}
		b.g.store(b.n*b.heads+h, float64(t.G[h]))
	}
	if b.n++; flush {
		b.flush()
	}
	return out
}

// flush moves the states over the rows: all of them were touched by the step that
// ends with it.
func (b *meteredBuffer) flush() {
	for h := range b.heads {
		for r := range b.n {
			g := b.g.v[r*b.heads+h]
			for i := range b.dk {
				for j := range b.dv {
					at := (h*b.dk+i)*b.dv + j
					b.s.store(at, g*b.s.v[at]+b.k.v[r*b.dk+i]*b.u.v[(r*b.heads+h)*b.dv+j])
				}
			}
		}
	}
	b.n = 0
}

// traffic is the bytes since the last call.
func (b *meteredBuffer) traffic() Traffic {
	var t Traffic
	t.StateRead, t.StateWritten = b.s.bytes()
	for _, m := range []*metered{b.k, b.u, b.g} {
		r, w := m.bytes()
		t.RowsRead, t.RowsWritten = t.RowsRead+r, t.RowsWritten+w
	}
	return t
}

// counted runs a whole round of a buffer and returns the bytes of a step and head.
func counted(t *testing.T, d, heads, capacity int) float64 {
	dec := newDecoding(rng(t), d, d, heads, capacity, kernel.Scalar, true)
	b, states, out := dec.buffer(capacity, kernel.F16), dec.states0(), make([]float32, heads*d)
	m := &meteredBuffer{dk: d, dv: d, heads: heads, s: newMetered(heads*d*d, 4), k: newMetered(capacity*d, 2),
		u: newMetered(capacity*heads*d, 2), g: newMetered(capacity*heads, 4)}
	for i, v := range states {
		m.s.v[i] = float64(v)
	}
	total := 0
	for i := range dec.tokens {
		flush := i == capacity-1
		plan := b.Traffic(1, true, flush)
		b.Decode(states, dec.tokens[i:i+1], out, flush, nil)
		dec.closeTo(t, fmt.Sprint("output ", i), out, m.decode(&dec.tokens[i], flush), 2e-3)
		if got := m.traffic(); got != plan {
			t.Errorf("step %d: %+v touched, %+v planned", i, got, plan)
		}
		total += plan.Moved()
	}
	dec.closeTo(t, "states", states, m.s.v, 2e-3)
	return float64(total) / float64(capacity) / float64(heads)
}

// Eq. 6 charges 73,728 bytes a step at 16 rows and d=128; a head that decays has
// four bytes more in each row.
func TestDecodingMovesTheBytesOfEquation6(t *testing.T) {
	for capacity, want := range map[int]float64{2: 98816, 4: 82944, 8: 75776, 16: 73728, 32: 75776, 64: 82944} {
		got := counted(t, 128, 1, capacity)
		t.Logf("%d rows: %.0f bytes a step, Eq. 6 has %.0f", capacity, got, want)
		if math.Abs(got/want-1) > 0.02 {
			t.Errorf("%d rows: %.0f bytes a step, want %.0f within 2 %%", capacity, got, want)
		}
	}
}
