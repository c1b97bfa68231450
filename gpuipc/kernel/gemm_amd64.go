package kernel

import (
	"sync"
	"unsafe"
)

const (
	// depth is the number of rows of B in a panel: a panel of 32 columns is 32 KiB and
	// stays in L1 next to the rows of A. The results do not depend on depth.
	depth = 256
	// edgeRows is the number of rows of C per pass of edgeColumn.
	edgeRows = 96
	// B is packed into panels only if C has at least directRows rows. With fewer rows B is
	// read in place, since packing would cost more than the product.
	directRows = 4
)

// product is the working memory of one call.
type product struct {
	panel [depth * panelWidth]float32
	edge  [edgeRows * panelWidth]float32
}

var products = sync.Pool{New: func() any { return new(product) }}

// matrix is a row-major matrix with ld numbers from row to row.
type matrix struct {
	v  []float32
	ld int
}

func (m matrix) at(row, col int) *float32 { return &m.v[row*m.ld+col] }

func gemm(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	if active == plainGo {
		gemmGeneric(c, ldc, a, lda, b, ldb, m, n, k)
		return
	}
	gemmTiled(active, matrix{c, ldc}, matrix{a, lda}, matrix{b, ldb}, m, n, k, false)
}

func gemmNT(c []float32, ldc int, a []float32, lda int, b []float32, ldb int, m, n, k int) {
	if active == plainGo {
		gemmNTGeneric(c, ldc, a, lda, b, ldb, m, n, k)
		return
	}
	gemmTiled(active, matrix{c, ldc}, matrix{a, lda}, matrix{b, ldb}, m, n, k, true)
}

// gemmTiled processes B panel by panel. A panel has up to depth rows of B. For each panel,
// the numbers of C in its columns are loaded and stored once, which does not change their
// bits.
func gemmTiled(v isa, c, a, b matrix, m, n, k int, transposed bool) {
	p := products.Get().(*product)
	defer products.Put(p)
	cols := v.cols()
	for k0 := 0; k0 < k; k0 += depth {
		kn := min(depth, k-k0)
		for j := 0; j < n; j += cols {
			jn := min(cols, n-j)
			t := tile{a: a.at(0, k0), lda: 4 * a.ld, b: &p.panel[0], ldb: 4 * cols, k: kn}
			switch {
			case transposed:
				packTransposed(p.panel[:], cols, b, j, jn, k0, kn)
			case jn < cols:
				packEdge(p.panel[:], cols, b, k0, kn, j, jn)
			case m < directRows:
				t.b, t.ldb = b.at(k0, j), 4*b.ld
			default:
				v.pack(t.b, 4*cols, 0, b.at(k0, j), 4*b.ld, 0, kn, 1)
			}
			if jn < cols {
				p.edgeColumn(v, t, c, m, j, jn)
				continue
			}
			t.d, t.ldd = c.at(0, j), 4*c.ld
			t.c, t.ldc = (*byte)(unsafe.Pointer(t.d)), t.ldd
			t.column(v, m)
		}
	}
}

// packEdge copies rows that have fewer columns than the panel. The other columns of the
// panel keep old numbers; their products go to columns that are never read.
func packEdge(dst []float32, cols int, b matrix, row, rows, col, n int) {
	for i := range rows {
		copy(dst[i*cols:][:n], b.v[(row+i)*b.ld+col:][:n])
	}
}

// packTransposed packs the transpose of a part of b into a panel. The part has n rows and k
// columns. It begins at the row with number row and the column with number col.
func packTransposed(dst []float32, cols int, b matrix, row, n, col, k int) {
	i := 0
	for ; i+8 <= n && k >= 8; i += 8 {
		transpose8AVX2(&dst[i], 4*cols, b.at(row+i, col), 4*b.ld, k/8)
		for q := k &^ 7; q < k; q++ {
			for r := range 8 {
				dst[q*cols+i+r] = b.v[(row+i+r)*b.ld+col+q]
			}
		}
	}
	for ; i < n; i++ {
		for q, v := range b.v[(row+i)*b.ld+col:][:k] {
			dst[q*cols+i] = v
		}
	}
}

// edgeColumn computes a column of tiles in which only n columns exist, through a copy of C.
func (p *product) edgeColumn(v isa, t tile, c matrix, m, col, n int) {
	cols := v.cols()
	t.d, t.ldd = &p.edge[0], 4*cols
	t.c, t.ldc = (*byte)(unsafe.Pointer(t.d)), t.ldd
	for i := 0; i < m; i += edgeRows {
		rows := min(edgeRows, m-i)
		for r := range rows {
			copy(p.edge[r*cols:][:n], c.v[(i+r)*c.ld+col:][:n])
		}
		part := t
		part.a = ahead(t.a, i*t.lda)
		part.column(v, rows)
		for r := range rows {
			copy(c.v[(i+r)*c.ld+col:][:n], p.edge[r*cols:][:n])
		}
	}
}
