package kernel

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

// columns is r for the columns from j on, below is r for the rows from i on.
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
