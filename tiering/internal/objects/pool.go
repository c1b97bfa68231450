package objects

import (
	"errors"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const (
	PublicPool  = 0 // segments
	PrivatePool = 1 // checkpoints
	PoolCount   = 2
)

// Pool is one budget of the arena's pages. The pages themselves are not divided: any free
// page serves either pool. A device has its own pools. Guarded by the store's lock.
//
// Invariant: Used is the sum of Bytes over all classes. Used-Pinned is the number of bytes
// that eviction can free, exactly.
type Pool struct {
	Name   string
	Number int     // pools of devices come after those of memory
	Device *Device // nil = a pool of memory
	Budget int64

	Used    int64          // bytes of pages, and of token ids, which are stored outside the pages
	Saved   int64          // bytes saved by live leases that share objects, see Lease
	Pinned  int64          // bytes of objects that are in use or have a descendant in use
	Bytes   [Classes]int64 // parts of Used, by class
	Objects int
	Evict   policy.Eviction // of published objects
	floor   atomic.Uint64   // see FloorValue

	Offloading int64 // pages of objects whose copy is being sent to outlets, linked or not

	Dirty      Backlog // with a lower tier: objects that it neither has nor writes
	Unsent     Backlog // with outlets: objects not yet offered to them
	AheadBytes int64   // bytes of pages read ahead, or being read ahead, and not used yet
}

// Backlog lists the objects that must be copied elsewhere before their eviction, in the
// order of eviction. Objects that are not evictable now are in the list as suspended
// objects.
type Backlog struct {
	policy.Eviction       // nil = there is nowhere to copy to
	Objects         int   // number of objects that are not suspended
	Bytes           int64 // bytes of pages of these objects
}

// Tenant is a configured tenant and its charges in bytes: the pages of all ranks, token
// ids and records. Guarded by the store's lock, apart from the first group.
type Tenant struct {
	ID   tier.TenantID
	Name string
	Salt []byte

	QuotaBytes int64    // for memory, HBM and the lower tier together; 0 = none
	behind     *catchUp // set while its policies are incomplete; nil = complete

	Used    []int64 // by pool number
	Pinned  int64
	Leaving int64           // bytes of objects of ClassDemoting
	Offload int64           // as Pool.Offloading, but charged bytes
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

// EvictRows is the maximum number of objects evicted in one critical section. One eviction
// takes 1 to 2 microseconds (measured).
const EvictRows = 8

// ErrAgain means that more must be evicted. The caller should first release the lock for a
// moment.
var ErrAgain = errors.New("objects: more has to leave")

// AnyID accepts all victims.
func AnyID(policy.ID) bool { return true }

// Device is the memory of one accelerator and its accounts. The fields of the first group
// are fixed. The store's lock guards the others.
type Device struct {
	ID        tier.DeviceID
	arena     gpuipc.Region
	pageBytes int
	Pools     [PoolCount]*Pool

	Pages    *gpuipc.PageAllocator
	Counters stats.HBM
	Lost     bool // the device is no longer usable, or never was
}

// PagesOf rounds the bytes of a copy up to whole pages.
func (d *Device) PagesOf(bytes int64) int64 {
	page := int64(d.pageBytes)
	return (bytes + page - 1) / page * page
}
