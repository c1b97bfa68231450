package kernel

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func randomTurn(r *rand.Rand, dims, rows int, interleaved bool) Turn {
	turn := Turn{Dims: dims, Interleaved: interleaved}
	for range rows * dims / 2 {
		sin, cos := math.Sincos(r.Float64() * 1000)
		turn.Cos, turn.Sin = append(turn.Cos, float32(cos)), append(turn.Sin, float32(sin))
	}
	return turn
}

// keys is n numbers of dt, some of them NaN, infinite, zero and subnormal.
func keys(r *rand.Rand, n int, dt DType) []byte {
	v := make([]float32, n)
	normal(r, v, 2)
	odd := awkward()
	for range n / 50 {
		v[r.IntN(n)] = odd[r.IntN(len(odd))]
	}
	b := make([]byte, n*dt.Size())
	fromF32Generic(b, v, dt)
	return b
}

type rotation struct {
	grid
	interleaved bool
	dims        int
	perRow      bool
}

func (c rotation) String() string {
	return fmt.Sprintf("%s rows=%d heads=%d dim=%d dims=%d interleaved=%v strides %d %d perRow=%v",
		c.dt.name(), c.rows, c.heads, c.dim, c.dims, c.interleaved, c.rowStride, c.headStride, c.perRow)
}

// verify holds the kernel to the same bytes as plain Go (NaN for NaN) and checks
// that nothing between and beside the rows is written.
func (c rotation) verify(t *testing.T, r *rand.Rand) {
	t.Helper()
	n := c.rows * c.heads * c.dim
	src := keys(r, n+1, c.dt)[1 : 1+n*c.dt.Size()] // an odd address
	end := (c.rows-1)*c.rowStride + (c.heads-1)*c.headStride + c.headBytes()
	got, ok := guarded(t, end)
	want, _ := guarded(t, end)
	if c.perRow {
		turn := randomTurn(r, c.dims, c.rows, c.interleaved)
		RotateRowsAt(got, c.rowStride, c.headStride, src, c.dt, c.rows, c.heads, c.dim, turn)
		rotateRowsAtGeneric(want, src, c.grid, turn)
	} else {
		turn := randomTurn(r, c.dims, 1, c.interleaved)
		RotateRows(got, c.rowStride, c.headStride, src, c.dt, c.rows, c.heads, c.dim, turn)
		rotateRowsGeneric(want, src, c.grid, turn)
	}
	ok()
	if bytes.Equal(got, want) {
		return
	}
	for i := range end {
		if got[i] != want[i] && !c.bothNaN(got, want, i) {
			t.Fatalf("%v: byte %d is %#x, want %#x", c, i, got[i], want[i])
		}
	}
}

// bothNaN tells whether byte i belongs to a number that is NaN on both sides.
func (c rotation) bothNaN(a, b []byte, i int) bool {
	row := i
	if c.rowStride > 0 {
		row = i % c.rowStride
	}
	if c.headStride > c.rowStride { // heads outside, rows inside
		row = i % c.headStride % max(c.rowStride, 1)
	} else if c.headStride > 0 {
		row %= c.headStride
	}
	at := i - row%c.dt.Size()
	x, y := loadGeneric(a[at:], c.dt, 0), loadGeneric(b[at:], c.dt, 0)
	return x != x && y != y
}

func TestRotateIsTheSameBitsAsPlainGo(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for _, dt := range dtypes {
			for _, interleaved := range []bool{false, true} {
				for _, d := range [][2]int{{128, 128}, {256, 64}, {64, 64}, {1, 0}, {2, 2}, {7, 6}, {40, 30}, {96, 34}, {80, 80}, {600, 580}, {33, 0}} {
					for _, s := range [][2]int{{1, 1}, {5, 1}, {3, 2}} {
						c := rotation{grid: grid{rows: s[0], heads: s[1], dim: d[0], dt: dt}, dims: d[1], interleaved: interleaved}
						c.headStride = c.headBytes()
						c.rowStride = c.rowBytes()
						c.verify(t, r)
						c.perRow = true
						c.verify(t, r)
						c.headStride += 6 * dt.Size()
						c.rowStride = c.heads*c.headStride + 4*dt.Size()
						c.verify(t, r)
						c.perRow = false
						c.rowStride, c.headStride = c.headBytes()+8, c.rows*(c.headBytes()+8)
						c.verify(t, r)
					}
				}
			}
		}
	})
}

func TestRotateManyBatches(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for _, dt := range dtypes {
			c := rotation{grid: grid{rows: 600, heads: 2, dim: 256, dt: dt}, dims: 66}
			c.headStride, c.rowStride = c.headBytes(), c.rowBytes()
			c.verify(t, r)
			c.rowStride += 128
			c.verify(t, r)
			c.rowStride, c.headStride = c.headBytes(), c.rows*c.headBytes()
			c.interleaved = true
			c.verify(t, r)
		}
	})
}

// Tolerance against float64: half a unit of the type in the result, and three
// F32 roundings of the pair's size.
func TestRotateAgreesWithFloat64(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for _, dt := range dtypes {
			for _, interleaved := range []bool{false, true} {
				const dim, dims = 48, 36
				v := make([]float32, dim)
				normal(r, v, 1)
				src, in := encode(t, v, dt)
				turn := randomTurn(r, dims, 1, interleaved)
				dst := make([]byte, len(src))
				RotateRows(dst, 0, 0, src, dt, 1, 1, dim, turn)
				for i := range dims / 2 {
					p, q := pair(i, dims, interleaved)
					c, s := float64(turn.Cos[i]), float64(turn.Sin[i])
					size := math.Abs(in[p]) + math.Abs(in[q])
					for at, want := range map[int]float64{p: in[p]*c - in[q]*s, q: in[q]*c + in[p]*s} {
						got := float64(loadGeneric(dst, dt, at))
						half := map[DType]float64{F32: 0, F16: 0x1p-11, BF16: 0x1p-8}[dt]
						if math.Abs(got-want) > half*math.Abs(want)*(1+0x1p-7)+3*unit*size+0x1p-25 {
							t.Fatalf("%s: number %d is %v, want %v", dt.name(), at, got, want)
						}
					}
				}
				if string(dst[dims*dt.Size():]) != string(src[dims*dt.Size():]) {
					t.Fatalf("%s: numbers past %d were not copied", dt.name(), dims)
				}
			}
		}
	})
}

// Against exact arithmetic rounded once, with ties and cancellation made likely.
func TestMultiplyAddRoundsOnce(t *testing.T) {
	r := rng(t)
	few := func() float32 { // mantissas of few bits meet in ties
		return float32(math.Ldexp(float64(r.IntN(64)-32), r.IntN(60)-30))
	}
	any := func() float32 {
		for {
			if v := math.Float32frombits(r.Uint32()); v-v == 0 {
				return v
			}
		}
	}
	for i := range 300_000 {
		a, b, c := any(), any(), any()
		switch i % 4 {
		case 1:
			a, b, c = few(), float32(r.NormFloat64()), few()
		case 2:
			a, b, c = 1+float32(r.IntN(1<<12))*0x1p-12, 1+float32(r.IntN(1<<12))*0x1p-12, float32(math.Ldexp(1, r.IntN(60)-50))
		case 3:
			c = -a * b
		}
		if c-c != 0 {
			continue
		}
		exact := new(big.Float).SetPrec(1000)
		exact.Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)).SetPrec(1000))
		exact.Add(exact, big.NewFloat(float64(c)))
		want, _ := exact.Float32()
		if got := fma32(a, b, c); got != want {
			t.Fatalf("%v*%v + %v is %v, want %v", a, b, c, got, want)
		}
	}
}

func TestRotateKeepsNaN(t *testing.T) {
	nan := math.Float32frombits(0x7fffffff) // would round up to zero as a number
	eachISA(t, func(t *testing.T) {
		for _, dt := range dtypes {
			for _, interleaved := range []bool{false, true} {
				const dim = 70
				turn := randomTurn(rng(t), dim, 1, interleaved)
				turn.Cos[3], turn.Sin[33] = nan, -nan
				src := keys(rng(t), dim, dt)
				dst, want := make([]byte, len(src)), make([]byte, len(src))
				RotateRows(dst, 0, 0, src, dt, 1, 1, dim, turn)
				rotateHeadGeneric(want, src, dt, turn)
				for i := range dim {
					x, y := loadGeneric(dst, dt, i), loadGeneric(want, dt, i)
					if !sameBits(x, y) {
						t.Fatalf("%s interleaved=%v: number %d is %v, want %v", dt.name(), interleaved, i, x, y)
					}
				}
				for _, i := range []int{3, 33} {
					if p, _ := pair(i, dim, interleaved); !math.IsNaN(float64(loadGeneric(dst, dt, p))) {
						t.Fatalf("%s: pair %d turned by NaN is a number", dt.name(), i)
					}
				}
			}
		}
	})
}

func TestRotateOfNothing(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		RotateRows(nil, 0, 0, nil, BF16, 0, 2, 64, Turn{})
		RotateRows(nil, 8, 8, nil, F16, 3, 0, 64, Turn{})
		RotateRowsAt(nil, 0, 0, nil, F32, 0, 1, 4, Turn{Dims: 4})
	})
}

func TestRotateRefusesWrongSizes(t *testing.T) {
	b := make([]byte, 64)
	turn := Turn{Dims: 4, Cos: make([]float32, 2), Sin: make([]float32, 2)}
	wantPanic(t, "short source", func() { RotateRows(b, 16, 16, b[:31], F32, 2, 1, 4, turn) })
	wantPanic(t, "short destination", func() { RotateRows(b[:31], 16, 16, b, F32, 2, 1, 4, turn) })
	wantPanic(t, "stride", func() { RotateRows(b, -16, 16, b, F32, 2, 1, 4, turn) })
	wantPanic(t, "more dims than numbers", func() { RotateRows(b, 8, 8, b, F32, 1, 1, 2, turn) })
	wantPanic(t, "one turn for two rows", func() { RotateRowsAt(b, 16, 16, b, F32, 2, 1, 4, turn) })
	turn.Sin = nil
	wantPanic(t, "no sines", func() { RotateRows(b, 16, 16, b, F32, 1, 1, 4, turn) })
	wantPanic(t, "odd dims", func() { RotateRows(b, 16, 16, b, F32, 1, 1, 4, Turn{Dims: 1}) })
}

func TestRotateDoesNotAllocate(t *testing.T) {
	r := rng(t)
	eachISA(t, func(t *testing.T) {
		for _, dt := range dtypes {
			src := keys(r, 30*128, dt)
			dst := make([]byte, len(src))
			turn, turns := randomTurn(r, 100, 1, true), randomTurn(r, 64, 30, false)
			if n := testing.AllocsPerRun(20, func() {
				RotateRows(dst, 128*dt.Size(), 0, src, dt, 30, 1, 128, turn)
				RotateRowsAt(dst, 128*dt.Size(), 0, src, dt, 30, 1, 128, turns)
			}); n != 0 {
				t.Errorf("%s: %v allocations", dt.name(), n)
			}
		}
	})
}

func FuzzRotateRows(f *testing.F) {
	f.Add(uint64(1), uint8(0), uint8(3), uint8(2), uint16(128), uint16(64), uint8(0))
	f.Add(uint64(2), uint8(5), uint8(1), uint8(1), uint16(33), uint16(32), uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, mode, rows, heads uint8, dim, dims uint16, gap uint8) {
		r := rand.New(rand.NewPCG(seed, 3))
		c := rotation{grid: grid{rows: 1 + int(rows%9), heads: 1 + int(heads%5), dim: 1 + int(dim%700), dt: dtypes[mode%3]},
			interleaved: mode/3%2 == 0, perRow: mode/6%2 == 0}
		c.dims = int(dims) % (c.dim + 1) / 2 * 2
		c.headStride = c.headBytes() + int(gap%7)*c.dt.Size()
		c.rowStride = c.heads*c.headStride + int(gap/7)*c.dt.Size()
		c.verify(t, r)
	})
}
