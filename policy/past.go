package policy

import "math"

// past remembers, in a ring, how often evicted objects were used, by their keys.
type past struct {
	at   map[uint64]int32
	ring []gone
	next int
}

type gone struct {
	key    uint64 // 0 = unused, because the object returned or was evicted again
	visits uint8
}

// leastPast is the number of evicted objects remembered in a small pool.
const leastPast = 1024

func newPast() past { return past{at: map[uint64]int32{}} }

// note records an evicted object. The record is kept until max(held, leastPast) other
// objects are recorded.
func (p *past) note(key uint64, visits uint8, held int) {
	if key == 0 {
		return
	}
	if i, ok := p.at[key]; ok { // two objects had this key
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

// take returns the number of uses of an object that returns, including the return; 0 for an
// unknown key. It removes the record.
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
