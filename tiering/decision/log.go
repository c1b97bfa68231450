package decision

import (
	"iter"
	"math"
	"sort"
	"sync"
)

// Log keeps the last decisions, and counts them all. Clients ask for advice as
// often as they like, so advice has a ring of its own and never takes the place of
// what happened.
type Log struct {
	told func(Decision) // fixed before the first Note; nil = nobody listens

	mu       sync.Mutex
	happened ring
	advised  ring
	made     uint64
	count    [whats][256]uint64
}

// AdviceShare of the decisions that a Log can tell is advice.
const AdviceShare = 4

// NewLog makes a log that can tell the last limit decisions.
func NewLog(limit int) *Log {
	advice := limit / AdviceShare
	return &Log{happened: ring{limit: limit - advice}, advised: ring{limit: advice}}
}

// Listen has f told of what happens from now on, not of advice: what is noted, and what
// is only told. It is called before the first decision, with whatever locks those hold
// that decide: it must not wait.
func (l *Log) Listen(f func(Decision)) { l.told = f }

// ring grows up to its limit.
type ring struct {
	list  []Decision
	limit int
	next  int // the oldest, once the ring is full
}

func (r *ring) add(d Decision) {
	switch {
	case len(r.list) < r.limit:
		r.list = append(r.list, d)
	case r.limit > 0:
		r.list[r.next] = d
		r.next = (r.next + 1) % r.limit
	}
}

// back is the decision that i others came after.
func (r *ring) back(i int) *Decision {
	return &r.list[(r.next+2*len(r.list)-1-i)%len(r.list)]
}

// after is how many decisions came with that number or after it.
func (r *ring) after(number uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.back(i).number < number })
}

func (l *Log) ringOf(w What) *ring {
	if w >= Advise {
		return &l.advised
	}
	return &l.happened
}

// Note adds, counts and tells a decision. It never waits for more than a copy of a page.
func (l *Log) Note(d Decision) {
	l.add(d)
	if d.What < Advise {
		l.Tell(d)
	}
}

func (l *Log) add(d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[d.What][d.Why]++
	l.made++
	d.number = l.made
	l.ringOf(d.What).add(d)
}

// Tell tells who listens of something that is neither kept nor counted here.
func (l *Log) Tell(d Decision) {
	if l.told != nil {
		l.told(d)
	}
}

// Count counts a decision without keeping it.
func (l *Log) Count(what What, why Reason) {
	l.mu.Lock()
	l.count[what][why]++
	l.mu.Unlock()
}

// pageRows is how many decisions are copied at once: what decides waits for no
// more, however many are asked for.
const pageRows = 256

// page appends to dst the last decisions before a number, the newest first, until
// dst is full.
func (l *Log) page(before uint64, dst []Decision) []Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	rings := [...]*ring{&l.happened, &l.advised}
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

// Last goes through the decisions that can be told, the newest first. No lock is
// held meanwhile; those that fall out before it comes to them are left out.
func (l *Log) Last() iter.Seq[*Decision] {
	return func(yield func(*Decision) bool) {
		page := make([]Decision, 0, pageRows)
		for before := uint64(math.MaxUint64); ; before = page[len(page)-1].number {
			page = l.page(before, page[:0])
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

// Counts calls f with how often each decision was made for each reason that there
// was, in a fixed order.
func (l *Log) Counts(f func(what What, why Reason, n uint64)) {
	l.mu.Lock()
	count := l.count
	l.mu.Unlock()
	for what := range count {
		for why, n := range count[what] {
			if n > 0 {
				f(What(what), Reason(why), n)
			}
		}
	}
}
