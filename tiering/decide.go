package tiering

import (
	"iter"
	"math"
	"sort"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Decision is one choice about an object, for people to read.
type Decision struct {
	At      time.Time
	What    What
	Why     Because
	Name    tier.Name
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Begin   int // tokens [Begin, End): what a hit saves
	End     int
	Value   float64 // milliseconds that a hit saves for each MiB that it takes, as far as known
	Bytes   int64   // of memory that came into use, was asked for or was given back

	number uint64 // of all decisions, in their order
}

// What was decided. The numbers are not on the wire of the local protocol.
type What uint8

// The decisions. The first six are what happened in memory; advice is given by the
// cost model before anything is filled, and nobody has to follow it.
const (
	DecidedAdmit         What = iota // lookups find it from now on
	DecidedRefuse                    // there was no room
	DecidedEvict                     // it left memory, and no tier has it
	DecidedThin                      // its states left memory
	DecidedDemote                    // it left memory, the lower tier has it or is getting it
	DecidedDrop                      // it had to go, whatever its value
	DecidedAdvise                    // an engine was advised to fill it
	DecidedAdviseAgainst             // an engine was advised not to
	whats
)

// String names a decision as metrics and people see it.
func (w What) String() string {
	if w >= whats {
		return "unknown"
	}
	return [...]string{"admitted", "refused", "evicted", "thinned", "demoted", "dropped", "advised", "discouraged"}[w]
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

// decisionLog keeps the last decisions, and counts them all. It has a lock of its
// own, taken inside the store's, so that what decides without that can note it as
// well. What clients ask for as often as they like, advice, has a ring of its own,
// so that it never takes the place of what happened.
type decisionLog struct {
	mu       sync.Mutex
	happened decisionRing
	advised  decisionRing
	made     uint64
	count    [whats][256]uint64
}

// adviceShare of the decisions that can be told is advice.
const adviceShare = 4

func newDecisionLog(limit int) decisionLog {
	advice := limit / adviceShare
	return decisionLog{happened: decisionRing{limit: limit - advice}, advised: decisionRing{limit: advice}}
}

// decisionRing grows up to its limit.
type decisionRing struct {
	list  []Decision
	limit int
	next  int // the oldest, once the ring is full
}

func (r *decisionRing) add(d Decision) {
	switch {
	case len(r.list) < r.limit:
		r.list = append(r.list, d)
	case r.limit > 0:
		r.list[r.next] = d
		r.next = (r.next + 1) % r.limit
	}
}

// back is the decision that i others came after.
func (r *decisionRing) back(i int) *Decision {
	return &r.list[(r.next+2*len(r.list)-1-i)%len(r.list)]
}

// after is how many decisions came with that number or after it.
func (r *decisionRing) after(number uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.back(i).number < number })
}

func (l *decisionLog) ringOf(w What) *decisionRing {
	if w >= DecidedAdvise {
		return &l.advised
	}
	return &l.happened
}

// note adds a decision. It never waits for more than a copy of a page.
func (s *Store) note(d Decision) {
	l := &s.decisions
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[d.What][d.Why]++
	l.made++
	d.number = l.made
	l.ringOf(d.What).add(d)
}

// noteUntold counts a decision that is one of too many to tell.
func (s *Store) noteUntold(what What, why Because) {
	s.decisions.mu.Lock()
	s.decisions.count[what][why]++
	s.decisions.mu.Unlock()
}

// decisionPage is how many decisions are copied at once: what decides waits for
// no more, however many are asked for.
const decisionPage = 256

// page appends to dst the last decisions before a number, the newest first, until
// dst is full.
func (l *decisionLog) page(before uint64, dst []Decision) []Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	rings := [...]*decisionRing{&l.happened, &l.advised}
	at := [...]int{l.happened.after(before), l.advised.after(before)}
	for len(dst) < cap(dst) {
		var newest *Decision
		from := 0
		for i, r := range rings {
			if at[i] < len(r.list) && (newest == nil || r.back(at[i]).number > newest.number) {
				newest, from = r.back(at[i]), i
			}
		}
		if newest == nil {
			break
		}
		dst = append(dst, *newest)
		at[from]++
	}
	return dst
}

// LastDecisions goes through the decisions that can be told, the newest first. No
// lock is held meanwhile; those that fall out before it comes to them are left out.
func (s *Store) LastDecisions() iter.Seq[*Decision] {
	return func(yield func(*Decision) bool) {
		page := make([]Decision, 0, decisionPage)
		for before := uint64(math.MaxUint64); ; before = page[len(page)-1].number {
			page = s.decisions.page(before, page[:0])
			for i := range page {
				if !yield(&page[i]) {
					return
				}
			}
			if len(page) == 0 {
				return
			}
		}
	}
}

// Decisions answers up to n of the last decisions, the newest first.
func (s *Store) Decisions(n int) []Decision {
	var out []Decision
	for d := range s.LastDecisions() {
		if len(out) >= n {
			break
		}
		out = append(out, *d)
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
