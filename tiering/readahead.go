package tiering

import "github.com/spliced-kv/spliced/tiering/tier"

// aheadShare is the part of a pool, one in so many bytes, that may be taken by
// objects that were read ahead and not used yet, those on their way included. So
// guesses push out an eighth of a pool at most, the least valuable objects of it,
// and never what is leased (a guess: a prompt's segments are far smaller).
const aheadShare = 8

// aheadNames bounds how many hits of matches wait for the goroutines of Run to
// look at them. More are dropped and counted.
const aheadNames = 1024

// aheadRows bounds how many of them are looked at in one critical section.
const aheadRows = 32

// aheadLine is the hits that matches found in the lower tier, a ring, so that a
// match allocates nothing. Guarded by the store's lock.
type aheadLine struct {
	ring  [aheadNames]wanted
	first int
	n     int
}

// matchedBelowLocked notes a hit in the lower tier for read-ahead. It never
// waits and does nothing else.
func (s *Store) matchedBelowLocked(n tier.Name, p *profileState, t *tenant) {
	l := s.matched
	if l == nil {
		return
	}
	if !l.add(wanted{name: n, profile: p, tenant: t}) {
		s.counters.ReadAheadDropped++
	} else if l.n == 1 {
		s.work.Signal()
	}
}

// add puts a hit behind the others; false when there are too many.
func (l *aheadLine) add(w wanted) bool {
	if l.n == aheadNames {
		return false
	}
	l.ring[(l.first+l.n)%aheadNames] = w
	l.n++
	return true
}

// take is the first one, of at least one.
func (l *aheadLine) take() wanted {
	w := l.ring[l.first]
	l.ring[l.first] = wanted{}
	l.first = (l.first + 1) % aheadNames
	l.n--
	return w
}

// aheadFromMatchesLocked turns some of what matches found into promotions, until
// one is ready, and tells whether more is left.
func (s *Store) aheadFromMatchesLocked() (more bool) {
	l := s.matched
	if l == nil {
		return false
	}
	for n := 0; n < aheadRows && l.n > 0 && len(s.ahead) == 0; n++ {
		w := l.take()
		if o := s.namedLocked(w.name, w.profile, w.tenant); s.promotions[w.name] == nil && (o == nil || o.thin) {
			s.promoteLocked(w)
		}
	}
	return l.n > 0
}

// aheadRoomLocked tells whether more may be read ahead into the pool of some
// promotions.
func (s *Store) aheadRoomLocked(nodes []*promotion) bool {
	var bytes int64
	for _, p := range nodes {
		bytes += p.bytes
	}
	pool := nodes[0].pool
	if pool.aheadBytes+bytes <= pool.budget/aheadShare {
		return true
	}
	s.counters.ReadAheadDropped++
	return false
}

// unaheadLocked ends that an object was read ahead and not used: it is now, or it
// leaves without.
func (s *Store) unaheadLocked(o *object, counter *uint64) {
	if o.ahead {
		o.ahead = false
		o.pool.aheadBytes -= o.pageBytes
		*counter++
	}
}
