package tiering

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// hbmPromotion makes one rank's copy of an object of memory: the job of a flight.
// Guarded by the store's lock.
//
// Invariant: there is none of a copy that is there. While it runs its object is held,
// so that neither it nor what it extends can leave memory.
type hbmPromotion struct {
	store *Store
	*transfer.Flight
	copyKey

	source *object // while it runs
	object *object // the copy, while it runs and once it is found
	upload *upload
}

// openHBMPromotions makes the engine that brings copies into HBM.
func (s *Store) openHBMPromotions() {
	h := s.hbm
	h.up = transfer.New[copyKey](transfer.Config{
		Lock: &s.mu, Workers: true, Queue: h.cfg.Queue, Now: s.cfg.Now, Idle: s.guessHBMLocked,
	})
}

// promoteHBMLocked begins, or joins, the promotion of a copy. It is nil when too
// many are wanted already, or nothing is promoted any more.
func (s *Store) promoteHBMLocked(k copyKey, urgent bool) *hbmPromotion {
	h := s.hbm
	if f := h.up.Find(k); f != nil {
		if urgent {
			h.up.Urge(f)
		}
		return f.Job.(*hbmPromotion)
	}
	if s.closed || h.lost || !h.up.Room(uint32(k.tenant.ID), 1) {
		return nil
	}
	p := &hbmPromotion{store: s, copyKey: k}
	p.Flight, _ = h.up.Start(k, p, transfer.Options{Owner: uint32(k.tenant.ID), Urgent: urgent})
	return p
}

// hintHBMLocked notes a hit of a match for promotion. It never waits and does nothing
// else.
func (s *Store) hintHBMLocked(o *object) {
	h := s.hbm
	if h == nil || !h.cfg.AfterMatch || o.resident != nil || o.profile.engines == nil || h.lost {
		return
	}
	if !h.hints.Add(wanted{name: o.label(), profile: o.profile, tenant: o.tenant}) {
		s.counters.HBM.MatchesDropped++
	} else if h.hints.Len() == 1 {
		h.up.Wake()
	}
}

// guessHBMLocked turns some of what matches found into promotions, until one is
// ready, and tells whether more is left.
func (s *Store) guessHBMLocked() (more bool) {
	h := s.hbm
	for n := 0; n < hintRows && h.hints.Len() > 0 && !h.up.Waiting(); n++ {
		w := h.hints.Take()
		o := s.namedLocked(w.name, w.profile, w.tenant)
		if o == nil || !s.promotableLocked(o) {
			continue
		}
		for rank, engines := range w.profile.engines {
			if engines > 0 && (o.resident == nil || o.resident.copies[rank] == nil) {
				s.promoteHBMLocked(copyKey{o.residence(), rank}, false)
			}
		}
	}
	return h.hints.Len() > 0
}

// promotableLocked tells whether an object is whole in memory.
func (s *Store) promotableLocked(o *object) bool {
	return o.phase == whole && o.fill == nil && s.soundLocked(o)
}

// Begin gives a copy its memory and holds what it is made of.
func (p *hbmPromotion) Begin(f *transfer.Flight) error {
	s := p.store
	o := s.namedLocked(p.name, p.profile, p.tenant)
	if o == nil || !s.promotableLocked(o) {
		return fmt.Errorf("segment or checkpoint %x is not whole in memory: %w", p.name.Key[:8], tier.ErrGone)
	}
	c := s.newCopy(o)
	if c.rankBytes == 0 {
		return fmt.Errorf("%s: a copy of no bytes: %w", c.name(), tier.ErrGone)
	}
	switch err := s.makeHBMRoomLocked(c, !f.Urgent()); {
	case err == errAgain: //nolint:errorlint // never wrapped
		return transfer.ErrAgain
	case err != nil:
		return err
	}
	s.useLocked(o)
	s.placeHBMLocked(c, p.rank)
	c.fill = &fill{layout: c.layout(), copying: 1}
	s.settleLocked(c)
	p.source, p.object = o, c
	p.upload = s.newUpload(c, o, p.rank)
	s.running.Add(1)
	return nil
}

// newCopy is a copy of an object, without memory.
func (s *Store) newCopy(o *object) *object {
	c := &object{
		key: o.key, kind: o.kind, profile: o.profile, tenant: o.tenant, pool: s.hbm.pools[poolNumber(o.kind)],
		spec: o.spec, begin: o.begin, end: o.end, depth: 1, publisher: o.publisher, shares: make([]share, o.profile.ranks),
	}
	if c.kind != 0 {
		c.begin = 0 // the rows of the whole chain
	}
	c.created = s.cfg.Now()
	c.used = c.created
	s.measureHBM(c, c.layout().Bytes)
	return c
}

// Move copies and verifies.
func (p *hbmPromotion) Move(ctx context.Context, _ *transfer.Flight, moved func(error)) {
	s, name := p.store, p.object.name()
	err := p.upload.run(ctx)
	switch {
	case err == nil || tier.ContextEnded(err):
	case s.hbmIsLost():
		err = fmt.Errorf("%w: %w", transfer.ErrLost, err)
	case errors.Is(err, gpuipc.ErrFull):
		err = fmt.Errorf("%w: %w", tier.ErrFull, err) // what the device needs on the way
	}
	moved(err)
	switch transfer.OutcomeOf(err) {
	case transfer.Lost:
		s.failedHBM(err)
	case transfer.Corrupt:
		s.cfg.Log.Error().Err(err).Str("object", name).Str("tier", "hbm").Msg("promotion failed")
	case transfer.Failed:
		s.cfg.Log.Warn().Err(err).Str("object", name).Str("tier", "hbm").Msg("promotion failed")
	}
}

// Landed tells whether the object of a copy is still whole: it may have been removed,
// or found to be corrupt.
func (p *hbmPromotion) Landed(*transfer.Flight) (again bool, err error) {
	if o := p.source; !p.store.promotableLocked(o) {
		return false, fmt.Errorf("%s has left memory: %w", o.name(), tier.ErrGone)
	}
	return false, nil
}

// End makes the copy known, held for those who wait for it.
func (p *hbmPromotion) End(f *transfer.Flight, err error) {
	if err != nil {
		return
	}
	s, c := p.store, p.object
	c.fill = nil
	p.upload.publish()
	c.ops += f.Waiters()
	s.foundLocked(c, p.source, p.rank, p.upload.from)
	s.counters.HBM.PromotedBytes += uint64(c.bytes)
}

// Release lets go of the object, and of the copy unless it is found.
func (p *hbmPromotion) Release(*transfer.Flight) {
	s, c, o := p.store, p.object, p.source
	c.fill = nil
	if bad := p.upload.corrupt.Load(); bad != nil {
		s.corruptLocked(bad)
	}
	s.settleLocked(c)
	s.unuseLocked(o)
	p.source, p.upload = nil, nil
	s.running.Done()
}

func (p *hbmPromotion) arrived() *object { return p.object }

// reason is why a row is a miss after a promotion that failed.
func (p *hbmPromotion) reason(how transfer.Outcome) tier.Reason {
	switch how {
	case transfer.Gone, transfer.Lost:
		return tier.ReasonEvicted
	case transfer.NoRoom:
		return tier.ReasonRefused
	}
	return tier.ReasonAborted
}
