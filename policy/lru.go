package policy

import "time"

type lru struct{ order order }

// NewLRU returns eviction by recency alone, the baseline of the other policies. The order
// is the order of calls, not of times, so a clock that steps back changes nothing. Every
// call is O(log n); Victim also visits each older object that evictable refuses.
func NewLRU() Eviction { return &lru{order: newOrder()} }

func (l *lru) Len() int { return l.order.len() }

func (l *lru) Insert(id ID, _ Item, now time.Time) {
	if _, held := l.order.find(id); !held {
		l.order.add(id)
	}
	l.Touch(id, now)
}

func (l *lru) Update(ID, Item) {}

func (l *lru) Touch(id ID, _ time.Time) {
	if i, held := l.order.find(id); held {
		l.order.rank(i, 0)
	}
}

func (l *lru) Suspend(id ID) {
	if i, held := l.order.find(id); held {
		l.order.suspend(i)
	}
}

func (l *lru) Resume(id ID) {
	if i, held := l.order.find(id); held {
		l.order.resume(i)
	}
}

func (l *lru) Remove(id ID) { l.order.remove(id) }

func (l *lru) Victim(evictable func(ID) bool) (ID, bool) { return l.order.first(evictable) }
