package kernel

import (
	"bytes"
	"math"
	"testing"
)

// someKeys are keys as layers have them: some channels much larger than the rest, and now and
// then a row of zeros.
func someKeys(t *testing.T, rows, cols int, dt DType) (raw []byte, x []float32) {
	r := rng(t)
	x = make([]float32, rows*cols)
	for i := range x {
		x[i] = float32(r.NormFloat64())
		if i%cols%17 == 3 {
			x[i] *= 8
		}
		if i/cols%11 == 5 {
			x[i] = 0
		}
	}
	raw = make([]byte, len(x)*dt.Size())
	FromF32(raw, x, dt)
	ToF32(x, raw, dt)
	return raw, x
}

func TestRowsArePackedWithinTheirBound(t *testing.T) {
	for _, d := range [][2]int{{1, 128}, {7, 64}, {33, 128}, {64, 80}, {5, 33}, {200, 256}} {
		for _, dt := range []DType{BF16, F16, F32} {
			rows, cols := d[0], d[1]
			raw, x := someKeys(t, rows, cols, dt)
			var first []byte
			eachISA(t, func(t *testing.T) {
				var p Packer
				dst := bytes.Repeat([]byte{0xa5}, len(raw)+PartAlign)
				n, e := p.PackRows(dst, raw, dt, rows, cols, 0.04)
				if want := PackedBytes([]Form{FormInt8}, dt, rows, cols); want >= len(raw) {
					if n != 0 {
						t.Fatalf("%v of type %d: %d bytes where plain takes %d", d, dt, n, len(raw))
					}
					return
				} else if n != want {
					t.Fatalf("%v of type %d: %d bytes, want %d", d, dt, n, want)
				}
				if first == nil {
					first = bytes.Clone(dst[:n])
				}
				if !bytes.Equal(dst[:n], first) {
					t.Errorf("%v of type %d: other bytes", d, dt)
				}
				k, err := OpenRows(dst[:n], dt, rows, 1, cols)
				if err != nil {
					t.Fatal(err)
				}
				got := make([]float32, rows*cols)
				if err := RowsToF32(got, dst[:n], dt, true, [3]int{rows, 1, cols}); err != nil {
					t.Fatal(err)
				}
				var off, all float64
				for i := range x {
					off += (float64(got[i]) - float64(x[i])) * (float64(got[i]) - float64(x[i]))
					all += float64(x[i]) * float64(x[i])
				}
				stated, norm := k.Bounds(0)
				if off, all = math.Sqrt(off), math.Sqrt(all); !(off <= e.Frobenius && off <= float64(stated) && all <= float64(norm)) || e.Frobenius > 1.01*off+1e-30 || off > 0.04*all {
					t.Errorf("%v of type %d: off by %v of %v, stated %v and %v of %v", d, dt, off, all, e.Frobenius, stated, norm)
				}
				for row := 0; row < rows; row += 3 {
					m := min(3, rows-row)
					part, want := make([]byte, m*cols*dt.Size()), make([]byte, m*cols*dt.Size())
					k.ReadRows(part, row, m, dt, new([]float32))
					FromF32(want, got[row*cols:][:m*cols], dt)
					if !bytes.Equal(part, want) {
						t.Fatalf("%v of type %d: rows [%d, +%d) read alone are others", d, dt, row, m)
					}
				}
			})
		}
	}
}

func TestRowsThatCannotBePacked(t *testing.T) {
	raw, x := someKeys(t, 32, 128, BF16)
	var p Packer
	dst := make([]byte, len(raw))
	if n, e := p.PackRows(dst, raw, BF16, 32, 128, 1e-4); n != 0 || e != (FormError{}) {
		t.Errorf("%d bytes, off by %v, at most 1e-4", n, e)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		x[777] = float32(bad)
		FromF32(raw, x, BF16)
		if n, _ := p.PackRows(dst, raw, BF16, 32, 128, 0.05); n != 0 {
			t.Errorf("%v was packed into %d bytes", bad, n)
		}
	}
	clear(raw)
	n, e := p.PackRows(dst, raw, BF16, 32, 128, 0.05)
	if k, err := OpenRows(dst[:n], BF16, 32, 1, 128); n == 0 || err != nil || e != (FormError{}) {
		t.Errorf("zeros: %d bytes, %v, %v, %v", n, e, k, err)
	}
	low := make([]byte, PackedBytes([]Form{FormRank}, BF16, 32, 128))
	low[0] = byte(FormRank)
	if _, err := OpenRows(low, BF16, 32, 1, 128); err == nil {
		t.Error("rows of low rank are read")
	}
}
