package kernel

import "fmt"

// Rows is a run of rows that update the state of one head. Row n does
//
//	S = g_n * S + k_n u_n^T
//
// which covers every linear-attention family: u is beta*v, or for the delta rule beta*(v -
// g*S^T k). KStep, UStep and GStep are the numbers from one row to the next.
type Rows struct {
	N      int
	K      []float32 // [N, dk]
	KStep  int
	U      []float32 // [N, dv]
	UStep  int
	G      []float32 // [N], or [N, dk] with PerKey
	GStep  int
	PerKey bool
}

// Replay applies all rows, in order, to a state [dk, dv] in place. It rounds every product
// and every sum separately. So the state has the same bits on every processor, and the same
// as a recurrence that does this row by row. The state must not overlap the rows. Wrong
// lengths panic.
func Replay(dk, dv int, state []float32, r Rows) {
	if dk < 0 || dv < 0 || len(state) != dk*dv {
		panic(fmt.Sprintf("kernel: replay on a state of %d numbers as [%d, %d]", len(state), dk, dv))
	}
	decays := 1
	if r.PerKey {
		decays = dk
	}
	checkMatrix("keys", r.K, r.KStep, r.N, dk)
	checkMatrix("delta values", r.U, r.UStep, r.N, dv)
	checkMatrix("decays", r.G, r.GStep, r.N, decays)
	if r.N > 0 && dk*dv > 0 {
		replay(state, dv, dk, dv, &r)
	}
}

// replayGeneric applies rows to s [rows, cols], which has ld numbers from row to row.
func replayGeneric(s []float32, ld, rows, cols int, r *Rows) {
	for n := range r.N {
		u := r.U[n*r.UStep:][:cols]
		for i := range rows {
			g := r.G[n*r.GStep]
			if r.PerKey {
				g = r.G[n*r.GStep+i]
			}
			k := r.K[n*r.KStep+i]
			row := s[i*ld:][:cols]
			for j, v := range row {
				// The conversions forbid fusing.
				row[j] = float32(g*v) + float32(k*u[j])
			}
		}
	}
}

// The method columns returns the part of r for the state's columns from j on. The method
// below returns the part of r for the state's rows from i on.
func (r *Rows) columns(j int) *Rows {
	x := *r
	x.U = r.U[j:]
	return &x
}

func (r *Rows) below(i int) *Rows {
	x := *r
	x.K = r.K[i:]
	if r.PerKey {
		x.G = r.G[i:]
	}
	return &x
}
