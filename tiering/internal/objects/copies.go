package objects

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
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

// Copies has the copies in HBM, on all devices.
type Copies struct {
	cfg      *Options
	tenants  map[tier.TenantID]*Tenant
	table    *policy.Table[Object]
	names    *Names
	below    *Below
	policies *Policies
	quotas   *Quotas
	accounts *Accounts
	Devices  []*Device              // in the order of their ids
	Held     map[Identity]*resident // nil without devices
	Loose    int                    // residents whose object is not in memory
}

// New returns a description of a copy of an object for a device. The copy has no memory yet.
func (hbm *Copies) New(o *Object, d *Device) *Object {
	c := &Object{
		Key: o.Key, Kind: o.Kind, Profile: o.Profile, Tenant: o.Tenant, Pool: d.Pools[PoolNumber(o.Kind)],
		Spec: o.Spec, Begin: o.Begin, End: o.End, Depth: 1, Publisher: o.Publisher, Shares: make([]Share, o.Profile.Ranks),
	}
	if c.Kind != 0 {
		c.Begin = 0 // the rows of the whole chain
	} else if o.Packed != "" {
		c.LaidOut(o.copiedAs())
	}
	c.Created = hbm.cfg.Now()
	c.Used = c.Created
	hbm.Measure(c, c.Layout().Bytes, c.Layout().Chunks())
	return c
}

// Copy returns a rank's copy on a device; nil if there is none, or if its object is no
// longer cached in memory or the lower tier.
func (hbm *Copies) Copy(k CopyKey) *Object { return hbm.Resident(k.Identity).On(k.Device, k.Rank) }

// Resident returns the copies of an object; nil = none. If the object is no longer cached in
// memory or the lower tier, Resident drops the copies.
func (hbm *Copies) Resident(k Identity) *resident {
	if len(hbm.Devices) == 0 {
		return nil
	}
	r := hbm.Held[k]
	if r != nil && !hbm.stands(r) {
		hbm.Drop(r, stats.DropObject)
		return nil
	}
	return r
}

// stands reports whether the object of some copies is still cached in memory or the lower tier.
func (hbm *Copies) stands(r *resident) bool {
	if r.Source != nil {
		return hbm.names.Sound(r.Source)
	}
	e, ok := hbm.below.Lookup(r.Name, r.Profile, r.Tenant)
	return ok && e.Generation == r.generation
}

// Has reports whether the object of an entry, which is not in memory, has the copies in
// HBM that a client on a device needs.
func (hbm *Copies) Has(e *tier.Entry, p *Profile, t *Tenant, on tier.DeviceID) bool {
	if len(hbm.Devices) == 0 || hbm.Loose == 0 {
		return false
	}
	r := hbm.Held[Identity{e.Name, p, t}]
	return r != nil && r.Source == nil && r.generation == e.Generation && r.Serves(on)
}

// Add makes a verified copy visible to lookups.
func (hbm *Copies) Add(c, source *Object, rank int, from []uint64) {
	r := source.Resident
	if r == nil {
		r = &resident{Identity: source.Identity(), Source: source}
		source.Resident = r
		hbm.Held[r.Identity] = r
	}
	d := c.Pool.Device
	if r.On(d.ID, rank) != nil {
		panic(fmt.Sprintf("objects: %s has two copies of rank %d on device %d", c.Name(), rank, d.ID))
	}
	r.Copies = append(r.Copies, Copy{c, rank, from})
	c.Resident = r
	c.on(evFind)
	d.Counters.Copies++
	hbm.accounts.settle(c)
	hbm.policies.Rank(c)
}

// drop hides a copy from lookups. Its memory is freed now or when its last user ends.
func (hbm *Copies) drop(c *Object, why stats.Drop) {
	r := c.Resident
	r.Copies = slices.DeleteFunc(r.Copies, func(x Copy) bool { return x.Object == c })
	if len(r.Copies) == 0 {
		delete(hbm.Held, r.Identity)
		if r.Source != nil {
			r.Source.Resident = nil
		} else {
			hbm.Loose--
		}
	}
	c.Resident = nil
	c.on(evDetach)
	counters := &c.Pool.Device.Counters
	counters.Copies--
	counters.Dropped[why]++
	counters.DroppedBytes += uint64(c.Bytes)
	hbm.policies.Rank(c)
	hbm.accounts.settle(c)
}

// Drop drops all copies of an object and returns their number.
func (hbm *Copies) Drop(r *resident, why stats.Drop) int {
	return hbm.dropSome(r, why, func(*Object) bool { return true })
}

func (hbm *Copies) dropSome(r *resident, why stats.Drop, which func(*Object) bool) (n int) {
	for _, c := range slices.Clone(r.Copies) {
		if which(c.Object) {
			hbm.drop(c.Object, why)
			n++
		}
	}
	return n
}

// leave handles the copies of an object that leaves memory, or whose states leave memory.
// If the object was evicted and the lower tier has an entry of it, the copies stay and belong to
// that entry. Otherwise the copies are dropped, even if the object is still being written to the
// lower tier.
func (hbm *Copies) leave(o *Object, why tier.Reason) {
	r := o.Resident
	if r == nil || o.InHBM() {
		return
	}
	if why == tier.ReasonEvicted {
		if e, held := hbm.below.Of(o); held {
			r.Source, r.generation, o.Resident = nil, e.Generation, nil
			hbm.Loose++
			for _, c := range r.Copies {
				hbm.policies.revalue(c.Object)
			}
			return
		}
	}
	drop := stats.DropObject
	if why == tier.ReasonRemoved {
		drop = stats.DropRemoved
	}
	hbm.Drop(r, drop)
}

// adopt attaches existing copies to an object that has become whole in memory. Copies with
// other digests are dropped, since the object may have been computed again.
func (hbm *Copies) adopt(o *Object) {
	if len(hbm.Devices) == 0 {
		return
	}
	r := hbm.Held[o.Identity()]
	if r == nil {
		return
	}
	for _, c := range slices.Clone(r.Copies) {
		if !slices.Equal(c.From, o.Shares[c.Rank].Digests) {
			hbm.drop(c.Object, stats.DropObject)
		}
	}
	if len(r.Copies) > 0 {
		r.Source, o.Resident = o, r
		hbm.Loose--
	}
}

// Remove drops the copies of a name that an operator removes.
func (hbm *Copies) Remove(n tier.Name, profiles []*Profile) {
	if len(hbm.Devices) == 0 {
		return
	}
	for _, p := range profiles {
		for _, t := range hbm.tenants {
			if r := hbm.Held[Identity{n, p, t}]; r != nil {
				hbm.Drop(r, stats.DropRemoved)
			}
		}
	}
}

// Sweep goes through some rows of the table, from the row numbered first. It drops copies
// whose object the lower tier has evicted, or whose profile is no longer registered. The result
// is true if the table has more rows.
func (hbm *Copies) Sweep(first, rows int) (more bool) {
	if hbm.Loose == 0 {
		return false
	}
	places := hbm.table.Places()
	for _, c := range places[min(first, len(places)):min(first+rows, len(places))] {
		if c == nil || !c.InHBM() || c.Resident == nil || c.Resident.Source != nil {
			continue
		}
		if c.Profile.Forgotten || !hbm.stands(c.Resident) {
			hbm.Drop(c.Resident, stats.DropObject)
		}
	}
	return first+rows < len(places)
}

// Used counts a use of a copy also as a use of its object, so that an object that is
// often read in HBM is not evicted elsewhere.
func (hbm *Copies) Used(c *Object, now time.Time) {
	if o := c.Resident.Source; o != nil {
		o.Hits++
		hbm.policies.Used(o, now)
		return
	}
	hbm.below.Touch(c.Label())
}

// MakeRoom drops copies until o fits its pool of HBM and its tenant's quota. If that is
// impossible it drops nothing and returns why. It never evicts objects from memory or the lower
// tier. If the parameter guess is true, no client waits for o, and no copy is dropped for it.
// ErrAgain means that the caller must release the lock and call again.
func (hbm *Copies) MakeRoom(o *Object, guess bool) error {
	p, t := o.Pool, o.Tenant
	overPool, overQuota := p.Used+o.PageBytes-p.Budget, hbm.quotas.Over(t, o.Charge())
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
	if _, more := hbm.Yield(t, overQuota); more {
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
		hbm.drop(hbm.table.Get(id), stats.DropRoom)
	}
	return nil
}

// Yield drops copies of a tenant in HBM, least valuable first, until it has freed the given
// number of bytes or no unused copy is left. It returns the number of freed bytes. For a quota,
// copies are dropped before anything else, since that loses nothing. The second result is true if
// it stopped early, after EvictRows copies.
func (hbm *Copies) Yield(t *Tenant, bytes int64) (freed int64, more bool) {
	if t.Above == nil || len(hbm.Devices) == 0 {
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
		hbm.drop(hbm.table.Get(id), stats.DropQuota)
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
func (hbm *Copies) YieldToWrite(o *Object) {
	if t := o.Tenant; t.QuotaBytes > 0 {
		hbm.Yield(t, hbm.quotas.Over(t, writtenBytes(o)))
	}
}

// Allocate allocates the memory of an object in HBM. The caller has made room.
func (hbm *Copies) Allocate(o *Object, rank int) {
	extents, err := o.Pool.Device.Pages.Alloc(o.RankBytes)
	if err != nil {
		panic(fmt.Sprintf("objects: the %s pool of HBM uses %d of %d bytes, yet: %v", o.Pool.Name, o.Pool.Used, o.Pool.Budget, err))
	}
	o.Shares[rank].Extents = trim(extents, o.RankBytes)
	hbm.accounts.Book(o)
}

// Measure sets the size of one rank's copy or buffer in HBM, with a number of digests.
// HBM has no token ids.
func (hbm *Copies) Measure(o *Object, bytes int64, digests int) {
	o.Size = Size{RankBytes: bytes, Bytes: bytes, PageBytes: o.Pool.Device.PagesOf(bytes), RecordBytes: recordBytes(1, digests)}
}

// Open adds the memory of an accelerator: its pages, and the budgets of its two
// pools, which must be whole pages. Device ids follow the order of the calls, from 1.
func (hbm *Copies) Open(arena gpuipc.Region, pageBytes int, public, private int64) *Device {
	if hbm.Held == nil {
		hbm.Held = map[Identity]*resident{}
	}
	hbm.Devices = append(hbm.Devices, nil)
	n := len(hbm.Devices)
	d := &Device{ID: tier.DeviceID(n), arena: arena, pageBytes: pageBytes, Pages: gpuipc.NewPageAllocator(public+private, pageBytes)}
	first := n * PoolCount
	d.Pools[PublicPool] = &Pool{Name: "public", Number: first + PublicPool, Device: d, Budget: public, Evict: hbm.cfg.EvictionPublic()}
	d.Pools[PrivatePool] = &Pool{Name: "private", Number: first + PrivatePool, Device: d, Budget: private, Evict: hbm.cfg.EvictionPrivate()}
	for _, t := range hbm.tenants {
		t.Used = append(t.Used, make([]int64, PoolCount)...)
		if t.Evict != nil && t.Above == nil {
			t.Above = hbm.cfg.Eviction()
		}
	}
	hbm.Devices[n-1] = d
	return d
}

// Lose marks a device as lost, drops its copies and returns their number. The objects of
// all these copies are also in memory or the lower tier.
func (hbm *Copies) Lose(d *Device) (copies int) {
	d.Lost = true
	d.Counters.Lost = 1
	for _, r := range hbm.Held {
		copies += hbm.dropSome(r, stats.DropLost, func(c *Object) bool { return c.Pool.Device == d })
	}
	return copies
}
