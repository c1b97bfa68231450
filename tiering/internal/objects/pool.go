package objects

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const (
	PublicPool  = 0 // segments
	PrivatePool = 1 // checkpoints
	PoolCount   = 2
)

// Pool is one budget of the arena's pages. Pages themselves are not divided: any
// free page serves either pool. Guarded by the store's lock.
//
// Invariant: used is the sum of bytes over all classes; used-pinned is what
// eviction can give back, to the byte.
type Pool struct {
	Name   string
	Number int     // those of devices come behind those of memory
	Device *Device // nil = of memory
	Budget int64

	Used    int64          // bytes of pages, and of token ids, which lie beside them
	Saved   int64          // that live leases share, see Lease
	Pinned  int64          // of objects that are in use or have a descendant that is
	Bytes   [Classes]int64 // used, by what for
	Objects int
	Evict   policy.Eviction // of published objects
	floor   atomic.Uint64   // see FloorValue

	Offloading int64 // of pages of which a copy is being sent to others, linked or not

	Dirty      Backlog // with a lower tier: what that does not hold, and is not being written
	Unsent     Backlog // with outlets: what nobody was asked to take a copy of yet
	AheadBytes int64   // of pages, read ahead or on the way, and not used yet
}

// Backlog is what is to be copied before it leaves a pool, least valuable first; what may
// not leave is suspended.
type Backlog struct {
	policy.Eviction       // nil = nothing is copied
	Objects         int   // that are not suspended
	Bytes           int64 // of their pages
}

// change follows an object's standing.
func (b *Backlog) change(s *Set, o *Object, at *standing, next standing) {
	if b.Eviction == nil || next == *at {
		return
	}
	var it policy.Item
	if *at == Absent {
		it = s.Item(o)
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
	if next == Candidate && s.Short(o.Pool) {
		s.cfg.Short()
	}
}

// Tenant is a configured tenant and what it holds, in bytes of charges: the pages of
// all ranks, token ids and records. Guarded by the store's lock, apart from the first group.
type Tenant struct {
	ID   tier.TenantID
	Name string
	Salt []byte

	QuotaBytes int64    // over memory, HBM and the lower tier together; 0 = none
	behind     *catchUp // while its policies are not complete

	Used    []int64 // by the number of the pool
	Pinned  int64
	Leaving int64           // of classDemoting
	Offload int64           // of charges, as Pool.Offloading
	Evict   policy.Eviction // over both pools of memory; nil until there is a quota

	PinnedAbove int64           // of pinned, in HBM
	Above       policy.Eviction // over the pools of all devices; nil until there is a quota, or without HBM
}

// CatchesUp tells whether a tenant's policies are not complete yet.
func (t *Tenant) CatchesUp() bool { return t.behind != nil }

// Total is what a tenant holds in memory and in HBM.
func (t *Tenant) Total() (bytes int64) {
	for _, used := range t.Used {
		bytes += used
	}
	return bytes
}

// evictionOf is the tenant's policy for an object.
func (t *Tenant) evictionOf(o *Object) policy.Eviction {
	if o.InHBM() {
		return t.Above
	}
	return t.Evict
}

// StayingBytes is what a pool holds, apart from what is leaving it.
func (p *Pool) StayingBytes() int64 { return p.Used - p.Bytes[ClassDemoting] }

// StayingBytes is what a tenant holds in memory and in HBM, apart from what is leaving.
func (t *Tenant) StayingBytes() int64 { return t.Total() - t.Leaving }

// idleAbove is what dropping a tenant's copies in HBM gives back.
func (t *Tenant) idleAbove() int64 {
	idle := -t.PinnedAbove
	for _, used := range t.Used[PoolCount:] {
		idle += used
	}
	return idle
}

// PoolNumber is the number of the pool of memory that has a kind of objects.
func PoolNumber(kind tier.CheckpointKind) int {
	if kind == 0 {
		return PublicPool
	}
	return PrivatePool
}

// UsedBelow is how much a tenant holds in the lower tier.
func (s *Set) UsedBelow(t *Tenant) int64 {
	if s.cfg.Lower == nil {
		return 0
	}
	return s.cfg.Lower.Used(t.ID)
}

// OverQuota is by how much a tenant would be over its quota with more bytes.
func (s *Set) OverQuota(t *Tenant, bytes int64) int64 {
	if t.QuotaBytes == 0 {
		return 0
	}
	return t.Total() + s.UsedBelow(t) + bytes - t.QuotaBytes
}

// EvictRows bounds how many objects leave in one critical section: one takes a
// microsecond or two (measured).
const EvictRows = 8

// ErrAgain is of room that is not made yet: others want the lock meanwhile.
var ErrAgain = errors.New("objects: more has to leave")

// AnyID accepts all victims.
func AnyID(policy.ID) bool { return true }

// Allocate gives a new object its memory. Its owner has made room, so that a failure
// is a broken account.
func (s *Set) Allocate(o *Object, bytes int64) {
	for i := range o.Shares {
		o.Shares[i].Extents = s.allocatePages(o, bytes)
	}
}

func (s *Set) allocatePages(o *Object, bytes int64) []gpuipc.Extent {
	extents, err := s.Pages.Alloc(bytes)
	if err != nil {
		panic(fmt.Sprintf("objects: %s pool uses %d of %d bytes, yet: %v", o.Pool.Name, o.Pool.Used, o.Pool.Budget, err))
	}
	return trim(extents, bytes)
}

// freePages gives back what allocate took, apart from holes. It works
// on a copy, since an answer that names the extents may still be on its way to a
// client.
func (s *Set) freePages(extents []gpuipc.Extent) {
	whole := make([]gpuipc.Extent, 0, len(extents))
	for _, e := range extents {
		if e.Off != Hole {
			whole = append(whole, gpuipc.Extent{Off: e.Off, Len: s.PagesOf(e.Len)})
		}
	}
	s.Pages.Free(whole)
}
