package kernel

// blockRows is the number of rows of the block of a state that assembly keeps in registers.
// Rows and columns that fill no block are computed in plain Go.
const blockRows = 4

func (v isa) blockCols() int {
	switch v {
	case avx512:
		return 32
	case avx2:
		return 16
	}
	return 0
}

// blocks returns how many rows and columns of a state assembly computes.
func (v isa) blocks(rows, cols int) (int, int) {
	width := v.blockCols()
	if width == 0 || rows < blockRows || cols < width {
		return 0, 0
	}
	return rows / blockRows * blockRows, cols / width * width
}

func replay(s []float32, ld, rows, cols int, r *Rows) {
	m, w := active.blocks(rows, cols)
	if m > 0 {
		replayBlocks(s, ld, m, w, r)
	}
	if w < cols && m > 0 {
		replayGeneric(s[w:], ld, m, cols-w, r.columns(w))
	}
	if m < rows {
		replayGeneric(s[m*ld:], ld, rows-m, cols, r.below(m))
	}
}

func replayBlocks(s []float32, ld, rows, cols int, r *Rows) {
	switch {
	case active == avx512 && r.PerKey:
		replayPerKeyAVX512(&s[0], 4*ld, &r.G[0], 4*r.GStep, &r.K[0], 4*r.KStep, &r.U[0], 4*r.UStep, r.N, rows, cols)
	case active == avx512:
		replayAVX512(&s[0], 4*ld, &r.G[0], 4*r.GStep, &r.K[0], 4*r.KStep, &r.U[0], 4*r.UStep, r.N, rows, cols)
	case r.PerKey:
		replayPerKeyAVX2(&s[0], 4*ld, &r.G[0], 4*r.GStep, &r.K[0], 4*r.KStep, &r.U[0], 4*r.UStep, r.N, rows, cols)
	default:
		replayAVX2(&s[0], 4*ld, &r.G[0], 4*r.GStep, &r.K[0], 4*r.KStep, &r.U[0], 4*r.UStep, r.N, rows, cols)
	}
}
