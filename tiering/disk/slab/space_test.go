package slab_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	. "github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const testGranule = 4096

// bitmap is the dumber Space: one bool for each granule, true = free.
type bitmap map[uint32][]bool

func (b bitmap) add(n uint32, granules int) {
	b[n] = slices.Repeat([]bool{true}, granules)
	b[n][0] = false
}

// set changes granules of a run, which all have to be the other way before.
func (b bitmap) set(t *testing.T, r Run, free bool) {
	t.Helper()
	for g := r.Off / testGranule; g < (r.Off+r.Len)/testGranule; g++ {
		if b[r.Slab][g] == free {
			t.Fatalf("%v: granule %d is free=%v already", r, g, free)
		}
		b[r.Slab][g] = free
	}
}

// lengths are those of the free runs, longest first, in granules.
func (b bitmap) lengths() (lens []int64) {
	for _, granules := range b {
		n := int64(0)
		for _, free := range append(slices.Clone(granules), false) {
			if free {
				n++
			} else if n > 0 {
				lens, n = append(lens, n), 0
			}
		}
	}
	slices.Sort(lens)
	slices.Reverse(lens)
	return lens
}

// fewest is the least number of free runs that hold n granules.
func fewest(lens []int64, n int64) (runs int) {
	for n > 0 {
		n -= lens[runs]
		runs++
	}
	return runs
}

var spaceSeeds = flag.Uint64("space.seeds", 12, "seeds of the model test of Space")

// TestSpaceAgreesWithBitmap runs random allocations, releases, partial releases
// and openings on a Space and on a bitmap.
func TestSpaceAgreesWithBitmap(t *testing.T) {
	fragmented, several := 0, 0
	seeds := *spaceSeeds
	if testing.Short() {
		seeds = min(seeds, 2)
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			m := newSpaceModel(seed)
			for range 1500 {
				m.step(t)
			}
			fragmented += m.fragmented
			several += m.several
		})
	}
	if seeds >= 4 && !t.Failed() && (fragmented == 0 || several < 300) {
		t.Errorf("%d fragmented, %d of several runs: too little was met", fragmented, several)
	}
}

type spaceModel struct {
	rng     *rand.Rand
	space   *Space
	bits    bitmap
	held    [][]Run // allocations
	asked   []int64 // bytes asked for, for each of held; 0 once cut
	maximum int64   // bytes of an allocation

	fragmented, several int
}

func newSpaceModel(seed uint64) *spaceModel {
	m := &spaceModel{rng: rand.New(rand.NewPCG(seed, 3)), space: NewSpace(testGranule), bits: bitmap{}}
	m.maximum = int64(1+m.rng.IntN(300)) * testGranule
	for range 1 + m.rng.IntN(3) {
		m.grow()
	}
	return m
}

func (m *spaceModel) grow() {
	n := uint32(len(m.bits) + 1)
	granules := 2 + m.rng.IntN(600)
	m.space.AddSlab(n, int64(granules)*testGranule+m.rng.Int64N(testGranule))
	m.bits.add(n, granules)
}

func (m *spaceModel) step(t *testing.T) {
	t.Helper()
	switch p := m.rng.IntN(100); {
	case p < 52:
		m.alloc(t)
	case p < 80:
		m.free(t)
	case p < 94:
		m.freePart(t)
	case p < 97:
		m.reopen(t)
	case p < 98:
		m.scatter(t)
	case len(m.bits) < 6:
		m.grow()
	}
	m.check(t)
}

func (m *spaceModel) alloc(t *testing.T) {
	t.Helper()
	bytes := 1 + m.rng.Int64N(m.maximum)
	if m.rng.IntN(3) > 0 {
		bytes = 1 + m.rng.Int64N(3*testGranule) // small ones make the gaps
	}
	lens, want := m.bits.lengths(), (bytes+testGranule-1)/testGranule
	free := int64(0)
	for _, n := range lens {
		free += n
	}
	runs, err := m.space.Alloc(bytes)
	switch {
	case want > free:
		if !errors.Is(err, tier.ErrFull) || errors.Is(err, ErrFragmented) {
			t.Fatalf("%d granules of %d free: %v", want, free, err)
		}
		return
	case fewest(lens, want) > MaxRuns:
		if !errors.Is(err, ErrFragmented) || !errors.Is(err, tier.ErrFull) {
			t.Fatalf("%d granules in %d runs: %v", want, fewest(lens, want), err)
		}
		m.fragmented++
		return
	case err != nil:
		t.Fatalf("%d granules of %d free, %d runs: %v", want, free, fewest(lens, want), err)
	}
	if got := RunBytes(runs); got < bytes || got-bytes >= testGranule {
		t.Fatalf("%d bytes took %d: the waste is a granule of %d or more", bytes, got, testGranule)
	}
	if len(runs) != fewest(lens, want) {
		t.Fatalf("%d granules in %d runs, %d would do", want, len(runs), fewest(lens, want))
	}
	if len(runs) == 1 {
		m.checkBestFit(t, lens, want, runs[0])
	} else {
		m.several++
	}
	for _, r := range runs {
		m.bits.set(t, r, false)
	}
	m.held, m.asked = append(m.held, runs), append(m.asked, bytes)
}

// checkBestFit compares the free run around r with the shortest that would do;
// the bitmap still has r free.
func (m *spaceModel) checkBestFit(t *testing.T, lens []int64, want int64, r Run) {
	t.Helper()
	best := lens[0]
	for _, n := range lens {
		if n >= want {
			best = n
		}
	}
	granules, g := m.bits[r.Slab], r.Off/testGranule
	around := int64(0)
	for i := g; i < int64(len(granules)) && granules[i]; i++ {
		around++
	}
	if granules[g-1] || around != best {
		t.Fatalf("%v was cut from a run of %d (free before it: %v), the best had %d", r, around, granules[g-1], best)
	}
}

func (m *spaceModel) free(t *testing.T) {
	t.Helper()
	if len(m.held) == 0 {
		return
	}
	i := m.rng.IntN(len(m.held))
	m.space.Free(m.held[i])
	for _, r := range m.held[i] {
		m.bits.set(t, r, true)
	}
	m.drop(i)
}

func (m *spaceModel) drop(i int) {
	m.held, m.asked = slices.Delete(m.held, i, i+1), slices.Delete(m.asked, i, i+1)
}

// scatter fills what is free with single granules and frees some of them.
func (m *spaceModel) scatter(t *testing.T) {
	t.Helper()
	first := len(m.held)
	for m.space.FreeBytes() > 0 {
		runs, err := m.space.Alloc(testGranule)
		noError(t, err)
		m.bits.set(t, runs[0], false)
		m.held, m.asked = append(m.held, runs), append(m.asked, testGranule)
	}
	for i := len(m.held) - 1; i >= first; i-- {
		if m.rng.IntN(2) == 0 {
			m.space.Free(m.held[i])
			m.bits.set(t, m.held[i][0], true)
			m.drop(i)
		}
	}
}

// freePart gives the end of an allocation back, as a coded entry that turned out
// shorter does.
func (m *spaceModel) freePart(t *testing.T) {
	t.Helper()
	if len(m.held) == 0 {
		return
	}
	i := m.rng.IntN(len(m.held))
	runs := m.held[i]
	last := &runs[len(runs)-1]
	cut := (1 + m.rng.Int64N(last.Len/testGranule)) * testGranule
	part := Run{Slab: last.Slab, Off: last.Off + last.Len - cut, Len: cut}
	m.space.Free([]Run{part})
	m.bits.set(t, part, true)
	m.asked[i] = 0
	if last.Len -= cut; last.Len == 0 {
		m.held[i] = runs[:len(runs)-1]
	}
	if len(m.held[i]) == 0 {
		m.drop(i)
	}
}

// reopen builds the Space again from what is held, in any order.
func (m *spaceModel) reopen(t *testing.T) {
	t.Helper()
	before := m.space.Usage()
	m.space = NewSpace(testGranule)
	for n, granules := range m.bits {
		m.space.AddSlab(n, int64(len(granules))*testGranule)
	}
	for _, i := range m.rng.Perm(len(m.held)) {
		noError(t, m.space.Take(m.held[i]))
	}
	if after := m.space.Usage(); after != before {
		t.Fatalf("opened again: %+v, was %+v", after, before)
	}
}

// check compares totals, and that what is held and what is free is all there is.
func (m *spaceModel) check(t *testing.T) {
	t.Helper()
	lens := m.bits.lengths()
	want := SpaceUsage{Slabs: len(m.bits), FreeRuns: len(lens)}
	for _, granules := range m.bits {
		want.TotalBytes += int64(len(granules)-1) * testGranule
	}
	for i, n := range lens {
		want.FreeBytes += n * testGranule
		if i == 0 {
			want.LongestRun = n * testGranule
		}
	}
	if got := m.space.Usage(); got != want {
		t.Fatalf("usage %+v, want %+v", got, want)
	}
	held, asked, counted := int64(0), int64(0), int64(0)
	for i, runs := range m.held {
		held += RunBytes(runs)
		if m.asked[i] > 0 {
			asked += m.asked[i]
			counted += RunBytes(runs)
		}
	}
	if held+want.FreeBytes != want.TotalBytes {
		t.Fatalf("%d held and %d free of %d bytes: space is lost between entries", held, want.FreeBytes, want.TotalBytes)
	}
	if counted-asked >= int64(max(1, len(m.held)))*testGranule {
		t.Fatalf("%d bytes asked for take %d in %d entries", asked, counted, len(m.held))
	}
}

// TestSpaceServesAnyEntryFromAnyFreeGranule has every second granule free.
func TestSpaceServesAnyEntryFromAnyFreeGranule(t *testing.T) {
	s := checkered(t, 2*MaxRuns+1)
	runs, err := s.Alloc(MaxRuns * testGranule)
	noError(t, err)
	if len(runs) != MaxRuns {
		t.Errorf("%d runs, want %d", len(runs), MaxRuns)
	}
	if free := s.FreeBytes(); free != 0 {
		t.Errorf("%d bytes are free after all was asked for", free)
	}
}

// TestSpaceRefusesWithoutTaking asks for one granule more than MaxRuns runs have.
func TestSpaceRefusesWithoutTaking(t *testing.T) {
	s := checkered(t, 2*MaxRuns+11)
	before := s.Usage()
	if before.FreeRuns <= MaxRuns {
		t.Fatalf("%d runs do not exceed the bound", before.FreeRuns)
	}
	_, err := s.Alloc((MaxRuns + 1) * testGranule)
	if !errors.Is(err, ErrFragmented) {
		t.Errorf("in more than %d runs: %v", MaxRuns, err)
	}
	for _, bytes := range []int64{before.FreeBytes + 1, math.MaxInt64} {
		if _, err := s.Alloc(bytes); !errors.Is(err, tier.ErrFull) || errors.Is(err, ErrFragmented) {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	if after := s.Usage(); after != before {
		t.Errorf("refusals changed %+v to %+v", before, after)
	}
}

// checkered has a slab of granules of which every second is free.
func checkered(t *testing.T, granules int64) *Space {
	t.Helper()
	s := NewSpace(testGranule)
	s.AddSlab(7, granules*testGranule)
	whole, err := s.Alloc((granules - 1) * testGranule)
	noError(t, err)
	for off := whole[0].Off; off < whole[0].Len; off += 2 * testGranule {
		s.Free([]Run{{Slab: 7, Off: off, Len: testGranule}})
	}
	return s
}

func TestTakeRefusesWhatIsNotFree(t *testing.T) {
	s := NewSpace(testGranule)
	s.AddSlab(1, 100*testGranule)
	s.AddSlab(2, 100*testGranule+testGranule/2)
	held := []Run{{1, 10 * testGranule, 5 * testGranule}, {2, testGranule, testGranule}}
	noError(t, s.Take(held))
	before := s.Usage()
	good := Run{1, 50 * testGranule, testGranule}
	for name, bad := range map[string]Run{
		"again":           held[0],
		"over its begin":  {1, 9 * testGranule, 2 * testGranule},
		"inside":          {1, 12 * testGranule, testGranule},
		"over its end":    {1, 14 * testGranule, 2 * testGranule},
		"around":          {1, 8 * testGranule, 20 * testGranule},
		"twice in a list": good,
		"header":          {1, 0, testGranule},
		"behind the end":  {1, 100 * testGranule, testGranule},
		"over the end":    {1, 99 * testGranule, 2 * testGranule},
		"half granule":    {2, 100 * testGranule, testGranule / 2},
		"no slab":         {3, testGranule, testGranule},
		"unaligned":       {1, 20*testGranule + 1, testGranule},
		"odd length":      {1, 20 * testGranule, testGranule + 1},
		"empty":           {1, 20 * testGranule, 0},
		"negative":        {1, 20 * testGranule, -testGranule},
		"negative offset": {1, -20 * testGranule, testGranule},
		"overflow":        {1, 20 * testGranule, math.MaxInt64 &^ (testGranule - 1)},
	} {
		if err := s.Take([]Run{good, bad}); !errors.Is(err, tier.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if after := s.Usage(); after != before {
			t.Fatalf("%s: a refused Take changed %+v to %+v", name, before, after)
		}
	}
}

func TestSpaceMisusePanicsWithValues(t *testing.T) {
	fresh := func() *Space {
		s := NewSpace(testGranule)
		s.AddSlab(1, 100*testGranule)
		noError(t, s.Take([]Run{{1, 10 * testGranule, 5 * testGranule}}))
		return s
	}
	for name, c := range map[string]struct {
		do   func()
		says string
	}{
		"granule":        {func() { NewSpace(3 * testGranule) }, "12288"},
		"small granule":  {func() { NewSpace(2048) }, "2048"},
		"alloc nothing":  {func() { _, _ = fresh().Alloc(0) }, "0 bytes"},
		"free twice":     {func() { s := fresh(); r := []Run{{1, 10 * testGranule, testGranule}}; s.Free(r); s.Free(r) }, "free already"},
		"free too long":  {func() { fresh().Free([]Run{{1, 10 * testGranule, 6 * testGranule}}) }, "free already"},
		"free too soon":  {func() { fresh().Free([]Run{{1, 9 * testGranule, 2 * testGranule}}) }, "free already"},
		"free header":    {func() { fresh().Free([]Run{{1, 0, testGranule}}) }, "outside"},
		"free no slab":   {func() { fresh().Free([]Run{{9, testGranule, testGranule}}) }, "slab 9"},
		"slab twice":     {func() { fresh().AddSlab(1, 100*testGranule) }, "slab 1"},
		"slab too small": {func() { fresh().AddSlab(2, 2*testGranule-1) }, "8191"},
		"remove none":    {func() { fresh().RemoveSlab(2) }, "slab 2"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, c.says) {
					t.Errorf("panic says %q, want %q in it", said, c.says)
				}
			}()
			c.do()
		})
	}
}

func TestRemoveSlabOnlyWhenAllIsFree(t *testing.T) {
	s := NewSpace(testGranule)
	s.AddSlab(1, 10*testGranule)
	s.AddSlab(2, 10*testGranule)
	held := []Run{{2, 4 * testGranule, testGranule}}
	noError(t, s.Take(held))
	if s.RemoveSlab(2) {
		t.Fatal("a slab in use was removed")
	}
	s.Free(held)
	if !s.RemoveSlab(2) {
		t.Fatal("a free slab was not removed")
	}
	if got := s.Slabs(); !slices.Equal(got, []uint32{1}) {
		t.Errorf("slabs %v", got)
	}
	if u := s.Usage(); u.TotalBytes != 9*testGranule || u.FreeBytes != u.TotalBytes || u.FreeRuns != 1 {
		t.Errorf("usage %+v", u)
	}
	s.AddSlab(2, 20*testGranule) // the number may come back
	if got := s.FreeBytes(); got != 28*testGranule {
		t.Errorf("%d bytes free", got)
	}
}
