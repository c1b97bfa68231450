package objects

import (
	"errors"
	"math"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Records counts what happens to objects and records the decisions about them.
type Records struct {
	cfg      *Options
	policies *Policies
	ghosts   *ghost.List
	counters *stats.Counters
	trials   stats.Counters // of the trial profile
}

// Decide records a decision about an object, with the bytes of memory that the decision
// takes or frees.
func (rec *Records) Decide(o *Object, what decision.What, why decision.Reason, bytes int64) {
	rec.note(o, rec.decided(o, what, why, bytes))
}

// note records a decision, unless it is about an object of a trial.
func (rec *Records) note(o *Object, d decision.Decision) {
	if !o.Profile.Trial {
		rec.cfg.Log.Note(d)
	}
}

// decided returns the description of a decision about an object.
func (rec *Records) decided(o *Object, what decision.What, why decision.Reason, bytes int64) decision.Decision {
	it := rec.policies.Item(o)
	end := o.End
	if o.Kind == 0 {
		end = o.End - o.Begin
	}
	return decision.Decision{
		At: rec.cfg.Now(), What: what, Why: why, Name: o.Label(), Profile: o.Profile.ID, Tenant: o.Tenant.ID,
		Begin: end - it.Tokens, End: end, Value: cost.PerMiB(it.Saved, it.Bytes), Bytes: bytes,
		Model: o.Profile.Model, Client: o.Publisher, From: o.From,
	}
}

// TellCopied notifies the listener of a new copy in HBM. The decision is not logged: a
// copy takes no memory outside HBM, and without it a lookup is no miss.
func (rec *Records) TellCopied(c, source *Object, why decision.Reason) {
	if c.Profile.Trial {
		return
	}
	d := rec.decided(c, decision.Admit, why, c.PageBytes)
	d.Client, d.From, d.In = source.Publisher, rec.cfg.Place, tier.PlaceHBM
	rec.cfg.Log.Tell(d)
}

// NoteLeft records that an object, or its states, leave memory. The parameter rival is the
// object that needs the room; nil if unknown. An object evicted for room was the least
// valuable of its pool. Its value becomes the pool's floor: advice recommends no object of
// less value.
func (rec *Records) NoteLeft(o *Object, what decision.What, why decision.Reason, bytes int64, rival *Object) {
	d := rec.decided(o, what, why, bytes)
	if rival != nil {
		it := rec.policies.Item(rival)
		d.Rival = decision.Rival{Name: rival.Label(), Value: cost.PerMiB(it.Saved, it.Bytes)}
	}
	rec.note(o, d)
	if why == decision.ForRoom {
		o.Pool.floor.Store(math.Float64bits(d.Value))
	}
}

// FloorValue returns the value, in milliseconds per MiB, of the last object that a pool
// evicted for room; 0 while there was always room. It needs no lock.
func (p *Pool) FloorValue() float64 { return math.Float64frombits(p.floor.Load()) }

// Refuse records and counts that there was no room for an object.
func (rec *Records) Refuse(o *Object, err error) {
	if errors.Is(err, ErrAgain) {
		return
	}
	rec.Of(o.Profile).Refused(err)
	rec.Decide(o, decision.Refuse, whyRefused(err), o.PageBytes)
	rec.ghosts.Note(ghost.Entry{
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

// Of returns the counters of a profile's objects.
func (rec *Records) Of(p *Profile) *stats.Counters {
	if p.Trial {
		return &rec.trials
	}
	return rec.counters
}

// Trials returns the counters of the trial profile.
func (rec *Records) Trials() *stats.Counters { return &rec.trials }
