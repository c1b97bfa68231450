package tiering

import (
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// open creates the engine that brings objects into memory.
func (pro *promotions) open() {
	pro.engine = transfer.New[tier.Name](transfer.Config{
		Lock: &pro.mu, Workers: true, Queue: pro.cfg.PromoteQueue, Share: max(pro.cfg.MaxChain, pro.cfg.PromoteQueue/len(pro.objects.Tenants)),
		Bytes: pro.cfg.PromoteBytes, Lanes: lanes, Turns: maxRoomTurns, Now: pro.cfg.Now, Idle: pro.readAheadLocked, After: pro.launch, Took: func(lane int, took time.Duration) { pro.durations.fetch(lane == laneBeyond, took) },
	})
}

// kickLocked makes promotions that wait for memory try again.
func (pro *promotions) kickLocked() {
	if pro.engine != nil {
		pro.engine.Kick()
	}
}

// Promotions have one lane per source, so that a hung peer does not block reads of the disk.
const (
	laneBelow = iota
	laneBeyond
	lanes
)

// maxRoomTurns is the largest number of times that a promotion waits for room. Another
// object may take the room each time.
const maxRoomTurns = 8

// promotionLocked returns the promotion of a name, if there is one.
func (pro *promotions) promotionLocked(n tier.Name) *promotion {
	if pro.engine == nil {
		return nil
	}
	if f := pro.engine.Find(n); f != nil {
		return f.Job.(*promotion)
	}
	return nil
}

// promoteLocked starts or joins the promotion of an entry and its ancestors. It returns
// nil if the entry cannot be promoted now: the entry no longer exists, a client is filling
// its object, or too much is being promoted.
func (pro *promotions) promoteLocked(w wanted) *promotion {
	if p := pro.promotionLocked(w.name); p != nil {
		if p.profile != w.profile || p.tenant != w.tenant {
			return nil
		}
		if w.urgent {
			pro.urgeLocked(p)
		}
		return p
	}
	nodes, ok := pro.climbLocked(w)
	if !ok {
		return nil
	}
	if pro.closed || !pro.engine.Room(uint32(w.tenant.ID), len(nodes)) || !w.urgent && !pro.readAheadRoomLocked(nodes) {
		return nil
	}
	var spare spared
	for _, p := range nodes {
		if p.into == nil {
			p.source, p.further = pro.remote.takeCopyLocked(p.identity())
		}
		spare.names, spare.bytes = append(spare.names, p.name), spare.bytes+p.entry.Bytes
	}
	for ahead := nodes[len(nodes)-1].lead; ahead != nil; ahead = ahead.next() {
		ahead.spare = spared{slices.Concat(ahead.spare.names, spare.names), ahead.spare.bytes + spare.bytes}
	}
	for _, p := range slices.Backward(nodes) {
		p.spare = spare
		pro.startLocked(p, w.urgent)
	}
	for _, p := range slices.Backward(nodes) {
		if p.source == nil {
			pro.objects.Below.Touch(p.name) // so that the lower tier does not evict it for new entries
		}
	}
	if w.urgent {
		pro.urgeLocked(nodes[0]) // the promotions that it joined may be read-aheads
	}
	return nodes[0]
}

// climbLocked lists promotions for an entry and its ancestors. It stops at the first ancestor
// that is in memory or is being promoted, and sets this ancestor as the field base or lead of
// the last promotion. Each listed entry is in the lower tier or was found outside the node. The
// second result is false if an entry is in neither place.
func (pro *promotions) climbLocked(w wanted) (nodes []*promotion, ok bool) {
	name, end := w.name, 0
	for len(nodes) < pro.cfg.MaxChain {
		if p := pro.promotionLocked(name); p != nil {
			if p.profile != w.profile || p.tenant != w.tenant || p.entry.End != end {
				return nil, false
			}
			nodes[len(nodes)-1].lead = p
			return nodes, true
		}
		if o := pro.objects.Names.Find(name, w.profile, w.tenant); o != nil {
			if len(nodes) == 0 {
				return pro.restoreLocked(o, w)
			}
			if !o.Published() || o.End != end || !pro.objects.Names.Sound(o) {
				return nil, false
			}
			if o.Phase == objects.Stripped && nodes[len(nodes)-1].name.Kind == tier.Rows {
				states, ok := pro.restoreLocked(o, w)
				if !ok {
					return nil, false
				}
				nodes[len(nodes)-1].lead = states[0]
				return append(nodes, states...), true
			}
			nodes[len(nodes)-1].base = o
			return nodes, true
		}
		e, held := pro.objects.Below.Lookup(name, w.profile, w.tenant)
		if !held {
			e, held = pro.remote.foundLocked(objects.Identity{Name: name, Profile: w.profile, Tenant: w.tenant})
		}
		if !held || len(nodes) > 0 && e.End != end || !w.profile.Fits(&e) {
			return nil, false
		}
		p := pro.newPromotion(&e, w)
		if len(nodes) > 0 {
			nodes[len(nodes)-1].lead = p
		}
		nodes = append(nodes, p)
		if e.Parent == (tier.Name{}) {
			return nodes, true
		}
		name, end = e.Parent, e.Begin
	}
	return nil, false
}

func (pro *promotions) newPromotion(e *tier.Entry, w wanted) *promotion {
	return &promotion{
		owner: pro, name: e.Name, entry: *e, profile: w.profile, tenant: w.tenant, pool: pro.objects.Pools[objects.PoolNumber(e.Kind)],
	}
}

// restoreLocked returns a promotion that restores the states of a stripped node o. The second
// result is false if the lower tier does not have the node, or if the node cannot be restored
// now.
func (pro *promotions) restoreLocked(o *objects.Object, w wanted) ([]*promotion, bool) {
	if o.Phase != objects.Stripped || o.Fill != nil || !pro.objects.Names.Sound(o) {
		return nil, false
	}
	e, held := pro.objects.Below.Of(o)
	if !held || !w.profile.Fits(&e) {
		return nil, false
	}
	p := pro.newPromotion(&e, w)
	p.into = o
	return []*promotion{p}, true
}

func (pro *promotions) startLocked(p *promotion, urgent bool) {
	o := transfer.Options{Bytes: p.size().PageBytes, Owner: uint32(p.tenant.ID), Urgent: urgent}
	if p.source != nil {
		o.Lane = laneBeyond
	}
	if p.lead != nil {
		o.After = p.lead.Flight
	}
	p.Flight, _ = pro.engine.Start(p.name, p, o)
	p.until = deadline.Deadline[any]{At: pro.cfg.Now().Add(pro.cfg.FillTTL), Order: pro.leaseIDs.Add(1), Of: p}
	pro.objects.Deadlines.Add(&p.until)
	if !urgent {
		p.pool.AheadBytes += p.Bytes
		pro.counters.ReadAheadBegun++
	}
	pro.objects.Use(p.base)
	pro.objects.Use(p.into)
}

// urgeLocked marks a promotion and the promotions that it follows as urgent, since a
// client waits for them.
func (pro *promotions) urgeLocked(p *promotion) {
	for f := p.Flight; f != nil; f = f.Lead() {
		if !f.Urgent() {
			f.Job.(*promotion).pool.AheadBytes -= f.Bytes
			pro.counters.ReadAheadUsed++
		}
	}
	pro.engine.Urge(p.Flight)
}

// furtherLocked starts the copies to HBM that wait for an object that has just arrived in memory.
func (pro *promotions) furtherLocked(p *promotion, o *objects.Object) {
	for _, at := range p.further {
		if o.Resident.On(at.above.ID(), at.rank) == nil {
			at.above.Promote(o.Identity(), at.rank, true)
		}
	}
}

// hintReadAheadLocked records a hit of a match in the lower tier. It never waits.
func (pro *promotions) hintReadAheadLocked(n tier.Name, p *objects.Profile, t *objects.Tenant) {
	pro.hintAheadLocked(wanted{name: n, profile: p, tenant: t})
}

func (pro *promotions) hintAheadLocked(w wanted) {
	if !pro.cfg.ReadAhead {
		return
	}
	if !pro.hints.Add(w) {
		pro.counters.ReadAheadDropped++
	} else if pro.hints.Len() == 1 {
		pro.engine.Wake()
	}
}

// hintRows is the maximum number of recorded hits that one critical section handles.
const hintRows = 32

// readAheadLocked starts promotions for some of the recorded hits, until a promotion is
// ready to run. It reports whether more hits are left.
func (pro *promotions) readAheadLocked() (more bool) {
	h := &pro.hints
	var far []wanted
	for n := 0; n < hintRows && h.Len() > 0 && !pro.engine.Waiting(); n++ {
		w := h.Take()
		if o := pro.objects.Names.Find(w.name, w.profile, w.tenant); pro.engine.Find(w.name) == nil && (o == nil || o.Phase == objects.Stripped) {
			if o == nil && pro.farLocked(w.identity()) {
				far = append(far, w)
			} else {
				pro.promoteLocked(w)
			}
		}
	}
	pro.remote.seekAheadLocked(far)
	return h.Len() > 0
}

// aheadShare limits objects that were read ahead and are not used yet, including those in
// flight, to 1/aheadShare of a pool (a guess: a prompt's segments are far smaller). Wrong
// guesses therefore evict at most an eighth of a pool, its least valuable objects, and
// nothing that is leased.
const aheadShare = 8

// readAheadRoomLocked reports whether the pool and the tenant have room to read the objects
// of some promotions ahead. A read-ahead is a guess, and must not evict what the tenant
// has.
func (pro *promotions) readAheadRoomLocked(nodes []*promotion) bool {
	var bytes, charge int64
	for _, p := range nodes {
		size := p.size()
		bytes, charge = bytes+size.PageBytes, charge+size.Charge()
	}
	first := nodes[0]
	if first.pool.AheadBytes+bytes <= first.pool.Budget/aheadShare && pro.objects.Quotas.Over(first.tenant, charge) <= 0 {
		return true
	}
	pro.counters.ReadAheadDropped++
	return false
}

// expectUseLocked starts a timeout for the first use of an object that was read ahead.
// After it an unused object no longer counts towards aheadShare. The object itself stays.
func (pro *promotions) expectUseLocked(o *objects.Object) {
	o.Until = deadline.Deadline[any]{At: pro.cfg.Now().Add(pro.cfg.FillTTL), Order: pro.leaseIDs.Add(1), Of: o}
	pro.objects.Deadlines.Add(&o.Until)
}
