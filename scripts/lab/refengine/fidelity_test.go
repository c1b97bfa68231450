package refengine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
	"github.com/spliced-kv/spliced/policy/profile"
)

const (
	fidelityDim      = 128
	fidelityTokens   = 1096 // the prompt of HYPIC §4.2, in 4 segments
	fidelitySegments = 4
)

// fidelityRows are the settings of the table: a family, the lower end of its
// decays, bounds, and what the table has (relative errors, angles in degrees).
var fidelityRows = []struct {
	family profile.Family
	name   string
	low    float64 // decays are uniform in [low, 1), fixed ones equal to low
	half   float64 // bound for S in F32 with T in F16
	naive  float64 // relative error of naive addition; 0 = not in the table
	angles degrees
}{
	{profile.GDN, "GDN", 0.90, 6e-5, 1.73, degrees{naive: 59.9}},
	{profile.GDN, "GDN", 0.99, 6e-5, 1.74, degrees{half: 0.0014, halves: 0.012, naive: 58.1}},
	{profile.GDN, "GDN", 0.999, 2e-4, 1.44, degrees{half: 0.006, naive: 50.7}},
	{profile.KDA, "KDA", 0.99, 6e-5, 1.71, degrees{}},
	{profile.KDA, "KDA", 0.999, 2e-4, 1.43, degrees{}},
	{profile.GDN2, "GDN2", 0.99, 6e-5, 0, degrees{}},
	{profile.GDN2, "GDN2", 0.999, 2e-4, 0, degrees{}},
	{profile.DeltaNet, "DeltaNet", 1, 2e-4, 1.36, degrees{naive: 49.3}},
	{profile.Mamba2, "Mamba2", 0.99, 6e-5, 1.53, degrees{}},
	{profile.Mamba2, "Mamba2", 0.999, 2e-4, 0.264, degrees{naive: 8.8}},
	{profile.RetNet, "RetNet", 0.99, 6e-5, 0, degrees{}},
	{profile.RetNet, "RetNet", 0.999, 2e-4, 0, degrees{}},
	{profile.Lightning, "Lightning", 0.99, 6e-5, 0, degrees{}},
	{profile.Lightning, "Lightning", 0.999, 2e-4, 0, degrees{}},
	{profile.GLA, "GLA", 0.99, 2e-4, 1.50, degrees{}},
	{profile.GLA, "GLA", 0.999, 2e-4, 0.260, degrees{}},
}

// degrees are the table's angles: S in F32 with T in F16, both in F16, and naive
// addition; 0 = not in the table.
type degrees struct{ half, halves, naive float64 }

// fidelityHead draws one head's inputs: unit keys, normal values, write
// strengths of a sigmoid of a normal.
func fidelityHead(f profile.Family, low float64, seed uint64) head[float64] {
	rng := rand.New(rand.NewPCG(seed, uint64(f)))
	d, n := fidelityDim, fidelityTokens
	h := head[float64]{
		n: n, k: make([]float64, n*d), sk: d, v: make([]float64, n*d), sv: d,
		// A fixed decay is the number that a float32 engine holds: its rounding is
		// no error of composition, and over 1,096 tokens it would be the largest.
		beta: []float64{1}, decay: []float64{float64(float32(low))},
		delta: f.Transition() == profile.Dense,
	}
	for i := range h.k {
		h.k[i], h.v[i] = rng.NormFloat64(), rng.NormFloat64()
	}
	for t := range n {
		unit(h.k[t*d:][:d])
	}
	gate := func() float64 { return 1 / (1 + math.Exp(-rng.NormFloat64())) }
	switch {
	case f == profile.GDN2:
		h.erase, h.serase = make([]float64, n*d), d
		for i := range h.erase {
			h.erase[i], h.v[i] = gate()*h.k[i], gate()*h.v[i]
		}
	case h.delta:
		h.beta, h.sbeta = make([]float64, n), 1
		for i := range h.beta {
			h.beta[i] = gate()
		}
	}
	switch f.Decay() {
	case profile.DecayPerHead:
		h.decay, h.sdecay = make([]float64, n), 1
	case profile.DecayPerKey:
		h.decay, h.sdecay, h.perKey = make([]float64, n*d), d, 1
	default:
		return h
	}
	for i := range h.decay {
		h.decay[i] = low + (1-low)*rng.Float64()
	}
	return h
}

func narrowed(h head[float64]) head[float32] {
	return head[float32]{
		n: h.n, k: narrow(h.k), sk: h.sk, v: narrow(h.v), sv: h.sv, decay: narrow(h.decay), sdecay: h.sdecay,
		perKey: h.perKey, beta: narrow(h.beta), sbeta: h.sbeta, delta: h.delta, erase: narrow(h.erase), serase: h.serase,
	}
}

func narrow(x []float64) []float32 {
	if x == nil {
		return nil
	}
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}

func between[F Float](h head[F], lo, hi int) head[F] {
	h.n = hi - lo
	h.k, h.v = h.k[lo*h.sk:], h.v[lo*h.sv:]
	h.decay, h.beta = h.decay[lo*h.sdecay:], h.beta[lo*h.sbeta:]
	if h.erase != nil {
		h.erase = h.erase[lo*h.serase:]
	}
	return h
}

func tuplesOf[F Float](h head[F], form profile.Transition) []Tuple[F] {
	d := fidelityDim
	size := map[profile.Transition]int{profile.Scalar: 1, profile.Diagonal: d, profile.Dense: d * d}[form]
	var out []Tuple[F]
	for i := range fidelitySegments {
		part := between(h, i*h.n/fidelitySegments, (i+1)*h.n/fidelitySegments)
		u := Tuple[F]{T: make([]F, size), S: make([]F, d*d)}
		part.run(u.S, d, d, nil, 0, make([]F, d))
		part.cumulate(u.T, form, d, make([]F, d))
		out = append(out, u)
	}
	return out
}

// composed joins tuples with the daemon's kernel, T and S stored as given.
func composed(tuples []Tuple[float32], form profile.Transition, tType, sType kernel.DType) []float64 {
	d := fidelityDim
	var steps []kernel.Step
	for _, u := range tuples {
		t, s := make([]byte, len(u.T)*tType.Size()), make([]byte, len(u.S)*sType.Size())
		kernel.FromF32(t, u.T, tType)
		kernel.FromF32(s, u.S, sType)
		steps = append(steps, kernel.Step{T: t, TType: tType, S: s, SType: sType})
	}
	state := make([]float32, d*d)
	kernel.Compose(kernel.Transition(form), d, d, state, steps, nil)
	return convert[float64](state)
}

// angle is the angle between two states in degrees.
func angle(a, b []float64) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += a[i] * b[i]
		aa += a[i] * a[i]
		bb += b[i] * b[i]
	}
	return math.Acos(min(1, ab/math.Sqrt(aa*bb))) * 180 / math.Pi
}

// The composed state against one pass in float64, for every family and storage
// type (HYPIC §4.2: 6e-5 and 0.003 degrees is S in F32 with T in F16).
func TestFidelityTable(t *testing.T) {
	for i, row := range fidelityRows {
		if raceEnabled && i%4 != 1 {
			continue // one goroutine computes all of it: three rows will do
		}
		t.Run(fmt.Sprintf("%s/%g", row.name, row.low), func(t *testing.T) {
			d := fidelityDim
			form := row.family.Transition()
			double := fidelityHead(row.family, row.low, 11)
			want := make([]float64, d*d)
			double.run(want, d, d, nil, 0, make([]float64, d))

			exact := make([]float64, d*d)
			for _, u := range tuplesOf(double, form) {
				composeHead(form, exact, u.T, u.S, d, d)
			}
			single := tuplesOf(narrowed(double), form)
			added := make([]float64, d*d)
			for _, u := range single {
				for i, x := range u.S {
					added[i] += float64(x)
				}
			}
			for _, c := range []struct {
				name        string
				got         []float64
				least, most float64
				degrees     float64
			}{
				{"fp64", exact, 0, 1e-14, 0},
				{"fp32", composed(single, form, kernel.F32, kernel.F32), 0, 1e-6, 0},
				{"S fp32, T fp16", composed(single, form, kernel.F16, kernel.F32), 0, row.half, row.angles.half},
				{"S, T fp16", composed(single, form, kernel.F16, kernel.F16), 1e-4, 4e-4, row.angles.halves},
				{"S, T bf16", composed(single, form, kernel.BF16, kernel.BF16), 8e-4, 4e-3, 0},
				{"naive addition", added, 0.25, 2.5, row.angles.naive},
			} {
				e, deg := distance(c.got, want), angle(c.got, want)
				t.Logf("%-15s %.2g, %.4f deg", c.name, e, deg)
				if c.degrees > 0 && math.Abs(deg/c.degrees-1) > 0.15 {
					t.Errorf("%s: %.4f degrees, the table has %g", c.name, deg, c.degrees)
				}
				if !(e >= c.least && e <= c.most) {
					t.Errorf("%s: relative error %.3g outside [%g, %g]", c.name, e, c.least, c.most)
				}
			}
			if e := distance(added, want); row.naive > 0 && math.Abs(e/row.naive-1) > 0.15 {
				t.Errorf("naive addition is off by %.3g, expected about %.3g", e, row.naive)
			}
		})
	}
}

// Table 2 of the paper, to its digits: naive addition over a fixed decay is off
// by 1 - decay^n of what came before.
func TestNaiveAdditionOfTable2(t *testing.T) {
	want := map[int][3]float64{5: {1, 1, 1}, 7: {0.866, 0.982, 1}, 10: {0.221, 0.394, 0.632}}
	for power, row := range want {
		if raceEnabled && power != 7 {
			continue // one goroutine computes all of it
		}
		for i, n := range []int{256, 512, 1024} {
			h := fidelityHead(profile.RetNet, 1-math.Pow(2, -float64(power)), 3)
			h.n = n
			d := fidelityDim
			before := make([]float64, d*d)
			rng := rand.New(rand.NewPCG(1, 2))
			for j := range before {
				before[j] = rng.NormFloat64()
			}
			zero, full := make([]float64, d*d), append([]float64(nil), before...)
			h.run(zero, d, d, nil, 0, make([]float64, d))
			h.run(full, d, d, nil, 0, make([]float64, d))
			var e, norm float64
			for j := range before {
				e += math.Pow(before[j]+zero[j]-full[j], 2)
				norm += before[j] * before[j]
			}
			if got := math.Sqrt(e / norm); math.Abs(got-row[i]) > 0.0005 {
				t.Errorf("decay 1-2^-%d over %d tokens: %.4f, the paper has %.3f", power, n, got, row[i])
			}
		}
	}
}
