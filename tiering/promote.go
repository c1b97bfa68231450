package tiering

import (
	"context"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// promotion brings an entry of the lower tier into memory: the job of a flight, and
// a fill whose writer is the store itself. Guarded by the store's lock.
//
// Invariant: while there is a promotion of a name nobody else fills an object of
// that name.
type promotion struct {
	store *Store
	*transfer.Flight

	name    tier.Name
	entry   tier.Entry
	profile *profileState
	tenant  *tenant
	pool    *pool
	spare   spared // entries of the lower tier that must not be trimmed for it

	lead    *promotion // of its parent, until it starts
	base    *object    // the parent in memory, held until the object is linked
	into    *object    // the stripped node whose states it brings, held until then
	object  *object    // once it is placed; a placeholder's when into is set
	content *tier.Content
	until   deadline.Deadline[timed]
	further []int // ranks that want it in HBM as well
}

// wanted is what a promotion is to bring and for whom.
type wanted struct {
	name    tier.Name
	profile *profileState
	tenant  *tenant
	urgent  bool // a client asked for it; else a match has named it
}

// openPromotions makes the engine that brings objects into memory.
func (s *Store) openPromotions() {
	s.up = transfer.New[tier.Name](transfer.Config{
		Lock: &s.mu, Workers: true, Queue: s.cfg.PromoteQueue, Share: max(s.cfg.MaxChain, s.cfg.PromoteQueue/len(s.tenants)),
		Bytes: s.cfg.PromoteBytes, Turns: maxRoomTurns, Now: s.cfg.Now, Idle: s.readAheadLocked, After: s.launch,
	})
}

// maxRoomTurns bounds how often a promotion waits for room that somebody else
// may take before it.
const maxRoomTurns = 8

// promotionLocked is the promotion of a name, if there is one.
func (s *Store) promotionLocked(n tier.Name) *promotion {
	if s.up == nil {
		return nil
	}
	if f := s.up.Find(n); f != nil {
		return f.Job.(*promotion)
	}
	return nil
}

// promoteLocked begins, or joins, the promotion of an entry and of those it
// extends. It is nil when the entry cannot be promoted now: it is gone, somebody
// fills it, or too much is promoted already.
func (s *Store) promoteLocked(w wanted) *promotion {
	if p := s.promotionLocked(w.name); p != nil {
		if p.profile != w.profile || p.tenant != w.tenant {
			return nil
		}
		if w.urgent {
			s.urgeLocked(p)
		}
		return p
	}
	nodes, ok := s.climbLocked(w)
	if !ok {
		return nil
	}
	if s.closed || !s.up.Room(uint32(w.tenant.ID), len(nodes)) || !w.urgent && !s.readAheadRoomLocked(nodes) {
		return nil
	}
	var spare spared
	for _, p := range nodes {
		spare.names, spare.bytes = append(spare.names, p.name), spare.bytes+p.entry.Bytes
	}
	for up := nodes[len(nodes)-1].lead; up != nil; up = up.next() {
		up.spare = spared{slices.Concat(up.spare.names, spare.names), up.spare.bytes + spare.bytes}
	}
	for _, p := range slices.Backward(nodes) {
		p.spare = spare
		s.startLocked(p, w.urgent)
	}
	for _, p := range slices.Backward(nodes) {
		s.touchLocked(p.name) // so that nothing newer makes room by them
	}
	if w.urgent {
		s.urgeLocked(nodes[0]) // what it joined may be read ahead only
	}
	return nodes[0]
}

// climbLocked lists an entry and those it extends that are not in memory, up to
// one that is or is being promoted.
func (s *Store) climbLocked(w wanted) (nodes []*promotion, ok bool) {
	name, end := w.name, 0
	for len(nodes) < s.cfg.MaxChain {
		if p := s.promotionLocked(name); p != nil {
			if p.profile != w.profile || p.tenant != w.tenant || p.entry.End != end {
				return nil, false
			}
			nodes[len(nodes)-1].lead = p
			return nodes, true
		}
		if o := s.namedLocked(name, w.profile, w.tenant); o != nil {
			if len(nodes) == 0 {
				return s.restoreLocked(o, w)
			}
			if !o.published() || o.end != end || !s.soundLocked(o) {
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
	return &promotion{
		store: s, name: e.Name, entry: *e, profile: w.profile, tenant: w.tenant, pool: s.pools[poolNumber(e.Kind)],
	}
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

// pageBytes is what the object takes of its pool, with its token ids.
func (p *promotion) pageBytes() int64 {
	o := p.describe()
	return p.store.pagesOf(o.layout().Bytes)*int64(p.profile.ranks) + 4*int64(o.spec.Tokens)
}

func (s *Store) startLocked(p *promotion, urgent bool) {
	o := transfer.Options{Bytes: p.pageBytes(), Owner: uint32(p.tenant.ID), Urgent: urgent}
	if p.lead != nil {
		o.After = p.lead.Flight
	}
	p.Flight, _ = s.up.Start(p.name, p, o)
	p.until = deadline.Deadline[timed]{At: s.cfg.Now().Add(s.cfg.FillTTL), Order: s.leaseIDs.Add(1), Of: p}
	s.deadlines.Add(&p.until)
	if !urgent {
		p.pool.aheadBytes += p.Bytes
		s.counters.ReadAheadBegun++
	}
	s.useLocked(p.base)
	s.useLocked(p.into)
}

// urgeLocked puts a promotion, and those it waits for, among those that clients
// wait for.
func (s *Store) urgeLocked(p *promotion) {
	for f := p.Flight; f != nil; f = f.Lead() {
		if !f.Urgent() {
			f.Job.(*promotion).pool.aheadBytes -= f.Bytes
			s.counters.ReadAheadUsed++
		}
	}
	s.up.Urge(p.Flight)
}

// next is the promotion that one which has started follows, if there is one.
func (p *promotion) next() *promotion {
	if f := p.Lead(); f != nil {
		return f.Job.(*promotion)
	}
	return nil
}

// Begin gives a promotion its memory.
func (p *promotion) Begin(f *transfer.Flight) error {
	s := p.store
	e, ok := s.lookupLocked(p.name, p.profile, p.tenant)
	o := p.describe()
	if !ok || e.Spec != p.entry.Spec || e.Begin != p.entry.Begin || e.End != p.entry.End || e.Parent != p.entry.Parent {
		return fmt.Errorf("%s: %w", o.name(), tier.ErrGone) // or written again in another shape
	}
	p.entry = e
	if err := p.admit(f, o); err != nil {
		return err
	}
	switch err := s.makeRoomLocked(o, p.spare); {
	case err == errAgain: //nolint:errorlint // never wrapped
		return transfer.ErrAgain
	case err == errLeaving: //nolint:errorlint // never wrapped
		return transfer.Parked(err) // until a write has ended that may give room back
	case err != nil:
		return err
	}
	s.allocateLocked(o, o.rankBytes)
	now := s.cfg.Now()
	o.created, o.used = now, now
	o.fill = &fill{layout: o.layout(), promotion: p, copying: 1}
	if p.into != nil {
		s.bookLocked(o)
		s.settleLocked(o)
	} else {
		s.linkLocked(o)
	}
	p.object = o
	s.running.Add(1)
	return nil
}

// admit checks that o may come into memory, and measures it.
func (p *promotion) admit(f *transfer.Flight, o *object) error {
	s := p.store
	if p.base != nil {
		o.parent, o.depth = p.base, p.base.depth+1
		if o.depth > s.cfg.MaxChain || !p.base.linked() {
			return fmt.Errorf("%s: node %d of a chain: %w", o.name(), o.depth, tier.ErrInvalid)
		}
	}
	if p.into != nil && (p.into.phase != stripped || p.into.fill != nil) {
		return fmt.Errorf("%s: its states are there again: %w", o.name(), tier.ErrInvalid)
	}
	if o.profile.forgotten {
		return fmt.Errorf("%s: its profile is not registered any more: %w", o.name(), tier.ErrInvalid)
	}
	bytes := o.layout().Bytes
	if bytes == 0 || bytes > o.pool.budget/int64(o.profile.ranks) {
		return fmt.Errorf("%s: %d bytes for each rank: %w", o.name(), bytes, tier.ErrFull)
	}
	s.measure(o, bytes)
	if over := s.overQuota(o.tenant, o.bytes); over > 0 && !f.Urgent() {
		// A guess must not make a tenant lose what it has.
		return fmt.Errorf("%s: read ahead, %d bytes over the quota: %w", o.name(), over, tier.ErrQuota)
	}
	return nil
}

// Move fills a promotion's memory.
func (p *promotion) Move(ctx context.Context, _ *transfer.Flight, moved func(error)) {
	err := p.read(ctx)
	if transfer.OutcomeOf(err) == transfer.Failed {
		err = fmt.Errorf("%w: %w", tier.ErrUnavailable, err)
	}
	moved(err)
}

func (p *promotion) read(ctx context.Context) error {
	s := p.store
	refs := make([]gpuipc.Ref, len(p.object.shares))
	for i := range refs {
		refs[i] = s.ref(&p.object.shares[i])
	}
	began := s.cfg.Now()
	c, err := s.cfg.Lower.Read(ctx, &p.entry, refs)
	if err != nil {
		return err
	}
	p.profile.costs.Did(cost.JobLoadDisk, p.Bytes, s.cfg.Now().Sub(began))
	if err := p.check(c); err != nil {
		return err
	}
	p.content = c
	return s.patch(ctx, p)
}

// check compares what the tier keeps beside the bytes with what the object has
// to be: the key of a segment names its tokens.
func (p *promotion) check(c *tier.Content) error {
	o := p.object
	if len(c.Digests) != len(o.shares) || len(c.Tokens) != o.spec.Tokens {
		return fmt.Errorf("%s: %d ranks and %d token ids: %w", o.name(), len(c.Digests), len(c.Tokens), tier.ErrCorrupt)
	}
	for _, digests := range c.Digests {
		if want := o.layout().Chunks(); len(digests) != want {
			return fmt.Errorf("%s: %d digests, want %d: %w", o.name(), len(digests), want, tier.ErrCorrupt)
		}
	}
	if o.kind == 0 && p.profile.SegmentKey(p.tenant.Salt, o.spec, c.Tokens) != o.key {
		return fmt.Errorf("%s: its token ids have another key: %w", o.name(), tier.ErrCorrupt)
	}
	return nil
}

// Landed has nothing to add: what was removed meanwhile has ended.
func (p *promotion) Landed(*transfer.Flight) (again bool, err error) { return false, nil }

// End publishes the object of a promotion, or takes it away again.
func (p *promotion) End(f *transfer.Flight, err error) {
	s := p.store
	if err == nil {
		p.publish(f)
	} else {
		p.fail(transfer.OutcomeOf(err))
	}
	s.deadlines.Remove(&p.until)
	if !f.Urgent() && err != nil {
		p.pool.aheadBytes -= f.Bytes
		s.counters.ReadAheadFailed++
	}
	s.unuseLocked(p.base)
	s.unuseLocked(p.into)
	p.base, p.into = nil, nil
}

// publish makes the object a hit, held for those who wait for it and for the
// checkpoints that extend it.
func (p *promotion) publish(f *transfer.Flight) {
	s := p.store
	for i := range p.object.shares {
		p.object.shares[i].digests = p.content.Digests[i]
	}
	if p.into != nil {
		s.restoreStatesLocked(p)
	}
	o := p.object
	o.publisher, o.ids, o.stored = p.content.Publisher, p.content.Tokens, p.entry.Level
	why := decision.Promoted
	if o.ahead = !f.Urgent(); o.ahead {
		why = decision.ReadAhead
	}
	followers := f.Followers()
	o.ops += f.Waiters() + len(followers)
	for _, g := range followers {
		g.Job.(*promotion).base = o
	}
	s.publishLocked(o, s.cfg.Now(), why)
	if o.ahead {
		s.expectUseLocked(o)
	}
	s.counters.PromotedBytes += uint64(o.bytes)
	s.furtherLocked(p, o)
}

// fail takes away what a promotion was to fill. A read that runs keeps the memory
// until it ends.
func (p *promotion) fail(how transfer.Outcome) {
	s := p.store
	if o := p.object; o != nil {
		o.fill.dead = true
		if o.phase == unlisted {
			s.settleLocked(o)
		} else {
			s.unlinkLocked(o, promotionReason(how))
		}
	}
	if o := p.into; o != nil && o.fill != nil {
		o.fill.dead = true // a patch, which keeps the node until it ends
	}
}

// Release frees the memory of a promotion that has failed.
func (p *promotion) Release(*transfer.Flight) {
	s := p.store
	if o := p.object; o.fill != nil && o.fill.promotion == p {
		o.fill = nil
		s.settleLocked(o)
	}
	s.running.Done()
}

// arrived is what a promotion has brought.
func (p *promotion) arrived() *object { return p.object }

func (p *promotion) reason(how transfer.Outcome) tier.Reason { return promotionReason(how) }

// promotionReason is why a row is a miss after a promotion that failed.
func promotionReason(how transfer.Outcome) tier.Reason {
	switch how {
	case transfer.Corrupt, transfer.Gone:
		return tier.ReasonEvicted
	case transfer.NoRoom:
		return tier.ReasonRefused
	}
	return tier.ReasonAborted
}
