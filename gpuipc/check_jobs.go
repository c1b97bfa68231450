package gpuipc

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Compose checks a job and its operands. The caller calls Disjoint once after it has
// checked all jobs of an operation.
func (c *Checker) Compose(job *ComposeJob) error {
	if err := job.check(); err != nil {
		return err
	}
	if err := c.states(job.From, job.Out, !job.Out.Absent(), job.stateBytes()*int64(job.Heads)); err != nil {
		return err
	}
	for i := range job.Steps {
		if err := c.composeStep(job, &job.Steps[i]); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// states checks the n bytes of states before a job and, if written is set, after it. Both
// may be the same bytes.
func (c *Checker) states(from, out Ref, written bool, n int64) error {
	if written {
		if err := c.Writes("out", out, 4, n); err != nil || out.Equal(from) {
			return err
		}
	}
	if from.Absent() {
		return nil
	}
	return c.Reads("from", from, 4, n)
}

func (j *ComposeJob) check() error {
	const most = 1 << 20
	if j.Heads <= 0 || j.DK <= 0 || j.DV <= 0 || j.Heads > most || j.DK > most || j.DV > most {
		return fmt.Errorf("%d heads of [%d, %d]: %w", j.Heads, j.DK, j.DV, ErrInvalid)
	}
	switch j.Transition {
	case kernel.Scalar, kernel.Diagonal, kernel.Dense:
		return nil
	}
	return fmt.Errorf("transition %d: %w", j.Transition, ErrInvalid)
}

func (c *Checker) composeStep(job *ComposeJob, in *ComposeStep) error {
	present := !in.T.Absent()
	if present == in.S.Absent() {
		return fmt.Errorf("T and S must both be present or both absent: %w", ErrInvalid)
	}
	heads := int64(job.Heads)
	if !in.Before.Absent() {
		if err := c.Writes("before", in.Before, 4, job.stateBytes()*heads); err != nil {
			return err
		}
	}
	if !present {
		return nil
	}
	if in.TType.Size() == 0 || in.SType.Size() == 0 || job.Transition == kernel.Scalar && in.TType != kernel.F32 {
		return fmt.Errorf("T of type %d, S of type %d: %w", in.TType, in.SType, ErrInvalid)
	}
	if r := in.Rotation; r != nil {
		if job.Transition != kernel.Scalar {
			return fmt.Errorf("rotation with transition %d, only scalar ones commute: %w", job.Transition, ErrInvalid)
		}
		if err := r.check(job.DK); err != nil {
			return err
		}
	}
	if in.TPacked && job.Transition != kernel.Dense {
		return fmt.Errorf("packed transition %d: %w", job.Transition, ErrInvalid)
	}
	if err := c.operand("T", in.T, in.TPacked, in.TType, job.tBytes(in), heads); err != nil {
		return err
	}
	return c.operand("S", in.S, in.SPacked, in.SType, job.sBytes(in), heads)
}

// operand checks a part that may be packed. The length of a packed part depends on its
// content, so for a packed part only a minimum length is checked.
func (c *Checker) operand(name string, r Ref, packed bool, t DType, headBytes, heads int64) error {
	if !packed {
		return c.Reads(name, r, t.Size(), headBytes*heads)
	}
	if least := int64(kernel.PackedHeader(int(heads))); r.Len() < least {
		return fmt.Errorf("packed %s of %d bytes, want %d at least: %w", name, r.Len(), least, ErrInvalid)
	}
	return c.Reads(name, r, 1, r.Len())
}

// check returns an error unless r can rotate rows of dim numbers.
func (r *Rotation) check(dim int) error {
	if r.Dims < 0 || r.Dims%2 != 0 || r.Dims > dim || len(r.Cos) != r.Dims/2 || len(r.Sin) != r.Dims/2 {
		return fmt.Errorf("rotation of %d of %d dimensions with %d cosines and %d sines: %w", r.Dims, dim, len(r.Cos), len(r.Sin), ErrInvalid)
	}
	return nil
}

// stateBytes, sBytes and tBytes are the bytes of one head.
func (j *ComposeJob) stateBytes() int64 { return int64(j.DK) * int64(j.DV) * 4 }

func (j *ComposeJob) sBytes(st *ComposeStep) int64 {
	return int64(j.DK) * int64(j.DV) * int64(st.SType.Size())
}

func (j *ComposeJob) tBytes(st *ComposeStep) int64 {
	n := int64(1)
	switch j.Transition {
	case kernel.Diagonal:
		n = int64(j.DK)
	case kernel.Dense:
		n = int64(j.DK) * int64(j.DK)
	}
	return n * int64(st.TType.Size())
}

// Replay checks a job and its operands.
func (c *Checker) Replay(job *ReplayJob) error {
	if err := job.check(); err != nil {
		return err
	}
	if err := c.states(job.From, job.Out, true, job.stateBytes()*int64(job.Heads)); err != nil {
		return err
	}
	rows := int64(job.Rows)
	if err := c.Reads("decays", job.Decay, 4, rows*job.decayStep()); err != nil {
		return err
	}
	if err := c.Reads("keys", job.K, 4, rows*job.keyStep()); err != nil {
		return err
	}
	return c.Reads("delta values", job.U, 4, rows*job.valueStep())
}

func (j *ReplayJob) check() error {
	const most = 1 << 20
	for _, n := range []int{j.Heads, j.KeyHeads, j.DK, j.DV} {
		if n <= 0 || n > most {
			return fmt.Errorf("%d heads of [%d, %d], %d of keys: %w", j.Heads, j.DK, j.DV, j.KeyHeads, ErrInvalid)
		}
	}
	if j.Heads%j.KeyHeads != 0 || j.Rows < 0 || j.Rows > most {
		return fmt.Errorf("%d rows of %d heads, %d of keys: %w", j.Rows, j.Heads, j.KeyHeads, ErrInvalid)
	}
	return nil
}

// stateBytes is the bytes of one head. The steps are bytes from one row to the next.
func (j *ReplayJob) stateBytes() int64 { return 4 * int64(j.DK) * int64(j.DV) }
func (j *ReplayJob) keyStep() int64    { return 4 * int64(j.KeyHeads) * int64(j.DK) }
func (j *ReplayJob) valueStep() int64  { return 4 * int64(j.Heads) * int64(j.DV) }
func (j *ReplayJob) decayStep() int64  { return int64(j.Heads) * j.decayBytes() }

func (j *ReplayJob) decayBytes() int64 {
	if j.PerKey {
		return 4 * int64(j.DK)
	}
	return 4
}

// Rotate checks a job and its operands. It checks that the rows written through a block
// table do not overlap the source of the same job. Disjoint checks all other operands, but
// no block table, so a block table is never compared with the operands of another job.
func (c *Checker) Rotate(job *RotateJob) error {
	if err := job.check(); err != nil {
		return err
	}
	n, elem, own := int64(job.Rows)*job.rowBytes(), job.Type.Size(), len(c.uses)
	if err := c.operand("source", job.Src, job.SrcPacked, job.Type, n, 1); err != nil {
		return err
	}
	if job.Dst.Region == nil {
		return c.Writes("rows", job.Dst.Rows, elem, n)
	}
	if !job.Dst.Rows.Absent() {
		return fmt.Errorf("both rows and a block table as destination: %w", ErrInvalid)
	}
	if err := c.hold("block table", job.Dst.Region); err != nil {
		return err
	}
	return job.checkTable(c.uses[own:])
}

func (j *RotateJob) headBytes() int64 { return int64(j.Dim) * int64(j.Type.Size()) }
func (j *RotateJob) rowBytes() int64  { return j.headBytes() * int64(j.Heads) }

// check makes all checks that do not depend on memory.
func (j *RotateJob) check() error {
	const most = 1 << 24
	if j.Rows < 0 || j.Rows > most || j.Heads <= 0 || j.Heads > most || j.Dim <= 0 || j.Dim > most || j.Heads > most/j.Dim {
		return fmt.Errorf("%d rows of [%d, %d]: %w", j.Rows, j.Heads, j.Dim, ErrInvalid)
	}
	if j.Type.Size() == 0 {
		return fmt.Errorf("element type %d: %w", j.Type, ErrInvalid)
	}
	if j.Turn != nil && j.PerRow != nil {
		return fmt.Errorf("one turn for all rows and one for each: %w", ErrInvalid)
	}
	if j.Turn != nil {
		return j.Turn.check(j.Dim)
	}
	if p := j.PerRow; p != nil && (p.Dims < 0 || p.Dims%2 != 0 || p.Dims > j.Dim || len(p.InvFreq) != p.Dims/2) {
		return fmt.Errorf("rotation of %d of %d dimensions with %d frequencies: %w", p.Dims, j.Dim, len(p.InvFreq), ErrInvalid)
	}
	return nil
}
