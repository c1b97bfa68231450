package objects

import (
	"encoding/binary"
	"time"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Policies keeps the eviction policies and the backlogs of pools and tenants up to date.
type Policies struct {
	cfg         *Options
	table       *policy.Table[Object]
	WriteBehind bool // every dirty object should be written at once, see ShortOf
	SendAll     bool // every object should be offered to outlets at once, see ShortOf
}

// Rank updates the policies after something about o has changed. Policies track all published
// objects that have their states. An object that is not evictable stays in a policy as
// suspended. So the cost of finding a victim does not depend on how much is leased. A use
// counts when it happens, and only for the requested object, not for its ancestors.
func (pol *Policies) Rank(o *Object) {
	next := Stand(o.Phase == Whole, o.Pins == 0 && (o.Children == 0 || o.Children == 1 && pol.MayStrip(o)))
	if next != o.Ranked {
		var it policy.Item
		if o.Ranked == Absent {
			it = pol.Item(o)
		}
		o.Ranked.change(next, o.Pool.Evict, o.ID, it, o.Used)
		switch own := o.Tenant.evictionOf(o); {
		case own == nil: // the tenant never had a quota
		case o.Tenant.behind == nil || o.InTenant != Absent:
			o.InTenant.change(next, own, o.ID, it, o.Used)
			o.InTenant = next
		case o.Ranked == Absent: // CatchUp will add it
			o.Tenant.behind.add(o, o.Used)
		}
		o.Ranked = next
	}
	pol.track(o)
	pol.tell(o)
}

// tell notifies the listener when an object in memory becomes a hit or ceases to be one.
func (pol *Policies) tell(o *Object) {
	hit := o.Phase == Whole && !o.Corrupt && !o.InHBM()
	if pol.cfg.Held == nil || hit == o.Told || o.Profile.Trial {
		return
	}
	o.Told = hit
	w := tier.Want{Name: o.Label(), Fingerprint: o.Profile.Fingerprint(), Tenant: o.Tenant.ID}
	if hit {
		pol.cfg.Held.Add(w)
	} else {
		pol.cfg.Held.Remove(w)
	}
}

// Used reports a use to the policies.
func (pol *Policies) Used(o *Object, now time.Time) {
	o.Used = now
	own := o.Tenant.evictionOf(o)
	if b := o.Tenant.behind; b != nil {
		b.add(o, now)
		own = nil
	}
	for _, p := range [...]policy.Eviction{o.Pool.Evict, own, o.Pool.Dirty.Eviction, o.Pool.Unsent.Eviction} {
		if p != nil {
			p.Touch(o.ID, now)
		}
	}
}

// revalue reports to the policies that an object's value has changed: the bytes that its
// eviction would free, or the time that a hit on it saves.
func (pol *Policies) revalue(o *Object) {
	if o.Ranked == Absent {
		return
	}
	it := pol.Item(o)
	for _, p := range [...]policy.Eviction{o.Pool.Evict, o.Tenant.evictionOf(o), o.Pool.Dirty.Eviction, o.Pool.Unsent.Eviction} {
		if p != nil {
			p.Update(o.ID, it)
		}
	}
}

// Item returns the description of an object that policies get. The eviction of a checkpoint
// without children also evicts the stripped ancestors that only it extends, so their bytes
// count. A hit on the checkpoint saves the tokens since its nearest ancestor that is whole.
func (pol *Policies) Item(o *Object) policy.Item {
	var extends policy.ID
	bytes, begin, end := o.PageBytes, 0, o.End-o.Begin // a segment may occur anywhere
	if o.Kind != 0 {
		begin, end = o.Begin, o.End
		if o.Children > 0 {
			bytes = o.StatePages
		}
		alone := o.Children == 0
		up := o.Parent
		for ; up != nil && up.Phase == Stripped; up = up.Parent {
			begin = up.Begin
			if alone = alone && up.Children == 1; alone {
				bytes += up.PageBytes
			}
		}
		if up != nil {
			extends = up.ID
		}
	}
	h := cost.Held{Begin: begin, End: end, Bytes: o.RankBytes * int64(len(o.Shares)), In: cost.Tier(pol.cfg.Place)}
	switch {
	case o.InHBM():
		h.Bytes, h.In, h.Below = o.RankBytes, cost.TierHBM, cost.TierDRAM
		if o.Resident != nil && o.Resident.Source == nil {
			h.Below = cost.TierDisk
		}
	case o.Stored != 0:
		h.Below = cost.TierDisk
	case o.Fetched:
		h.Below = cost.TierPeer
	}
	model := o.Profile.Costs.Model()
	return policy.Item{
		Bytes: bytes, Tokens: end - begin, Tenant: uint32(o.Tenant.ID), Key: o.ContentKey(), Extends: extends,
		// A lower bound: of objects that save nothing, those with more tokens are worth more.
		Saved: max(model.Saved(h), model.Prefill().Marginal(begin, end)/1000),
	}
}

// ContentKey returns a key by which policies remember an evicted object. The same object
// gets the same key when it is stored again. The key is never 0.
func (o *Object) ContentKey() uint64 {
	const odd = 0x9e3779b97f4a7c15 // from the golden ratio: spreads small numbers over all bits
	who := uint64(o.Kind)<<56 | uint64(o.Profile.ID)<<24 ^ uint64(o.Tenant.ID)
	return max(1, binary.LittleEndian.Uint64(o.Key[:8])^who*odd)
}

// SetStored records the level that an object has in the lower tier; 0 = it is not in the
// lower tier.
func (pol *Policies) SetStored(o *Object, level tier.Level) {
	if (o.Stored == 0) != (level == 0) {
		o.Stored = level
		pol.revalue(o)
	}
	o.Stored = level
	pol.Rank(o)
}

// track updates the pool's backlogs after something about o has changed.
//
// An object fetched from a peer is not dirty, since the peer has it. If every node that used
// the object once wrote it to disk, the disks would wear out for copies of the same bytes. A
// fetched object is written, and offered to the outlets, when it is evicted and no other node
// is believed to have it any more.
func (pol *Policies) track(o *Object) {
	held := o.Ranked != Absent && !o.Fetched && !o.Profile.Trial
	pol.changeBacklog(&o.Pool.Dirty, o, &o.Cleaning, Stand(held && o.Stored == 0, o.Pins == 0 && o.Write == nil && !o.Refused))
	pol.changeBacklog(&o.Pool.Unsent, o, &o.Sending, Stand(held && !o.Asked, o.Pins == 0))
}

// Short reports whether a pool has objects that should be copied elsewhere now.
func (pol *Policies) Short(p *Pool) bool {
	return pol.ShortOf(p, &p.Dirty) || pol.ShortOf(p, &p.Unsent)
}

// ShortOf reports whether objects of a backlog should be copied now. With write-behind, or
// with an outlet that gets everything, the result is true whenever the backlog is not empty.
// In all other cases two conditions must hold: the pool is fuller than HighWater, and the
// bytes that are free or can be dropped at once are fewer than the bytes above LowWater.
func (pol *Policies) ShortOf(p *Pool, b *Backlog) bool {
	switch {
	case b.Objects == 0:
		return false
	case b == &p.Dirty && pol.WriteBehind, b == &p.Unsent && pol.SendAll:
		return true
	}
	budget := float64(p.Budget)
	ready := float64(p.Budget - p.Pinned - b.Bytes)
	return float64(p.Used) > pol.cfg.HighWater*budget && ready < (1-pol.cfg.LowWater)*budget
}

// standing is the state of an object in a policy.
type standing uint8

const (
	Absent    standing = iota
	suspended          // known, but not evictable now
	Candidate          // evictable
)

// Stand returns the standing of an object in a policy. The parameter held is true if the
// policy tracks the object, and the parameter may is true if the object may be evicted.
func Stand(held, may bool) standing {
	switch {
	case !held:
		return Absent
	case may:
		return Candidate
	}
	return suspended
}

// change moves an object of a policy from one standing to another. The parameter it describes
// the object, and is used only if the policy does not know the object yet.
func (was standing) change(next standing, p policy.Eviction, id policy.ID, it policy.Item, used time.Time) {
	if was == Absent {
		p.Insert(id, it, used)
		was = Candidate
	}
	switch {
	case next == Absent:
		p.Remove(id)
	case next == suspended && was == Candidate:
		p.Suspend(id)
	case next == Candidate && was == suspended:
		p.Resume(id)
	}
}

// changeBacklog changes an object's standing in a backlog from the standing *at to the standing
// next.
func (pol *Policies) changeBacklog(b *Backlog, o *Object, at *standing, next standing) {
	if b.Eviction == nil || next == *at {
		return
	}
	var it policy.Item
	if *at == Absent {
		it = pol.Item(o)
	}
	at.change(next, b.Eviction, o.ID, it, o.Used)
	d := 0
	if next == Candidate {
		d = 1
	} else if *at == Candidate {
		d = -1
	}
	b.Bytes += int64(d) * o.PageBytes
	b.Objects += d
	*at = next
	if next == Candidate && pol.Short(o.Pool) {
		pol.cfg.Short()
	}
}

// MayStrip reports whether a checkpoint with one child can lose its states. If the store has a
// lower tier, the checkpoint can lose them only if that tier has it.
func (pol *Policies) MayStrip(o *Object) bool {
	if o.Children == 1 && pol.table.Get(o.Kids).NeedsStates() {
		return false
	}
	return o.StatePages > 0 && o.Write == nil && !o.Corrupt && (pol.cfg.Lower == nil || o.Stored != 0)
}

// revalueChild updates the value of a node's only child, whose savings and freed bytes depend on
// the node. For several children it does nothing: the next change of a child corrects its value.
func (pol *Policies) revalueChild(o *Object) {
	if o.Children == 1 {
		pol.revalue(pol.table.Get(o.Kids))
	}
}
