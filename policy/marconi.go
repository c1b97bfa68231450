package policy

import (
	"math"
	"time"
)

// MarconiOptions sets Marconi's balance.
type MarconiOptions struct {
	// Alpha weighs the savings per byte against recency. 0 is recency alone; the paper
	// searches values from 0 to 2.
	Alpha float64
}

// marconi measures time in uses and evictions, as the paper measures it in requests. With
// time in seconds, 1/age would depend on the speed of the clock.
type marconi struct {
	order order // ordered by id only; used for places and suspension
	items []Item
	used  []uint64 // the clock at the last use
	alpha float64
	clock uint64
	named victim
}

// NewMarconi returns eviction by recency + alpha × efficiency (Marconi, Eq. 2). Recency is
// 1/age and efficiency is the savings per byte. Both are scaled to 0..1 over the possible
// victims; a score that is equal for all of them counts as 1. Alpha is fixed, not tuned.
// Victim takes time proportional to the number of objects, and other calls O(log n).
func NewMarconi(o MarconiOptions) Eviction {
	return &marconi{order: newOrder(), alpha: o.Alpha}
}

func (m *marconi) Len() int { return m.order.len() }

func (m *marconi) Insert(id ID, it Item, now time.Time) {
	i, held := m.order.find(id)
	if !held {
		i = m.order.add(id)
		m.items = grown(m.items, i)
		m.used = grown(m.used, i)
	}
	m.items[i] = it
	m.Touch(id, now)
}

func (m *marconi) Update(id ID, it Item) {
	if i, held := m.order.find(id); held {
		m.items[i] = it
	}
}

func (m *marconi) Touch(id ID, _ time.Time) {
	if i, held := m.order.find(id); held {
		m.clock++
		m.used[i] = m.clock
	}
}

func (m *marconi) Suspend(id ID) {
	if i, held := m.order.find(id); held {
		m.order.suspend(i)
	}
}

func (m *marconi) Resume(id ID) {
	if i, held := m.order.find(id); held {
		m.order.resume(i)
	}
}

func (m *marconi) Remove(id ID) {
	if m.named == (victim{id, true}) {
		m.clock++
		m.named = victim{}
	}
	m.order.remove(id)
}

func (m *marconi) Victim(evictable func(ID) bool) (ID, bool) {
	recency, efficiency := nothing(), nothing()
	for _, i := range m.order.heap {
		recency.add(m.recency(i))
		efficiency.add(m.items[i].density())
	}
	utility := func(i int32) float64 {
		return recency.scale(m.recency(i)) + m.alpha*efficiency.scale(m.items[i].density())
	}
	best := int32(outside)
	lowest := 0.0
	for i := range int32(len(m.order.nodes)) {
		n := &m.order.nodes[i]
		if !m.order.listed(i) {
			continue
		}
		u := utility(i)
		if best != outside && (u > lowest || u == lowest && n.turn > m.order.nodes[best].turn) {
			continue
		}
		if evictable(n.id) {
			best, lowest = i, u
		}
	}
	if best == outside {
		m.named = victim{}
		return 0, false
	}
	m.named = victim{m.order.nodes[best].id, true}
	return m.named.id, true
}

func (m *marconi) recency(i int32) float64 { return 1 / float64(m.clock+1-m.used[i]) }

// span is the range of a score over the possible victims.
type span struct{ low, high float64 }

func nothing() span { return span{math.Inf(1), math.Inf(-1)} }

func (s *span) add(x float64) { s.low, s.high = min(s.low, x), max(s.high, x) }

func (s *span) scale(x float64) float64 {
	if s.high <= s.low {
		return 1
	}
	return (x - s.low) / (s.high - s.low)
}
