package tiering

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
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
	objects.CopyKey

	source *objects.Object // while it runs
	object *objects.Object // the copy, while it runs and once it is found
	upload *upload
}

// openHBMPromotions makes the engine that brings copies into HBM.
func (s *Store) openHBMPromotions() {
	h := s.hbm
	h.up = transfer.New[objects.CopyKey](transfer.Config{
		Lock: &s.mu, Workers: true, Queue: h.cfg.Queue, Now: s.cfg.Now, Idle: s.guessHBMLocked,
	})
}

// promoteHBMLocked begins, or joins, the promotion of a copy. It is nil when too
// many are wanted already, or nothing is promoted any more.
func (s *Store) promoteHBMLocked(k objects.CopyKey, urgent bool) *hbmPromotion {
	h := s.hbm
	if f := h.up.Find(k); f != nil {
		if urgent {
			h.up.Urge(f)
		}
		return f.Job.(*hbmPromotion)
	}
	if s.closed || h.lost || !h.up.Room(uint32(k.Tenant.ID), 1) {
		return nil
	}
	p := &hbmPromotion{store: s, CopyKey: k}
	p.Flight, _ = h.up.Start(k, p, transfer.Options{Owner: uint32(k.Tenant.ID), Urgent: urgent})
	return p
}

// hintHBMLocked notes a hit of a match for promotion. It never waits and does nothing
// else.
func (s *Store) hintHBMLocked(o *objects.Object) {
	h := s.hbm
	if h == nil || !h.cfg.AfterMatch || o.Resident != nil || o.Profile.Engines == nil || h.lost {
		return
	}
	if !h.hints.Add(wanted{name: o.Label(), profile: o.Profile, tenant: o.Tenant}) {
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
		o := s.objects.Named(w.name, w.profile, w.tenant)
		if o == nil || !s.objects.Promotable(o) {
			continue
		}
		for rank, engines := range w.profile.Engines {
			if engines > 0 && (o.Resident == nil || o.Resident.Copies[rank] == nil) {
				s.promoteHBMLocked(objects.CopyKey{Identity: o.Identity(), Rank: rank}, false)
			}
		}
	}
	return h.hints.Len() > 0
}

// Begin gives a copy its memory and holds what it is made of.
func (p *hbmPromotion) Begin(f *transfer.Flight) error {
	s := p.store
	o := s.objects.Named(p.Name, p.Profile, p.Tenant)
	if o == nil || !s.objects.Promotable(o) {
		return fmt.Errorf("segment or checkpoint %x is not whole in memory: %w", p.Name.Key[:8], tier.ErrGone)
	}
	c := s.objects.NewCopy(o)
	if c.RankBytes == 0 {
		return fmt.Errorf("%s: a copy of no bytes: %w", c.Name(), tier.ErrGone)
	}
	switch err := s.objects.MakeCopyRoom(c, !f.Urgent()); {
	case err == objects.ErrAgain: //nolint:errorlint // never wrapped
		return transfer.ErrAgain
	case err != nil:
		return err
	}
	s.objects.Use(o)
	s.objects.AllocateCopy(c, p.Rank)
	c.Fill = &objects.Fill{Layout: c.Layout(), Copying: 1}
	s.objects.Account(c)
	p.source, p.object = o, c
	p.upload = s.newUpload(c, o, p.Rank)
	s.running.Add(1)
	return nil
}

// Move copies and verifies.
func (p *hbmPromotion) Move(ctx context.Context, _ *transfer.Flight, moved func(error)) {
	s, name := p.store, p.object.Name()
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
	if o := p.source; !p.store.objects.Promotable(o) {
		return false, fmt.Errorf("%s has left memory: %w", o.Name(), tier.ErrGone)
	}
	return false, nil
}

// End makes the copy known, held for those who wait for it.
func (p *hbmPromotion) End(f *transfer.Flight, err error) {
	if err != nil {
		return
	}
	s, c := p.store, p.object
	c.Fill = nil
	p.upload.publish()
	c.Ops += f.Waiters()
	s.objects.AddCopy(c, p.source, p.Rank, p.upload.from)
	s.counters.HBM.PromotedBytes += uint64(c.Bytes)
}

// Release lets go of the object, and of the copy unless it is found.
func (p *hbmPromotion) Release(*transfer.Flight) {
	s, c, o := p.store, p.object, p.source
	c.Fill = nil
	if bad := p.upload.corrupt.Load(); bad != nil {
		s.objects.MarkCorrupt(bad)
	}
	s.objects.Account(c)
	s.objects.Unuse(o)
	p.source, p.upload = nil, nil
	s.running.Done()
}

func (p *hbmPromotion) arrived() *objects.Object { return p.object }

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
