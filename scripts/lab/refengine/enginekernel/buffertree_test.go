package enginekernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// along is the decoding of the tokens on one path alone.
func (d *decoding) along(path []int) *decoding {
	alone := *d
	alone.tokens = nil
	for _, i := range path {
		alone.tokens = append(alone.tokens, d.tokens[i])
	}
	alone.solve()
	return &alone
}

// paths gives the tokens from the states to each row of a tree, itself included.
func paths(parents []int) [][]int {
	out := make([][]int, len(parents))
	for i, p := range parents {
		if p >= 0 {
			out[i] = slices.Clone(out[p])
		}
		out[i] = append(out[i], i)
	}
	return out
}

// randomTree begins with a chain of so many rows.
func randomTree(r *rand.Rand, chain, n int) []int {
	parents := make([]int, n)
	for i := range parents {
		if parents[i] = i - 1; i >= chain {
			parents[i] = r.IntN(i+1) - 1
		}
	}
	return parents
}

// Each row of a tree gives what decoding its own path alone gives, however many rows
// come at once, and so does what follows after any path of it was accepted.
func TestRowsOfATreeAreSequentialDecodingOfTheirPaths(t *testing.T) {
	const n, more, tolerance = 14, 3, 1e-5
	eachDecoding(t, n+more, func(t *testing.T, r *rand.Rand, d *decoding) {
		var sc BufferScratch
		one := d.heads * d.dv
		parents := randomTree(r, 3, n)
		all := paths(parents)
		b, states := d.buffer(n+more, kernel.F32), d.states0()
		for at := 0; at < n; {
			m := min(1+r.IntN(5), n-at)
			out := make([]float32, m*one)
			b.DecodeTree(states, d.tokens[at:at+m], parents[at:at+m], out, &sc)
			for i := range m {
				alone := d.along(all[at+i])
				alone.closeTo(t, fmt.Sprintf("row %d of %v", at+i, parents), out[i*one:][:one], alone.outputs[len(alone.outputs)-1], tolerance)
			}
			at += m
		}
		path := all[r.IntN(n)]
		b.Select(path)
		whole := slices.Concat(path, []int{n, n + 1, n + 2})
		alone := d.along(whole)
		out := make([]float32, one)
		for i := range more {
			b.Decode(states, d.tokens[n+i:n+i+1], out, i == 1, &sc)
			alone.closeTo(t, fmt.Sprintf("after path %v", path), out, alone.outputs[len(path)+i], tolerance)
		}
		b.Flush(states, &sc)
		alone.closeTo(t, "states", states, alone.states[len(whole)], tolerance)
	})
}

// Beams: what all live ones share goes into the states, dead ones leave, live ones go on.
func TestBeamsOverOneState(t *testing.T) {
	const tolerance = 1e-5
	eachDecoding(t, 12, func(t *testing.T, _ *rand.Rand, d *decoding) {
		var sc BufferScratch
		one := d.heads * d.dv
		b, states, out := d.buffer(8, kernel.F32), d.states0(), make([]float32, 3*one)
		//  0 ── 1 ──┬─ 2 ── 5      tokens; 4 and 7 die, 8 follows 5 and 9 follows 6
		//           ├─ 3 ── 6
		//           └─ 4 ── 7
		b.Decode(states, d.tokens[:2], out[:2*one], false, &sc)
		b.DecodeTree(states, d.tokens[2:5], []int{1, 1, 1}, out, &sc)
		b.DecodeTree(states, d.tokens[5:8], []int{2, 3, 4}, out, &sc)
		b.Select([]int{0, 1, 2, 3, 5, 6})
		b.FlushFirst(states, 2, &sc)
		shared := d.along([]int{0, 1})
		shared.closeTo(t, "shared states", states, shared.states[2], tolerance)
		if b.N != 4 || b.Parent(0) != -1 || b.Parent(1) != -1 || b.Parent(2) != 0 || b.Parent(3) != 1 {
			t.Fatalf("%d rows after %v", b.N, b.parents)
		}
		b.DecodeTree(states, d.tokens[8:10], []int{2, 3}, out[:2*one], &sc)
		for i, path := range [][]int{{0, 1, 2, 5, 8}, {0, 1, 3, 6, 9}} {
			alone := d.along(path)
			alone.closeTo(t, fmt.Sprintf("beam %d", i), out[i*one:][:one], alone.outputs[4], tolerance)
		}
		b.Select([]int{1, 3, 5})
		b.Flush(states, &sc)
		winner := d.along([]int{0, 1, 3, 6, 9})
		winner.closeTo(t, "the winner's states", states, winner.states[5], tolerance)
	})
}

// A row that is no ancestor is not read, whatever it holds.
func TestOtherBranchesAreNotRead(t *testing.T) {
	eachDecoding(t, 4, func(t *testing.T, _ *rand.Rand, d *decoding) {
		one := d.heads * d.dv
		b, states, out := d.buffer(4, kernel.F32), d.states0(), make([]float32, one)
		b.Decode(states, d.tokens[:1], out, false, nil)
		b.DecodeTree(states, d.tokens[1:2], []int{0}, out, nil)
		b.DecodeTree(states, d.tokens[2:3], []int{0}, out, nil)
		u := floatsOf(b.U)[one : 2*one]
		for i := range u {
			u[i] = float32(math.NaN())
		}
		b.DecodeTree(states, d.tokens[3:4], []int{2}, out, nil)
		alone := d.along([]int{0, 2, 3})
		alone.closeTo(t, "output", out, alone.outputs[2], 1e-5)
	})
}

func TestDecodingOfTreesAllocatesNothing(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		d := newDecoding(rng(t), 32, 32, 2, 4, kernel.Scalar, true)
		b, states, out, sc := d.buffer(4, kernel.F16), d.states0(), make([]float32, 4*2*32), new(BufferScratch)
		b.branch()
		if n := testing.AllocsPerRun(100, func() {
			b.N, b.parents = 0, b.parents[:0]
			b.DecodeTree(states, d.tokens, []int{-1, 0, 0, -1}, out, sc)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func TestBadTreesPanic(t *testing.T) {
	for name, spoil := range map[string]func(b *Buffer, decode func(parents ...int), states []float32){
		"few parents":         func(_ *Buffer, decode func(...int), _ []float32) { decode(-1) },
		"own parent":          func(_ *Buffer, decode func(...int), _ []float32) { decode(0, 0) },
		"later parent":        func(_ *Buffer, decode func(...int), _ []float32) { decode(1, -1) },
		"before the states":   func(_ *Buffer, decode func(...int), _ []float32) { decode(-2, 0) },
		"select no row":       func(b *Buffer, decode func(...int), _ []float32) { decode(-1, 0); b.Select([]int{2}) },
		"select twice":        func(b *Buffer, decode func(...int), _ []float32) { decode(-1, 0); b.Select([]int{0, 0}) },
		"select an orphan":    func(b *Buffer, decode func(...int), _ []float32) { decode(-1, 0); b.Select([]int{1}) },
		"flush branches":      func(b *Buffer, decode func(...int), s []float32) { decode(-1, -1); b.Flush(s, nil) },
		"flush under a beam":  func(b *Buffer, decode func(...int), s []float32) { decode(-1, -1); b.FlushFirst(s, 1, nil) },
		"flush more":          func(b *Buffer, decode func(...int), s []float32) { decode(-1, 0); b.FlushFirst(s, 3, nil) },
		"decode and flush":    func(b *Buffer, decode func(...int), s []float32) { decode(-1, -1); flushDecode(b, s) },
		"flush less than any": func(b *Buffer, _ func(...int), s []float32) { b.FlushFirst(s, -1, nil) },
	} {
		d := newDecoding(rng(t), 4, 4, 1, 2, kernel.Scalar, true)
		b, states := d.buffer(3, kernel.F32), d.states0()
		wantPanic(t, name, func() {
			spoil(b, func(parents ...int) { b.DecodeTree(states, d.tokens, parents, make([]float32, 8), nil) }, states)
		})
	}
}

func flushDecode(b *Buffer, states []float32) {
	one := newDecoding(rand.New(rand.NewPCG(1, 2)), 4, 4, 1, 1, kernel.Scalar, true)
	b.Decode(states, one.tokens, make([]float32, 4), true, nil)
}
