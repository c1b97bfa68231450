package objects

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A copy in HBM is an object of a pool of HBM: leases, expiry, quarantine, policies and
// accounts treat it like any other. It is in no index; lookups find it through the
// resident of its object, the list of the object's copies.
//
//	promotion ──► filling ──► found ──► dropped ──► free
//	                 │      verified,            last lease and
//	                 │      its object there     operation ended
//	                 └──► free: wrong digest, object gone, device lost
//
// The copy of a checkpoint is a single node with the rows of the whole chain. The cost is
// that rows shared by two checkpoints are in HBM twice. The alternative, a chain of
// copies, needs a second tree whose nodes keep each other in use.

// copies is the state of all copies in HBM, on all devices.
type copies struct {
	Devices []*Device
	Held    map[Identity]*resident
	Loose   int // residents whose object is not in memory
}

// Identity names an object independently of its tier.
type Identity struct {
	Name    tier.Name
	Profile *Profile
	Tenant  *Tenant
}

// CopyKey names one rank's copy of an object on a device.
type CopyKey struct {
	Identity
	Rank   int
	Device tier.DeviceID
}

// Identity returns the identity of an object. A copy has the identity of its original.
func (o *Object) Identity() Identity { return Identity{o.Label(), o.Profile, o.Tenant} }

// resident lists the copies in HBM of one object, at least one. Guarded by the store's lock.
//
// Invariant: while the object is whole in memory, Source is the object, and its Resident
// points to this resident. Otherwise Source is nil.
type resident struct {
	Identity
	Source     *Object
	generation uint64 // generation of the lower tier's entry, while Source is nil
	Copies     []Copy // at most one per rank and device, in no order
}

// Copy is one rank's copy of an object.
type Copy struct {
	*Object
	Rank int
	From []uint64 // digests of the object's share at the time of the copy
}

// On returns the copy of a rank on a device; nil = none.
func (r *resident) On(d tier.DeviceID, rank int) *Object {
	if r == nil {
		return nil
	}
	for i := range r.Copies {
		if c := &r.Copies[i]; c.Rank == rank && c.Pool.Device.ID == d {
			return c.Object
		}
	}
	return nil
}

// NewCopy returns a description of a copy of an object for a device. The copy has no memory yet.
func (s *Set) NewCopy(o *Object, d *Device) *Object {
	c := &Object{
		Key: o.Key, Kind: o.Kind, Profile: o.Profile, Tenant: o.Tenant, Pool: d.Pools[PoolNumber(o.Kind)],
		Spec: o.Spec, Begin: o.Begin, End: o.End, Depth: 1, Publisher: o.Publisher, Shares: make([]Share, o.Profile.Ranks),
	}
	if c.Kind != 0 {
		c.Begin = 0 // the rows of the whole chain
	} else if o.Packed != "" {
		c.LaidOut(o.copiedAs())
	}
	c.Created = s.cfg.Now()
	c.Used = c.Created
	s.MeasureCopy(c, c.Layout().Bytes, c.Layout().Chunks())
	return c
}

// CopyOf returns a rank's copy on a device; nil if there is none, or if its object is no
// longer cached in memory or the lower tier.
func (s *Set) CopyOf(k CopyKey) *Object { return s.ResidentOf(k.Identity).On(k.Device, k.Rank) }

// ResidentOf returns the copies of an object; nil = none. If the object is no longer cached in
// memory or the lower tier, ResidentOf drops the copies.
func (s *Set) ResidentOf(k Identity) *resident {
	if s.HBM == nil {
		return nil
	}
	r := s.HBM.Held[k]
	if r != nil && !s.stands(r) {
		s.DropCopies(r, stats.DropObject)
		return nil
	}
	return r
}

// stands reports whether the object of some copies is still cached in memory or the lower tier.
func (s *Set) stands(r *resident) bool {
	if r.Source != nil {
		return s.Sound(r.Source)
	}
	e, ok := s.LookupBelow(r.Name, r.Profile, r.Tenant)
	return ok && e.Generation == r.generation
}

// Copied reports whether the object of an entry, which is not in memory, has the copies in
// HBM that a client on a device needs.
func (s *Set) Copied(e *tier.Entry, p *Profile, t *Tenant, on tier.DeviceID) bool {
	if s.HBM == nil || s.HBM.Loose == 0 {
		return false
	}
	r := s.HBM.Held[Identity{e.Name, p, t}]
	return r != nil && r.Source == nil && r.generation == e.Generation && r.Serves(on)
}

// AddCopy makes a verified copy visible to lookups.
func (s *Set) AddCopy(c, source *Object, rank int, from []uint64) {
	r := source.Resident
	if r == nil {
		r = &resident{Identity: source.Identity(), Source: source}
		source.Resident = r
		s.HBM.Held[r.Identity] = r
	}
	d := c.Pool.Device
	if r.On(d.ID, rank) != nil {
		panic(fmt.Sprintf("objects: %s has two copies of rank %d on device %d", c.Name(), rank, d.ID))
	}
	r.Copies = append(r.Copies, Copy{c, rank, from})
	c.Resident = r
	c.on(evFind)
	d.Counters.Copies++
	s.Account(c)
	s.Rank(c)
}

// dropCopy hides a copy from lookups. Its memory is freed now or when its last user ends.
func (s *Set) dropCopy(c *Object, why stats.Drop) {
	r := c.Resident
	r.Copies = slices.DeleteFunc(r.Copies, func(x Copy) bool { return x.Object == c })
	if len(r.Copies) == 0 {
		delete(s.HBM.Held, r.Identity)
		if r.Source != nil {
			r.Source.Resident = nil
		} else {
			s.HBM.Loose--
		}
	}
	c.Resident = nil
	c.on(evDetach)
	counters := &c.Pool.Device.Counters
	counters.Copies--
	counters.Dropped[why]++
	counters.DroppedBytes += uint64(c.Bytes)
	s.Rank(c)
	s.Account(c)
}

// DropCopies drops all copies of an object and returns their number.
func (s *Set) DropCopies(r *resident, why stats.Drop) int {
	return s.dropCopies(r, why, func(*Object) bool { return true })
}

func (s *Set) dropCopies(r *resident, why stats.Drop, which func(*Object) bool) (n int) {
	for _, c := range slices.Clone(r.Copies) {
		if which(c.Object) {
			s.dropCopy(c.Object, why)
			n++
		}
	}
	return n
}

// leaveCopies handles the copies of an object that leaves memory, or whose states leave memory.
// If the object was evicted and the lower tier has an entry of it, the copies stay and belong to
// that entry. Otherwise the copies are dropped, even if the object is still being written to the
// lower tier.
func (s *Set) leaveCopies(o *Object, why tier.Reason) {
	r := o.Resident
	if r == nil || o.InHBM() {
		return
	}
	if why == tier.ReasonEvicted {
		if e, held := s.Below(o); held {
			r.Source, r.generation, o.Resident = nil, e.Generation, nil
			s.HBM.Loose++
			for _, c := range r.Copies {
				s.revalue(c.Object)
			}
			return
		}
	}
	drop := stats.DropObject
	if why == tier.ReasonRemoved {
		drop = stats.DropRemoved
	}
	s.DropCopies(r, drop)
}

// adopt attaches existing copies to an object that has become whole in memory. Copies with
// other digests are dropped, since the object may have been computed again.
func (s *Set) adopt(o *Object) {
	if s.HBM == nil {
		return
	}
	r := s.HBM.Held[o.Identity()]
	if r == nil {
		return
	}
	for _, c := range slices.Clone(r.Copies) {
		if !slices.Equal(c.From, o.Shares[c.Rank].Digests) {
			s.dropCopy(c.Object, stats.DropObject)
		}
	}
	if len(r.Copies) > 0 {
		r.Source, o.Resident = o, r
		s.HBM.Loose--
	}
}

// RemoveCopies drops the copies of a name that an operator removes.
func (s *Set) RemoveCopies(n tier.Name, profiles []*Profile) {
	if s.HBM == nil {
		return
	}
	for _, p := range profiles {
		for _, t := range s.Tenants {
			if r := s.HBM.Held[Identity{n, p, t}]; r != nil {
				s.DropCopies(r, stats.DropRemoved)
			}
		}
	}
}

// SweepCopies goes through some rows of the table, from the row numbered first. It drops copies
// whose object the lower tier has evicted, or whose profile is no longer registered. The result
// is true if the table has more rows.
func (s *Set) SweepCopies(first, rows int) (more bool) {
	if s.HBM.Loose == 0 {
		return false
	}
	places := s.Table.Places()
	for _, c := range places[min(first, len(places)):min(first+rows, len(places))] {
		if c == nil || !c.InHBM() || c.Resident == nil || c.Resident.Source != nil {
			continue
		}
		if c.Profile.Forgotten || !s.stands(c.Resident) {
			s.DropCopies(c.Resident, stats.DropObject)
		}
	}
	return first+rows < len(places)
}

// UsedCopy counts a use of a copy also as a use of its object, so that an object that is
// often read in HBM is not evicted elsewhere.
func (s *Set) UsedCopy(c *Object, now time.Time) {
	if o := c.Resident.Source; o != nil {
		o.Hits++
		s.Used(o, now)
		return
	}
	s.TouchBelow(c.Label())
}

// MakeCopyRoom drops copies until o fits its pool of HBM and its tenant's quota. If that is
// impossible it drops nothing and returns why. It never evicts objects from memory or the lower
// tier. If the parameter guess is true, no client waits for o, and no copy is dropped for it.
// ErrAgain means that the caller must release the lock and call again.
func (s *Set) MakeCopyRoom(o *Object, guess bool) error {
	p, t := o.Pool, o.Tenant
	overPool, overQuota := p.Used+o.PageBytes-p.Budget, s.OverQuota(t, o.Charge())
	evictable, yields := p.Used-p.Pinned, t.idleAbove()
	if guess {
		evictable, yields = 0, 0
	}
	if overPool > evictable {
		return fmt.Errorf("%s: %d bytes of pages, the %s pool of device %d holds %d of %d, %d of them evictable: %w",
			o.Name(), o.PageBytes, p.Name, p.Device.ID, p.Used, p.Budget, evictable, tier.ErrFull)
	}
	if overQuota > yields {
		return fmt.Errorf("%s: %d bytes in HBM, tenant %q is over its quota of %d by %d, %d of them in idle copies: %w",
			o.Name(), o.Charge(), t.Name, t.QuotaBytes, overQuota, yields, tier.ErrQuota)
	}
	if _, more := s.Yield(t, overQuota); more {
		return ErrAgain
	}
	for n := 0; p.Used+o.PageBytes > p.Budget; n++ {
		if n == EvictRows {
			return ErrAgain
		}
		id, ok := p.Evict.Victim(AnyID)
		if !ok {
			panic(fmt.Sprintf("objects: no victim among %d copies although bytes are evictable", p.Evict.Len()))
		}
		s.dropCopy(s.Table.Get(id), stats.DropRoom)
	}
	return nil
}

// Yield drops copies of a tenant in HBM, least valuable first, until it has freed the given
// number of bytes or no unused copy is left. It returns the number of freed bytes. For a quota,
// copies are dropped before anything else, since that loses nothing. The second result is true if
// it stopped early, after EvictRows copies.
func (s *Set) Yield(t *Tenant, bytes int64) (freed int64, more bool) {
	if t.Above == nil || s.HBM == nil {
		return 0, false
	}
	before := t.Total()
	for n := 0; freed < bytes; n++ {
		if n == EvictRows {
			return freed, true
		}
		id, ok := t.Above.Victim(AnyID)
		if !ok {
			break
		}
		s.dropCopy(s.Table.Get(id), stats.DropQuota)
		freed = before - t.Total()
	}
	return freed, false
}

// writtenBytes is an upper estimate of an object's size in the lower tier: its bytes, and headers
// that contain the token ids and digests twice. The estimate is generous (a guess): if one copy
// too many is dropped because of it, that costs only a promotion.
func writtenBytes(o *Object) int64 {
	return o.Bytes + o.Bytes/8 + 4*int64(o.Spec.Tokens) + 2*o.RecordBytes + 64<<10
}

// YieldToWrite makes room in a tenant's quota for an object that is to be written to the
// lower tier. It drops the tenant's copies in HBM, so that the tier evicts fewer entries.
func (s *Set) YieldToWrite(o *Object) {
	if t := o.Tenant; t.QuotaBytes > 0 {
		s.Yield(t, s.OverQuota(t, writtenBytes(o)))
	}
}

// AllocateCopy allocates the memory of an object in HBM. The caller has made room.
func (s *Set) AllocateCopy(o *Object, rank int) {
	extents, err := o.Pool.Device.Pages.Alloc(o.RankBytes)
	if err != nil {
		panic(fmt.Sprintf("objects: the %s pool of HBM uses %d of %d bytes, yet: %v", o.Pool.Name, o.Pool.Used, o.Pool.Budget, err))
	}
	o.Shares[rank].Extents = trim(extents, o.RankBytes)
	s.Book(o)
}

// freeCopy frees the memory of a copy.
func (s *Set) freeCopy(o *Object) {
	for i := range o.Shares {
		whole := slices.Clone(o.Shares[i].Extents)
		for k := range whole {
			whole[k].Len = o.Pool.Device.PagesOf(whole[k].Len)
		}
		o.Pool.Device.Pages.Free(whole)
	}
}
