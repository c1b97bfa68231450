package objects

import (
	"errors"
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Decide notes a decision about an object that costs, or gives back, bytes
// of memory, and answers its value.
func (s *Set) Decide(o *Object, what decision.What, why decision.Reason, bytes int64) float64 {
	it := s.Item(o)
	value := cost.PerMiB(it.Saved, it.Bytes)
	if o.Profile.Trial {
		return value
	}
	end := o.End
	if o.Kind == 0 {
		end = o.End - o.Begin
	}
	s.cfg.Log.Note(decision.Decision{
		At: s.cfg.Now(), What: what, Why: why, Name: o.Label(), Profile: o.Profile.ID, Tenant: o.Tenant.ID,
		Begin: end - it.Tokens, End: end, Value: value, Bytes: bytes,
	})
	return value
}

// NoteLeft notes that an object, or its states, leave memory. What leaves for
// room is the least that its pool has: from then on nothing of less value needs to
// come in.
func (s *Set) NoteLeft(o *Object, what decision.What, why decision.Reason, bytes int64) {
	value := s.Decide(o, what, why, bytes)
	if why == decision.ForRoom {
		o.Pool.floor.Store(math.Float64bits(value))
	}
}

// FloorValue is the milliseconds for each MiB of what left a pool for room last; 0
// while it has had room for all. It needs no lock.
func (p *Pool) FloorValue() float64 { return math.Float64frombits(p.floor.Load()) }

// Refuse remembers and counts an object that found no room.
func (s *Set) Refuse(o *Object, err error) {
	if errors.Is(err, ErrAgain) {
		return
	}
	s.CountersOf(o.Profile).Refused(err)
	s.Decide(o, decision.Refuse, whyRefused(err), o.PageBytes)
	s.Ghosts.Note(ghost.Entry{
		Key: o.Key, Profile: o.Profile.ID, Tenant: o.Tenant.ID, Reason: tier.ReasonRefused, Tokens: uint32(o.Tokens()),
	})
}

func whyRefused(err error) decision.Reason {
	switch {
	case errors.Is(err, tier.ErrFull):
		return decision.NoRoom
	case errors.Is(err, tier.ErrQuota):
		return decision.OverQuota
	}
	return decision.Busy
}
