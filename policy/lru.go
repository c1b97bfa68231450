package policy

import "time"

// lru is a ring of nodes in order of use; root.next is the least recent. Nodes
// live in one slice and name each other by index, so that a pool of 10^6
// objects gives the garbage collector two slices and a map without pointers.
type lru struct {
	at    map[ID]int32
	nodes []lruNode // nodes[0] is the root
	free  int32     // head of the list of unused nodes, 0 = none
}

type lruNode struct {
	id         ID
	prev, next int32
}

// NewLRU is eviction by recency alone, the baseline that other policies are
// measured against. Order is that of calls, not of their times, so a clock that
// steps back changes nothing. Victim takes time in proportion to the objects in
// front that may not leave; everything else is O(1).
func NewLRU() Eviction {
	return &lru{at: map[ID]int32{}, nodes: make([]lruNode, 1)}
}

func (l *lru) Len() int { return len(l.at) }

func (l *lru) Insert(id ID, _ Item, now time.Time) {
	if _, held := l.at[id]; held {
		l.Touch(id, now)
		return
	}
	i := l.free
	if i != 0 {
		l.free = l.nodes[i].next
	} else {
		i = int32(len(l.nodes))
		l.nodes = append(l.nodes, lruNode{})
	}
	l.nodes[i].id = id
	l.at[id] = i
	l.linkLast(i)
}

func (l *lru) Touch(id ID, _ time.Time) {
	i, held := l.at[id]
	if !held || l.nodes[0].prev == i {
		return
	}
	l.unlink(i)
	l.linkLast(i)
}

func (l *lru) Remove(id ID) {
	i, held := l.at[id]
	if !held {
		return
	}
	delete(l.at, id)
	l.unlink(i)
	l.nodes[i] = lruNode{next: l.free}
	l.free = i
}

func (l *lru) Victim(evictable func(ID) bool) (ID, bool) {
	for i := l.nodes[0].next; i != 0; i = l.nodes[i].next {
		if id := l.nodes[i].id; evictable(id) {
			return id, true
		}
	}
	return 0, false
}

func (l *lru) unlink(i int32) {
	n := l.nodes[i]
	l.nodes[n.prev].next = n.next
	l.nodes[n.next].prev = n.prev
}

// linkLast makes node i the most recent.
func (l *lru) linkLast(i int32) {
	last := l.nodes[0].prev
	l.nodes[i].prev, l.nodes[i].next = last, 0
	l.nodes[last].next = i
	l.nodes[0].prev = i
}
