package kernel

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
)

var formNames = [...]string{"plain", "zero", "int8", "int12", "int16"}

func (f Form) name() string {
	if r := f.Rank(); r > 0 {
		return fmt.Sprint("rank ", r)
	}
	return formNames[f]
}

// headOf writes a head in an integer form as the definition has it, bit by bit, and
// returns its numbers.
func headOf(f Form, g float32, scales []float32, q [][]int, cols int) ([]byte, []float32) {
	b := binary.LittleEndian.AppendUint32(nil, math.Float32bits(g))
	var values []float32
	for _, s := range scales {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(s))
	}
	bits := map[Form]int{FormInt8: 8, FormInt12: 12, FormInt16: 16}[f]
	for i, row := range q {
		packed := make([]byte, (cols*bits+7)/8)
		for j, v := range row {
			for k := range bits {
				at := j*bits + k
				packed[at/8] |= byte(v>>k&1) << (at % 8)
			}
			value := scales[i] * float32(v)
			if i == j {
				value += g
			}
			values = append(values, value)
		}
		b = append(b, packed...)
	}
	return b, values
}

var packedShapes = [][2]int{{1, 1}, {1, 7}, {3, 3}, {5, 1}, {4, 16}, {7, 33}, {17, 24}, {33, 33}, {16, 47}, {64, 64}, {31, 130}, {128, 128}, {9, 25}}

// wantUnpacked reads a head in this form with what is active and in plain Go.
func wantUnpacked(t *testing.T, f Form, plain []byte, want []float32, rows, cols int) {
	t.Helper()
	b, _ := guarded(t, len(plain))
	copy(b, plain)
	what := fmt.Sprintf("%s [%d, %d]", f.name(), rows, cols)
	got, ok := guardedF32(t, rows*cols)
	unpack(got, f, b, F16, rows, cols, nil)
	wantSame(t, what, got, want)
	unpackGeneric(got, f, b, F16, rows, cols, nil)
	wantSame(t, "generic "+what, got, want)
	ok()
}

func TestFormsReadAsDefined(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for _, d := range packedShapes {
			for _, f := range []Form{FormInt8, FormInt12, FormInt16} {
				rows, cols, top := d[0], d[1], int(f.largest())
				scales, q := make([]float32, rows), make([][]int, rows)
				for i := range q {
					scales[i] = float32(math.Ldexp(r.Float64(), r.IntN(40)-20))
					for range cols {
						q[i] = append(q[i], r.IntN(2*top+2)-top-1)
					}
				}
				plain, want := headOf(f, 0.75, scales, q, cols)
				wantUnpacked(t, f, plain, want, rows, cols)
				if n := FormBytes(f, F16, rows, cols); n%PartAlign != 0 || n < len(plain) || n >= len(plain)+PartAlign {
					t.Errorf("%s %v takes %d bytes, FormBytes says %d", f.name(), d, len(plain), n)
				}
			}
		}
	})
}

func TestRanksReadAsDefined(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for _, d := range packedShapes {
			for _, rank := range []int{1, 2, 3, 31} {
				f, rows, cols := FormRank+Form(rank-1), d[0], d[1]
				plain, want := make([]byte, rank*(rows+cols+4)), make([]float32, rows*cols)
				right, left, scales := plain[:rank*cols], plain[rank*cols:rank*(cols+rows)], plain[rank*(cols+rows):]
				for i := range plain {
					plain[i] = byte(r.Uint32())
				}
				for k := range rank {
					scale := FactorScale(float32(math.Ldexp(r.Float64(), r.IntN(40)-20)))
					binary.LittleEndian.PutUint32(scales[4*k:], math.Float32bits(scale))
					for i := range want {
						a := scale * float32(int8(left[k*rows+i/cols]))
						want[i] += a * float32(int8(right[k*cols+i%cols])) // exact, fused or not
					}
				}
				wantUnpacked(t, f, plain, want, rows, cols)
				if n := FormBytes(f, F16, rows, cols); n != padded(len(plain)) || f.Rank() != rank || f.Bits() != 0 {
					t.Errorf("%s %v takes %d bytes, FormBytes says %d", f.name(), d, len(plain), n)
				}
			}
		}
	})
}

// heads are matrices that are awkward in one way each.
var heads = map[string]func(r *rand.Rand, x []float32, rows, cols int){
	"noise":     func(r *rand.Rand, x []float32, _, _ int) { normal(r, x, 1) },
	"tiny":      func(r *rand.Rand, x []float32, _, _ int) { normal(r, x, 1e-6) },
	"zero":      func(_ *rand.Rand, x []float32, _, _ int) { clear(x) },
	"minusZero": func(_ *rand.Rand, x []float32, _, _ int) { fill(x, float32(math.Copysign(0, -1))) },
	"constant":  func(_ *rand.Rand, x []float32, _, _ int) { fill(x, 0.3) },
	"denormal":  func(r *rand.Rand, x []float32, _, _ int) { normal(r, x, 0x1p-147) },
	"huge":      func(r *rand.Rand, x []float32, _, _ int) { normal(r, x, 1e30) },
	"largest": func(r *rand.Rand, x []float32, _, _ int) {
		for i := range x {
			x[i] = math.MaxFloat32 * float32(1-2*r.IntN(2))
		}
	},
	"nan":      func(r *rand.Rand, x []float32, _, _ int) { normal(r, x, 1); x[len(x)/2] = float32(math.NaN()) },
	"infinite": func(r *rand.Rand, x []float32, _, _ int) { normal(r, x, 1); x[len(x)-1] = float32(math.Inf(-1)) },
	"scales": func(r *rand.Rand, x []float32, _, cols int) {
		for i := range x {
			x[i] = float32(math.Ldexp(r.NormFloat64(), -10*(i/max(cols, 1))))
		}
	},
	"spike": func(r *rand.Rand, x []float32, _, _ int) { normal(r, x, 1e-3); x[len(x)/3] = 100 },
	"ties": func(r *rand.Rand, x []float32, _, _ int) {
		for i := range x {
			x[i] = float32(r.IntN(509)-254) / 2
		}
		x[0] = 127
	},
	"rankOne": func(r *rand.Rand, x []float32, rows, cols int) {
		a, b := make([]float32, rows), make([]float32, cols)
		normal(r, a, 0.1)
		normal(r, b, 0.1)
		for i := range x {
			x[i] = a[i/cols] * b[i%cols]
		}
	},
	// Singular values that halve, as those of an end-state nearly do.
	"fading": func(r *rand.Rand, x []float32, rows, cols int) {
		a, b := make([]float32, rows), make([]float32, cols)
		clear(x)
		for k := range min(rows, cols) {
			normal(r, a, math.Ldexp(1, -k))
			normal(r, b, 1)
			for i := range x {
				x[i] += a[i/cols] * b[i%cols]
			}
		}
	},
	"decayNear1": func(r *rand.Rand, x []float32, rows, cols int) { delta(r, x, rows, cols, 0.9999, 1, 0.05, 64) },
	"decayNear0": func(r *rand.Rand, x []float32, rows, cols int) { delta(r, x, rows, cols, 0.8, 0.95, 1, 40) },
	"decayByKey": func(r *rand.Rand, x []float32, rows, cols int) { delta(r, x, rows, cols, 0.5, 1, 0.5, 8) },
	"reflections": func(r *rand.Rand, x []float32, rows, cols int) {
		delta(r, x, rows, cols, 1, 1, 2, 100)
	},
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// delta is a product of n factors D(I - beta*k*kᵀ) with unit keys and decays D from
// low to high, as far as x goes.
func delta(r *rand.Rand, x []float32, rows, cols int, low, high, beta float64, n int) {
	side := max(rows, cols)
	m := make([]float64, side*side)
	for i := range side {
		m[i*side+i] = 1
	}
	k, dot := make([]float64, side), make([]float64, side)
	for range n {
		var size float64
		for i := range k {
			k[i] = r.NormFloat64()
			size += k[i] * k[i]
		}
		clear(dot)
		for i := range k {
			k[i] /= math.Sqrt(size)
			for j := range dot {
				dot[j] += k[i] * m[i*side+j]
			}
		}
		for i := range k {
			d := low + r.Float64()*(high-low)
			for j := range dot {
				m[i*side+j] = d * (m[i*side+j] - beta*k[i]*dot[j])
			}
		}
	}
	for i := range x {
		x[i] = float32(m[i/cols*side+i%cols])
	}
}

// spectral is the largest singular value of a, from below, by power iteration.
func spectral(a []float64, rows, cols int) float64 {
	var best float64
	for try := range 2 {
		v, w := make([]float64, cols), make([]float64, rows)
		for j := range v {
			v[j] = 1 + float64((j*7+3*try)%11)
		}
		for range 25 {
			length := norm64(v)
			if length == 0 {
				break
			}
			for j := range v {
				v[j] /= length
			}
			for i := range w {
				w[i] = 0
				for j, x := range a[i*cols:][:cols] {
					w[i] += x * v[j]
				}
			}
			best = max(best, norm64(w))
			clear(v)
			for i := range w {
				for j, x := range a[i*cols:][:cols] {
					v[j] += x * w[i]
				}
			}
		}
	}
	return best
}

// norm64 is the length of v, which may be very short or long.
func norm64(v []float64) float64 {
	var top, sum float64
	for _, x := range v {
		top = max(top, math.Abs(x))
	}
	if top == 0 {
		return 0
	}
	for _, x := range v {
		sum += x / top * (x / top)
	}
	return top * math.Sqrt(sum)
}

// checkHead verifies what Pack says of a head against its stored bytes.
func checkHead(t *testing.T, what string, exact, stored []float32, f Form, e FormError, l Limit, rows, cols int) {
	t.Helper()
	if peakBitsGeneric(exact) >= 0x7f800000 {
		if f != FormPlain || !math.IsInf(e.NormBound, 1) || !math.IsInf(e.Norm, 1) || e.Spectral != 0 {
			t.Errorf("%s: not finite, but %s, %+v", what, f.name(), e)
		}
		return
	}
	diff, kept, whole := make([]float64, len(exact)), make([]float64, len(exact)), make([]float64, len(exact))
	for i := range exact {
		diff[i] = float64(exact[i]) - float64(stored[i])
		kept[i], whole[i] = float64(stored[i]), float64(exact[i])
	}
	const slack = 1e-12
	if got := norm64(diff); !(got <= e.Frobenius*(1+slack)) || e.Frobenius > got*(1+1e-6) {
		t.Errorf("%s: %s differs by %g (Frobenius), said %g", what, f.name(), got, e.Frobenius)
	}
	if got := spectral(diff, rows, cols); !(got <= e.Spectral*(1+slack)) || e.Spectral > e.Frobenius {
		t.Errorf("%s: %s differs by %g (spectral), said %g", what, f.name(), got, e.Spectral)
	}
	if got := spectral(kept, rows, cols); !(got <= e.NormBound*(1+slack)) {
		t.Errorf("%s: %s has norm %g, said %g", what, f.name(), got, e.NormBound)
	}
	if got := norm64(whole); math.Abs(got-e.Norm) > 1e-9*got {
		t.Errorf("%s: Frobenius norm %g, said %g", what, got, e.Norm)
	}
	if l.transition() && !(e.Spectral <= l.Absolute) {
		t.Errorf("%s: %s errs by %g, may by %g", what, f.name(), e.Spectral, l.Absolute)
	}
	if !l.transition() && !(e.Frobenius <= l.Relative*norm64(whole)*(1+slack)) {
		t.Errorf("%s: %s errs by %g of %g, may by %g", what, f.name(), e.Frobenius, e.Norm, l.Relative)
	}
}

var limits = []Limit{{}, {Absolute: 1e-1}, {Absolute: 1e-2}, {Absolute: 1e-3}, {Absolute: 1e-5}, {Absolute: 1e30}, {Relative: 1e-2}, {Relative: 3e-4}, {Relative: 1e-5}}

// Every kind of head, packed under every limit, is as near as was said.
func TestPackedHeadsAreAsNearAsSaid(t *testing.T) {
	r := rng(t)
	var p Packer
	seen := map[Form]int{}
	for _, name := range slices.Sorted(maps.Keys(heads)) {
		for i, d := range packedShapes {
			rows, cols, dt := d[0], d[1], dtypes[i%3]
			for _, dt := range []DType{dt, F32} {
				x := make([]float32, rows*cols)
				heads[name](r, x, rows, cols)
				src, _ := encode(t, x, dt)
				toF32Generic(x, src, dt)
				for _, l := range limits {
					what := fmt.Sprintf("%s %v %s %+v", name, d, dt.name(), l)
					dst, ok := guarded(t, PackedHeader(1)+FormBytes(FormPlain, dt, rows, cols))
					n, errs := p.Pack(dst, src, dt, 1, rows, cols, l)
					ok()
					opened, err := OpenPacked(dst[:n], dt, 1, rows, cols)
					if err != nil || len(errs) != 1 {
						t.Fatalf("%s: %v, %d errors", what, err, len(errs))
					}
					f, b := opened.Head(0)
					seen[f]++
					stored := make([]float32, rows*cols)
					opened.Unpack(stored, 0)
					checkHead(t, what, x, stored, f, errs[0], l, rows, cols)
					if f == FormPlain && !bytes.Equal(b, src) {
						t.Errorf("%s: plain bytes changed", what)
					}
				}
			}
		}
	}
	for f := range Form(formCount) {
		if seen[f] == 0 {
			t.Errorf("nothing was kept as %s", f.name())
		}
	}
	high := 0
	for f, n := range seen {
		if f.Rank() >= 8 {
			high += n
		}
	}
	if seen[FormRank] == 0 || high == 0 {
		t.Errorf("%d heads were kept in rank 1, %d in 8 or more", seen[FormRank], high)
	}
	t.Log(seen)
}

// A million heads of every kind, and of sizes that let them be measured in some minutes.
func TestAMillionHeadsAreAsNearAsSaid(t *testing.T) {
	if os.Getenv("SPLICED_LONG") == "" {
		t.Skip("some minutes: SPLICED_LONG is not set")
	}
	names := slices.Sorted(maps.Keys(heads))
	workers := runtime.GOMAXPROCS(0)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 6))
			packers := map[[2]int]*Packer{} // one of a shape allocates once
			for i := w; i < 1_000_000 && !t.Failed(); i += workers {
				d, dt, l := [2]int{1 + r.IntN(20), 1 + r.IntN(20)}, dtypes[r.IntN(3)], limits[r.IntN(len(limits))]
				if r.IntN(2) == 0 {
					d[1] = d[0]
				}
				name := names[i%len(names)]
				x := make([]float32, d[0]*d[1])
				heads[name](r, x, d[0], d[1])
				src, _ := encode(t, x, dt)
				toF32Generic(x, src, dt)
				if packers[d] == nil {
					packers[d] = &Packer{}
				}
				dst := make([]byte, PackedHeader(1)+FormBytes(FormPlain, dt, d[0], d[1]))
				n, errs := packers[d].Pack(dst, src, dt, 1, d[0], d[1], l)
				opened, err := OpenPacked(dst[:n], dt, 1, d[0], d[1])
				if err != nil {
					t.Error(err)
					return
				}
				f, _ := opened.Head(0)
				stored := make([]float32, len(x))
				opened.Unpack(stored, 0)
				checkHead(t, fmt.Sprintf("%d: %s %v %s %+v", i, name, d, dt.name(), l), x, stored, f, errs[0], l, d[0], d[1])
			}
		})
	}
	running.Wait()
}

// The form is the smallest one whose error, measured here without Pack, is allowed.
func TestPackChoosesTheSmallestFormThatIsNearEnough(t *testing.T) {
	r := rng(t)
	const rows, cols = 40, 40
	x := make([]float32, rows*cols)
	for _, c := range []struct {
		head     string
		t        DType
		relative float64
		want     Form
	}{
		{"noise", F32, 1e-2, FormInt8}, {"noise", F32, 1e-3, FormInt12}, {"noise", F32, 1e-4, FormInt16}, {"noise", F32, 1e-7, FormPlain},
		{"noise", F16, 1e-3, FormInt12}, {"noise", BF16, 1e-4, FormPlain}, {"zero", F16, 0, FormZero}, {"minusZero", F32, 0, FormZero},
		{"ties", F32, 1e-2, FormInt8}, {"nan", F32, 1, FormPlain},
		{"rankOne", F32, 2e-2, FormRank}, {"rankOne", F32, 1e-3, FormRank + 2}, {"rankOne", F16, 0, FormPlain},
		{"constant", F32, 2e-3, FormRank}, {"constant", F32, 1e-3, FormRank + 1}, {"spike", F32, 0.01, FormRank}, {"huge", F32, 2e-2, FormInt8}, {"largest", F32, 2e-2, FormPlain},
	} {
		heads[c.head](r, x, rows, cols)
		src, _ := encode(t, x, c.t)
		var p Packer
		dst := make([]byte, 64+FormBytes(FormPlain, c.t, rows, cols))
		n, _ := p.Pack(dst, src, c.t, 1, rows, cols, Limit{Relative: c.relative})
		if f := Form(dst[0]); f != c.want || n != PackedBytes([]Form{f}, c.t, rows, cols) {
			t.Errorf("%s of %s within %g is %s in %d bytes, want %s", c.head, c.t.name(), c.relative, f.name(), n, c.want.name())
		}
	}
}

// Transitions: what is near zero goes, and what is near a multiple of one is as cheap
// as what is left of it.
func TestPackKnowsTransitions(t *testing.T) {
	const d = 64
	r := rng(t)
	x := make([]float32, d*d)
	var p Packer
	dst := make([]byte, 64+4*d*d)
	pack := func(limit float64) (Form, FormError) {
		src, _ := encode(t, x, F32)
		_, errs := p.Pack(dst, src, F32, 1, d, d, Limit{Absolute: limit})
		return Form(dst[0]), errs[0]
	}
	normal(r, x, 1e-6)
	if f, e := pack(1e-4); f != FormZero || e.NormBound != 0 {
		t.Errorf("noise of norm 1.6e-5 is %s, %+v", f.name(), e)
	}
	if f, _ := pack(1e-5); f == FormZero {
		t.Error("noise of norm 1.6e-5 went as within 1e-5")
	}
	for i := range d {
		x[i*d+i] += 0.9
	}
	f, e := pack(1e-5)
	if f != FormInt8 || e.NormBound > 0.9001 {
		t.Errorf("0.9 and little noise is %s, %+v", f.name(), e)
	}
	for i := range x { // one whose Frobenius norm is 8 times its spectral one
		x[i] = 0
		if i%d == i/d {
			x[i] = 1e-3 * float32(1-2*(i/d%2))
		}
	}
	if f, e := pack(3e-3); f != FormZero {
		t.Errorf("a matrix of norm 1e-3 is %s within 3e-3, %+v", f.name(), e)
	}
}

func TestBoundOfNormsIsTight(t *testing.T) {
	r := rng(t)
	const n = 128
	x, wide := make([]float32, n*n), make([]float64, n*n)
	var m meter
	for _, c := range []struct {
		head string
		most float64 // times the norm
	}{{"noise", 2.2}, {"rankOne", 1.01}, {"constant", 1.01}, {"huge", 2.2}, {"reflections", 3.5}} {
		heads[c.head](r, x, n, n)
		for i, v := range x {
			wide[i] = float64(v)
		}
		bound, frobenius := m.norms(x, n, n)
		if norm := spectral(wide, n, n); bound < norm*(1-1e-12) || bound > c.most*norm || frobenius < bound {
			t.Errorf("%s: norm %g, bound %g, Frobenius %g", c.head, norm, bound, frobenius)
		}
	}
	long := make([]float32, 3*(gramCols+8))
	normal(r, long, 1)
	if s, f := m.norms(long, 3, gramCols+8); s != f {
		t.Errorf("too wide: %g, %g", s, f)
	}
}

// Bytes and bounds are the same with every instruction set, and with a Packer that
// has packed other shapes.
func TestPackIsTheSameEverywhere(t *testing.T) {
	r := rng(t)
	type result struct {
		b    []byte
		errs []FormError
	}
	var first []result
	names := slices.Sorted(maps.Keys(heads))
	var parts [][]byte
	for i, d := range packedShapes {
		var src []byte
		for _, name := range names {
			x := make([]float32, d[0]*d[1])
			heads[name](r, x, d[0], d[1])
			b, _ := encode(t, x, dtypes[i%3])
			src = append(src, b...)
		}
		parts = append(parts, src)
	}
	eachISA(t, func(t *testing.T) {
		var p Packer
		n := 0
		for i, d := range packedShapes {
			for _, l := range limits {
				dt := dtypes[i%3]
				dst := make([]byte, PackedHeader(len(names))+len(names)*FormBytes(FormPlain, dt, d[0], d[1]))
				for j := range dst {
					dst[j] = 0xa5
				}
				size, errs := p.Pack(dst, parts[i], dt, len(names), d[0], d[1], l)
				got := result{dst[:size], slices.Clone(errs)}
				if n == len(first) {
					first = append(first, got)
				}
				if !bytes.Equal(got.b, first[n].b) || !slices.Equal(got.errs, first[n].errs) {
					t.Fatalf("%v %s %+v: other bytes or bounds", d, dt.name(), l)
				}
				n++
			}
		}
	})
}

// What a part packs to is the same on other processors too.
func TestPackedBytesAreKnown(t *testing.T) {
	const n, d = 3, 72
	r := rand.New(rand.NewPCG(7, 7))
	x := make([]float32, n*d*d)
	for i := range x { // no function whose last bit a processor decides
		x[i] = (float32(r.Uint32()>>8)*0x1p-23 - 1) / float32(1+i/(d*d)*1000)
		if i/d%d == i%d {
			x[i] += 0.875
		}
	}
	for i := range d * d { // the third head: five terms, and little noise of the first
		var v float32
		for k := range 5 {
			v += float32((i/d*(k+3)+k)%11-5) * float32((i%d*(k+2)+k)%7-3) / float32(int(1)<<k)
		}
		x[2*d*d+i] = v + x[i]/1024
	}
	src, _ := encode(t, x, F32)
	eachISA(t, func(t *testing.T) {
		sum := crc32.NewIEEE()
		var p Packer
		dst := make([]byte, 64+n*FormBytes(FormPlain, F32, d, d))
		for _, l := range limits {
			size, errs := p.Pack(dst, src, F32, n, d, d, l)
			sum.Write(dst[:size])
			if err := binary.Write(sum, binary.LittleEndian, errs); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := sum.Sum32(), uint32(0xf3f6872d); got != want {
			t.Errorf("checksum %#08x, want %#08x", got, want)
		}
	})
}

func TestPackDoesNotAllocate(t *testing.T) {
	r := rng(t)
	const n, d = 3, 40
	x := make([]float32, n*d*d)
	normal(r, x, 1)
	src, _ := encode(t, x, F32)
	dst := make([]byte, 64+n*4*d*d)
	var p Packer
	p.Pack(dst, src, F32, n, d, d, Limit{Absolute: 1e-2})
	if n := testing.AllocsPerRun(5, func() { p.Pack(dst, src, F32, n, d, d, Limit{Absolute: 1e-2}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPackRefusesWrongSizes(t *testing.T) {
	var p Packer
	dst, src := make([]byte, 64+128), make([]byte, 64)
	wantPanic(t, "short source", func() { p.Pack(dst, src[1:], F32, 1, 4, 4, Limit{}) })
	wantPanic(t, "short destination", func() { p.Pack(dst[:127], src, F32, 1, 4, 4, Limit{}) })
	wantPanic(t, "unknown type", func() { p.Pack(dst, src, 9, 1, 4, 4, Limit{}) })
	if n, errs := p.Pack(dst, nil, F16, 0, 4, 4, Limit{}); n != 0 || len(errs) != 0 {
		t.Errorf("no heads: %d bytes, %d errors", n, len(errs))
	}
	if n, errs := p.Pack(dst, nil, F16, 2, 0, 4, Limit{}); n != 64 || len(errs) != 2 {
		t.Errorf("heads of nothing: %d bytes, %d errors", n, len(errs))
	}
}

func TestOpenPackedRefuses(t *testing.T) {
	forms := []Form{FormInt8, FormPlain, FormZero, FormInt12, FormInt16, FormRank + 2}
	const rows, cols = 7, 9
	good := make([]byte, PackedBytes(forms, F16, rows, cols))
	for i, f := range forms {
		good[i] = byte(f)
	}
	if _, err := OpenPacked(good, F16, len(forms), rows, cols); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPacked(append(slices.Clone(good), 0, 0), F16, len(forms), rows, cols); err != nil {
		t.Error("zeros behind the last head: ", err)
	}
	changed := func(at int, v byte) []byte {
		b := slices.Clone(good)
		b[at] = v
		return b
	}
	scaled := func(v float32) []byte { // the second of three scales of the last head
		b := slices.Clone(good)
		binary.LittleEndian.PutUint32(b[len(b)-FormBytes(FormRank+2, F16, rows, cols)+3*(rows+cols)+4:], math.Float32bits(v))
		return b
	}
	for _, v := range []float32{-1.5, 0x1.ff8p112, 0x1p-126, 0x1p-135} {
		if _, err := OpenPacked(scaled(v), F16, len(forms), rows, cols); err != nil {
			t.Error(err)
		}
	}
	for what, c := range map[string]struct {
		b                 []byte
		t                 DType
		heads, rows, cols int
	}{
		"short":            {good[:len(good)-1], F16, 6, rows, cols},
		"more than zeros":  {append(slices.Clone(good), 0, 1), F16, 6, rows, cols},
		"nothing":          {nil, F16, 6, rows, cols},
		"unknown form":     {changed(2, formCount), F16, 6, rows, cols},
		"no form either":   {changed(2, byte(FormRank)-1), F16, 6, rows, cols},
		"more than it has": {changed(2, byte(FormRank)), F16, 6, rows, cols},
		"the largest rank": {changed(2, 255), F16, 6, rows, cols},
		"another form":     {changed(0, byte(FormInt16)), F16, 6, rows, cols},
		"more heads":       {good, F16, 7, rows, cols},
		"error below zero": {changed(6+3, 0xbf), F16, 6, rows, cols},
		"no norm":          {changed(6+4*6+3, 0xff), F16, 6, rows, cols},
		"after the norms":  {changed(9*6, 1), F16, 6, rows, cols},
		"negative":         {good, F16, 6, -rows, -cols},
		"huge":             {good, F16, 6, math.MaxInt, math.MaxInt},
		"unknown type":     {good, 9, 6, rows, cols},
		"another shape":    {good, F16, 6, cols, cols},
		"eleven bits":      {scaled(math.Float32frombits(0x3f802000)), F16, 6, rows, cols},
		"too large":        {scaled(0x1p114), F16, 6, rows, cols},
		"no scale":         {scaled(float32(math.NaN())), F16, 6, rows, cols},
		"an infinite one":  {scaled(float32(math.Inf(-1))), F16, 6, rows, cols},
	} {
		if _, err := OpenPacked(c.b, c.t, c.heads, c.rows, c.cols); err == nil {
			t.Errorf("%s: opened", what)
		}
	}
	if PackedBytes([]Form{0, formCount}, F16, 1, 1) != -1 || FormBytes(9, F16, 1, 1) != -1 || FormBytes(0, 9, 1, 1) != -1 {
		t.Error("unknown forms or types have a size")
	}
}

func FuzzOpenPacked(f *testing.F) {
	good := make([]byte, PackedBytes([]Form{2, 3, 1}, F16, 5, 9))
	copy(good, []byte{2, 3, 1})
	f.Add(good, uint8(1), int16(3), int16(5), int16(9))
	f.Add([]byte{}, uint8(0), int16(0), int16(1), int16(1))
	f.Fuzz(func(t *testing.T, b []byte, dt uint8, heads, rows, cols int16) {
		d := dtypes[dt%3]
		b = b[:len(b):len(b)]
		p, err := OpenPacked(b, d, int(heads), int(rows), int(cols))
		if err != nil {
			return
		}
		var forms []Form
		x := make([]float32, int(rows)*int(cols))
		for h := range int(heads) {
			form, head := p.Head(h)
			forms = append(forms, form)
			if want := FormBytes(form, d, int(rows), int(cols)); padded(len(head)) != want {
				t.Fatalf("head %d in form %d has %d bytes, want %d", h, form, len(head), want)
			}
			p.Unpack(x, h)
			same := make([]float32, len(x))
			unpackGeneric(same, form, head, d, int(rows), int(cols), nil)
			wantSame(t, "unpacked", x, same)
		}
		if n := PackedBytes(forms, d, int(rows), int(cols)); n > len(b) {
			t.Fatalf("opened %d bytes, want %d", len(b), n)
		}
	})
}

func FuzzPack(f *testing.F) {
	for i := range len(heads) {
		f.Add(uint64(i), uint8(i), uint8(20), uint8(20), 1e-3)
	}
	f.Fuzz(func(t *testing.T, seed uint64, kind, rows, cols uint8, limit float64) {
		r := rand.New(rand.NewPCG(seed, 3))
		m, n := 1+int(rows)%50, 1+int(cols)%50
		x := make([]float32, m*n)
		for i := range x { // any bits, in fewer exponents than there are
			x[i] = math.Float32frombits(r.Uint32() & (0x8fffffff | uint32(kind)<<23))
		}
		l := Limit{Absolute: limit}
		if kind%2 == 1 {
			l = Limit{Relative: limit}
		}
		src, _ := encode(t, x, F32)
		dst := make([]byte, 64+FormBytes(FormPlain, F32, m, n))
		var p Packer
		size, errs := p.Pack(dst, src, F32, 1, m, n, l)
		opened, err := OpenPacked(dst[:size], F32, 1, m, n)
		if err != nil {
			t.Fatal(err)
		}
		stored := make([]float32, len(x))
		opened.Unpack(stored, 0)
		form, _ := opened.Head(0)
		if form != FormPlain || !(limit < 0 || limit != limit) {
			checkHead(t, fmt.Sprint("seed ", seed), x, stored, form, errs[0], l, m, n)
		}
	})
}

// Exact: what is measured decides which form a head gets.
func TestMeasuresAgreeWithGeneric(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for n := range 75 {
			x, _ := guardedF32(t, n)
			normal(r, x, 1)
			if n > 2 {
				x[n/2], x[n-1] = float32(math.Copysign(0, -1)), -1e-41
			}
			wide := peakBits(x)
			if want := peakBitsGeneric(x); wide != want {
				t.Fatalf("peak of %d: %#x, want %#x", n, wide, want)
			}
			if got, want := squares(x), squaresGeneric(x); got != want {
				t.Fatalf("squares of %d: %v, want %v", n, got, want)
			}
			y, _ := guardedF32(t, n)
			normal(r, y, 1)
			if got, want := inner(x, y), innerGeneric(x, y); got != want {
				t.Fatalf("products of %d: %v, want %v", n, got, want)
			}
			v := make([]int32, n)
			for i := range v {
				v[i] = int32(r.Uint32()) / 2
			}
			if got, want := weighted(v, x), weightedGeneric(v, x); got != want {
				t.Fatalf("weighted of %d: %v, want %v", n, got, want)
			}
			for _, largest := range []float32{127, 2047, 32767} {
				for _, scale := range []float32{math.Float32frombits(wide) / largest, 1e-3, 0x1p-149, 0} {
					q, want := make([]int16, n+1), make([]int16, n+1)
					q[n], want[n] = 77, 77
					rest, ok := guardedF32(t, n)
					wantRest := make([]float32, n)
					quantize(q[:n], rest, x, scale, largest)
					quantizeGeneric(want[:n], wantRest, x, scale, largest)
					ok()
					if !slices.Equal(q, want) {
						t.Fatalf("%d numbers by %g: %v, want %v", n, scale, q, want)
					}
					for i := range rest {
						if math.Float32bits(rest[i]) != math.Float32bits(wantRest[i]) {
							t.Fatalf("rest %d of %d by %g: %v, want %v", i, n, scale, rest[i], wantRest[i])
						}
					}
				}
			}
		}
		for _, d := range [][2]int{{32, 16}, {64, 512}, {96, 48}} {
			side, ld := d[0], d[1]
			q := make([]int16, side*ld)
			for i := range q {
				q[i] = int16(r.IntN(2*measureLargest+1) - measureLargest)
				if i < 2*ld {
					q[i] = measureLargest * int16(1-2*(i/ld))
				}
			}
			got, want := make([]int32, side*side), make([]int32, side*side)
			gram(got, q, make([]uint32, side*ld/2), side, ld)
			gramGeneric(want, q, side, ld)
			for i := range side {
				if !slices.Equal(got[i*side+i:(i+1)*side], want[i*side+i:(i+1)*side]) {
					t.Fatalf("products of row %d of [%d, %d] differ", i, side, ld)
				}
			}
			if ld == gramCols && (got[0] != gramCols*measureLargest*measureLargest || got[1] != -got[0]) {
				t.Errorf("largest products: %d, %d", got[0], got[1])
			}
		}
	})
}
