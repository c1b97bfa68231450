package decision

import (
	"iter"
	"math"
	"sort"
	"sync"
)

// Log keeps the last decisions, and counts all of them. Clients may ask for advice at any
// rate, so advice has its own ring and never displaces other decisions.
type Log struct {
	told func(Decision) // fixed before the first Note; nil = no listener

	mu       sync.Mutex
	happened ring
	advised  ring
	made     uint64
	count    [whats][256]uint64
}

// AdviceShare limits advice to 1/AdviceShare of the decisions that a Log keeps.
const AdviceShare = 4

// NewLog returns a log that keeps at most limit decisions, the last ones, advice included.
func NewLog(limit int) *Log {
	advice := limit / AdviceShare
	return &Log{happened: ring{limit: limit - advice}, advised: ring{limit: advice}}
}

// Listen registers f, which is called for each decision passed to Note and Tell, except
// advice. Listen must be called before the first decision. f is called with the caller's
// locks held and must not block.
func (l *Log) Listen(f func(Decision)) { l.told = f }

// ring has the last decisions, at most limit. It grows up to that size.
type ring struct {
	list  []Decision
	limit int
	next  int // index of the oldest, once the ring is full
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

// back returns the decision after which i newer ones were added.
func (r *ring) back(i int) *Decision {
	return &r.list[(r.next+2*len(r.list)-1-i)%len(r.list)]
}

// after returns how many decisions have the given number or a greater one.
func (r *ring) after(number uint64) int {
	return sort.Search(len(r.list), func(i int) bool { return r.back(i).number < number })
}

func (l *Log) ringOf(w What) *ring {
	if w >= Advise {
		return &l.advised
	}
	return &l.happened
}

// Note adds and counts a decision, and notifies the listener. It waits at most while
// another goroutine copies a page.
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

// Tell notifies the listener of a decision without keeping or counting it.
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

// pageRows is the number of decisions copied at once. It bounds how long a new decision
// waits for a reader, however many decisions the reader requests.
const pageRows = 256

// page fills dst up to its capacity with the last decisions before the given number,
// newest first.
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

// Last iterates over the kept decisions, newest first. It holds no lock while the caller
// handles a decision. It leaves out decisions that are displaced before it reaches them.
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

// Counts calls f with the count of each decision and reason that occurred, in a fixed
// order.
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
