package tiering

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// hbmPromotion makes one rank's copy of an object of memory. Guarded by the store's
// lock.
//
//	ready ──► running ──► found
//	  │          └──► failed: corrupt, gone, no room, stopped, lost, refused by the device
//	  └──► failed: gone, no room, stopped, lost
//
// Invariant: there is one promotion of a copy at most, and none of a copy that is
// there. While it runs its object is held, so that neither it nor what it extends
// can leave memory.
type hbmPromotion struct {
	copyKey
	demanded bool // by a client; else a match has found it

	state   promotionState
	source  *object // while it runs
	object  *object // the copy, while it runs and once it is found
	waiters int     // calls that lease the copy when it is there
	cancel  context.CancelFunc
	done    chan struct{}
	outcome hbmOutcome // once done is closed
}

// promoteHBMLocked begins, or joins, the promotion of a copy. It is nil when too
// many are wanted already, or nothing is promoted any more.
func (s *Store) promoteHBMLocked(k copyKey, demanded bool) *hbmPromotion {
	h := s.hbm
	if p := h.promotions[k]; p != nil {
		if demanded && !p.demanded {
			p.demanded = true
			if p.state == promotionReady {
				s.readyHBMLocked(p) // its place among the guesses is skipped
			}
		}
		return p
	}
	if s.closed || h.lost || h.stopped || len(h.promotions) >= h.cfg.Queue {
		s.counters.HBM.PromotionsBusy++
		return nil
	}
	p := &hbmPromotion{copyKey: k, demanded: demanded, state: promotionReady, done: make(chan struct{})}
	h.promotions[k] = p
	s.counters.HBM.Promoting++
	s.readyHBMLocked(p)
	return p
}

func (s *Store) readyHBMLocked(p *hbmPromotion) {
	if p.demanded {
		s.hbm.demand = append(s.hbm.demand, p)
	} else {
		s.hbm.guesses = append(s.hbm.guesses, p)
	}
	s.hbm.work.Signal()
}

// endHBMPromotionLocked settles a promotion for those who wait for it. A copy that
// still runs keeps its memory, and its object, until it has ended.
func (s *Store) endHBMPromotionLocked(p *hbmPromotion, how hbmOutcome) {
	p.state, p.outcome = promotionEnded, how
	delete(s.hbm.promotions, p.copyKey)
	s.counters.HBM.Promoting--
	s.counters.HBM.Promotions[how]++
	if p.cancel != nil {
		p.cancel()
	}
	close(p.done)
}

func (s *Store) endHBMPromotionsLocked(how hbmOutcome) {
	for _, p := range s.hbm.promotions {
		s.endHBMPromotionLocked(p, how)
	}
	s.hbm.demand, s.hbm.guesses = nil, nil
}

// setHBMStopped begins or ends that promotions into HBM are taken up. Those that are
// left fail.
func (s *Store) setHBMStopped(stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hbm.stopped = stopped
	if stopped {
		s.endHBMPromotionsLocked(hbmStopped)
	}
}

// hbmPromoter carries out promotions into HBM until ctx ends. Run has a number of
// them.
func (s *Store) hbmPromoter(ctx context.Context) {
	for {
		p := s.nextHBM(ctx)
		if p == nil {
			return
		}
		s.carryHBM(ctx, p)
	}
}

// nextHBM waits for a promotion; those that clients wait for come first.
func (s *Store) nextHBM(ctx context.Context) *hbmPromotion {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		p, again := s.takeHBMLocked()
		switch {
		case p != nil:
			s.hbm.work.Signal() // there may be more
			return p
		case again:
			s.mu.Unlock()
			s.mu.Lock()
		default:
			s.hbm.work.Wait()
		}
	}
	return nil
}

// takeHBMLocked takes the next promotion; again says that there may be one once
// others had the lock.
func (s *Store) takeHBMLocked() (p *hbmPromotion, again bool) {
	h := s.hbm
	if h.demand, p = takeReady(h.demand, true); p == nil {
		if h.guesses, p = takeReady(h.guesses, false); p == nil {
			again = s.guessHBMLocked()
			h.guesses, p = takeReady(h.guesses, false)
		}
	}
	return p, again
}

func takeReady(line []*hbmPromotion, demanded bool) ([]*hbmPromotion, *hbmPromotion) {
	for len(line) > 0 {
		p := line[0]
		line[0] = nil
		line = line[1:]
		if p.state == promotionReady && p.demanded == demanded {
			p.state = promotionReading
			return line, p
		}
	}
	return nil, nil
}

// matchedHBMLocked notes a hit of a match for promotion. It never waits and does
// nothing else.
func (s *Store) matchedHBMLocked(o *object) {
	h := s.hbm
	if h == nil || h.matched == nil || o.resident != nil || o.profile.engines == nil || h.lost {
		return
	}
	if !h.matched.add(wanted{name: o.label(), profile: o.profile, tenant: o.tenant}) {
		s.counters.HBM.MatchesDropped++
	} else if h.matched.n == 1 {
		h.work.Signal()
	}
}

// guessHBMLocked turns some of what matches found into promotions, until one is
// ready, and tells whether more is left.
func (s *Store) guessHBMLocked() (more bool) {
	l := s.hbm.matched
	if l == nil {
		return false
	}
	for n := 0; n < aheadRows && l.n > 0 && len(s.hbm.guesses) == 0; n++ {
		w := l.take()
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
	return l.n > 0
}

// promotableLocked tells whether an object is whole in memory.
func (s *Store) promotableLocked(o *object) bool {
	return o.published && o.fill == nil && !o.thin && s.soundLocked(o)
}

// carryHBM places, copies and settles one promotion.
func (s *Store) carryHBM(ctx context.Context, p *hbmPromotion) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	up, how := s.placeUploadLocked(p, cancel)
	s.mu.Unlock()
	if how != hbmDone {
		return
	}
	defer s.running.Done()
	err := up.run(ctx)
	how = s.outcomeHBM(err)
	s.mu.Lock()
	s.endUploadLocked(p, up, how)
	s.mu.Unlock()
	switch how {
	case hbmLost:
		s.failedHBM(err)
	case hbmCorrupt:
		s.cfg.Log.Error().Err(err).Str("object", up.copy.name()).Str("tier", "hbm").Msg("promotion failed")
	case hbmFailed:
		s.cfg.Log.Warn().Err(err).Str("object", up.copy.name()).Str("tier", "hbm").Msg("promotion failed")
	}
}

// placeUploadLocked gives a copy its memory and holds what it is made of, or ends
// the promotion and says how.
func (s *Store) placeUploadLocked(p *hbmPromotion, cancel context.CancelFunc) (*upload, hbmOutcome) {
	if p.state == promotionEnded {
		return nil, p.outcome
	}
	o := s.namedLocked(p.name, p.profile, p.tenant)
	if o == nil || !s.promotableLocked(o) {
		s.endHBMPromotionLocked(p, hbmGone)
		return nil, hbmGone
	}
	c := s.newCopy(o)
	if c.rankBytes == 0 {
		s.endHBMPromotionLocked(p, hbmGone)
		return nil, hbmGone
	}
	if err := s.makeHBMRoomLocked(c, !p.demanded); err != nil {
		s.endHBMPromotionLocked(p, hbmNoRoom)
		return nil, hbmNoRoom
	}
	s.useLocked(o)
	s.placeHBMLocked(c, p.rank)
	c.fill = &fill{layout: c.layout(), copying: 1}
	s.settleLocked(c)
	p.source, p.object, p.cancel = o, c, cancel
	s.running.Add(1)
	return s.newUpload(c, o, p.rank), hbmDone
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

// endUploadLocked settles a copy that has been made, or has not.
func (s *Store) endUploadLocked(p *hbmPromotion, up *upload, how hbmOutcome) {
	c, o := p.object, p.source
	c.fill = nil
	if how == hbmDone && (!o.linked || !s.promotableLocked(o)) {
		how = hbmGone // removed by an operator, or found to be spoilt
	}
	if p.state != promotionEnded {
		if how == hbmDone {
			up.settle()
			c.ops += p.waiters
			s.foundLocked(c, o, p.rank, up.from)
			s.counters.HBM.PromotedBytes += uint64(c.bytes)
		}
		s.endHBMPromotionLocked(p, how)
	}
	if bad := up.spoilt.Load(); bad != nil {
		s.spoiltLocked(bad)
	}
	s.settleLocked(c)
	s.unuseLocked(o)
	p.source = nil
}

// outcomeHBM sorts what an upload answers.
func (s *Store) outcomeHBM(err error) hbmOutcome {
	switch {
	case err == nil:
		return hbmDone
	case contextEnded(err):
		return hbmStopped
	case s.hbmIsLost():
		return hbmLost
	case errors.Is(err, tier.ErrCorrupt):
		return hbmCorrupt
	case errors.Is(err, gpuipc.ErrFull):
		return hbmNoRoom // for what the device needs on the way
	}
	return hbmFailed
}

// reason is why a row is a miss after a promotion that failed.
func (o hbmOutcome) reason() tier.Reason {
	switch o {
	case hbmGone, hbmLost:
		return tier.ReasonEvicted
	case hbmNoRoom:
		return tier.ReasonRefused
	}
	return tier.ReasonAborted
}
