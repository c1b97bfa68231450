package tiering

import (
	"encoding/binary"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// rankLocked keeps the policies up to date after something about o changed. They
// hold what is published and has its states, suspended unless it may leave: then
// a victim costs the same however much is leased, and a use counts when it
// happens, of the object that was asked for and not of those it extends.
func (s *Store) rankLocked(o *object) {
	next := stand(o.phase == whole, o.pins == 0 && (o.children == 0 || o.children == 1 && s.mayStrip(o)))
	if next != o.ranked {
		var it policy.Item
		if o.ranked == absent {
			it = s.itemLocked(o)
		}
		for _, p := range [...]policy.Eviction{o.pool.evict, o.tenant.evictionOf(o)} {
			if p != nil { // a tenant without a quota has none
				o.ranked.change(next, p, o.id, it, o.used)
			}
		}
		o.ranked = next
	}
	s.trackLocked(o)
}

// usedLocked tells the policies of a use.
func (s *Store) usedLocked(o *object, now time.Time) {
	o.used = now
	for _, p := range [...]policy.Eviction{o.pool.evict, o.tenant.evictionOf(o), o.pool.dirty} {
		if p != nil {
			p.Touch(o.id, now)
		}
	}
}

// revalueLocked tells the policies that what an object gives back, or what a hit
// on it saves, has changed.
func (s *Store) revalueLocked(o *object) {
	if o.ranked == absent {
		return
	}
	it := s.itemLocked(o)
	for _, p := range [...]policy.Eviction{o.pool.evict, o.tenant.evictionOf(o), o.pool.dirty} {
		if p != nil {
			p.Update(o.id, it)
		}
	}
}

// itemLocked is what policies know of an object. A node without children takes
// along the stripped ones that only it extends, and saves the tokens since the
// last node that is whole.
func (s *Store) itemLocked(o *object) policy.Item {
	var extends policy.ID
	bytes, begin, end := o.pageBytes, 0, o.end-o.begin // a segment may stand anywhere
	if o.kind != 0 {
		begin, end = o.begin, o.end
		if o.children > 0 {
			bytes = o.statePages
		}
		alone := o.children == 0
		up := o.parent
		for ; up != nil && up.phase == stripped; up = up.parent {
			begin = up.begin
			if alone = alone && up.children == 1; alone {
				bytes += up.pageBytes
			}
		}
		if up != nil {
			extends = up.id
		}
	}
	h := cost.Held{Begin: begin, End: end, Bytes: o.rankBytes * int64(len(o.shares)), In: cost.Tier(s.place)}
	switch {
	case o.inHBM():
		h.Bytes, h.In, h.Below = o.rankBytes, cost.TierHBM, cost.TierDRAM
		if o.resident != nil && o.resident.source == nil {
			h.Below = cost.TierDisk
		}
	case o.stored != 0:
		h.Below = cost.TierDisk
	}
	model := o.profile.costs.Model()
	return policy.Item{
		Bytes: bytes, Tokens: end - begin, Tenant: uint32(o.tenant.ID), Key: o.contentKey(), Extends: extends,
		// What saves nothing is still worth more the more tokens it has.
		Saved: max(model.Saved(h), model.Prefill().Marginal(begin, end)/1000),
	}
}

// contentKey names an object to policies that remember what has left: the same
// when it comes back. It is never 0.
func (o *object) contentKey() uint64 {
	const odd = 0x9e3779b97f4a7c15 // of the golden ratio: spreads small numbers over all bits
	who := uint64(o.kind)<<56 | uint64(o.profile.id)<<24 ^ uint64(o.tenant.ID)
	return max(1, binary.LittleEndian.Uint64(o.key[:8])^who*odd)
}

// storedLocked notes what the lower tier holds of an object.
func (s *Store) storedLocked(o *object, level tier.Level) {
	if (o.stored == 0) != (level == 0) {
		o.stored = level
		s.revalueLocked(o)
	}
	o.stored = level
	s.rankLocked(o)
}
