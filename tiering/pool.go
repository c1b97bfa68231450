package tiering

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/tier"
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
	floor   atomic.Uint64   // see floorValue

	// With a lower tier.
	dirty        policy.Eviction // of what the tier does not hold; suspended unless it could leave and is not being written
	dirtyObjects int             // of dirty, that are not suspended
	dirtyBytes   int64           // of their pages
	aheadBytes   int64           // of pages, read ahead or on the way, and not used yet
}

// tenant is a configured tenant and what it holds, in bytes of layouts over all
// ranks, not of pages, and of token ids. Guarded by the store's lock, apart from Tenant.
type tenant struct {
	Tenant
	used    [allPools]int64
	pinned  int64
	leaving int64           // of classDemoting
	evict   policy.Eviction // over both pools of memory; nil without a quota

	pinnedAbove int64           // of pinned, in HBM
	above       policy.Eviction // over both pools of HBM; nil without a quota or HBM
}

// total is what a tenant holds in memory and in HBM.
func (t *tenant) total() (bytes int64) {
	for _, used := range t.used {
		bytes += used
	}
	return bytes
}

// evictionOf is the tenant's policy for an object.
func (t *tenant) evictionOf(o *object) policy.Eviction {
	if o.inHBM() {
		return t.above
	}
	return t.evict
}

// stayingBytes is what a pool or a tenant holds, apart from what is leaving it.
func (p *pool) stayingBytes() int64   { return p.used - p.bytes[classDemoting] }
func (t *tenant) stayingBytes() int64 { return t.total() - t.leaving }

// evictRows bounds how many objects leave in one critical section: one takes a
// microsecond or two (measured).
const evictRows = 8

// errAgain is of room that is not made yet: others want the lock meanwhile.
var errAgain = errors.New("tiering: more has to leave")

// errLeaving is ErrBusy for room that a lower tier is still reading.
var errLeaving = fmt.Errorf("room is being demoted: %w", tier.ErrBusy)

// makeRoomLocked evicts until o fits its tenant's quota and its pool, or evicts
// nothing and says why o cannot fit.
//
// A tenant over its quota pays with copies in HBM, which are nowhere alone, then from
// the slowest tier up: with entries of the lower tier, apart from those to
// spare, then with its own least valuable objects, in whichever pool they are. Those are not demoted, since that
// gives the quota nothing. Only then the pool's least valuable objects leave,
// whosever they are. What has to be written first keeps its memory until then:
// the answer is errLeaving. Once writes hang, what they hold is no room to wait
// for, and nothing more is given to them.
//
// At most evictRows objects leave in one call: errAgain asks for another one, once
// others have had the lock.
func (s *Store) makeRoomLocked(o *object, spare spared) error {
	p := o.pool
	hang := s.writesHangLocked()
	overPool := p.used + o.pageBytes - p.budget
	if !hang {
		overPool -= p.bytes[classDemoting]
	}
	overQuota, err := s.quotaLocked(o, s.trimmable(o.tenant, spare.bytes))
	if err != nil {
		return err
	}
	if evictable := p.used - p.pinned; overPool > evictable {
		return fmt.Errorf("%s: %d bytes of pages, %s pool holds %d of %d, %d of them evictable: %w",
			o.name(), o.pageBytes, p.name, p.used, p.budget, evictable, tier.ErrFull)
	}
	freed, more := s.yieldLocked(o.tenant, overQuota)
	if more {
		return errAgain
	}
	overQuota -= freed
	if overQuota, err = s.trimLocked(o, overQuota, spare); err != nil {
		return err
	}
	pages, bytes := p.stayingBytes(), o.tenant.stayingBytes()
	left := func() (fromPool, fromTenant int64) { return pages - p.stayingBytes(), bytes - o.tenant.stayingBytes() }
	n := 0
	for given := int64(0); overQuota > given; _, given = left() {
		if n++; n > evictRows {
			return errAgain
		}
		s.evictLocked(o.tenant.evict, forQuota)
	}
	way := forRoom
	if hang {
		way = forRoomWithoutDemotion
	}
	for given, _ := left(); overPool > given; given, _ = left() {
		if n++; n > evictRows {
			return errAgain
		}
		s.evictLocked(p.evict, way)
	}
	if p.used+o.pageBytes > p.budget || s.overQuota(o.tenant, o.bytes) > 0 {
		return errLeaving
	}
	return nil
}

// hungSweeps is after how many sweeps, of a second as a rule, without the end of a
// write those that run are not counted upon: as long as the disk tier takes to call
// its disk hanging.
const hungSweeps = 5

// writesHangLocked tells whether the lower tier has ceased to end writes.
func (s *Store) writesHangLocked() bool {
	return s.counters.Writing > 0 && s.sweeps-s.writeSweep >= hungSweeps
}

// overQuota is by how much a tenant would be over its quota with more bytes.
func (s *Store) overQuota(t *tenant, bytes int64) int64 {
	if t.QuotaBytes == 0 {
		return 0
	}
	return t.total() + s.lowerUsed(t) + bytes - t.QuotaBytes
}

// quotaLocked is how much a tenant has to give up for o, beside what is leaving
// memory anyway. ErrQuota when it cannot even if the lower tier gives up bytes.
func (s *Store) quotaLocked(o *object, below int64) (over int64, err error) {
	t := o.tenant
	if over = s.overQuota(t, o.bytes); !s.writesHangLocked() {
		over -= t.leaving
	}
	if evictable := t.total() - t.pinned; over > evictable+below {
		return 0, fmt.Errorf("%s: %d bytes, tenant %q holds %d of %d and %d in the lower tier, %d of them evictable: %w",
			o.name(), o.bytes, t.Name, t.total(), t.QuotaBytes, s.lowerUsed(t), evictable+below, tier.ErrQuota)
	}
	return over, nil
}

// trimmable is what the lower tier could give up for a tenant.
func (s *Store) trimmable(t *tenant, spare int64) int64 {
	return max(0, s.lowerUsed(t)-spare)
}

// trimLocked has the lower tier forget entries of a tenant over its quota and
// answers what is left to pay in memory.
func (s *Store) trimLocked(o *object, over int64, spare spared) (int64, error) {
	bytes := min(over, s.trimmable(o.tenant, spare.bytes))
	if bytes <= 0 {
		return over, nil
	}
	s.trimBelowLocked(o.tenant, bytes, spare.names)
	return s.quotaLocked(o, 0)
}

// spared is what the lower tier must not forget to make room: it is about to be read.
type spared struct {
	names []tier.Name
	bytes int64
}

// trimBelowLocked has the lower tier free bytes of a tenant, as far as it can.
func (s *Store) trimBelowLocked(t *tenant, bytes int64, spare []tier.Name) {
	for more := true; more && bytes > 0; {
		var freed int64
		freed, more = s.cfg.Lower.Trim(t.ID, bytes, spare)
		s.counters.TrimmedBytes += uint64(freed)
		bytes -= freed
	}
}

// eviction is why something is to leave memory, and so how.
type eviction uint8

const (
	forRoom                eviction = iota // in the pool: what the lower tier does not hold is offered to it
	forRoomWithoutDemotion                 // the same while writes hang
	forQuota                               // of the tenant: a demotion would give it nothing
)

// evictLocked takes the policy's victim out of memory, or its states if another
// node extends it. There is one: the callers
// have counted what is evictable. A victim that the lower tier holds is just
// dropped; another one is offered to it first, if that is any use. One that waits
// for a tier that is busy does not wait here: a disk that hangs must not take the
// memory with it.
func (s *Store) evictLocked(from policy.Eviction, way eviction) {
	o := s.victimLocked(from)
	if o.children > 0 {
		s.stripLocked(o, way)
		return
	}
	if way == forQuota {
		s.counters.EvictedQuota++
	} else {
		s.counters.EvictedRoom++
	}
	s.counters.EvictedBytes += uint64(o.bytes)
	if o.write != nil && !o.write.moving() {
		s.withdrawLocked(o)
		s.leftLocked(o, decision.Evict, way, o.pageBytes)
		s.unlinkLocked(o, tier.ReasonEvicted)
		return
	}
	_, held := s.belowLocked(o)
	switch {
	case o.write != nil: // its end counts it
	case held:
		s.counters.Demoted++
	case way != forRoom || s.cfg.Lower == nil:
		s.counters.Dropped++
	case s.wantLocked(o, tier.LevelLogged, false) != nil:
		s.counters.DemotionsRefused++
	}
	leaving := o.write != nil
	if leaving {
		o.write.leaving = true
	}
	what := decision.Evict
	if held || leaving {
		what = decision.Demote
	}
	s.leftLocked(o, what, way, o.pageBytes)
	s.unlinkLocked(o, tier.ReasonEvicted)
}

// victimLocked asks a policy. A node that has a child only because the lower tier
// was seen to hold it does not leave if that holds no more.
func (s *Store) victimLocked(from policy.Eviction) *object {
	for {
		id, ok := from.Victim(anyID)
		if !ok {
			panic(fmt.Sprintf("tiering: no victim among %d objects although bytes are evictable", from.Len()))
		}
		o := s.objects.Get(id)
		if o.children == 0 || s.cfg.Lower == nil {
			return o
		}
		if _, held := s.belowLocked(o); held {
			return o
		}
		s.storedLocked(o, tier.LevelDefault)
	}
}

func anyID(policy.ID) bool { return true }

// pagesOf rounds one rank's layout up to whole pages.
func (s *Store) pagesOf(bytes int64) int64 {
	page := int64(s.cfg.PageBytes)
	return (bytes + page - 1) / page * page
}

// allocateLocked gives a new object its memory; makeRoomLocked has made sure of
// it, so that a failure is a broken account.
func (s *Store) allocateLocked(o *object, bytes int64) {
	for i := range o.shares {
		o.shares[i].extents = s.allocatePagesLocked(o, bytes)
	}
}

func (s *Store) allocatePagesLocked(o *object, bytes int64) []gpuipc.Extent {
	extents, err := s.pages.Alloc(bytes)
	if err != nil {
		panic(fmt.Sprintf("tiering: %s pool uses %d of %d bytes, yet: %v", o.pool.name, o.pool.used, o.pool.budget, err))
	}
	return trim(extents, bytes)
}

// trim cuts whole pages to the bytes in use, which end in the last extent.
func trim(extents []gpuipc.Extent, bytes int64) []gpuipc.Extent {
	for i := range extents {
		extents[i].Len = min(extents[i].Len, bytes)
		bytes -= extents[i].Len
	}
	return extents
}

// freePagesLocked gives back what allocateLocked took, apart from holes. It works
// on a copy, since an answer that names the extents may still be on its way to a
// client.
func (s *Store) freePagesLocked(extents []gpuipc.Extent) {
	whole := make([]gpuipc.Extent, 0, len(extents))
	for _, e := range extents {
		if e.Off != hole {
			whole = append(whole, gpuipc.Extent{Off: e.Off, Len: s.pagesOf(e.Len)})
		}
	}
	s.pages.Free(whole)
}
