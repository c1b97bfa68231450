package policy_test

import (
	"math"
	"math/rand/v2"
	"testing"
)

// What smaller tuples cost in accuracy. Composing passages one behind the other,
//
//	S = T_n S_(n-1) + E_n,
//
// with transitions and end-states off by dT and dE gives a state that is off by
// at most the sum over passages of ‖dT_i‖ ‖S_(i-1)‖ + ‖dE_i‖, all norms
// Frobenius, since a transition of normalised keys with gates and step sizes in
// (0, 1) lengthens nothing: the errors are known when a passage is encoded.

const side = 128

type matrix [][]float64

func zeros() matrix {
	m := make(matrix, side)
	for i := range m {
		m[i] = make([]float64, side)
	}
	return m
}

// passage is a gated delta rule over random tokens: transition and end-state.
func passage(rng *rand.Rand, tokens int, gate float64) (transition, end matrix) {
	transition, end = zeros(), zeros()
	for i := range side {
		transition[i][i] = 1
	}
	k := make([]float64, side)
	for range tokens {
		length := 0.0
		for i := range k {
			k[i] = rng.NormFloat64()
			length += k[i] * k[i]
		}
		for i := range k {
			k[i] /= math.Sqrt(length)
		}
		beta := 1 / (1 + math.Exp(-rng.NormFloat64()))
		alpha := gate + (1-gate)*rng.Float64()
		step(transition, k, alpha, beta, nil)
		v := make([]float64, side)
		for i := range v {
			v[i] = rng.NormFloat64()
		}
		step(end, k, alpha, beta, v)
	}
	return transition, end
}

// step is m = alpha (I - beta k kᵀ) m + beta k vᵀ.
func step(m matrix, k []float64, alpha, beta float64, v []float64) {
	seen := make([]float64, side)
	for i, row := range m {
		for j, x := range row {
			seen[j] += k[i] * x
		}
	}
	for i, row := range m {
		for j := range row {
			row[j] = alpha * (row[j] - beta*k[i]*seen[j])
			if v != nil {
				row[j] += beta * k[i] * v[j]
			}
		}
	}
}

func norm(m matrix) float64 {
	sum := 0.0
	for _, row := range m {
		for _, x := range row {
			sum += x * x
		}
	}
	return math.Sqrt(sum)
}

func minus(a, b matrix) matrix {
	d := zeros()
	for i := range d {
		for j := range d[i] {
			d[i][j] = a[i][j] - b[i][j]
		}
	}
	return d
}

// apply is t s + e.
func apply(t, s, e matrix) matrix {
	out := zeros()
	for i := range out {
		copy(out[i], e[i])
		for k, x := range t[i] {
			for j, y := range s[k] {
				out[i][j] += x * y
			}
		}
	}
	return out
}

// encoded is a matrix after it was written and read again.
func encoded(m matrix, code func(row []float64, out []float64)) matrix {
	out := zeros()
	for i, row := range m {
		code(row, out[i])
	}
	return out
}

func asF32(row, out []float64) {
	for i, x := range row {
		out[i] = float64(float32(x))
	}
}

// asF16 rounds to eleven bits, below 2^-14 to multiples of 2^-24.
func asF16(row, out []float64) {
	for i, x := range row {
		_, exponent := math.Frexp(x)
		unit := math.Ldexp(1, max(exponent-11, -24))
		out[i] = math.RoundToEven(x/unit) * unit
	}
}

// scaled is integers of some bits with one F32 scale a row.
func scaled(bits int) func(row, out []float64) {
	return func(row, out []float64) {
		top := 0.0
		for _, x := range row {
			top = max(top, math.Abs(x))
		}
		if top == 0 {
			return
		}
		scale := float64(float32(top / float64(int(1)<<(bits-1)-1)))
		for i, x := range row {
			out[i] = math.Round(x/scale) * scale
		}
	}
}

func TestSmallerTuplesStayInsideTheirBound(t *testing.T) {
	type code = func(row, out []float64)
	for _, gate := range []float64{0.9, 0.99, 0.999} {
		rng := rand.New(rand.NewPCG(7, uint64(1000*gate)))
		var transitions, ends []matrix
		for range 4 {
			transition, end := passage(rng, 274, gate)
			transitions, ends = append(transitions, transition), append(ends, end)
		}
		for _, c := range []struct {
			name            string
			end, transition code
			most            float64 // relative
		}{
			{"end F32, transition F16", asF32, asF16, 2e-4},
			{"both F16", asF16, asF16, 5e-4},
			{"both 12 bit a row", scaled(12), scaled(12), 1e-3},
			{"both 8 bit a row", scaled(8), scaled(8), 2e-2},
		} {
			exact, got, bound := zeros(), zeros(), 0.0
			for i := range transitions {
				tr, e := encoded(transitions[i], c.transition), encoded(ends[i], c.end)
				bound += norm(minus(tr, transitions[i]))*norm(got) + norm(minus(e, ends[i]))
				exact, got = apply(transitions[i], exact, ends[i]), apply(tr, got, e)
			}
			off, limit := norm(minus(got, exact))/norm(exact), bound/norm(exact)
			t.Logf("gate %.3f  %-26s off by %.1e, bound %.1e", gate, c.name, off, limit)
			if off > limit {
				t.Errorf("gate %v, %s: off by %v, above the bound %v", gate, c.name, off, limit)
			}
			if off > c.most {
				t.Errorf("gate %v, %s: off by %v, want %v at most", gate, c.name, off, c.most)
			}
		}
	}
}
