package tiering

import (
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/decision"
)

// Decisions is what was decided last, and how often what was.
func (s *Store) Decisions() *decision.Log { return s.decisions }

// decideLocked notes a decision about an object that costs, or gives back, bytes
// of memory, and answers its value.
func (s *Store) decideLocked(o *object, what decision.What, why decision.Reason, bytes int64) float64 {
	it := s.itemLocked(o)
	value := cost.PerMiB(it.Saved, it.Bytes)
	end := o.end
	if o.kind == 0 {
		end = o.end - o.begin
	}
	s.decisions.Note(decision.Decision{
		At: s.cfg.Now(), What: what, Why: why, Name: o.label(), Profile: o.profile.id, Tenant: o.tenant.ID,
		Begin: end - it.Tokens, End: end, Value: value, Bytes: bytes,
	})
	return value
}

// leftLocked notes that an object, or its states, leave memory. What leaves for
// room is the least that its pool has: from then on nothing of less value needs to
// come in.
func (s *Store) leftLocked(o *object, what decision.What, way eviction, bytes int64) {
	why := decision.ForRoom
	if way == forQuota {
		why = decision.ForQuota
	}
	value := s.decideLocked(o, what, why, bytes)
	if way != forQuota {
		o.pool.floor.Store(math.Float64bits(value))
	}
}

// floorValue is the milliseconds for each MiB of what left a pool for room last; 0
// while it has had room for all. It needs no lock.
func (p *pool) floorValue() float64 { return math.Float64frombits(p.floor.Load()) }
