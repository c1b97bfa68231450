package enginekernel

import (
	"fmt"
	"slices"
)

// Rows of a Buffer may branch. They may be drafts of a tree that are verified at once, or
// beams, which are several live continuations of one state. Each row follows one earlier
// row or the states, and reads only its ancestors. So one pass over the states and the rows
// serves all branches.

// Parent returns the row that a pending row follows. -1 means that it follows the states.
func (b *Buffer) Parent(row int) int {
	if b.parents == nil {
		return row - 1
	}
	return int(b.parents[row])
}

// DecodeTree does Decode for rows that may branch. New row i follows row parents[i] of the
// buffer, where the first new row has number b.N. -1 means that it follows the states. Each
// parent must come before its children.
func (b *Buffer) DecodeTree(states []float32, in []Input, parents []int, out []float32, sc *BufferScratch) {
	b.check(states, in, out, false)
	if len(parents) != len(in) {
		panic(fmt.Sprintf("enginekernel: %d parents of %d rows", len(parents), len(in)))
	}
	chain := b.parents == nil
	for i, p := range parents {
		if p < -1 || p >= b.N+i {
			panic(fmt.Sprintf("enginekernel: row %d follows row %d", b.N+i, p))
		}
		chain = chain && p == b.N+i-1
	}
	if !chain {
		b.branch()
		for _, p := range parents {
			b.parents = append(b.parents, int32(p))
		}
	}
	b.decode(states, in, out, false, sc)
}

// branch stores the parents of rows that did not branch so far.
func (b *Buffer) branch() {
	if b.parents != nil {
		return
	}
	b.parents = make([]int32, b.N, b.Capacity())
	for i := range b.parents {
		b.parents[i] = int32(i - 1)
	}
}

// Keep drops the rows after the first n, such as drafts that were not accepted.
func (b *Buffer) Keep(n int) {
	if n < 0 || n > b.N {
		panic(fmt.Sprintf("enginekernel: keep %d of %d rows", n, b.N))
	}
	b.N = n
	if b.parents != nil {
		b.parents = b.parents[:n]
		b.settle()
	}
}

// Select keeps the given rows and drops the others. The rows must ascend, and are
// renumbered in this order. All ancestors of a kept row must be kept: for drafts, select
// the accepted path and the rows before it; for beams, the live beams and all their
// ancestors.
func (b *Buffer) Select(rows []int) {
	to := make([]int32, b.N)
	for i := range to {
		to[i] = -1
	}
	parents := make([]int32, len(rows), b.Capacity())
	last := -1
	for i, r := range rows {
		if r <= last || r >= b.N {
			panic(fmt.Sprintf("enginekernel: select row %d after %d of %d", r, last, b.N))
		}
		parents[i] = -1
		if p := b.Parent(r); p >= 0 {
			if parents[i] = to[p]; to[p] < 0 {
				panic(fmt.Sprintf("enginekernel: select row %d without row %d", r, p))
			}
		}
		to[r], last = int32(i), r
	}
	for i, r := range rows {
		b.moveRow(i, r)
	}
	b.N, b.parents = len(rows), parents
	b.settle()
}

// moveRow copies the row with number from to the earlier row with number to.
func (b *Buffer) moveRow(to, from int) {
	if to == from {
		return
	}
	copy(b.K[to*b.keyBytes():][:b.keyBytes()], b.K[from*b.keyBytes():])
	copy(b.U[to*b.valueBytes():][:b.valueBytes()], b.U[from*b.valueBytes():])
	copy(b.G[to*b.decays():][:b.decays()], b.G[from*b.decays():])
}

// settle drops the parents if each row follows the previous one.
func (b *Buffer) settle() {
	for i, p := range b.parents {
		if int(p) != i-1 {
			return
		}
	}
	b.parents = nil
}

// checkFlush panics unless each of the first n rows follows the previous one and all later
// rows descend from row n-1.
func (b *Buffer) checkFlush(n int) {
	if n < 0 || n > b.N {
		panic(fmt.Sprintf("enginekernel: flush of %d of %d rows", n, b.N))
	}
	for i, p := range b.parents {
		if i < n && int(p) != i-1 || i >= n && int(p) < n-1 {
			panic(fmt.Sprintf("enginekernel: flush of %d rows, row %d follows row %d", n, i, p))
		}
	}
}

// dropFirst drops the first n rows, which have been added to the states.
func (b *Buffer) dropFirst(n int) {
	if n < b.N {
		copy(b.K, b.K[n*b.keyBytes():b.N*b.keyBytes()])
		copy(b.U, b.U[n*b.valueBytes():b.N*b.valueBytes()])
		copy(b.G, b.G[n*b.decays():b.N*b.decays()])
	}
	b.N -= n
	if b.parents != nil {
		rest := b.parents[n:]
		for i, p := range rest {
			b.parents[i] = p - int32(n)
		}
		b.parents = b.parents[:len(rest)]
		b.settle()
	}
}

// findPaths lists the ancestors of each of n rows, beginning with row number first.
func (b *Buffer) findPaths(first, n int, sc *BufferScratch) {
	sc.paths, sc.spans = sc.paths[:0], sc.spans[:0]
	if sc.chains = b.parents == nil; sc.chains {
		sc.chain(first + n)
	}
	for i := range n {
		begin := len(sc.paths)
		if sc.chains {
			sc.spans = append(sc.spans, 0, first+i)
			continue
		}
		for r := b.Parent(first + i); r >= 0; r = b.Parent(r) {
			sc.paths = append(sc.paths, int32(r))
		}
		slices.Reverse(sc.paths[begin:])
		sc.spans = append(sc.spans, begin, len(sc.paths))
	}
}

// path returns the ancestors of the i-th decoded row, ascending.
func (sc *BufferScratch) path(i int) []int32 {
	of := sc.paths
	if sc.chains {
		of = sc.first
	}
	return of[sc.spans[2*i]:sc.spans[2*i+1]]
}

// chain returns the first n rows as the path of rows that do not branch.
func (sc *BufferScratch) chain(n int) []int32 {
	for i := len(sc.first); i < n; i++ {
		sc.first = append(sc.first, int32(i))
	}
	return sc.first[:n]
}

// consecutive returns the number of rows at the start of a path that are consecutive in
// memory.
func consecutive(path []int32) int {
	n := 1
	for n < len(path) && path[n] == path[n-1]+1 {
		n++
	}
	return n
}
