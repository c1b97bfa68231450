package gpuipc

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// ReplayJob applies consecutive rows, in order, to the states of one layer: S = g*S + k u^T
// for each row (KVBuffer Eq. 5; kernel.Replay defines the result to the bit). Decay, K and
// U have exactly Rows rows.
type ReplayJob struct {
	Heads    int // value heads
	KeyHeads int // divides Heads: consecutive value heads share a key head
	DK, DV   int
	Rows     int
	PerKey   bool // each key channel has its own decay
	From     Ref  // F32 [Heads, DK, DV]; absent = zero states
	Decay    Ref  // F32 [Rows, Heads], or [Rows, Heads, DK] with PerKey
	K        Ref  // F32 [Rows, KeyHeads, DK]
	U        Ref  // F32 [Rows, Heads, DV]
	Out      Ref  // F32 [Heads, DK, DV]; may equal From
}

// Replay works head by head, like Compose. A job that ends early leaves Out
// undefined.
func (h *host) Replay(ctx context.Context, job *ReplayJob) error {
	a := h.access()
	defer a.release()
	r, err := a.replayer(job)
	if err != nil {
		return fmt.Errorf("%s: %w", OpReplay, err)
	}
	wide := r.rowCost()*float64(job.Rows+1)*float64(job.Heads) >= wideCost
	if err := h.run(ctx, OpReplay, job.Heads, wide, r.item); err != nil {
		return fmt.Errorf("%s of %d heads over %d rows: %w", OpReplay, job.Heads, job.Rows, err)
	}
	return nil
}

// replayer is a checked ReplayJob.
type replayer struct {
	states
	job         *ReplayJob
	decay, k, u memory
}

func (a *access) replayer(job *ReplayJob) (*replayer, error) {
	if err := a.Replay(job); err != nil {
		return nil, err
	}
	if err := a.Disjoint(); err != nil {
		return nil, err
	}
	states := a.states(job.From, job.Out, job.stateBytes())
	return &replayer{states: states, job: job, decay: a.memory(job.Decay), k: a.memory(job.K), u: a.memory(job.U)}, nil
}

// rowCost returns the cost of one row of one head, as the number of multiply-adds that take
// as long.
func (r *replayer) rowCost() float64 { return 3 * float64(r.job.DK) * float64(r.job.DV) }

// item applies all rows to the state of one head.
func (r *replayer) item(w *worker, head int) error {
	state, inOut := r.begin(w.scratch, head, 1)
	batch := max(1, int(batchCost/r.rowCost()))
	for lo := 0; lo < r.job.Rows; lo += batch {
		if lo > 0 {
			if err := w.chunk(); err != nil {
				return err
			}
		}
		kernel.Replay(r.job.DK, r.job.DV, floats(state), r.rows(w.scratch, head, lo, min(lo+batch, r.job.Rows)))
	}
	if !inOut {
		r.out.store(int64(head)*r.headBytes, state)
	}
	return nil
}

// rows returns the rows [lo, hi) of one head.
func (r *replayer) rows(s *scratch, head, lo, hi int) kernel.Rows {
	j, n := r.job, hi-lo
	key := head / (j.Heads / j.KeyHeads)
	out := kernel.Rows{N: n, PerKey: j.PerKey}
	out.K, out.KStep = r.k.strided(lo, n, r.job.keyStep(), int64(key*j.DK)*4, int64(j.DK)*4, s.buffer(0))
	out.U, out.UStep = r.u.strided(lo, n, r.job.valueStep(), int64(head*j.DV)*4, int64(j.DV)*4, s.buffer(1))
	out.G, out.GStep = r.decay.strided(lo, n, r.job.decayStep(), int64(head)*r.job.decayBytes(), r.job.decayBytes(), s.buffer(2))
	return out
}

// strided returns numbers of n rows, beginning with row number first. From one row to the
// next it advances by step bytes. From each row it takes the size bytes at offset off. The
// second result is the number of returned numbers from one row to the next. If all bytes
// are inside one run, the numbers are returned in place, else they are gathered into *buf.
func (m *memory) strided(first, n int, step, off, size int64, buf *[]byte) ([]float32, int) {
	begin := int64(first)*step + off
	if all := int64(n-1)*step + size; int64(len(m.run(begin, all))) == all {
		return floats(m.run(begin, all)), int(step / 4)
	}
	b := grown(buf, n*int(size))
	for i := range n {
		m.load(b[i*int(size):][:size], begin+int64(i)*step)
	}
	return floats(b), int(size / 4)
}
