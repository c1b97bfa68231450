package tiering

import (
	"context"
	"errors"
	"slices"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// promotion brings an entry of the lower tier into memory: a fill whose writer is
// the store itself. Guarded by the store's lock.
//
//	following ──► ready ──► placing ──► reading ──► published
//	  its parent's   │         │           │
//	  promotion      └─────────┴───────────┴──► failed: corrupt, gone,
//	                                            unavailable, no room, stopped
//
// Invariant: there is one promotion of a name at most, and while there is one
// nobody else fills an object of that name.
type promotion struct {
	name    tier.Name
	entry   tier.Entry
	profile *profileState
	tenant  *tenant
	pool    *pool
	bytes   int64  // of pages, and of token ids
	spare   spared // entries of the lower tier that must not be trimmed for it

	state     promotionState
	demanded  bool         // by a client; else read ahead
	up        *promotion   // it follows
	followers []*promotion // that extend it
	base      *object      // the parent in memory, held until the object is linked
	into      *object      // the thinned node whose states it brings, held until then
	object    *object      // once it is placed; lends its memory when into is set
	cancel    context.CancelFunc
	until     deadline.Deadline[timed]
	waiters   int   // calls that lease the object when it is there
	further   []int // ranks that want it in HBM as well
	done      chan struct{}
	outcome   promoteOutcome // once done is closed
}

type promotionState uint8

const (
	promotionFollowing promotionState = iota
	promotionReady
	promotionPlacing // a goroutine of Run has it, from here on
	promotionReading
	promotionEnded
)

// promoteOutcome is how a promotion ended.
type promoteOutcome uint8

const (
	promoteDone        promoteOutcome = iota
	promoteCorrupt                    // its bytes were wrong: the tier has forgotten it
	promoteGone                       // the tier has dropped it meanwhile
	promoteUnavailable                // the tier cannot read now
	promoteNoRoom                     // in memory, for the pool or the tenant
	promoteStopped                    // removed, past its time, or the store is closing
	promoteOutcomes
)

func (o promoteOutcome) String() string {
	return [...]string{"done", "corrupt", "gone", "unavailable", "no_room", "stopped"}[o]
}

// reason is why a row is a miss after a promotion that failed.
func (o promoteOutcome) reason() tier.Reason {
	switch o {
	case promoteCorrupt, promoteGone:
		return tier.ReasonEvicted
	case promoteNoRoom:
		return tier.ReasonRefused
	}
	return tier.ReasonAborted
}

// wanted is what a promotion is to bring and for whom.
type wanted struct {
	name     tier.Name
	profile  *profileState
	tenant   *tenant
	demanded bool
}

// promoteLocked begins, or joins, the promotion of an entry and of those it
// extends. It is nil when the entry cannot be promoted now: it is gone, somebody
// fills it, or too much is promoted already.
func (s *Store) promoteLocked(w wanted) *promotion {
	if p := s.promotions[w.name]; p != nil {
		if p.profile != w.profile || p.tenant != w.tenant {
			return nil
		}
		if w.demanded {
			s.demandLocked(p)
		}
		return p
	}
	nodes, ok := s.climbLocked(w)
	if !ok {
		return nil
	}
	if s.closed || s.stopped || len(s.promotions)+len(nodes) > s.cfg.PromoteQueue || !w.demanded && !s.aheadRoomLocked(nodes) {
		s.counters.PromotionsBusy++
		return nil
	}
	var spare spared
	for _, p := range nodes {
		spare.names, spare.bytes = append(spare.names, p.name), spare.bytes+p.entry.Bytes
	}
	for up := nodes[len(nodes)-1].up; up != nil; up = up.up {
		up.spare = spared{slices.Concat(up.spare.names, spare.names), up.spare.bytes + spare.bytes}
	}
	for _, p := range slices.Backward(nodes) {
		p.spare = spare
		s.beginPromotionLocked(p)
	}
	for _, p := range slices.Backward(nodes) {
		s.touchLocked(p.name) // so that nothing newer makes room by them
	}
	if w.demanded {
		s.demandLocked(nodes[0]) // what it joined may be read ahead only
	}
	return nodes[0]
}

// climbLocked lists an entry and those it extends that are not in memory, up to
// one that is or is being promoted.
func (s *Store) climbLocked(w wanted) (nodes []*promotion, ok bool) {
	name, end := w.name, 0
	for len(nodes) < s.cfg.MaxChain {
		if p := s.promotions[name]; p != nil {
			if p.profile != w.profile || p.tenant != w.tenant || p.entry.End != end {
				return nil, false
			}
			nodes[len(nodes)-1].up = p
			return nodes, true
		}
		if o := s.namedLocked(name, w.profile, w.tenant); o != nil {
			if len(nodes) == 0 {
				return s.restoreLocked(o, w)
			}
			if !o.published || o.end != end || !s.soundLocked(o) {
				return nil, false
			}
			nodes[len(nodes)-1].base = o
			return nodes, true
		}
		e, held := s.lookupLocked(name, w.profile, w.tenant)
		if !held || len(nodes) > 0 && e.End != end || !w.profile.fits(&e) {
			return nil, false
		}
		p := s.newPromotion(&e, w)
		if len(nodes) > 0 {
			nodes[len(nodes)-1].up = p
		}
		nodes = append(nodes, p)
		if e.Parent == (tier.Name{}) {
			return nodes, true
		}
		name, end = e.Parent, e.Begin
	}
	return nil, false
}

// fits checks an entry's geometry, which comes from a disk.
func (p *profileState) fits(e *tier.Entry) bool {
	if e.Kind != 0 {
		return e.Begin >= 0 && e.Begin < e.End && (e.Begin > 0) == (e.Parent != tier.Name{}) && (e.Parent == tier.Name{} || e.Parent.Kind != 0)
	}
	if p.CheckSpec(e.Spec) != nil || e.Parent != (tier.Name{}) {
		return false
	}
	begin, count := e.Spec.Interior()
	return e.Begin == begin && e.End == begin+count
}

func (s *Store) newPromotion(e *tier.Entry, w wanted) *promotion {
	p := &promotion{
		name: e.Name, entry: *e, profile: w.profile, tenant: w.tenant, pool: s.pools[poolNumber(e.Kind)], demanded: w.demanded,
		done: make(chan struct{}),
	}
	o := p.describe()
	p.bytes = s.pagesOf(o.layout().Bytes)*int64(w.profile.ranks) + 4*int64(o.spec.Tokens)
	return p
}

func poolNumber(kind tier.CheckpointKind) int {
	if kind == 0 {
		return publicPool
	}
	return privatePool
}

// describe is the object that an entry becomes, without memory.
func (p *promotion) describe() *object {
	e := &p.entry
	return &object{
		key: p.name.Key, kind: p.name.Kind, profile: p.profile, tenant: p.tenant, pool: p.pool,
		spec: e.Spec, begin: e.Begin, end: e.End, extends: e.Parent.Key, extendsKind: e.Parent.Kind, depth: 1,
	}
}

func (s *Store) beginPromotionLocked(p *promotion) {
	s.promotions[p.name] = p
	p.until = deadline.Deadline[timed]{At: s.cfg.Now().Add(s.cfg.FillTTL), Order: s.leaseIDs.Add(1), Of: p}
	s.deadlines.Add(&p.until)
	s.counters.Promoting++
	if !p.demanded {
		p.pool.aheadBytes += p.bytes
		s.counters.ReadAheadBegun++
	}
	for _, o := range [...]*object{p.base, p.into} {
		if o != nil {
			o.ops++
			s.settleLocked(o)
		}
	}
	if p.up != nil {
		p.up.followers = append(p.up.followers, p)
		return
	}
	s.readyLocked(p)
}

func (s *Store) readyLocked(p *promotion) {
	p.state = promotionReady
	if p.demanded {
		s.demand = append(s.demand, p)
	} else {
		s.ahead = append(s.ahead, p)
	}
	s.work.Signal()
}

// demandLocked puts a promotion, and those it waits for, among those that
// clients wait for.
func (s *Store) demandLocked(p *promotion) {
	for ; p != nil; p = p.up {
		if p.demanded {
			continue
		}
		p.demanded = true
		p.pool.aheadBytes -= p.bytes
		s.counters.ReadAheadUsed++
		if p.state == promotionReady {
			s.readyLocked(p) // its place among those read ahead is skipped
		}
	}
}

// failPromotionLocked ends a promotion without an object, and those that follow
// it. A read that runs keeps the memory until it ends.
func (s *Store) failPromotionLocked(p *promotion, why promoteOutcome) {
	if o := p.object; o != nil {
		o.fill.dead = true
		if o.fill.copying == 0 {
			o.fill = nil
		}
		if o.shadow {
			s.settleLocked(o)
		} else {
			s.unlinkLocked(o, why.reason())
		}
	}
	if o := p.into; o != nil && o.fill != nil {
		o.fill.dead = true // a patch, which keeps the node until it ends
	}
	s.endPromotionLocked(p, why)
	for _, f := range p.liveFollowers() {
		s.failPromotionLocked(f, why)
	}
	p.followers = nil
}

// liveFollowers leaves out those whose time ended while they waited.
func (p *promotion) liveFollowers() []*promotion {
	return slices.DeleteFunc(p.followers, func(f *promotion) bool { return f.state == promotionEnded })
}

func (s *Store) endPromotionLocked(p *promotion, why promoteOutcome) {
	s.counters.Promotions[why]++
	s.counters.Promoting--
	p.state, p.outcome, p.up = promotionEnded, why, nil
	delete(s.promotions, p.name)
	s.deadlines.Remove(&p.until)
	for _, o := range [...]*object{p.base, p.into} {
		if o != nil {
			o.ops--
			s.settleLocked(o)
		}
	}
	p.base, p.into = nil, nil
	if !p.demanded && why != promoteDone {
		p.pool.aheadBytes -= p.bytes
		s.counters.ReadAheadFailed++
	}
	if p.cancel != nil {
		p.cancel()
	}
	if s.roomWaiters > 0 {
		s.changed.Broadcast() // it may be this one that waits for room
	}
	close(p.done)
}

// publishPromotionLocked makes the object of a promotion a hit, held for those
// who wait for it and for the checkpoints that extend it.
func (s *Store) publishPromotionLocked(p *promotion, c *tier.Content) {
	for i := range p.object.shares {
		p.object.shares[i].digests = c.Digests[i]
	}
	if p.into != nil {
		s.lendLocked(p)
	}
	o := p.object
	o.publisher, o.ids, o.stored = c.Publisher, c.Tokens, p.entry.Level
	o.ahead = !p.demanded
	followers := p.liveFollowers()
	o.ops += p.waiters + len(followers)
	why := decision.Promoted
	if o.ahead {
		why = decision.ReadAhead
	}
	s.publishLocked(o, s.cfg.Now(), why)
	s.counters.PromotedBytes += uint64(o.bytes)
	for _, f := range followers {
		f.base, f.up = o, nil
		s.readyLocked(f)
	}
	p.followers = nil
	s.furtherLocked(p, o)
	s.endPromotionLocked(p, promoteDone)
}

// outcomeOf sorts what Read answers.
func outcomeOf(err error) promoteOutcome {
	switch {
	case errors.Is(err, tier.ErrCorrupt):
		return promoteCorrupt
	case errors.Is(err, tier.ErrGone):
		return promoteGone
	}
	return promoteUnavailable
}
