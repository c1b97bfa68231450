package objects

import (
	"errors"
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Decide records a decision about an object, with the bytes of memory that the decision
// takes or frees.
func (s *Set) Decide(o *Object, what decision.What, why decision.Reason, bytes int64) {
	s.note(o, s.decided(o, what, why, bytes))
}

// note records a decision, unless it is about an object of a trial.
func (s *Set) note(o *Object, d decision.Decision) {
	if !o.Profile.Trial {
		s.cfg.Log.Note(d)
	}
}

// decided returns the description of a decision about an object.
func (s *Set) decided(o *Object, what decision.What, why decision.Reason, bytes int64) decision.Decision {
	it := s.Item(o)
	end := o.End
	if o.Kind == 0 {
		end = o.End - o.Begin
	}
	return decision.Decision{
		At: s.cfg.Now(), What: what, Why: why, Name: o.Label(), Profile: o.Profile.ID, Tenant: o.Tenant.ID,
		Begin: end - it.Tokens, End: end, Value: cost.PerMiB(it.Saved, it.Bytes), Bytes: bytes,
		Model: o.Profile.Model, Client: o.Publisher, From: o.From,
	}
}

// TellCopied notifies the listener of a new copy in HBM. The decision is not logged: a
// copy takes no memory outside HBM, and without it a lookup is no miss.
func (s *Set) TellCopied(c, source *Object, why decision.Reason) {
	if c.Profile.Trial {
		return
	}
	d := s.decided(c, decision.Admit, why, c.PageBytes)
	d.Client, d.From, d.In = source.Publisher, s.cfg.Place, tier.PlaceHBM
	s.cfg.Log.Tell(d)
}

// NoteLeft records that an object, or its states, leave memory. The parameter rival is the
// object that needs the room; nil if unknown. An object evicted for room was the least
// valuable of its pool. Its value becomes the pool's floor: advice recommends no object of
// less value.
func (s *Set) NoteLeft(o *Object, what decision.What, why decision.Reason, bytes int64, rival *Object) {
	d := s.decided(o, what, why, bytes)
	if rival != nil {
		it := s.Item(rival)
		d.Rival = decision.Rival{Name: rival.Label(), Value: cost.PerMiB(it.Saved, it.Bytes)}
	}
	s.note(o, d)
	if why == decision.ForRoom {
		o.Pool.floor.Store(math.Float64bits(d.Value))
	}
}

// FloorValue returns the value, in milliseconds per MiB, of the last object that a pool
// evicted for room; 0 while there was always room. It needs no lock.
func (p *Pool) FloorValue() float64 { return math.Float64frombits(p.floor.Load()) }

// Refuse records and counts that there was no room for an object.
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
