package kernels

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

var (
	forms    = []kernel.Form{kernel.FormPlain, kernel.FormZero, kernel.FormInt8, kernel.FormInt12, kernel.FormInt16}
	endForms = append([]kernel.Form{kernel.FormRank, kernel.FormRank + 8, kernel.FormRank + 40}, forms...)
)

// packed makes a packed part whose heads have the given forms, of numbers around sigma. All
// integers of a form come up, and scales are of different sizes.
func (c *composition) packed(tb testing.TB, r *rand.Rand, forms []kernel.Form, dt gpuipc.DType, rows, cols int, sigma float64) []byte {
	tb.Helper()
	b := make([]byte, kernel.PackedHeader(len(forms)))
	for i, f := range forms {
		b[i] = byte(f)
	}
	f32 := func(v float64) { b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v))) }
	for _, f := range forms {
		from := len(b)
		bits := map[kernel.Form]int{kernel.FormInt8: 8, kernel.FormInt12: 12, kernel.FormInt16: 16}[f]
		switch {
		case f.Rank() > 0:
			for range f.Rank() * (cols + rows) {
				b = append(b, byte(r.Uint32()))
			}
			for range f.Rank() {
				scale := sigma * r.NormFloat64() / (74 * 74 * math.Sqrt(float64(f.Rank())))
				f32(float64(kernel.FactorScale(float32(scale))))
			}
		case f == kernel.FormPlain:
			v := make([]float32, rows*cols)
			for i := range v {
				v[i] = float32(r.NormFloat64() * sigma)
			}
			b = append(b, make([]byte, len(v)*dt.Size())...)
			kernel.FromF32(b[from:], v, dt)
		case bits > 0:
			f32(sigma * r.NormFloat64() * float64(r.IntN(3)))
			for range rows {
				f32(sigma * math.Exp2(r.NormFloat64()) / float64(int(1)<<(bits-1)) * 1.7)
			}
			for range rows {
				row := make([]uint32, (cols+1)/2*2)
				for i := range row {
					row[i] = r.Uint32() & (1<<bits - 1)
				}
				for _, pair := range slices.Collect(slices.Chunk(row, 2)) {
					both := binary.LittleEndian.AppendUint32(nil, pair[0]|pair[1]<<bits)
					b = append(b, both[:bits/4]...)
				}
				if cols%2 != 0 { // the last pair has one
					b = b[:len(b)-bits/4+(bits+7)/8]
					if bits == 12 {
						b[len(b)-1] &= 15
					}
				}
			}
		}
		b = append(b, make([]byte, kernel.FormBytes(f, dt, rows, cols)-(len(b)-from))...)
	}
	m := memory(tb, len(b), c.off)
	copy(m, b)
	return m
}

// repack makes T, S or both of some steps packed. heads are the forms of a head's T and S at a step.
func (c *composition) repack(tb testing.TB, r *rand.Rand, which func(step int) (t, s bool), heads func(step, head int) (t, s kernel.Form)) {
	a := &c.args
	for i := range a.Steps {
		st := &a.Steps[i]
		t, s := which(i)
		if st.S == 0 {
			continue
		}
		tf, sf := make([]kernel.Form, a.Heads), make([]kernel.Form, a.Heads)
		for h := range tf {
			tf[h], sf[h] = heads(i, h)
		}
		if t {
			c.t[i] = c.packed(tb, r, tf, st.TType, a.DK, a.DK, 1/math.Sqrt(float64(a.DK)))
			st.T, st.TPacked = address(c.t[i]), int64(len(c.t[i]))
		}
		if s {
			c.s[i] = c.packed(tb, r, sf, st.SType, a.DK, a.DV, 1)
			st.S, st.SPacked = address(c.s[i]), int64(len(c.s[i]))
		}
	}
}

func both(int) (bool, bool) { return true, true }

func randomForms(r *rand.Rand) func(int, int) (kernel.Form, kernel.Form) {
	return func(int, int) (kernel.Form, kernel.Form) {
		return forms[r.IntN(len(forms))], endForms[r.IntN(len(endForms))]
	}
}

// Every form of T with every form of S.
func TestPackedComposeOfEveryForm(t *testing.T) {
	r := seeded(t)
	for i, sh := range []shape{{kernel.Dense, 1, 128, 128}, {kernel.Dense, 1, 64, 64}, {kernel.Dense, 1, 192, 40}, {kernel.Dense, 1, 37, 19}} {
		for k, tf := range forms {
			for n, sf := range endForms {
				c := newComposition(t, r, sh, 2, dtypes[(k+n)%3], dtypes[(i+n)%3], 0)
				c.repack(t, r, both, func(int, int) (kernel.Form, kernel.Form) { return tf, sf })
				compose(t, c.args.kernel(), c)
				c.wantClose(t, fmt.Sprintf("%v, T in form %d, S in form %d", sh, tf, sf))
			}
		}
	}
}

// Shapes, and heads and steps of different forms, plain steps between.
func TestPackedComposeIsF32(t *testing.T) {
	areF32(t, []launched{
		{shape{kernel.Dense, 5, 128, 128}, 0, composePacked128},
		{shape{kernel.Dense, 40, 64, 64}, 0, composePacked64},
		{shape{kernel.Dense, 3, 192, 128}, 0, composePacked192},
		{shape{kernel.Dense, 2, 128, 40}, 0, composePacked128},
		{shape{kernel.Dense, 70, 8, 8}, 0, composePacked64},
		{shape{kernel.Dense, 3, 48, 64}, 0, composePacked64},
		{shape{kernel.Dense, 2, 72, 88}, 0, composePacked128},
		{shape{kernel.Dense, 1, 136, 40}, 0, composePacked192},
		{shape{kernel.Dense, 2, 256, 16}, 0, composePackedPlain},
		{shape{kernel.Dense, 35, 7, 5}, 0, composePackedPlain},
		{shape{kernel.Dense, 2, 64, 32}, 4, composePackedPlain},
		{shape{kernel.Dense, 2, 12, 6}, 0, composePackedPlain},
	}, func(r *rand.Rand, j *composition) {
		j.repack(t, r, func(step int) (bool, bool) { return step%3 != 1, step%2 == 0 }, randomForms(r))
	})
}

// Small jobs go in strips of 32 columns. Here is one in strips of 64, beside one of so many heads that the
// narrow ones would not be spread better.
func TestPackedComposeInWideStrips(t *testing.T) {
	r := seeded(t)
	for i, sh := range []shape{{kernel.Dense, 2, 128, 128}, {kernel.Dense, 4, 40, 64}, {kernel.Dense, 4, 192, 64}} {
		var all []*composition
		for _, sh := range []shape{sh, {kernel.Dense, 127, sh.dk/8*8 - 8, 8}} {
			c := newComposition(t, r, sh, 3, kernel.F16, dtypes[2*i%3], 0)
			if sh.heads == 127 {
				c.args.Steps = c.args.Steps[:1]
			}
			c.repack(t, r, func(step int) (bool, bool) { return true, step != 1 }, randomForms(r))
			all = append(all, c)
		}
		if launches, err := Compose([]ComposeJob{all[0].args, all[1].args}); err != nil || launches[0].Block[0] != 128 {
			t.Fatalf("%v, %v", launches, err)
		}
		compose(t, all[0].args.kernel(), all...)
		for _, c := range all {
			c.wantClose(t, fmt.Sprint(c.args.Heads, c.args.DK, c.args.DV))
		}
	}
}

// What a packer makes of transitions near the identity and of end-states, over many steps.
func TestPackedComposeOfWhatIsStored(t *testing.T) {
	r := seeded(t)
	var p kernel.Packer
	const heads, dk, dv, steps = 3, 64, 64, 12
	c := newComposition(t, r, shape{kernel.Dense, heads, dk, dv}, steps, kernel.F16, kernel.F32, 0)
	pack := func(b []byte, dt gpuipc.DType, cols int, limit kernel.Limit) []byte {
		out := make([]byte, kernel.PackedHeader(heads)+heads*kernel.FormBytes(kernel.FormPlain, dt, dk, cols))
		n, _ := p.Pack(out, b, dt, heads, dk, cols, limit)
		m := memory(t, n, 0)
		copy(m, out)
		return m
	}
	found := make(map[byte]int)
	for i := range c.args.Steps {
		st := &c.args.Steps[i]
		if st.S == 0 {
			continue
		}
		v := make([]float32, heads*dk*dk)
		for n := range v {
			v[n] = float32(r.NormFloat64()) * 0.02 / float32(1+n/(dk*dk)*i*20)
			if n%(dk*dk)%(dk+1) == 0 && n < 2*dk*dk {
				v[n] += 0.7
			}
		}
		b := make([]byte, len(v)*2)
		kernel.FromF32(b, v, kernel.F16)
		limit := []float64{0.02, 0.002, 0.0005}[i%3]
		c.t[i] = pack(b, kernel.F16, dk, kernel.Limit{Absolute: limit})
		c.s[i] = pack(c.s[i], kernel.F32, dv, kernel.Limit{Relative: limit})
		st.T, st.TPacked = address(c.t[i]), int64(len(c.t[i]))
		st.S, st.SPacked = address(c.s[i]), int64(len(c.s[i]))
		for h := range heads {
			found[c.t[i][h]]++
			found[c.s[i][h]]++
		}
	}
	t.Logf("forms %v", found)
	compose(t, composePacked64, c)
	c.wantClose(t, "stored")
}

// Steps that a later zero transition forgets are left out, unless a state between is asked for; batches of
// steps are looked up one after the other. Errors grow with the root of the steps.
func TestPackedComposeOfManySteps(t *testing.T) {
	r := seeded(t)
	for _, sh := range []shape{{kernel.Dense, 3, 64, 16}, {kernel.Dense, 2, 96, 40}} {
		for _, steps := range []int{16, 32, 75} {
			c := newComposition(t, r, sh, steps, kernel.F16, kernel.F32, 0)
			c.repack(t, r, func(step int) (bool, bool) { return step%7 != 0, step%5 != 0 }, func(step, head int) (kernel.Form, kernel.Form) {
				tf := forms[r.IntN(len(forms))]
				if head == 0 && step%7 != 0 {
					tf = kernel.FormZero
				}
				return tf, endForms[r.IntN(len(endForms))]
			})
			for i := range c.args.Steps {
				if r.IntN(6) != 0 {
					c.args.Steps[i].Before = 0
				}
			}
			compose(t, c.args.kernel(), c)
			_, before := c.host()
			for i, st := range c.args.Steps {
				if d := distance(f32s(c.before[i]), before[i]); st.Before != 0 && !(d <= 4*denseBound) {
					t.Errorf("%v, %d steps: state before step %d is %.2g from the host's", sh, steps, i, d)
				}
			}
			if d := distance(f32s(c.out), c.exact()); !(d <= 4*denseBound) {
				t.Errorf("%v, %d steps: %.2g from float64", sh, steps, d)
			}
		}
	}
}

// Columns of any size from 2^-96 on, whose largest number is next to a power of two, are as exact as others. One that is not
// finite comes out so, and leaves the others alone.
func TestPackedComposeOfColumnsOfAnySize(t *testing.T) {
	r := seeded(t)
	sh := shape{kernel.Dense, 1, 64, 32}
	for _, form := range []kernel.Form{kernel.FormInt8, kernel.FormInt12, kernel.FormInt16} {
		c := newComposition(t, r, sh, 1, kernel.F16, kernel.F32, 0)
		c.repack(t, r, both, func(int, int) (kernel.Form, kernel.Form) { return form, kernel.FormZero })
		from := f32s(c.from)
		for i := range from {
			column := i % sh.dv
			from[i] = float32(math.Ldexp(2*r.Float64()-1, 7*column-96))
			if i < sh.dv {
				from[i] = math.Float32frombits(uint32(127+7*column-96)<<23 | 0x7fffff - uint32(r.IntN(0x20000)))
			}
		}
		bad := map[int]float32{3: float32(math.NaN()), 17: float32(math.Inf(-1))}
		for column, v := range bad {
			from[r.IntN(sh.dk)*sh.dv+column] = v
		}
		compose(t, composePacked64, c)
		got, want := f32s(c.out), c.exact()
		for column := range sh.dv {
			var x []float32
			var y []float64
			for i := column; i < len(got); i += sh.dv {
				x, y = append(x, got[i]), append(y, want[i])
			}
			_, spoiled := bad[column]
			if d := distance(x, y); !spoiled && !(d <= denseBound) {
				t.Errorf("form %d, column %d: %.2g from float64", form, column, d)
			}
			if spoiled && slices.ContainsFunc(x, func(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }) {
				t.Errorf("form %d: column %d was not finite and is", form, column)
			}
		}
	}
}

func TestPackedEndStatesOfOtherTransitionsHaveTheHostsBits(t *testing.T) {
	r := seeded(t)
	for i, sh := range []shape{{kernel.Scalar, 3, 16, 40}, {kernel.Diagonal, 40, 16, 8}, {kernel.Scalar, 5, 7, 3}, {kernel.Diagonal, 2, 33, 17}} {
		for k, sType := range dtypes {
			c := newComposition(t, r, sh, 6, dtypes[(i+k)%3], sType, i%2*4)
			if sh.tr == kernel.Scalar {
				c.turn(r, sh.dk/2*2, func(i int) bool { return i%2 == 0 })
			}
			c.repack(t, r, func(step int) (bool, bool) { return false, step != 1 }, randomForms(r))
			compose(t, composePackedSingle, c)
			c.wantBits(t, fmt.Sprintf("%v, S %d", sh, sType))
		}
	}
}

// A zero transition forgets a state that is not finite.
func TestPackedComposeForgets(t *testing.T) {
	r := seeded(t)
	for _, sh := range []shape{{kernel.Dense, 2, 64, 16}, {kernel.Dense, 2, 10, 3}} {
		c := newComposition(t, r, sh, 2, kernel.F16, kernel.F32, 0)
		c.repack(t, r, both, func(step, _ int) (kernel.Form, kernel.Form) {
			return []kernel.Form{kernel.FormZero, kernel.FormInt8}[step], kernel.FormInt12
		})
		for i := range f32s(c.from) {
			f32s(c.from)[i] = float32(math.NaN())
		}
		for i := range c.args.Steps {
			c.args.Steps[i].Before = 0
		}
		compose(t, c.args.kernel(), c)
		clear(c.from)
		state, _ := c.host()
		if d := distance(f32s(c.out), state); !(d <= denseBound) {
			t.Errorf("%v: %.2g from the host", sh, d)
		}
	}
}

// step is one step of a composition, from the state that was before it.
func (c *composition) step(i int) *composition {
	one := *c
	one.from, one.t, one.s, one.before, one.args.Steps = c.before[i], c.t[i:i+1], c.s[i:i+1], c.before[i:i+1], c.args.Steps[i:i+1]
	one.args.From = address(one.from)
	return &one
}

// Steps before a zero transition are left out, of each head by itself, but where a state is asked
// for: all is what it is with a state asked for at each step, when nothing is left out, bit by bit.
func TestPackedComposeLeavesOutWhatIsForgotten(t *testing.T) {
	r := seeded(t)
	for range 12 {
		sh := shape{kernel.Dense, 1 + r.IntN(9), 64, 16}
		c := newComposition(t, r, sh, 1+r.IntN(70), kernel.F16, kernel.F32, 0)
		c.repack(t, r, func(step int) (bool, bool) { return r.IntN(5) > 0, r.IntN(2) == 0 }, func(int, int) (kernel.Form, kernel.Form) {
			return []kernel.Form{kernel.FormInt8, kernel.FormInt8, kernel.FormInt12, kernel.FormZero}[r.IntN(4)], kernel.FormInt8
		})
		if !c.args.packed() {
			continue
		}
		compose(t, composePacked64, c)
		var states [][]byte // before each step, and the last one
		for _, b := range append(slices.Clone(c.before), c.out) {
			states = append(states, slices.Clone(b))
		}
		for i := range c.args.Steps {
			want, _ := c.step(i).host()
			if d := distance(f32s(states[i+1]), want); !(d <= 2*denseBound) {
				t.Fatalf("step %d of %d: %.2g from the host", i, len(c.args.Steps), d)
			}
		}
		clear(c.out)
		for i := range c.args.Steps {
			if clear(c.before[i]); r.IntN(30) > 0 {
				c.args.Steps[i].Before = 0
			}
		}
		compose(t, composePacked64, c)
		if !bytes.Equal(c.out, states[len(c.before)]) {
			t.Fatalf("%d steps: another state", len(c.args.Steps))
		}
		for i, st := range c.args.Steps {
			if st.Before != 0 && !bytes.Equal(c.before[i], states[i]) {
				t.Fatalf("another state before step %d of %d", i, len(c.args.Steps))
			}
		}
	}
}

// A part whose forms were overwritten is not believed: what would lie behind its end is zeros.
func TestPackedComposeOfASpoiledPart(t *testing.T) {
	r := seeded(t)
	for _, sh := range []shape{{kernel.Dense, 40, 64, 16}, {kernel.Dense, 40, 10, 3}} {
		c := newComposition(t, r, sh, 3, kernel.F16, kernel.F32, 0)
		c.repack(t, r, both, randomForms(r))
		for i := range c.args.Steps {
			for h := range sh.heads {
				c.t[i][h], c.s[i][h] = byte(r.IntN([]int{7, 256}[h%2])), byte(r.IntN(256))
			}
		}
		compose(t, c.args.kernel(), c)
	}
}

func TestComposeRefusesPackedParts(t *testing.T) {
	for what, j := range map[string]ComposeJob{
		"T of a scalar job": {Transition: kernel.Scalar, Heads: 1, DK: 8, DV: 8, Out: 16,
			Steps: []ComposeStep{{T: 64, S: 64, TType: kernel.F32, SType: kernel.F32, TPacked: 64}}},
		"a part shorter than its forms": {Transition: kernel.Dense, Heads: 100, DK: 8, DV: 8, Out: 16,
			Steps: []ComposeStep{{T: 64, S: 64, TType: kernel.F16, SType: kernel.F32, SPacked: 896}}},
		"a part of 4 GiB": {Transition: kernel.Dense, Heads: 1, DK: 8, DV: 8, Out: 16,
			Steps: []ComposeStep{{T: 64, S: 64, TType: kernel.F16, SType: kernel.F32, TPacked: 1 << 32}}},
		"a negative length": {Transition: kernel.Dense, Heads: 1, DK: 8, DV: 8, Out: 16,
			Steps: []ComposeStep{{T: 64, S: 64, TType: kernel.F16, SType: kernel.F32, TPacked: -64}}},
	} {
		if _, err := Compose([]ComposeJob{j}); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
