package find

// filter says of most leads that no segment has that it has none: one bit each in place of
// the two or three cache lines of a map. With 100,000 segments it takes 256 KiB and lets
// one lead in ten pass that no segment has.
type filter struct {
	bits []uint64
	set  int // leads that were added since it was made
}

const (
	leastFilter = 8 // words
	leadBits    = 8 // a lead takes at least so many when the filter is full
)

// newFilter has room for so many leads and as many again.
func newFilter(leads int) filter {
	words := leastFilter
	for words*64 < 2*leadBits*leads {
		words *= 2
	}
	return filter{bits: make([]uint64, words)}
}

func (f *filter) full() bool { return f.set*leadBits > len(f.bits)*64 }

func (f *filter) add(lead uint64) {
	f.bits[lead>>6&uint64(len(f.bits)-1)] |= 1 << (lead & 63)
	f.set++
}

// has says whether a lead may have been added.
func (f *filter) has(lead uint64) bool {
	return f.bits[lead>>6&uint64(len(f.bits)-1)]>>(lead&63)&1 != 0
}

// see adds a lead to the filter. Bits of leads that left stay until it is full, and made
// anew of those there are.
func (sh *shard) see(lead uint64) {
	sh.filter.add(lead)
	if !sh.filter.full() {
		return
	}
	sh.filter = newFilter(len(sh.leads))
	for lead := range sh.leads {
		sh.filter.add(lead)
	}
}
