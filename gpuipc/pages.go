package gpuipc

import (
	"fmt"
	"math/bits"
)

// PageAllocator allocates pages of one region. It has a bitmap and no lists, so a search
// visits O(pages/64) words, whatever was allocated and freed before.
//
// It uses the lowest run that fits, so that it reuses touched pages before fresh ones. A
// region that is touched lazily then takes little more memory than is allocated in it.
//
// It is not safe for concurrent use: its owner locks.
//
// Invariant: a page is free or belongs to exactly one allocated extent.
type PageAllocator struct {
	pageBytes int64
	pages     int
	free      []uint64 // bit set = page free; bits after the last page are 0
	low       int      // no word before this one has a free page
	freePages int
	gens      []uint64 // number of times each page was freed
}

// NewPageAllocator returns an allocator of the whole pages in [0, bytes), all
// free. It panics if the sizes are invalid.
func NewPageAllocator(bytes int64, pageBytes int) *PageAllocator {
	if bytes < 0 || pageBytes <= 0 {
		panic(fmt.Sprintf("gpuipc: allocator of %d bytes in pages of %d", bytes, pageBytes))
	}
	n := int(bytes / int64(pageBytes))
	a := &PageAllocator{
		pageBytes: int64(pageBytes),
		pages:     n,
		free:      make([]uint64, (n+63)/64),
		freePages: n,
		gens:      make([]uint64, n),
	}
	setRun(a.free, 0, n)
	return a
}

// Alloc returns whole pages for at least bytes bytes. It returns one run if it finds one.
// Otherwise it returns several extents in address order, made of the largest runs (compared
// by power of two). This costs one pass over the bitmap, and two more over the free runs if
// no single run is long enough. If there is no room, it changes nothing and returns
// ErrFull.
func (a *PageAllocator) Alloc(bytes int64) ([]Extent, error) {
	n, err := a.pagesFor(bytes)
	if err != nil {
		return nil, err
	}
	if first, ok := a.findRun(n); ok {
		return []Extent{a.take(first, n)}, nil
	}
	return a.takeLargest(n), nil
}

// AllocRun returns one contiguous run of whole pages for at least bytes bytes,
// or ErrFull.
func (a *PageAllocator) AllocRun(bytes int64) (Extent, error) {
	n, err := a.pagesFor(bytes)
	if err != nil {
		return Extent{}, err
	}
	first, ok := a.findRun(n)
	if !ok {
		return Extent{}, fmt.Errorf("allocate %d contiguous bytes: %d free, largest run %d: %w", bytes, a.FreeBytes(), a.LargestBytes(), ErrFull)
	}
	return a.take(first, n), nil
}

// Free frees extents of whole pages and advances the generation of each page. Parts of the
// result of one Alloc may be freed separately. Freeing a page that is free or does not
// exist breaks an invariant and panics.
func (a *PageAllocator) Free(extents []Extent) {
	for _, e := range extents {
		if e.Off < 0 || e.Len < 0 || e.Off%a.pageBytes != 0 || e.Len%a.pageBytes != 0 || e.Off+e.Len > int64(a.pages)*a.pageBytes {
			panic(fmt.Sprintf("gpuipc: free of [%d, +%d), not pages of %d bytes in [0, %d)", e.Off, e.Len, a.pageBytes, int64(a.pages)*a.pageBytes))
		}
		first, n := int(e.Off/a.pageBytes), int(e.Len/a.pageBytes)
		if p, ok := anySet(a.free, first, n); ok {
			panic(fmt.Sprintf("gpuipc: free of [%d, +%d): page %d (generation %d) is free already", e.Off, e.Len, p, a.gens[p]))
		}
		setRun(a.free, first, n)
		for p := first; p < first+n; p++ {
			a.gens[p]++
		}
		a.freePages += n
		a.low = min(a.low, first/64)
	}
}

// PageBytes returns the size of a page.
func (a *PageAllocator) PageBytes() int64 { return a.pageBytes }

// Pages returns the number of pages, used and free.
func (a *PageAllocator) Pages() int { return a.pages }

// UsedBytes returns the size of all allocated pages.
func (a *PageAllocator) UsedBytes() int64 { return int64(a.pages-a.freePages) * a.pageBytes }

// FreeBytes returns the size of all free pages.
func (a *PageAllocator) FreeBytes() int64 { return int64(a.freePages) * a.pageBytes }

// Generation returns the number of times that page was freed. The page at byte off has
// number off/PageBytes. A stored generation shows whether the page has been reused since.
func (a *PageAllocator) Generation(page int) uint64 { return a.gens[page] }

// LargestBytes returns the size of the longest free run.
func (a *PageAllocator) LargestBytes() int64 {
	best, carry := 0, 0
	for _, w := range a.free {
		if w == ^uint64(0) {
			carry += 64
			continue
		}
		best = max(best, carry+bits.TrailingZeros64(^w))
		for {
			if _, ok := runInWord(w, best+1); !ok {
				break
			}
			best++
		}
		carry = bits.LeadingZeros64(^w)
	}
	return int64(max(best, carry)) * a.pageBytes
}

func (a *PageAllocator) pagesFor(bytes int64) (int, error) {
	if bytes <= 0 {
		return 0, fmt.Errorf("allocate %d bytes: %w", bytes, ErrInvalid)
	}
	if bytes > a.FreeBytes() {
		return 0, fmt.Errorf("allocate %d bytes: %d of %d free: %w", bytes, a.FreeBytes(), int64(a.pages)*a.pageBytes, ErrFull)
	}
	return int((bytes + a.pageBytes - 1) / a.pageBytes), nil
}

// findRun returns the first page of the lowest run of n free pages.
func (a *PageAllocator) findRun(n int) (int, bool) {
	carry := 0 // free pages at the end of the previous words
	for i := a.low; i < len(a.free); i++ {
		w := a.free[i]
		switch {
		case w == 0:
			carry = 0
			continue
		case carry+bits.TrailingZeros64(^w) >= n:
			return i*64 - carry, true
		case w == ^uint64(0):
			carry += 64
			continue
		}
		if bit, ok := runInWord(w, n); ok {
			return i*64 + bit, true
		}
		carry = bits.LeadingZeros64(^w)
	}
	return 0, false
}

// takeLargest allocates n pages from the longest free runs; n pages must be free. Runs are
// classed by the power of two of their length. A histogram of the classes shows which
// classes are used completely. Of the last class that is needed, the lowest runs are used.
// An exact order would need a sort of up to pages/2 runs.
func (a *PageAllocator) takeLargest(n int) []Extent {
	var held [65]int // free pages by bits.Len(run)
	for _, run := range a.runs {
		held[bits.Len(uint(run))] += run
	}
	class, rest := 64, n
	for held[class] < rest {
		rest -= held[class]
		class--
	}
	var out []Extent
	for first, run := range a.runs {
		c := bits.Len(uint(run))
		if c == class {
			run = min(run, rest)
			rest -= run
		}
		if c >= class && run > 0 {
			out = append(out, a.take(first, run))
			n -= run
		}
		if n == 0 {
			break
		}
	}
	return out
}

// runs yields every maximal run of free pages, lowest first. The callback may allocate the
// run that it gets.
func (a *PageAllocator) runs(yield func(first, n int) bool) {
	start := -1
	for i := a.low; i < len(a.free); i++ {
		w, bit := a.free[i], 0
		for bit < 64 {
			if start < 0 {
				z := bits.TrailingZeros64(w >> bit)
				if bit+z >= 64 {
					break
				}
				bit += z
				start = i*64 + bit
			}
			ones := bits.TrailingZeros64(^(w >> bit))
			bit += ones
			if bit >= 64 {
				break // the run may continue in the next word
			}
			if !yield(start, i*64+bit-start) {
				return
			}
			start = -1
		}
	}
	if start >= 0 {
		yield(start, len(a.free)*64-start)
	}
}

func (a *PageAllocator) take(first, n int) Extent {
	clearRun(a.free, first, n)
	a.freePages -= n
	for a.low < len(a.free) && a.free[a.low] == 0 {
		a.low++
	}
	return Extent{Off: int64(first) * a.pageBytes, Len: int64(n) * a.pageBytes}
}

// runInWord finds the lowest run of n set bits in w. In each iteration, a set bit of w
// stands for a run of set bits that starts there; the iteration at most doubles the length
// of these runs. At the end a bit of w is set if n set bits start there.
func runInWord(w uint64, n int) (int, bool) {
	if n > 64 {
		return 0, false
	}
	for n > 1 && w != 0 {
		s := n / 2
		w &= w >> s
		n -= s
	}
	return bits.TrailingZeros64(w), w != 0
}

// eachWord calls f for every word that a run of bits touches. The argument mask has the
// bits of the word that are inside the run.
func eachWord(first, n int, f func(word int, mask uint64)) {
	for n > 0 {
		bit := first % 64
		k := min(64-bit, n)
		f(first/64, (^uint64(0)>>(64-k))<<bit)
		first += k
		n -= k
	}
}

func setRun(words []uint64, first, n int) {
	eachWord(first, n, func(i int, mask uint64) { words[i] |= mask })
}

func clearRun(words []uint64, first, n int) {
	eachWord(first, n, func(i int, mask uint64) { words[i] &^= mask })
}

// anySet returns a set bit of the run, if there is one.
func anySet(words []uint64, first, n int) (bit int, ok bool) {
	eachWord(first, n, func(i int, mask uint64) {
		if hit := words[i] & mask; hit != 0 && !ok {
			bit, ok = i*64+bits.TrailingZeros64(hit), true
		}
	})
	return bit, ok
}
