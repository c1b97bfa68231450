package kernel

import "fmt"

// Rows is a run of rows that move one head's state: row n is
//
//	S = g_n * S + k_n u_n^T
//
// which every linear-attention family is, u being beta*v, or for the delta rule
// beta*(v - g*S^T k). Strides count numbers from row to row.
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

// Replay moves a state [dk, dv] in place over all rows, in order. Every product and
// every sum is rounded on its own, so that the state has the same bits on every
// processor, and those of a recurrence that does the same row by row. The state
// must not overlap the rows; wrong lengths panic.
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

// replayGeneric moves s [rows, cols], ld numbers from row to row.
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

// columns returns r for the columns from j on, below returns r for the rows from i on.
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
