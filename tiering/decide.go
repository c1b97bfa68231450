package tiering

import (
	"math"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
)

// Decision is one choice about an object, for people to read.
type Decision struct {
	At      time.Time
	What    What
	Why     Because
	Name    Name
	Profile ProfileID
	Tenant  TenantID
	Begin   int // tokens [Begin, End): what a hit saves
	End     int
	Value   float64 // milliseconds that a hit saves for each MiB that it takes, as far as known
	Bytes   int64   // of memory that came into use, was asked for or was given back
}

// What was decided. The numbers are not on the wire of the local protocol.
type What uint8

// The decisions. Advice is refused or given before anything is filled, by the
// cost model; the rest is what happened in memory.
const (
	DecidedAdmit  What = iota // lookups find it from now on, or advice is to fill it
	DecidedRefuse             // there was no room, or advice is not to fill it
	DecidedEvict              // it left memory, and no tier has it
	DecidedThin               // its states left memory
	DecidedDemote             // it left memory, the lower tier has it or is getting it
	DecidedDrop               // it had to go, whatever its value
	whats
)

// String names a decision as metrics and people see it.
func (w What) String() string {
	if w >= whats {
		return "unknown"
	}
	return [...]string{"admitted", "refused", "evicted", "thinned", "demoted", "dropped"}[w]
}

// Because is the reason of a decision: a cost.Reason, by its number, or one of the
// store's.
type Because uint8

// The store's reasons.
const (
	BecauseFilled      Because = 128 + iota // admitted: its writer has committed all of it
	BecauseFilledAgain                      // admitted: a thinned one was saved once more
	BecausePromoted                         // admitted: a client asked for it
	BecauseReadAhead                        // admitted: a match has named it
	BecauseRoom                             // left: another object needed its room
	BecauseQuota                            // left: its tenant is at its quota
	BecauseAlone                            // dropped: thinned, and nothing extends it any more
	BecauseRemoved                          // dropped: by an operator
	BecauseSpoilt                           // dropped: its bytes were not those published
	BecauseNoRoom                           // refused: all in its pool is in use
	BecauseOverQuota                        // refused: all that its tenant has is in use
	BecauseBusy                             // refused: its room is still being demoted, or a bound is met
	BecauseTogether                         // refused: it was wanted with others, and they do not all fit beside what is in use
	lastStoreReason                         // not one
)

var becauseWords = [...]string{
	"filled by its writer", "thinned, and saved again", "promoted for a client", "promoted since a match named it",
	"for room in its pool", "for its tenant's quota", "thinned, and nothing extends it any more", "removed by an operator",
	"its bytes were wrong", "all in its pool is in use", "all that its tenant has is in use", "busy",
	"wanted with others, together too much beside what is in use",
}

// String is the reason in words.
func (b Because) String() string {
	switch {
	case b < BecauseFilled:
		return cost.Reason(b).String()
	case b < lastStoreReason:
		return becauseWords[b-BecauseFilled]
	}
	return "no reason"
}

// decisionLog keeps the last decisions in a ring, and counts them all. It has a
// lock of its own, taken inside the store's, so that what decides without that
// can note it as well.
type decisionLog struct {
	mu    sync.Mutex
	ring  []Decision // grows up to limit
	limit int
	next  int // the oldest, once the ring is full
	count [whats][256]uint64
}

// note adds a decision. It never waits for more than a copy of the ring.
func (s *Store) note(d Decision) {
	l := &s.decisions
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[d.What][d.Why]++
	if len(l.ring) < l.limit {
		l.ring = append(l.ring, d)
		return
	}
	l.ring[l.next] = d
	l.next = (l.next + 1) % l.limit
}

// Decisions answers up to n of the last decisions, the newest first.
func (s *Store) Decisions(n int) []Decision {
	l := &s.decisions
	l.mu.Lock()
	defer l.mu.Unlock()
	n = max(0, min(n, len(l.ring)))
	out := make([]Decision, n)
	for i := range out {
		out[i] = l.ring[(l.next+2*len(l.ring)-1-i)%len(l.ring)]
	}
	return out
}

// EachDecision calls f with how often each decision was made for each reason that
// there was, in a fixed order.
func (s *Store) EachDecision(f func(what What, why Because, n uint64)) {
	s.decisions.mu.Lock()
	count := s.decisions.count
	s.decisions.mu.Unlock()
	for what := range count {
		for why, n := range count[what] {
			if n > 0 {
				f(What(what), Because(why), n)
			}
		}
	}
}

// decideLocked notes a decision about an object that costs, or gives back, bytes
// of memory, and answers its value.
func (s *Store) decideLocked(o *object, what What, why Because, bytes int64) float64 {
	it := s.itemLocked(o)
	value := cost.PerMiB(it.Saved, it.Bytes)
	end := o.end
	if o.kind == 0 {
		end = o.end - o.begin
	}
	s.note(Decision{
		At: s.cfg.Now(), What: what, Why: why, Name: o.label(), Profile: o.profile.id, Tenant: o.tenant.ID,
		Begin: end - it.Tokens, End: end, Value: value, Bytes: bytes,
	})
	return value
}

// leftLocked notes that an object, or its states, leave memory. What leaves for
// room is the least that its pool has: from then on nothing of less value needs to
// come in.
func (s *Store) leftLocked(o *object, what What, way eviction, bytes int64) {
	why := BecauseRoom
	if way == forQuota {
		why = BecauseQuota
	}
	value := s.decideLocked(o, what, why, bytes)
	if way != forQuota {
		o.pool.floor.Store(math.Float64bits(value))
	}
}

// floorValue is the milliseconds for each MiB of what left a pool for room last; 0
// while it has had room for all. It needs no lock.
func (p *pool) floorValue() float64 { return math.Float64frombits(p.floor.Load()) }
