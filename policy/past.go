package policy

import "math"

// past remembers how often evicted objects were used, by their keys, in a ring.
type past struct {
	at   map[uint64]int32
	ring []gone
	next int
}

type gone struct {
	key    uint64 // 0 = came back, or left once more
	visits uint8
}

// leastPast is how many evicted objects even a small pool remembers.
const leastPast = 1024

func newPast() past { return past{at: map[uint64]int32{}} }

// note remembers what leaves, as long as held or leastPast others do not.
func (p *past) note(key uint64, visits uint8, held int) {
	if key == 0 {
		return
	}
	if i, ok := p.at[key]; ok { // two objects had it
		p.ring[i] = gone{}
	}
	if len(p.ring) < max(held, leastPast) {
		p.at[key] = int32(len(p.ring))
		p.ring = append(p.ring, gone{key, visits})
		return
	}
	delete(p.at, p.ring[p.next].key)
	p.at[key] = int32(p.next)
	p.ring[p.next] = gone{key, visits}
	p.next = (p.next + 1) % len(p.ring)
}

// take is the count of uses of what comes back, this one included.
func (p *past) take(key uint64) uint8 {
	i, ok := p.at[key]
	if !ok {
		return 0
	}
	delete(p.at, key)
	visits := p.ring[i].visits
	p.ring[i] = gone{}
	return uint8(min(int(visits)+1, math.MaxUint8))
}
