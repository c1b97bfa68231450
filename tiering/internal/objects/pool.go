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

// Pool is one budget of the arena's pages. Pages themselves are not divided: any free
// page serves either pool. Guarded by the store's lock.
//
// Invariant: used is the sum of bytes over all classes; used-pinned is what eviction can
// give back, to the byte.
type Pool struct {
	Name   string
	Number int     // pools of devices come after those of memory
	Device *Device // nil = a pool of memory
	Budget int64

	Used    int64          // bytes of pages, and of token ids, which are stored outside them
	Saved   int64          // by live leases that share objects, see Lease
	Pinned  int64          // of objects that are in use or have a descendant that is
	Bytes   [Classes]int64 // used, by class
	Objects int
	Evict   policy.Eviction // of published objects
	floor   atomic.Uint64   // see FloorValue

	Offloading int64 // pages of objects whose copy is being sent to outlets, linked or not

	Dirty      Backlog // with a lower tier: objects that it does not have and that are not being written
	Unsent     Backlog // with outlets: objects not yet offered to them
	AheadBytes int64   // of pages, read ahead or in flight, and not used yet
}

// Backlog lists the objects to be copied before their eviction, least valuable first.
// Objects that are not evictable are suspended.
type Backlog struct {
	policy.Eviction       // nil = nothing is copied
	Objects         int   // that are not suspended
	Bytes           int64 // of their pages
}

// change updates an object's standing.
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

// Tenant is a configured tenant and its charges in bytes: the pages of all ranks, token
// ids and records. Guarded by the store's lock, apart from the first group.
type Tenant struct {
	ID   tier.TenantID
	Name string
	Salt []byte

	QuotaBytes int64    // for memory, HBM and the lower tier together; 0 = none
	behind     *catchUp // while its policies are incomplete

	Used    []int64 // by pool number
	Pinned  int64
	Leaving int64           // of ClassDemoting
	Offload int64           // as Pool.Offloading, in charges
	Evict   policy.Eviction // for both pools of memory; nil before the first quota

	PinnedAbove int64           // part of Pinned, in HBM
	Above       policy.Eviction // for the pools of all devices; nil before the first quota, or without HBM
}

// CatchesUp reports whether a tenant's policies are still incomplete.
func (t *Tenant) CatchesUp() bool { return t.behind != nil }

// Total returns the tenant's bytes in memory and HBM.
func (t *Tenant) Total() (bytes int64) {
	for _, used := range t.Used {
		bytes += used
	}
	return bytes
}

// evictionOf returns the tenant's policy for an object.
func (t *Tenant) evictionOf(o *Object) policy.Eviction {
	if o.InHBM() {
		return t.Above
	}
	return t.Evict
}

// StayingBytes returns the bytes of a pool without those that are being demoted.
func (p *Pool) StayingBytes() int64 { return p.Used - p.Bytes[ClassDemoting] }

// StayingBytes returns the tenant's bytes in memory and HBM without those that are being
// demoted.
func (t *Tenant) StayingBytes() int64 { return t.Total() - t.Leaving }

// idleAbove returns the bytes that dropping a tenant's copies in HBM would free.
func (t *Tenant) idleAbove() int64 {
	idle := -t.PinnedAbove
	for _, used := range t.Used[PoolCount:] {
		idle += used
	}
	return idle
}

// PoolNumber returns the number of the pool of memory for a kind of object.
func PoolNumber(kind tier.CheckpointKind) int {
	if kind == 0 {
		return PublicPool
	}
	return PrivatePool
}

// UsedBelow returns the tenant's bytes in the lower tier.
func (s *Set) UsedBelow(t *Tenant) int64 {
	if s.cfg.Lower == nil {
		return 0
	}
	return s.cfg.Lower.Used(t.ID)
}

// OverQuota returns by how much a tenant would exceed its quota with more bytes.
func (s *Set) OverQuota(t *Tenant, bytes int64) int64 {
	if t.QuotaBytes == 0 {
		return 0
	}
	return t.Total() + s.UsedBelow(t) + bytes - t.QuotaBytes
}

// EvictRows bounds how many objects are evicted in one critical section: one takes a
// microsecond or two (measured).
const EvictRows = 8

// ErrAgain means that the room is not made yet, and that others should get the lock
// first.
var ErrAgain = errors.New("objects: more has to leave")

// AnyID accepts all victims.
func AnyID(policy.ID) bool { return true }

// Allocate allocates the memory of a new object. The caller has made room for it before, so
// it panics if there is none: the accounting is wrong then.
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

// freePages frees pages from allocatePages, except holes. It works on a copy, since a
// reply that contains the extents may still be on its way to a client.
func (s *Set) freePages(extents []gpuipc.Extent) {
	whole := make([]gpuipc.Extent, 0, len(extents))
	for _, e := range extents {
		if e.Off != Hole {
			whole = append(whole, gpuipc.Extent{Off: e.Off, Len: s.PagesOf(e.Len)})
		}
	}
	s.Pages.Free(whole)
}
