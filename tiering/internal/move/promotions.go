package move

import (
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// open creates the engine that brings objects into memory.
func (pro *Promotions) open() {
	pro.Engine = transfer.New[tier.Name](transfer.Config{
		Lock: &pro.cat.Mu, Workers: true, Queue: pro.cat.Config.PromoteQueue, Share: max(pro.cat.Config.MaxChain, pro.cat.Config.PromoteQueue/len(pro.cat.Objects.Tenants)),
		Bytes: pro.cat.Config.PromoteBytes, Lanes: lanes, Turns: maxRoomTurns, Now: pro.cat.Config.Now, Idle: pro.ReadAheadLocked, After: pro.cat.Launch, Took: func(lane int, took time.Duration) { pro.cat.Durations.Fetch(lane == LaneBeyond, took) },
	})
}

// kickLocked makes promotions that wait for memory try again.
func (pro *Promotions) kickLocked() {
	if pro.Engine != nil {
		pro.Engine.Kick()
	}
}

// Promotions have one lane per source, so that a hung peer does not block reads of the disk.
const (
	LaneBelow = iota
	LaneBeyond
	lanes
)

// maxRoomTurns is the largest number of times that a promotion waits for room. Another
// object may take the room each time.
const maxRoomTurns = 8

// PromotionLocked returns the promotion of a name, if there is one.
func (pro *Promotions) PromotionLocked(n tier.Name) *Promotion {
	if pro.Engine == nil {
		return nil
	}
	if f := pro.Engine.Find(n); f != nil {
		return f.Job.(*Promotion)
	}
	return nil
}

// PromoteLocked starts or joins the promotion of an entry and its ancestors. It returns
// nil if the entry cannot be promoted now: the entry no longer exists, a client is filling
// its object, or too much is being promoted.
func (pro *Promotions) PromoteLocked(w Wanted) *Promotion {
	if p := pro.PromotionLocked(w.Name); p != nil {
		if p.Profile != w.Profile || p.Tenant != w.Tenant {
			return nil
		}
		if w.Urgent {
			pro.urgeLocked(p)
		}
		return p
	}
	nodes, ok := pro.climbLocked(w)
	if !ok {
		return nil
	}
	if pro.cat.Closed || !pro.Engine.Room(uint32(w.Tenant.ID), len(nodes)) || !w.Urgent && !pro.readAheadRoomLocked(nodes) {
		return nil
	}
	var spare Spared
	for _, p := range nodes {
		if p.Into == nil {
			p.source, p.Further = pro.remote.takeCopyLocked(p.identity())
		}
		spare.names, spare.bytes = append(spare.names, p.name), spare.bytes+p.Entry.Bytes
	}
	for ahead := nodes[len(nodes)-1].lead; ahead != nil; ahead = ahead.next() {
		ahead.spare = Spared{slices.Concat(ahead.spare.names, spare.names), ahead.spare.bytes + spare.bytes}
	}
	for _, p := range slices.Backward(nodes) {
		p.spare = spare
		pro.startLocked(p, w.Urgent)
	}
	for _, p := range slices.Backward(nodes) {
		if p.source == nil {
			pro.cat.Objects.Below.Touch(p.name) // so that the lower tier does not evict it for new entries
		}
	}
	if w.Urgent {
		pro.urgeLocked(nodes[0]) // the promotions that it joined may be read-aheads
	}
	return nodes[0]
}

// climbLocked lists promotions for an entry and its ancestors. It stops at the first ancestor
// that is in memory or is being promoted, and sets this ancestor as the field base or lead of
// the last promotion. Each listed entry is in the lower tier or was found outside the node. The
// second result is false if an entry is in neither place.
func (pro *Promotions) climbLocked(w Wanted) (nodes []*Promotion, ok bool) {
	name, end := w.Name, 0
	for len(nodes) < pro.cat.Config.MaxChain {
		if p := pro.PromotionLocked(name); p != nil {
			if p.Profile != w.Profile || p.Tenant != w.Tenant || p.Entry.End != end {
				return nil, false
			}
			nodes[len(nodes)-1].lead = p
			return nodes, true
		}
		if o := pro.cat.Objects.Names.Find(name, w.Profile, w.Tenant); o != nil {
			if len(nodes) == 0 {
				return pro.restoreLocked(o, w)
			}
			if !o.Published() || o.End != end || !pro.cat.Objects.Names.Sound(o) {
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
		e, held := pro.cat.Objects.Below.Lookup(name, w.Profile, w.Tenant)
		if !held {
			e, held = pro.remote.FoundLocked(objects.Identity{Name: name, Profile: w.Profile, Tenant: w.Tenant})
		}
		if !held || len(nodes) > 0 && e.End != end || !w.Profile.Fits(&e) {
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

func (pro *Promotions) newPromotion(e *tier.Entry, w Wanted) *Promotion {
	return &Promotion{
		owner: pro, name: e.Name, Entry: *e, Profile: w.Profile, Tenant: w.Tenant, Pool: pro.cat.Objects.Pools[objects.PoolNumber(e.Kind)],
	}
}

// restoreLocked returns a promotion that restores the states of a stripped node o. The second
// result is false if the lower tier does not have the node, or if the node cannot be restored
// now.
func (pro *Promotions) restoreLocked(o *objects.Object, w Wanted) ([]*Promotion, bool) {
	if o.Phase != objects.Stripped || o.Fill != nil || !pro.cat.Objects.Names.Sound(o) {
		return nil, false
	}
	e, held := pro.cat.Objects.Below.Of(o)
	if !held || !w.Profile.Fits(&e) {
		return nil, false
	}
	p := pro.newPromotion(&e, w)
	p.Into = o
	return []*Promotion{p}, true
}

func (pro *Promotions) startLocked(p *Promotion, urgent bool) {
	o := transfer.Options{Bytes: p.size().PageBytes, Owner: uint32(p.Tenant.ID), Urgent: urgent}
	if p.source != nil {
		o.Lane = LaneBeyond
	}
	if p.lead != nil {
		o.After = p.lead.Flight
	}
	p.Flight, _ = pro.Engine.Start(p.name, p, o)
	p.until = deadline.Deadline[any]{At: pro.cat.Config.Now().Add(pro.cat.Config.FillTTL), Order: pro.cat.LeaseIDs.Add(1), Of: p}
	pro.cat.Objects.Deadlines.Add(&p.until)
	if !urgent {
		p.Pool.AheadBytes += p.Bytes
		pro.cat.Counters.ReadAheadBegun++
	}
	pro.cat.Objects.Use(p.base)
	pro.cat.Objects.Use(p.Into)
}

// urgeLocked marks a promotion and the promotions that it follows as urgent, since a
// client waits for them.
func (pro *Promotions) urgeLocked(p *Promotion) {
	for f := p.Flight; f != nil; f = f.Lead() {
		if !f.Urgent() {
			f.Job.(*Promotion).Pool.AheadBytes -= f.Bytes
			pro.cat.Counters.ReadAheadUsed++
		}
	}
	pro.Engine.Urge(p.Flight)
}

// HintReadAheadLocked records a hit of a match in the lower tier. It never waits.
func (pro *Promotions) HintReadAheadLocked(n tier.Name, p *objects.Profile, t *objects.Tenant) {
	pro.HintAheadLocked(Wanted{Name: n, Profile: p, Tenant: t})
}

// HintAheadLocked records an object that may be read ahead. It never waits.
func (pro *Promotions) HintAheadLocked(w Wanted) {
	if !pro.cat.Config.ReadAhead {
		return
	}
	if !pro.Hints.Add(w) {
		pro.cat.Counters.ReadAheadDropped++
	} else if pro.Hints.Len() == 1 {
		pro.Engine.Wake()
	}
}

// hintRows is the maximum number of recorded hits that one critical section handles.
const hintRows = 32

// ReadAheadLocked starts promotions for some of the recorded hits, until a promotion is
// ready to run. It reports whether more hits are left.
func (pro *Promotions) ReadAheadLocked() (more bool) {
	h := &pro.Hints
	var far []Wanted
	for n := 0; n < hintRows && h.Len() > 0 && !pro.Engine.Waiting(); n++ {
		w := h.Take()
		if o := pro.cat.Objects.Names.Find(w.Name, w.Profile, w.Tenant); pro.Engine.Find(w.Name) == nil && (o == nil || o.Phase == objects.Stripped) {
			if o == nil && pro.FarLocked(w.Identity()) {
				far = append(far, w)
			} else {
				pro.PromoteLocked(w)
			}
		}
	}
	pro.remote.seekAheadLocked(far)
	return h.Len() > 0
}

// AheadShare limits objects that were read ahead and are not used yet, including those in
// flight, to 1/AheadShare of a pool (a guess: a prompt's segments are far smaller). Wrong
// guesses therefore evict at most an eighth of a pool, its least valuable objects, and
// nothing that is leased.
const AheadShare = 8

// readAheadRoomLocked reports whether the pool and the tenant have room to read the objects
// of some promotions ahead. A read-ahead is a guess, and must not evict what the tenant
// has.
func (pro *Promotions) readAheadRoomLocked(nodes []*Promotion) bool {
	var bytes, charge int64
	for _, p := range nodes {
		size := p.size()
		bytes, charge = bytes+size.PageBytes, charge+size.Charge()
	}
	first := nodes[0]
	if first.Pool.AheadBytes+bytes <= first.Pool.Budget/AheadShare && pro.cat.Objects.Quotas.Over(first.Tenant, charge) <= 0 {
		return true
	}
	pro.cat.Counters.ReadAheadDropped++
	return false
}

// remoteState is the state of a remote lookup for an object that neither memory nor the lower
// tier has.
type remoteState uint8

const (
	NotRemote remoteState = iota
	Hinted
	Searching // a lookup is running
	Located
	Fetching // being promoted
)

// BeyondLocked returns the remote state of an object that neither memory nor the lower
// tier has, and, if known, why it is a miss.
func (pro *Promotions) BeyondLocked(id objects.Identity) (remoteState, tier.Reason) {
	if pro.remote.Engine == nil {
		return NotRemote, tier.ReasonNone
	}
	if p := pro.PromotionLocked(id.Name); p != nil {
		if p.source == nil || p.Profile != id.Profile || p.Tenant != id.Tenant {
			return NotRemote, tier.ReasonNone
		}
		return Fetching, tier.ReasonNone
	}
	if k := pro.remote.remoteLookupLocked(id); k != nil {
		switch {
		case k.search != nil:
			return Searching, tier.ReasonNone
		case k.copy != nil:
			return Located, tier.ReasonNone
		}
		return NotRemote, k.why
	}
	if len(pro.cat.Objects.Below.Deleting) > 0 && pro.cat.Objects.Below.Deleting[id.Name] > 0 {
		return NotRemote, tier.ReasonNone
	}
	if _, ok := pro.remote.HintLocked(id); ok {
		return Hinted, tier.ReasonNone
	}
	return NotRemote, tier.ReasonNone
}

// FetchedLocked reports whether an object is being fetched from outside this node.
func (pro *Promotions) FetchedLocked(n tier.Name) bool {
	p := pro.PromotionLocked(n)
	return p != nil && p.source != nil
}

// FarLocked reports whether an object needs a remote lookup.
func (pro *Promotions) FarLocked(id objects.Identity) bool {
	if pro.remote.Engine == nil {
		return false
	}
	if _, held := pro.cat.Objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return false
	}
	at, _ := pro.BeyondLocked(id)
	return at == Hinted || at == Searching
}

// HeldFartherLocked reports whether an object that memory does not have may come from the
// lower tier or from outside this node.
func (pro *Promotions) HeldFartherLocked(id objects.Identity) bool {
	if _, held := pro.cat.Objects.Below.Lookup(id.Name, id.Profile, id.Tenant); held {
		return true
	}
	at, _ := pro.BeyondLocked(id)
	return at != NotRemote
}

// BestBeyondLocked finds a checkpoint of an accepted kind outside the node, an exact one
// rather than a spliced one. If there is none, it returns the reason.
func (pro *Promotions) BestBeyondLocked(hash *[32]byte, accept tier.CheckpointKind, p *objects.Profile, t *objects.Tenant) (n tier.Name, why tier.Reason) {
	if pro.remote.Engine == nil {
		return tier.Name{}, tier.ReasonNone
	}
	for _, kind := range [...]tier.CheckpointKind{tier.Exact, tier.Spliced} {
		if accept&kind == 0 {
			continue
		}
		n := tier.Name{Kind: kind, Key: *hash}
		if o := pro.cat.Objects.Names.Find(n, p, t); o != nil && (o.Fill == nil || !o.Fill.Fetched) {
			continue // this node has another object of this name
		}
		at, absent := pro.BeyondLocked(objects.Identity{Name: n, Profile: p, Tenant: t})
		if at != NotRemote {
			return n, tier.ReasonNone
		}
		why = objects.MoreTelling(why, absent)
	}
	return tier.Name{}, why
}
