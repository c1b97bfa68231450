package policy

import "time"

// gdsf has a clock that advances with evictions only. A use sets the rank of an object to
// the clock plus its density, so that unused objects fall behind newer ones.
type gdsf struct {
	order order
	items []Item
	born  []float64 // the clock at the last use
	clock float64
	named victim
}

// victim is the object that Victim returned last. It is cleared when that object is
// removed.
type victim struct {
	id   ID
	some bool
}

// NewGDSF returns GreedyDual-Size, with the savings per byte as the value of an object. An
// object's priority is the clock at its last use + Saved/Bytes. The clock is the priority
// of the last evicted object (Cao and Irani 1997; Cherkasova 1998, but repeated uses take
// the place of the frequency). It has no settings. Every call is O(log n).
func NewGDSF() Eviction { return &gdsf{order: newOrder()} }

func (g *gdsf) Len() int { return g.order.len() }

func (g *gdsf) Insert(id ID, it Item, now time.Time) {
	i, held := g.order.find(id)
	if !held {
		i = g.order.add(id)
		g.items = grown(g.items, i)
		g.born = grown(g.born, i)
	}
	g.items[i] = it
	g.Touch(id, now)
}

// grown returns s extended to index i.
func grown[T any](s []T, i int32) []T {
	for int(i) >= len(s) {
		var none T
		s = append(s, none)
	}
	return s
}

func (g *gdsf) Update(id ID, it Item) {
	if i, held := g.order.find(id); held {
		g.items[i] = it
		g.order.rerank(i, g.born[i]+it.density())
	}
}

func (g *gdsf) Touch(id ID, _ time.Time) {
	if i, held := g.order.find(id); held {
		g.born[i] = g.clock
		g.order.rank(i, g.clock+g.items[i].density())
	}
}

func (g *gdsf) Suspend(id ID) {
	if i, held := g.order.find(id); held {
		g.order.suspend(i)
	}
}

func (g *gdsf) Resume(id ID) {
	if i, held := g.order.find(id); held {
		g.order.resume(i)
	}
}

func (g *gdsf) Remove(id ID) {
	if i, held := g.order.find(id); held {
		if g.named == (victim{id, true}) {
			// The victim may rank above objects that evictable refused. When those are
			// evicted later, the clock must not fall.
			g.clock = max(g.clock, g.order.nodes[i].rank)
			g.named = victim{}
		}
		g.order.remove(id)
	}
}

func (g *gdsf) Victim(evictable func(ID) bool) (ID, bool) {
	id, ok := g.order.first(evictable)
	g.named = victim{id, ok}
	return id, ok
}
