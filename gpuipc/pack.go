package gpuipc

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Packer keeps matrices of one segment after another in fewer bytes: see kernel.Packer.
// One is used by one call at a time.
type Packer struct {
	kernel kernel.Packer
	src    []byte
}

// PackedHead is how far the matrix of one head is from what was written.
type PackedHead = kernel.FormError

// PackJob is one part [Heads, Rows, Cols] to be packed: transitions, which have as many
// rows as columns and act on a state, or end-states.
type PackJob struct {
	Src               [][]byte // where it lies, in order
	Type              DType
	Heads, Rows, Cols int
	Transition        bool
	Tolerance         float64 // as of profile.Identity
}

// Pack writes a packed part to dst, which has room for the longest one (profile.PackedMost),
// and returns how much of it that takes, with the errors of all heads.
func (p *Packer) Pack(dst []byte, job *PackJob) (n int, errs []PackedHead) {
	src := job.Src[0]
	if len(job.Src) > 1 {
		p.src = p.src[:0]
		for _, b := range job.Src {
			p.src = append(p.src, b...)
		}
		src = p.src
	}
	limit := kernel.Limit{Relative: job.Tolerance}
	if job.Transition {
		limit = kernel.Limit{Absolute: job.Tolerance}
	}
	return p.kernel.Pack(dst, src, job.Type, job.Heads, job.Rows, job.Cols, limit)
}

// CheckPacked tells whether what lies in some runs is a packed part [heads, rows, cols] of what
// was written with type t: ErrInvalid if it is not.
func CheckPacked(runs [][]byte, t DType, shape [3]int) error {
	var b []byte
	if len(runs) == 1 {
		b = runs[0]
	} else {
		b = slices.Concat(runs...)
	}
	if _, err := kernel.OpenPacked(b, t, shape[0], shape[1], shape[2]); err != nil {
		return fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return nil
}

// FromFloats writes numbers as those of type t, rounded to the nearest.
func FromFloats(dst []byte, src []float32, t DType) { kernel.FromF32(dst, src, t) }

// Floats is kernel.PartToF32; its error wraps ErrInvalid.
func Floats(dst []float32, part []byte, t DType, packed bool, shape [3]int) error {
	if err := kernel.PartToF32(dst, part, t, packed, shape); err != nil {
		return fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return nil
}
