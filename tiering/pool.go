package tiering

import (
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
)

const (
	publicPool  = 0 // segments
	privatePool = 1 // checkpoints
	poolCount   = 2
)

// pool is one budget of the arena's pages. Pages themselves are not divided: any
// free page serves either pool. Guarded by the store's lock.
//
// Invariant: used is the sum of bytes over all classes; used-pinned is what
// eviction can give back, to the byte.
type pool struct {
	name   string
	number int
	budget int64

	used    int64          // bytes of pages, and of token ids, which lie beside them
	pinned  int64          // of objects that are in use or have a descendant that is
	bytes   [classes]int64 // used, by what for
	objects int
	evict   policy.Eviction // of published objects
}

// tenant is a configured tenant and what it holds, in bytes of layouts over all
// ranks, not of pages, and of token ids. Guarded by the store's lock, apart from Tenant.
type tenant struct {
	Tenant
	used    [poolCount]int64
	pinned  int64
	leaving int64           // on its way to a lower tier
	evict   policy.Eviction // over both pools; nil without a quota
}

func (t *tenant) total() int64 { return t.used[publicPool] + t.used[privatePool] }

// errLeaving is ErrBusy for room that a lower tier is still reading.
var errLeaving = fmt.Errorf("room is being demoted: %w", ErrBusy)

// makeRoomLocked evicts until o fits its tenant's quota and its pool, or evicts
// nothing and says why o cannot fit.
//
// A tenant over its quota pays with its own least valuable objects, in whichever
// pool they are; only then the pool's least valuable ones leave, whosever they
// are. With a lower tier, evicted objects keep their memory until that tier has
// refused or copied them: the answer is errLeaving, and the caller offers the
// objects in leaving after it let go of the lock.
func (s *Store) makeRoomLocked(o *object) (leaving []*object, err error) {
	t, p := o.tenant, o.pool
	overQuota := int64(0)
	if t.QuotaBytes > 0 {
		overQuota = t.total() - t.leaving + o.bytes - t.QuotaBytes
	}
	if evictable := t.total() - t.pinned; overQuota > evictable {
		return nil, fmt.Errorf("%s: %d bytes, tenant %q holds %d of %d, %d of them evictable: %w",
			o.name(), o.bytes, t.Name, t.total(), t.QuotaBytes, evictable, ErrQuota)
	}
	overPool := p.used - p.bytes[classDemoting] + o.pageBytes - p.budget
	if evictable := p.used - p.pinned; overPool > evictable {
		return nil, fmt.Errorf("%s: %d bytes of pages, %s pool holds %d of %d, %d of them evictable: %w",
			o.name(), o.pageBytes, p.name, p.used, p.budget, evictable, ErrFull)
	}
	evict := func(from policy.Eviction, counter *uint64) {
		victim := s.evictLocked(from)
		*counter++
		s.counters.EvictedBytes += uint64(victim.bytes)
		overQuota -= victim.bytes // the tenant's own, as long as this matters
		if victim.pool == p {
			overPool -= victim.pageBytes
		}
		if victim.demoting {
			leaving = append(leaving, victim)
		}
	}
	for overQuota > 0 {
		evict(t.evict, &s.counters.EvictedQuota)
	}
	for overPool > 0 {
		evict(p.evict, &s.counters.EvictedRoom)
	}
	if p.used+o.pageBytes > p.budget || t.QuotaBytes > 0 && t.total()+o.bytes > t.QuotaBytes {
		return leaving, errLeaving
	}
	return leaving, nil
}

// evictLocked takes the policy's victim out of the catalogue. There is one: the
// callers have counted what is evictable.
func (s *Store) evictLocked(from policy.Eviction) *object {
	id, ok := from.Victim(func(id policy.ID) bool {
		o := s.objects.get(id)
		return o.children == 0
	})
	if !ok {
		panic(fmt.Sprintf("tiering: no victim among %d objects although bytes are evictable", from.Len()))
	}
	o := s.objects.get(id)
	if s.cfg.Lower != nil {
		o.demoting = true
		o.tenant.leaving += o.bytes
	}
	s.unlinkLocked(o, ReasonEvicted)
	return o
}

// pagesOf rounds one rank's layout up to whole pages.
func (s *Store) pagesOf(bytes int64) int64 {
	page := int64(s.cfg.PageBytes)
	return (bytes + page - 1) / page * page
}

// allocateLocked gives a new object its memory; makeRoomLocked has made sure of
// it, so that a failure is a broken account.
func (s *Store) allocateLocked(o *object, bytes int64) {
	for i := range o.shares {
		extents, err := s.pages.Alloc(bytes)
		if err != nil {
			panic(fmt.Sprintf("tiering: %s pool uses %d of %d bytes, yet: %v", o.pool.name, o.pool.used, o.pool.budget, err))
		}
		o.shares[i].extents = trim(extents, bytes)
	}
}

// trim cuts whole pages to the bytes in use, which end in the last extent.
func trim(extents []gpuipc.Extent, bytes int64) []gpuipc.Extent {
	for i := range extents {
		extents[i].Len = min(extents[i].Len, bytes)
		bytes -= extents[i].Len
	}
	return extents
}

// freePagesLocked gives back what allocateLocked took. It works on a copy, since
// an answer that names the extents may still be on its way to a client.
func (s *Store) freePagesLocked(extents []gpuipc.Extent) {
	whole := make([]gpuipc.Extent, len(extents))
	for i, e := range extents {
		whole[i] = gpuipc.Extent{Off: e.Off, Len: s.pagesOf(e.Len)}
	}
	s.pages.Free(whole)
}
