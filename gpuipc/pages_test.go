package gpuipc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// seedOf prints the seed of a random test, so that a failing run replays.
func seedOf(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// pageModel says the same as PageAllocator with a map.
type pageModel struct {
	pages int
	used  map[int]bool
	gens  map[int]uint64
}

func (m *pageModel) largest() int {
	best, run := 0, 0
	for p := range m.pages {
		if run++; m.used[p] {
			run = 0
		}
		best = max(best, run)
	}
	return best
}

func (m *pageModel) lowestRun(n int) int {
	run := 0
	for p := range m.pages {
		if run++; m.used[p] {
			run = 0
		}
		if run == n {
			return p - n + 1
		}
	}
	return -1
}

func TestAllocatorAgreesWithAMap(t *testing.T) {
	rng := seedOf(t)
	for _, pages := range []int{1, 63, 64, 65, 200, 1024} {
		const page = 100
		a := NewPageAllocator(int64(pages)*page+page-1, page)
		m := &pageModel{pages: pages, used: map[int]bool{}, gens: map[int]uint64{}}
		var held [][]Extent
		for step := range 3000 {
			if rng.IntN(5) < 2 && len(held) > 0 {
				i := rng.IntN(len(held))
				freed := held[i]
				if k := rng.IntN(len(freed) + 1); k > 0 && k < len(freed) { // a part of it
					freed, held[i] = freed[:k], freed[k:]
				} else {
					held = slices.Delete(held, i, i+1)
				}
				a.Free(freed)
				for _, e := range freed {
					for p := e.Off / page; p < (e.Off+e.Len)/page; p++ {
						delete(m.used, int(p))
						m.gens[int(p)]++
					}
				}
			} else {
				held = append(held, allocBoth(t, rng, a, m)...)
			}
			if a.UsedBytes() != int64(len(m.used))*page || a.FreeBytes() != int64(pages-len(m.used))*page {
				t.Fatalf("%d pages, step %d: %d used, %d free; the map has %d used pages", pages, step, a.UsedBytes(), a.FreeBytes(), len(m.used))
			}
			if got := a.LargestBytes(); got != int64(m.largest())*page {
				t.Fatalf("%d pages, step %d: largest %d, the map says %d pages", pages, step, got, m.largest())
			}
		}
		for p := range pages {
			if a.Generation(p) != m.gens[p] {
				t.Fatalf("page %d has generation %d, the map %d", p, a.Generation(p), m.gens[p])
			}
		}
	}
}

// allocBoth allocates from both and compares; it returns what was allocated.
func allocBoth(t *testing.T, rng *rand.Rand, a *PageAllocator, m *pageModel) [][]Extent {
	t.Helper()
	page := a.PageBytes()
	bytes := 1 + rng.Int64N(int64(m.pages)*page/int64(1+rng.IntN(20))+1)
	n := int((bytes + page - 1) / page)
	free, largest, lowest := m.pages-len(m.used), m.largest(), m.lowestRun(n)
	var got []Extent
	var err error
	run := rng.IntN(3) == 0
	if run {
		var e Extent
		if e, err = a.AllocRun(bytes); err == nil {
			got = []Extent{e}
		}
	} else {
		got, err = a.Alloc(bytes)
	}
	if want := n <= free && (!run || n <= largest); want != (err == nil) {
		t.Fatalf("%d pages (run %v) with %d free, largest %d: %v", n, run, free, largest, err)
	}
	if err != nil {
		if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		return nil
	}
	if n <= largest && (len(got) != 1 || got[0].Off != int64(lowest)*page) {
		t.Fatalf("%d pages fit at %d, got %v", n, lowest, got)
	}
	total, longest := 0, 0
	for i, e := range got {
		if e.Off%page != 0 || e.Len%page != 0 || e.Len <= 0 || i > 0 && e.Off <= got[i-1].Off {
			t.Fatalf("extents %v", got)
		}
		for p := int(e.Off / page); p < int((e.Off+e.Len)/page); p++ {
			if p >= m.pages || m.used[p] {
				t.Fatalf("page %d of %v is not free", p, got)
			}
			m.used[p] = true
		}
		total += int(e.Len / page)
		longest = max(longest, int(e.Len/page))
	}
	if total != n {
		t.Fatalf("%d pages asked, got %v", n, got)
	}
	if len(got) > 1 && longest*2 <= largest {
		t.Fatalf("%d pages in %v, though a run of %d was free", n, got, largest)
	}
	return [][]Extent{got}
}

func TestAllocatorPanicsOnWrongFree(t *testing.T) {
	const page = 4096
	for name, free := range map[string]Extent{
		"free already":        {0, page},
		"partly free already": {page, 2 * page},
		"not of pages":        {2*page + 1, page},
		"half a page":         {2 * page, page / 2},
		"outside":             {8 * page, page},
		"negative":            {-page, page},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewPageAllocator(8*page, page)
			if _, err := a.AllocRun(4 * page); err != nil {
				t.Fatal(err)
			}
			a.Free([]Extent{{0, 2 * page}})
			defer func() {
				if p := fmt.Sprint(recover()); !strings.Contains(p, fmt.Sprint(free.Off)) {
					t.Fatalf("panicked with %q", p)
				}
				if a.UsedBytes() != 2*page {
					t.Fatalf("%d bytes used after the panic", a.UsedBytes())
				}
			}()
			a.Free([]Extent{free})
		})
	}
}

func TestAllocatorRefusesNothingAndTooMuch(t *testing.T) {
	a := NewPageAllocator(10*4096, 4096)
	if _, err := a.Alloc(0); !errors.Is(err, ErrInvalid) {
		t.Errorf("no bytes: %v", err)
	}
	if _, err := a.Alloc(10*4096 + 1); !errors.Is(err, ErrFull) {
		t.Errorf("too many bytes: %v", err)
	}
	if _, err := NewPageAllocator(100, 4096).Alloc(1); !errors.Is(err, ErrFull) {
		t.Errorf("no page at all: %v", err)
	}
}
