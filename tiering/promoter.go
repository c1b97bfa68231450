package tiering

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// promoter carries out promotions until ctx ends. Run has MaxPromotions of them.
func (s *Store) promoter(ctx context.Context) {
	for {
		p := s.nextPromotion(ctx)
		if p == nil {
			return
		}
		s.carry(ctx, p)
	}
}

// nextPromotion waits for one that is ready and whose memory is within the bound
// of what is read into at once; those that clients wait for come first.
func (s *Store) nextPromotion(ctx context.Context) *promotion {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ctx.Err() == nil {
		p, again := s.takeReadyLocked()
		switch {
		case p != nil:
			p.state = promotionPlacing
			s.promoteBytes += p.bytes
			s.work.Signal() // there may be more
			return p
		case again:
			s.mu.Unlock()
			s.mu.Lock()
		default:
			s.work.Wait()
		}
	}
	return nil
}

// takeReadyLocked takes the next promotion; again says that there may be one
// once others had the lock.
func (s *Store) takeReadyLocked() (p *promotion, again bool) {
	if s.demand, p = firstReady(s.demand, true); p == nil {
		if s.ahead, p = firstReady(s.ahead, false); p == nil {
			again = s.aheadFromMatchesLocked()
			s.ahead, p = firstReady(s.ahead, false)
		}
	}
	if p == nil || s.promoteBytes > 0 && s.promoteBytes+p.bytes > s.cfg.PromoteBytes {
		return nil, p == nil && again
	}
	if p.demanded {
		s.demand = s.demand[1:]
	} else {
		s.ahead = s.ahead[1:]
	}
	return p, false
}

// firstReady drops from the front of a line what is not in its place there any
// more.
func firstReady(line []*promotion, demanded bool) ([]*promotion, *promotion) {
	for len(line) > 0 && (line[0].state != promotionReady || line[0].demanded != demanded) {
		line[0] = nil
		line = line[1:]
	}
	if len(line) == 0 {
		return nil, nil
	}
	return line, line[0]
}

// carry places and reads one promotion.
func (s *Store) carry(ctx context.Context, p *promotion) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	refs, err := s.placePromotion(ctx, p, cancel)
	if err == nil {
		s.readPromotion(ctx, p, refs)
	}
	s.mu.Lock()
	s.promoteBytes -= p.bytes
	s.work.Signal() // the bound may have held one up
	s.mu.Unlock()
}

// maxRoomTurns bounds how often a promotion waits for room that somebody else
// may take before it.
const maxRoomTurns = 8

// errEnded: the promotion was ended by somebody else.
var errEnded = errors.New("tiering: the promotion has ended")

// placePromotion gives a promotion its memory, and waits for what has to be
// written to make room for it.
func (s *Store) placePromotion(ctx context.Context, p *promotion, cancel context.CancelFunc) ([]gpuipc.Ref, error) {
	for turn := 0; ; turn++ {
		var b outside
		s.mu.Lock()
		if p.state == promotionEnded {
			s.mu.Unlock()
			return nil, errEnded
		}
		p.cancel = cancel
		refs, err := s.placePromotionLocked(p, &b)
		ended, sweeps := s.writesEnded, s.sweeps
		if err != nil && (err != errLeaving || turn == maxRoomTurns) { //nolint:errorlint // never wrapped
			s.failPromotionLocked(p, unplaced(err))
			err = errEnded
		}
		s.mu.Unlock()
		s.act(&b)
		if err == nil || err == errEnded { //nolint:errorlint // never wrapped
			return refs, err
		}
		s.awaitRoom(ctx, p, ended, sweeps)
	}
}

// unplaced is how a promotion ends that could not be placed.
func unplaced(err error) promoteOutcome {
	switch {
	case errors.Is(err, tier.ErrInvalid):
		return promoteStopped
	case errors.Is(err, tier.ErrGone):
		return promoteGone
	}
	return promoteNoRoom
}

// awaitRoom waits until a write has ended that may have given room back, or for
// the next sweep, since writes may hang.
func (s *Store) awaitRoom(ctx context.Context, p *promotion, ended, sweeps uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roomWaiters++
	for ctx.Err() == nil && p.state != promotionEnded && s.writesEnded == ended && s.sweeps == sweeps {
		s.changed.Wait()
	}
	s.roomWaiters--
	if ctx.Err() != nil && p.state != promotionEnded {
		s.failPromotionLocked(p, promoteStopped)
	}
}

func (s *Store) placePromotionLocked(p *promotion, b *outside) ([]gpuipc.Ref, error) {
	e, ok := s.lookupLocked(p.name, p.profile, p.tenant)
	o := p.describe()
	if !ok || e.Spec != p.entry.Spec || e.Begin != p.entry.Begin || e.End != p.entry.End || e.Parent != p.entry.Parent {
		return nil, fmt.Errorf("%s: %w", o.name(), tier.ErrGone) // or written again in another shape
	}
	p.entry = e
	l := o.layout()
	if p.base != nil {
		o.parent, o.depth = p.base, p.base.depth+1
		if o.depth > s.cfg.MaxChain || !p.base.linked {
			return nil, fmt.Errorf("%s: node %d of a chain: %w", o.name(), o.depth, tier.ErrInvalid)
		}
	}
	if p.into != nil && (!p.into.linked || !p.into.thin || p.into.fill != nil) {
		return nil, fmt.Errorf("%s: it is not thinned any more: %w", o.name(), tier.ErrInvalid)
	}
	if o.profile.forgotten {
		return nil, fmt.Errorf("%s: its profile is not registered any more: %w", o.name(), tier.ErrInvalid)
	}
	if l.Bytes == 0 || l.Bytes > o.pool.budget/int64(o.profile.ranks) {
		return nil, fmt.Errorf("%s: %d bytes for each rank: %w", o.name(), l.Bytes, tier.ErrFull)
	}
	s.measure(o, l.Bytes)
	if over := s.overQuota(o.tenant, o.bytes); over > 0 && !p.demanded {
		// A guess must not make a tenant lose what it has.
		return nil, fmt.Errorf("%s: read ahead, %d bytes over the quota: %w", o.name(), over, tier.ErrQuota)
	}
	if err := s.makeRoomLocked(o, p.spare, b); err != nil {
		return nil, err
	}
	s.allocateLocked(o, l.Bytes)
	now := s.cfg.Now()
	o.created, o.used = now, now
	o.fill = &fill{layout: l, promotion: p, copying: 1}
	if o.shadow = p.into != nil; o.shadow {
		s.bookLocked(o)
		s.settleLocked(o)
	} else {
		s.linkLocked(o)
	}
	p.object, p.state = o, promotionReading
	s.running.Add(1)
	refs := make([]gpuipc.Ref, len(o.shares))
	for i := range refs {
		refs[i] = s.ref(&o.shares[i])
	}
	return refs, nil
}

// readPromotion fills a promotion's memory and publishes or ends it.
func (s *Store) readPromotion(ctx context.Context, p *promotion, refs []gpuipc.Ref) {
	defer s.running.Done()
	began := s.cfg.Now()
	c, err := s.cfg.Lower.Read(ctx, &p.entry, refs)
	if err == nil {
		p.profile.costs.Did(cost.JobLoadDisk, p.bytes, s.cfg.Now().Sub(began))
		err = p.check(c)
	}
	if err == nil {
		err = s.patch(ctx, p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := p.object
	o.fill.copying = 0
	switch {
	case o.fill.dead:
		o.fill = nil
		s.settleLocked(o)
	case err != nil:
		s.failPromotionLocked(p, outcomeOf(err))
	default:
		s.publishPromotionLocked(p, c)
	}
}

// check compares what the tier keeps beside the bytes with what the object has
// to be: the key of a segment names its tokens.
func (p *promotion) check(c *tier.Content) error {
	o := p.object
	if len(c.Digests) != len(o.shares) || len(c.Tokens) != o.spec.Tokens {
		return fmt.Errorf("%s: %d ranks and %d token ids: %w", o.name(), len(c.Digests), len(c.Tokens), tier.ErrCorrupt)
	}
	for _, digests := range c.Digests {
		if want := o.fill.layout.Chunks(); len(digests) != want {
			return fmt.Errorf("%s: %d digests, want %d: %w", o.name(), len(digests), want, tier.ErrCorrupt)
		}
	}
	if o.kind == 0 && p.profile.SegmentKey(p.tenant.Salt, o.spec, c.Tokens) != o.key {
		return fmt.Errorf("%s: its token ids have another key: %w", o.name(), tier.ErrCorrupt)
	}
	return nil
}
