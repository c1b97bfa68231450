package gpuipc

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Packer packs the matrices of segments, see kernel.Packer. It keeps its memory between
// calls and serves one call at a time.
type Packer struct {
	kernel kernel.Packer
	src    []byte
}

// PackKind is the kind of a part to be packed.
type PackKind uint8

// PackTransitions are matrices with as many rows as columns that act on states. PackStates
// are end-states. PackRows are keys or values, packed as one head.
const (
	PackStates PackKind = iota
	PackTransitions
	PackRows
)

// PackJob is one part [Heads, Rows, Cols] to pack.
type PackJob struct {
	Src               [][]byte // the bytes of the part, as several runs in order
	Type              DType
	Heads, Rows, Cols int
	Of                PackKind
	Tolerance         float64 // as in profile.Identity
}

// Pack writes a packed part to dst, which must have room for the longest possible one
// (profile.PackedMost). It returns the length in bytes and the largest error of any head,
// as in profile.Packed. The length is 0 if rows (PackRows) should not be packed.
func (p *Packer) Pack(dst []byte, job *PackJob) (n int, largest float32) {
	src := oneRun(job.Src, &p.src)
	if job.Of == PackRows {
		n, e := p.kernel.PackRows(dst, src, job.Type, job.Rows, job.Cols, job.Tolerance)
		if e.Norm > 0 {
			largest = kernel.Above(e.Frobenius / e.Norm)
		}
		return n, largest
	}
	limit := kernel.Limit{Relative: job.Tolerance}
	if job.Of == PackTransitions {
		limit = kernel.Limit{Absolute: job.Tolerance}
	}
	n, errs := p.kernel.Pack(dst, src, job.Type, job.Heads, job.Rows, job.Cols, limit)
	for _, e := range errs {
		switch {
		case job.Of == PackTransitions:
			largest = max(largest, kernel.Above(e.Spectral))
		case e.Norm > 0:
			largest = max(largest, kernel.Above(e.Frobenius/e.Norm))
		}
	}
	return n, largest
}

// oneRun returns several runs of bytes as one. A single run is returned in place. Otherwise
// the runs are copied into *buf, which grows as needed.
func oneRun(runs [][]byte, buf *[]byte) []byte {
	if len(runs) == 1 {
		return runs[0]
	}
	*buf = (*buf)[:0]
	for _, r := range runs {
		*buf = append(*buf, r...)
	}
	return *buf
}

// CheckPacked returns ErrInvalid unless the runs are a packed part of numbers of type t.
// shape is [heads, rows, cols] or, if rows is set, [rows, heads, dim] of keys or values.
func CheckPacked(runs [][]byte, t DType, shape [3]int, rows bool) error {
	var buf []byte
	open := kernel.OpenPacked
	if rows {
		open = kernel.OpenRows
	}
	if _, err := open(oneRun(runs, &buf), t, shape[0], shape[1], shape[2]); err != nil {
		return fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return nil
}

// UnpackRows calls kernel.UnpackRows. Its error wraps ErrInvalid.
func UnpackRows(b []byte, t DType, rows, heads, dim int) ([]byte, error) {
	out, err := kernel.UnpackRows(b, t, rows, heads, dim)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return out, nil
}

// Floats calls kernel.PartToF32, or kernel.RowsToF32 for keys or values. Its error wraps
// ErrInvalid.
func Floats(dst []float32, part []byte, t DType, packed bool, shape [3]int, rows bool) error {
	read := kernel.PartToF32
	if rows {
		read = kernel.RowsToF32
	}
	if err := read(dst, part, t, packed, shape); err != nil {
		return fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return nil
}
