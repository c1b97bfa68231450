package move

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Promotion reads an entry of the lower tier, or a copy outside this node, into memory. It
// is the job of a flight (see package transfer), and fills an object as a client would.
// Guarded by the store's lock.
//
// Invariant: while there is a promotion of a name, no client fills an object of that name.
type Promotion struct {
	owner *Promotions
	*transfer.Flight

	name    tier.Name
	Entry   tier.Entry
	Profile *objects.Profile
	Tenant  *objects.Tenant
	Pool    *objects.Pool
	spare   Spared    // entries that the lower tier must not evict to make room for it
	source  tier.Copy // the copy that it reads; nil = it reads the entry of the lower tier

	lead    *Promotion      // promotion of its parent, until it starts
	base    *objects.Object // the parent in memory, kept in use until the promotion ends
	Into    *objects.Object // the stripped node whose states it restores, kept in use until the promotion ends
	Fill    *objects.Fill   // the fill of Object, once it has begun
	Object  *objects.Object // the object, once it has memory; a placeholder if Into is set
	content *tier.Content
	hash    profile.SegmentHash // of a segment: of the tokens in its entry
	until   deadline.Deadline[any]
	Further []RankOnDevice // ranks that also want the object in HBM
}

// Promotions is the part of a store that reads objects into memory: for clients that wait,
// and ahead of them after a match. Guarded by the store's lock.
type Promotions struct {
	cat     *catalog.Catalog
	remote  *Remote
	evictor *Evictor
	memory  *plan.Device // copies bytes in memory

	Engine *transfer.Engine[tier.Name] // nil if there is neither a lower tier nor a Remote
	Hints  transfer.Hints[Wanted]      // hits of matches, to be read ahead
}

func (p *Promotion) identity() objects.Identity {
	return objects.Identity{Name: p.name, Profile: p.Profile, Tenant: p.Tenant}
}

// describe returns the object of an entry, without memory.
func (p *Promotion) describe() *objects.Object {
	e := &p.Entry
	o := &objects.Object{
		Key: p.name.Key, Kind: p.name.Kind, Profile: p.Profile, Tenant: p.Tenant, Pool: p.Pool,
		Spec: e.Spec, Begin: e.Begin, End: e.End, Extends: e.Parent.Key, ExtendsKind: e.Parent.Kind, Depth: 1,
	}
	if e.Packed != "" {
		o.LaidOut(e.Packed, p.Profile.PartsOf(e))
	}
	return o
}

// size returns the size of the object.
func (p *Promotion) size() objects.Size {
	o := p.describe()
	return p.owner.cat.Objects.Memory.SizeOf(p.Profile, o.Layout(), o.Spec.Tokens)
}

// next returns the promotion that a started promotion p must follow; nil if there is none.
func (p *Promotion) next() *Promotion {
	if f := p.Lead(); f != nil {
		return f.Job.(*Promotion)
	}
	return nil
}

// Begin allocates the memory of a promotion.
func (p *Promotion) Begin(f *transfer.Flight) error {
	pro, o := p.owner, p.describe()
	if err := p.findAgain(o); err != nil {
		return err
	}
	if err := p.admit(f, o); err != nil {
		return err
	}
	switch err := pro.evictor.MakeRoomLocked(o, p.spare); {
	case errors.Is(err, objects.ErrAgain):
		return transfer.ErrAgain
	case errors.Is(err, errLeaving):
		return transfer.Parked(err) // wait for the end of a write that may free room
	case err != nil:
		return err
	}
	pro.cat.Objects.Memory.Allocate(o, o.RankBytes)
	now := pro.cat.Config.Now()
	o.Created, o.Used = now, now
	o.Fill = &objects.Fill{Layout: o.Layout(), Promoted: true, Fetched: p.source != nil, Copying: 1}
	if p.Into != nil {
		pro.cat.Objects.Accounts.Book(o)
		pro.cat.Objects.Account(o)
	} else {
		pro.cat.Objects.Link(o)
	}
	p.Object, p.Fill = o, o.Fill
	pro.cat.Running.Add(1)
	return nil
}

// findAgain checks that the entry or copy to read still exists.
func (p *Promotion) findAgain(o *objects.Object) error {
	pro := p.owner
	if p.source != nil {
		// A source may claim to have a segment of this tenant under a key that another tenant's
		// segment has. The bytes that it sends are checked, but only after they have arrived.
		if o.Kind == 0 && pro.cat.Objects.Names.Segments.Find(&o.Key) != nil {
			return fmt.Errorf("%s: another has its key: %w", o.Name(), tier.ErrInvalid)
		}
		return nil
	}
	e, ok := pro.cat.Objects.Below.Lookup(p.name, p.Profile, p.Tenant)
	if !ok || e.Spec != p.Entry.Spec || e.Begin != p.Entry.Begin || e.End != p.Entry.End || e.Parent != p.Entry.Parent || e.Packed != p.Entry.Packed {
		return fmt.Errorf("%s: %w", o.Name(), tier.ErrGone) // or the entry was written again in another shape
	}
	p.Entry = e
	return nil
}

// admit checks that o may be placed in memory, and sets its size.
func (p *Promotion) admit(f *transfer.Flight, o *objects.Object) error {
	pro := p.owner
	if p.base != nil {
		o.Parent, o.Depth = p.base, p.base.Depth+1
		if o.Depth > pro.cat.Config.MaxChain || !p.base.Linked() {
			return fmt.Errorf("%s: node %d of a chain: %w", o.Name(), o.Depth, tier.ErrInvalid)
		}
	}
	if p.Into != nil && (p.Into.Phase != objects.Stripped || p.Into.Fill != nil) {
		return fmt.Errorf("%s: its states are there again: %w", o.Name(), tier.ErrInvalid)
	}
	if o.Profile.Forgotten {
		return fmt.Errorf("%s: its profile is not registered any more: %w", o.Name(), tier.ErrInvalid)
	}
	bytes := o.Layout().Bytes
	if bytes == 0 || bytes > o.Pool.Budget/int64(o.Profile.Ranks) {
		return fmt.Errorf("%s: %d bytes for each rank: %w", o.Name(), bytes, tier.ErrFull)
	}
	pro.cat.Objects.Memory.Measure(o)
	if over := pro.cat.Objects.Quotas.Over(o.Tenant, o.Charge()); over > 0 && !f.Urgent() {
		// A read-ahead is a guess, and must not evict what the tenant has.
		return fmt.Errorf("%s: read ahead, %d bytes over the quota: %w", o.Name(), over, tier.ErrQuota)
	}
	return nil
}

// Move reads the object into the memory of a promotion and checks it.
func (p *Promotion) Move(ctx context.Context, _ *transfer.Flight, moved func(error)) {
	err := p.read(ctx)
	if transfer.OutcomeOf(err) == transfer.Failed {
		err = fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	moved(err)
}

func (p *Promotion) read(ctx context.Context) error {
	pro := p.owner
	refs := make([]gpuipc.Ref, len(p.Object.Shares))
	for i := range refs {
		refs[i] = pro.cat.Objects.Memory.Ref(&p.Object.Shares[i])
	}
	began := pro.cat.Config.Now()
	c, job, err := p.readFrom(ctx, refs)
	if err != nil {
		return err
	}
	p.Profile.Costs.Did(job, p.Bytes, pro.cat.Config.Now().Sub(began))
	if err := p.check(c); err != nil {
		return err
	}
	if err := p.checkPacked(refs); err != nil {
		return err
	}
	p.content = c
	if o := p.Object; o.Kind == 0 {
		p.hash = p.Profile.RollingHash(p.Tenant.Salt).Segment(o.Spec, c.Tokens)
	}
	return p.patch(ctx)
}

func (p *Promotion) readFrom(ctx context.Context, refs []gpuipc.Ref) (*tier.Content, cost.Job, error) {
	if p.source != nil {
		c, err := p.source.Read(ctx, refs)
		return c, cost.JobLoadPeer, err
	}
	c, err := p.owner.cat.Config.Lower.Read(ctx, &p.Entry, refs)
	return c, cost.JobLoadDisk, err
}

// check compares the content that the source returned with the object's description. It
// also checks that the key of a segment is the key of its tokens.
func (p *Promotion) check(c *tier.Content) error {
	o := p.Object
	if len(c.Digests) != len(o.Shares) || len(c.Tokens) != o.Spec.Tokens {
		return fmt.Errorf("%s: %d ranks and %d token ids: %w", o.Name(), len(c.Digests), len(c.Tokens), tier.ErrCorrupt)
	}
	for _, digests := range c.Digests {
		if want := o.Layout().Chunks(); len(digests) != want {
			return fmt.Errorf("%s: %d digests, want %d: %w", o.Name(), len(digests), want, tier.ErrCorrupt)
		}
	}
	if o.Kind == 0 && p.Profile.SegmentKey(p.Tenant.Salt, o.Spec, c.Tokens) != o.Key {
		return fmt.Errorf("%s: its token ids have another key: %w", o.Name(), tier.ErrCorrupt)
	}
	return nil
}

// checkPacked checks that packed parts are well-formed. Digests only show that the parts
// arrived as they were sent, and no kernel could read malformed parts.
func (p *Promotion) checkPacked(refs []gpuipc.Ref) error {
	o := p.Object
	if o.Packed == "" {
		return nil
	}
	for rank, ref := range refs {
		views, unpin, err := p.owner.cat.Device.Pin(ref, false)
		if err != nil {
			return err
		}
		defer unpin()
		for i := range o.Layout().Parts {
			part := &o.Layout().Parts[i]
			if !part.Packed {
				continue
			}
			if err := gpuipc.CheckPacked(gpuipc.Window(views, part.Off, part.Len), gpuipc.DType(part.DType), part.Shape, plan.IsRows(part.Kind)); err != nil {
				return fmt.Errorf("%s: rank %d, part %d of layer %d: %w: %w", o.Name(), rank, part.Kind, part.Layer, err, tier.ErrCorrupt)
			}
		}
	}
	return nil
}

// Landed does nothing: if the name was removed meanwhile, the flight was canceled then.
func (p *Promotion) Landed(*transfer.Flight) (again bool, err error) { return false, nil }

// End publishes the object of a promotion, or removes the object after an error.
func (p *Promotion) End(f *transfer.Flight, err error) {
	pro := p.owner
	if err == nil {
		p.publish(f)
	} else {
		p.fail(transfer.OutcomeOf(err))
	}
	pro.cat.Objects.Deadlines.Remove(&p.until)
	if p.source != nil {
		if p.Fill == nil { // otherwise Release discards it
			pro.remote.discardLocked(p.source)
		}
		pro.remote.endFetchLocked(p.identity(), err)
	}
	if !f.Urgent() && err != nil {
		p.Pool.AheadBytes -= f.Bytes
		pro.cat.Counters.ReadAheadFailed++
	}
	pro.cat.Objects.Unuse(p.base)
	pro.cat.Objects.Unuse(p.Into)
	p.base, p.Into = nil, nil
}

// publish makes the object a hit. It keeps the object in use for the waiting callers and
// for promotions of checkpoints that extend it.
func (p *Promotion) publish(f *transfer.Flight) {
	pro := p.owner
	for i := range p.Object.Shares {
		p.Object.Shares[i].Digests = p.content.Digests[i]
	}
	if p.Into != nil {
		p.restoreStates()
	}
	o := p.Object
	o.Publisher, o.TokenIDs, o.Hash, o.Stored = p.content.Publisher, p.content.Tokens, p.hash, p.Entry.Level
	o.Fetched, o.From = p.source != nil, tier.PlaceOf(p.source)
	why := decision.Promoted
	if o.Ahead = !f.Urgent(); o.Ahead {
		why = decision.ReadAhead
	}
	followers := f.Followers()
	o.Ops += f.Waiters() + len(followers)
	for _, g := range followers {
		g.Job.(*Promotion).base = o
	}
	pro.cat.Objects.Publish(o, pro.cat.Config.Now(), why)
	if o.Ahead {
		pro.expectUseLocked(o)
	}
	if o.Fetched {
		pro.cat.Counters.Beyond.FetchedBytes += uint64(o.Bytes)
	} else {
		pro.cat.Counters.PromotedBytes += uint64(o.Bytes)
	}
	pro.furtherLocked(p, o)
}

// fail removes the object that a promotion was filling. A read in progress keeps the
// memory until it ends.
func (p *Promotion) fail(how transfer.Outcome) {
	pro := p.owner
	if o := p.Object; o != nil {
		o.Fill.Dead = true
		if o.Phase == objects.Unlisted {
			pro.cat.Objects.Account(o)
		} else {
			pro.cat.Objects.Unlink(o, missReason(how))
		}
	}
	if o := p.Into; o != nil && o.Fill != nil {
		o.Fill.Dead = true // a patch may be running; it keeps the node in memory until it ends
	}
}

// OverdueLocked ends a promotion at its deadline.
func (p *Promotion) OverdueLocked() { p.owner.Engine.Cancel(p.Flight, transfer.ErrStopped) }

// Release frees the memory of a failed promotion.
func (p *Promotion) Release(*transfer.Flight) {
	pro := p.owner
	if o := p.Object; p.Fill != nil && o.Fill == p.Fill {
		o.Fill = nil
		pro.cat.Objects.Account(o)
	}
	pro.remote.discardLocked(p.source)
	pro.cat.Running.Done()
}

// Arrived returns the object that a promotion has brought.
func (p *Promotion) Arrived() *objects.Object { return p.Object }

// Reason returns why a row is a miss after the promotion failed.
func (p *Promotion) Reason(how transfer.Outcome) tier.Reason { return missReason(how) }

// Stripping frees the pages of a checkpoint's states, except states that share a page with
// rows. These leftover states are not valid. A client may have started to save the node
// again, from another run, and the copy in the lower tier may be of another run than the copy
// that was in memory. Restoring a node therefore writes all of its states: a save writes them
// by commits, a promotion writes those that share a page by a patch.
//
// While a patch runs, the node counts as being filled by the promotion, even if the promotion
// ends meanwhile. No other writer may write to the node, and its memory stays allocated.

// restoreStates moves the state pages that a promotion has read into the stripped
// node, after the patch. It takes them from the placeholder object p.Object, and then
// frees that object. The rows of the placeholder are not used, since others may be reading
// the rows of the node.
func (p *Promotion) restoreStates() {
	pro := p.owner
	from, o := p.Object, p.Into
	l := o.Layout()
	for i := range o.Shares {
		rest, states := objects.Punch(from.Shares[i].Extents, l.StatePages)
		from.Shares[i].Extents = rest
		o.Shares[i].Extents = objects.Mend(o.Shares[i].Extents, states)
		digests := slices.Clone(o.Shares[i].Digests)
		for k := range l.Parts {
			if !plan.IsRows(l.Parts[k].Kind) {
				copy(digests[l.FirstChunk[k]:l.FirstChunk[k+1]], from.Shares[i].Digests[l.FirstChunk[k]:])
			}
		}
		o.Shares[i].Digests = digests
	}
	pro.cat.Objects.Accounts.Resize(from, -o.StatePages, -o.StateBytes)
	pro.cat.Objects.Accounts.Resize(o, o.StatePages, o.StateBytes)
	pro.cat.Counters.StrippedPromoted++
	p.Object = o
	from.Fill = nil
	pro.cat.Objects.Account(from)
}

// patch copies the states that share pages with rows, from the memory that a promotion has
// read into to its stripped node.
func (p *Promotion) patch(ctx context.Context) error {
	pro := p.owner
	pro.cat.Mu.Lock()
	from, to := p.beginPatch()
	o := p.Into
	pro.cat.Mu.Unlock()
	if len(from) == 0 {
		return nil
	}
	var err error
	for rank := range from {
		if err = pro.memory.Copy(ctx, to[rank], from[rank]); err != nil {
			break
		}
	}
	pro.cat.Mu.Lock()
	o.Fill = nil
	pro.cat.Objects.Account(o)
	pro.cat.Mu.Unlock()
	return err
}

// beginPatch returns the ranges to copy, by rank. It returns none if the promotion
// is not of a stripped node or if no states share a page with rows.
func (p *Promotion) beginPatch() (from, to []gpuipc.Ref) {
	pro, o := p.owner, p.Into
	if o == nil {
		return nil, nil
	}
	edges := o.Layout().StateEdges
	if len(edges) == 0 {
		return nil, nil
	}
	for i := range o.Shares {
		from = append(from, objects.Gather(pro.cat.Objects.Memory.Ref(&p.Object.Shares[i]), edges))
		to = append(to, objects.Gather(pro.cat.Objects.Memory.Ref(&o.Shares[i]), edges))
	}
	o.Fill = &objects.Fill{Promoted: true, Copying: 1}
	pro.cat.Objects.Account(o)
	return from, to
}

// furtherLocked starts the copies to HBM that wait for an object that has just arrived in memory.
func (pro *Promotions) furtherLocked(p *Promotion, o *objects.Object) {
	for _, at := range p.Further {
		if o.Resident.On(at.Device.ID(), at.Rank) == nil {
			at.Device.Promote(o.Identity(), at.Rank, true)
		}
	}
}

// expectUseLocked starts a timeout for the first use of an object that was read ahead.
// After it an unused object no longer counts towards AheadShare. The object itself stays.
func (pro *Promotions) expectUseLocked(o *objects.Object) {
	o.Until = deadline.Deadline[any]{At: pro.cat.Config.Now().Add(pro.cat.Config.FillTTL), Order: pro.cat.LeaseIDs.Add(1), Of: o}
	pro.cat.Objects.Deadlines.Add(&o.Until)
}
