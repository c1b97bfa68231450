package refengine

import (
	"sync"
	"sync/atomic"
)

// workspace is the scratch memory of one walk, reused by later walks.
type workspace[F Float] struct {
	hidden []F // [rows, Dim] residual stream
	normed []F // [rows, Dim]
	in     []F // [rows, cols] input projection
	mixed  []F // [rows, channels] q|k|v after convolution and SiLU; queries of attention
	decay  []F // [rows, ValueHeads] or [rows, ValueHeads*KeyDim]
	beta   []F // [rows, ValueHeads]
	heads  []F // [rows, heads*dim] output of the token mixer
	wide   []F // [rows, 2*Hidden]
	narrow []F // [rows, Hidden]
}

// sized returns a slice of n elements, reusing the memory of s. Its contents are undefined.
func sized[F Float](s *[]F, n int) []F {
	if cap(*s) < n {
		*s = make([]F, n)
	}
	*s = (*s)[:n]
	return *s
}

// each runs f for 0 to n-1 on the model's workers.
func (m *Model[F]) each(n int, f func(i int)) {
	if n <= 1 || m.workers <= 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var next atomic.Int64
	take := func() {
		for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
			f(int(i))
		}
	}
	var wg sync.WaitGroup
	for range min(n, m.workers) - 1 {
		wg.Go(take)
	}
	take()
	wg.Wait()
}

// rowGrain is the number of rows per piece of work. It is large enough to hide the cost of
// passing work to a worker, and small enough for the second-level cache.
const rowGrain = 32

// eachRows runs f over consecutive runs of rows on the model's workers.
func (m *Model[F]) eachRows(rows int, f func(lo, hi int)) {
	m.each((rows+rowGrain-1)/rowGrain, func(i int) {
		f(i*rowGrain, min(rows, (i+1)*rowGrain))
	})
}
