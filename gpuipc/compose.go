package gpuipc

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// Compose works head by head: heads are independent, so workers share them. If the state of
// a head is one run of bytes in job.Out, the steps update it there. So a job that ends
// early leaves job.Out and the Before of each step undefined.
func (h *host) Compose(ctx context.Context, job *ComposeJob) error {
	a := h.access()
	defer a.release()
	c, err := a.composer(job)
	if err != nil {
		return fmt.Errorf("%s: %w", OpCompose, err)
	}
	wide := c.cost(len(c.steps)+1)*float64(c.items()) >= wideCost
	if err := h.run(ctx, OpCompose, c.items(), wide, c.item); err != nil {
		return fmt.Errorf("%s of %d heads over %d steps: %w", OpCompose, job.Heads, len(job.Steps), err)
	}
	return nil
}

const (
	// batchCost bounds the multiply-adds between two checks of the context:
	// about 0.1 ms with AVX2, 4 ms in plain Go (both measured).
	batchCost = 4 << 20
	// wideCost is the cost, in multiply-adds, above which waking another worker (5-10 us)
	// pays off.
	wideCost = 2 << 20
	// mergedRows bounds the rows of several small heads that are handled in one call.
	mergedRows = 256
)

// composer is a checked ComposeJob.
type composer struct {
	states
	job   *ComposeJob
	steps []composeStep
	group int // heads that one item handles
}

// states are the states of all heads before and after a job.
type states struct {
	from, out memory
	inPlace   bool  // out is the same memory as from
	headBytes int64 // of one head's state
}

func (a *access) states(from, out Ref, headBytes int64) states {
	s := states{out: a.memory(out), headBytes: headBytes}
	if s.inPlace = !out.Absent() && out.Equal(from); s.inPlace {
		s.from = s.out
	} else {
		s.from = a.memory(from)
	}
	return s
}

// The method begin loads the states of some heads before the job. If they are one run of
// bytes in out, they are loaded there, else into scratch memory.
func (h *states) begin(s *scratch, head, heads int) (state []byte, inOut bool) {
	off, n := int64(head)*h.headBytes, int64(heads)*h.headBytes
	if h.out.n > 0 {
		state = h.out.run(off, n)
		inOut = int64(len(state)) == n
	}
	if !inOut {
		state = grown(&s.state, int(n))
	}
	switch {
	case h.from.n == 0:
		clear(state)
	case !(inOut && h.inPlace):
		h.from.load(state, off)
	}
	return state, inOut
}

type composeStep struct {
	t, s, before     memory
	packedT, packedS *kernel.Packed // nil = not packed
	present          bool           // the step has T and S
}

func (a *access) composer(job *ComposeJob) (*composer, error) {
	if err := a.Compose(job); err != nil {
		return nil, err
	}
	if err := a.Disjoint(); err != nil {
		return nil, err
	}
	c := &composer{job: job, steps: make([]composeStep, len(job.Steps)), group: 1}
	if job.Transition == kernel.Diagonal {
		// Every row has its own factor, so the rows of several heads can be handled like
		// those of one head. Models with thousands of tiny heads would otherwise spend
		// their time in calls.
		c.group = min(job.Heads, max(1, mergedRows/job.DK))
	}
	c.states = a.states(job.From, job.Out, job.stateBytes())
	for i := range job.Steps {
		in := &job.Steps[i]
		st := &c.steps[i]
		*st = composeStep{t: a.memory(in.T), s: a.memory(in.S), before: a.memory(in.Before), present: !in.T.Absent()}
		if err := st.open(job, in); err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		if in.TPacked || in.SPacked {
			c.group = 1 // packed heads are handled one by one
		}
	}
	return c, nil
}

// open checks the packed parts of a step.
func (st *composeStep) open(job *ComposeJob, in *ComposeStep) (err error) {
	if in.TPacked {
		if st.packedT, err = st.t.packed(in.TType, job.Heads, job.DK, job.DK); err != nil {
			return fmt.Errorf("T: %w", err)
		}
	}
	if in.SPacked {
		if st.packedS, err = st.s.packed(in.SType, job.Heads, job.DK, job.DV); err != nil {
			return fmt.Errorf("S: %w", err)
		}
	}
	return nil
}

// packed opens a packed part. If the part is not one run of bytes, packed gathers it first.
func (m *memory) packed(t DType, heads, rows, cols int) (*kernel.Packed, error) {
	var gathered []byte
	p, err := kernel.OpenPacked(m.view(0, m.n, &gathered), t, heads, rows, cols)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return &p, nil
}

// cost estimates the multiply-adds of one item over n steps. The speed of memory limits a
// step with a scalar or diagonal transition. The time of such a step is counted as the
// number of multiply-adds that take as long.
func (c *composer) cost(n int) float64 {
	perRow := 8
	if c.job.Transition == kernel.Dense {
		perRow = max(perRow, c.job.DK)
	}
	return float64(n) * float64(c.group*c.job.DK) * float64(c.job.DV) * float64(perRow)
}

func (c *composer) items() int { return (c.job.Heads + c.group - 1) / c.group }

// item applies all steps to the states of one group of heads.
func (c *composer) item(w *worker, item int) error {
	head := item * c.group
	heads := min(c.group, c.job.Heads-head)
	state, inOut := c.begin(w.scratch, head, heads)
	batch := max(1, int(batchCost/c.cost(1)))
	first := c.first(head)
	for lo := first; lo < len(c.steps); lo += batch {
		if lo > first {
			if err := w.chunk(); err != nil {
				return err
			}
		}
		c.move(w.scratch, state, head, heads, lo, min(lo+batch, len(c.steps)))
	}
	if c.out.n > 0 && !inOut {
		c.out.store(int64(head)*c.headBytes, state)
	}
	return nil
}

// first returns the first step that has to be applied to a head. A step with a zero
// transition forgets the previous state, so the steps before it need not be applied. But a
// step that has to store the state in its field Before, and all steps after that step, are
// always applied.
func (c *composer) first(head int) (step int) {
	for i := range c.steps {
		st := &c.steps[i]
		if st.before.n > 0 {
			break
		}
		if st.packedT != nil && st.packedT.Form(head) == kernel.FormZero {
			step = i
		}
	}
	return step
}

// move applies the steps [lo, hi) to the state of some heads.
func (c *composer) move(s *scratch, state []byte, head, heads, lo, hi int) {
	s.steps = s.steps[:0]
	for i := lo; i < hi; i++ {
		s.steps = append(s.steps, c.step(s, i, 3*(i-lo), head, heads))
	}
	kernel.Compose(c.job.Transition, heads*c.job.DK, c.job.DV, floats(state), s.steps, &s.kernel)
	for i := lo; i < hi; i++ {
		st := &c.steps[i]
		if st.before.n == 0 {
			continue
		}
		off, n := int64(head)*c.headBytes, int64(heads)*c.headBytes
		if int64(len(st.before.run(off, n))) < n {
			st.before.store(off, s.gather[3*(i-lo)+2][:n])
		}
	}
}

// The method step returns the kernel's form of step number i for one group of heads. Parts
// that cross the end of an extent are gathered into three buffers of s, numbered slot,
// slot+1 and slot+2.
func (c *composer) step(s *scratch, i, slot, head, heads int) kernel.Step {
	in, st := &c.job.Steps[i], &c.steps[i]
	var k kernel.Step
	if st.before.n > 0 {
		off, n := int64(head)*c.headBytes, int64(heads)*c.headBytes
		b := st.before.run(off, n)
		if int64(len(b)) < n {
			b = grown(s.buffer(slot+2), int(n))
		}
		k.Before = floats(b)
	}
	if !st.present {
		return k
	}
	k.TType, k.SType = in.TType, in.SType
	if st.packedT != nil {
		k.TForm, k.T = st.packedT.Head(head)
	} else {
		k.T = st.t.view(int64(head)*c.job.tBytes(in), int64(heads)*c.job.tBytes(in), s.buffer(slot))
	}
	if st.packedS != nil {
		k.SForm, k.S = st.packedS.Head(head)
	} else {
		k.S = st.s.view(int64(head)*c.job.sBytes(in), int64(heads)*c.job.sBytes(in), s.buffer(slot+1))
	}
	if r := in.Rotation; r != nil {
		k.Dims, k.Interleaved, k.Cos, k.Sin = r.Dims, r.Interleaved, r.Cos, r.Sin
	}
	return k
}
