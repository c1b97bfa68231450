package gpuipc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Packed rows come out as those do that they stand for, whole or in pieces, wherever they
// lie and go.
func TestPackedRowsAreRotated(t *testing.T) {
	rng, ctx := rand.New(rand.NewPCG(3, 4)), context.Background()
	d := testDevice(t, 2)
	region := testRegion(t, d, 64<<20, ClientReads)
	for _, c := range []struct{ rows, heads, dim int }{{4, 1, 64}, {33, 2, 128}, {70, 3, 80}, {5000, 4, 128}} {
		for _, dt := range []DType{kernel.BF16, kernel.F16, kernel.F32} {
			x := make([]float32, c.rows*c.heads*c.dim)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			raw := make([]byte, len(x)*dt.Size())
			kernel.FromF32(raw, x, dt)
			packed := make([]byte, len(raw))
			var p Packer
			n, off := p.Pack(packed, &PackJob{Src: [][]byte{raw[:64], raw[64:]}, Type: dt, Heads: 1, Rows: c.rows * c.heads, Cols: c.dim, Of: PackRows, Tolerance: 0.02})
			if n == 0 || off <= 0 || off > 0.02 {
				t.Fatalf("%v of type %d: %d bytes, off by %v", c, dt, n, off)
			}
			plain, err := kernel.UnpackRows(packed[:n], dt, c.rows, c.heads, c.dim)
			must(t, err)
			half := int64(n) / 2 &^ 63
			src := Ref{Region: region.Region, Extents: []Extent{{1 << 20, half}, {16 << 20, int64(n) - half}}}
			written := region.Slice(32<<20, int64(len(plain)))
			must(t, errors.Join(d.Store(ctx, src, packed[:n]), d.Store(ctx, written, plain)))
			turn := &Rotation{Dims: 32, Cos: make([]float32, 16), Sin: make([]float32, 16)}
			perRow := &RowRotation{Dims: 32, Position: 1000}
			for i := range turn.Cos {
				sin, cos := math.Sincos(rng.Float64() * 6)
				turn.Cos[i], turn.Sin[i] = float32(cos), float32(sin)
				perRow.InvFreq = append(perRow.InvFreq, math.Pow(10000, -float64(i)/16))
			}
			for i, job := range []RotateJob{{}, {Turn: turn}, {PerRow: perRow}} {
				job.Rows, job.Heads, job.Dim, job.Type = c.rows, c.heads, c.dim, dt
				out := make([][]byte, 2)
				for k, from := range []Ref{src, written} {
					to := region.Slice(48<<20, int64(len(plain)))
					job.Src, job.SrcPacked, job.Dst.Rows = from, k == 0, to
					out[k] = make([]byte, len(plain))
					must(t, errors.Join(d.Rotate(ctx, &job), d.Load(ctx, out[k], to)))
				}
				if !bytes.Equal(out[0], out[1]) {
					t.Errorf("%v of type %d, job %d: other rows", c, dt, i)
				}
			}
			if c.rows == 33 {
				badPackedRows(t, d, dt, src, packed[:n], region.Slice(48<<20, int64(len(plain))))
			}
		}
	}
}

func badPackedRows(t *testing.T, d Device, dt DType, src Ref, packed []byte, to Ref) {
	t.Helper()
	ctx := context.Background()
	good := RotateJob{Rows: 33, Heads: 2, Dim: 128, Type: dt, Src: src, SrcPacked: true, Dst: Scatter{Rows: to}}
	for name, spoil := range map[string]func(j *RotateJob, b []byte){
		"another form":  func(_ *RotateJob, b []byte) { b[0] = 3 },
		"of low rank":   func(_ *RotateJob, b []byte) { b[0] = 16 },
		"no form":       func(_ *RotateJob, b []byte) { b[0] = 9 },
		"an odd header": func(_ *RotateJob, b []byte) { b[20] = 1 },
		"short":         func(j *RotateJob, _ []byte) { j.Src = j.Src.Slice(0, j.Src.Len()-64) },
		"no header":     func(j *RotateJob, _ []byte) { j.Src = j.Src.Slice(0, 63) },
		"more rows": func(j *RotateJob, _ []byte) {
			j.Rows, j.Dst.Rows = 34, Ref{Region: to.Region, Extents: []Extent{{to.Extents[0].Off, to.Len() / 33 * 34}}}
		},
		"over itself": func(j *RotateJob, _ []byte) {
			j.Dst.Rows = Ref{Region: src.Region, Extents: []Extent{{src.Extents[0].Off, to.Len()}}}
		},
	} {
		b, j := bytes.Clone(packed), good
		spoil(&j, b)
		err := errors.Join(d.Store(ctx, src, b))
		must(t, err)
		if err = d.Rotate(ctx, &j); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, fmt.Sprint(err))
		}
	}
}
