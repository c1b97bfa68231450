package tiering

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// A copy in HBM is an object of a pool of HBM: leases, expiry, quarantine, policies
// and accounts treat it like any other. It is in no index of the store; the
// resident of its name finds it.
//
//	promotion ──► filling ──► found ──► dropped ──► free
//	                 │      verified,            last lease and
//	                 │      its object there     operation ended
//	                 └──► free: wrong digest, object gone, device lost
//
// The copy of a checkpoint is one node of its own, with the rows of the whole chain
// in place of a chain of copies. What it costs is that rows which two checkpoints
// share lie in HBM twice; what it spares is a second tree whose nodes hold each
// other.

// residentKey names an object whatever tier it is in.
type residentKey struct {
	name    tier.Name
	profile *profileState
	tenant  *tenant
}

// copyKey names one rank's copy of it.
type copyKey struct {
	residentKey
	rank int
}

func (o *object) residence() residentKey { return residentKey{o.label(), o.profile, o.tenant} }

// resident is what HBM has of an object: at least one copy. Guarded by the store's
// lock.
//
// Invariant: while its object is whole in memory, source is that object, and points
// back.
type resident struct {
	residentKey
	source     *object
	generation uint64     // of the entry of the lower tier, while source is nil
	copies     []*object  // by rank; nil = none
	from       [][]uint64 // by rank, the digests of the object's share that was copied
	n          int        // copies
}

// copyLocked finds a rank's copy whose object is still held elsewhere.
func (s *Store) copyLocked(k residentKey, rank int) *object {
	r := s.residentLocked(k)
	if r == nil {
		return nil
	}
	return r.copies[rank]
}

// residentLocked finds the copies of an object, and drops them if it has gone.
func (s *Store) residentLocked(k residentKey) *resident {
	if s.hbm == nil {
		return nil
	}
	r := s.hbm.held[k]
	if r != nil && !s.standsLocked(r) {
		s.dropResidentLocked(r, dropObject)
		return nil
	}
	return r
}

// standsLocked tells whether the object of some copies is held elsewhere.
func (s *Store) standsLocked(r *resident) bool {
	if r.source != nil {
		return s.soundLocked(r.source)
	}
	e, ok := s.lookupLocked(r.name, r.profile, r.tenant)
	return ok && e.Generation == r.generation
}

// foundLocked makes a verified copy known to lookups.
func (s *Store) foundLocked(c, source *object, rank int, from []uint64) {
	r := source.resident
	if r == nil {
		r = &resident{
			residentKey: source.residence(), source: source,
			copies: make([]*object, c.profile.ranks), from: make([][]uint64, c.profile.ranks),
		}
		source.resident = r
		s.hbm.held[r.residentKey] = r
	}
	if r.copies[rank] != nil {
		panic(fmt.Sprintf("tiering: %s has two copies of rank %d in HBM", c.name(), rank))
	}
	r.copies[rank], r.from[rank] = c, from
	r.n++
	c.resident = r
	c.on(evFind)
	s.counters.HBM.Copies++
	s.settleLocked(c)
	s.rankLocked(c)
}

// dropCopyLocked hides a copy from lookups. Its memory is freed now or by whoever
// lets go last.
func (s *Store) dropCopyLocked(c *object, why hbmDrop) {
	r := c.resident
	rank := slices.Index(r.copies, c)
	r.copies[rank], r.from[rank] = nil, nil
	if r.n--; r.n == 0 {
		delete(s.hbm.held, r.residentKey)
		if r.source != nil {
			r.source.resident = nil
		} else {
			s.hbm.loose--
		}
	}
	c.resident = nil
	c.on(evDetach)
	s.counters.HBM.Copies--
	s.counters.HBM.Dropped[why]++
	s.counters.HBM.DroppedBytes += uint64(c.bytes)
	s.rankLocked(c)
	s.settleLocked(c)
}

func (s *Store) dropResidentLocked(r *resident, why hbmDrop) (n int) {
	for _, c := range slices.Clone(r.copies) {
		if c != nil {
			s.dropCopyLocked(c, why)
			n++
		}
	}
	return n
}

// leftHBMLocked follows an object that leaves memory, or whose states do. Its copies
// stay when it was evicted and the lower tier has it: they are then those of that
// entry. What is only being written there goes.
func (s *Store) leftHBMLocked(o *object, why tier.Reason) {
	r := o.resident
	if r == nil || o.inHBM() {
		return
	}
	if why == tier.ReasonEvicted {
		if e, held := s.belowLocked(o); held {
			r.source, r.generation, o.resident = nil, e.Generation, nil
			s.hbm.loose++
			for _, c := range r.copies {
				if c != nil {
					s.revalueLocked(c)
				}
			}
			return
		}
	}
	drop := dropObject
	if why == tier.ReasonRemoved {
		drop = dropRemoved
	}
	s.dropResidentLocked(r, drop)
}

// adoptLocked finds the copies of an object that has become whole in memory. Those of
// other bytes go: it may have been computed once more.
func (s *Store) adoptLocked(o *object) {
	if s.hbm == nil {
		return
	}
	r := s.hbm.held[o.residence()]
	if r == nil {
		return
	}
	for rank, c := range slices.Clone(r.copies) {
		if c != nil && !slices.Equal(r.from[rank], o.shares[rank].digests) {
			s.dropCopyLocked(c, dropObject)
		}
	}
	if r.n > 0 {
		r.source, o.resident = o, r
		s.hbm.loose--
	}
}

// removeHBMLocked drops the copies of a name that an operator removes.
func (s *Store) removeHBMLocked(n tier.Name) {
	if s.hbm == nil {
		return
	}
	for _, p := range *s.profiles.Load() {
		for _, t := range s.tenants {
			if r := s.hbm.held[residentKey{n, p, t}]; r != nil {
				s.dropResidentLocked(r, dropRemoved)
			}
		}
	}
}

// sweepHBM drops copies whose object the lower tier has forgotten meanwhile, or
// whose profile nobody can ask for any more.
func (s *Store) sweepHBM() {
	if s.hbm == nil {
		return
	}
	for first, more := 0, true; more; first += holdRows {
		s.mu.Lock()
		more = s.sweepCopiesLocked(first)
		s.mu.Unlock()
	}
}

func (s *Store) sweepCopiesLocked(first int) (more bool) {
	if s.hbm.loose == 0 {
		return false
	}
	places := s.objects.Places()
	for _, c := range places[min(first, len(places)):min(first+holdRows, len(places))] {
		if c == nil || !c.inHBM() || c.resident == nil || c.resident.source != nil {
			continue
		}
		if c.profile.forgotten || !s.standsLocked(c.resident) {
			s.dropResidentLocked(c.resident, dropObject)
		}
	}
	return first+holdRows < len(places)
}

// usedCopyLocked counts a use of a copy's object as well, so that what is hot in HBM
// is not cold elsewhere.
func (s *Store) usedCopyLocked(c *object, now time.Time) {
	if o := c.resident.source; o != nil {
		o.hits++
		s.usedLocked(o, now)
		return
	}
	s.touchLocked(c.label())
}

// makeHBMRoomLocked drops copies until o fits its pool of HBM and its tenant's
// quota, or drops nothing and says why o cannot fit. Nothing leaves memory or the
// lower tier for a copy. A guess drops nothing.
func (s *Store) makeHBMRoomLocked(o *object, guess bool) error {
	p, t := o.pool, o.tenant
	overPool, overQuota := p.used+o.pageBytes-p.budget, s.overQuota(t, o.bytes)
	evictable, yields := p.used-p.pinned, t.idleAbove()
	if guess {
		evictable, yields = 0, 0
	}
	if overPool > evictable {
		return fmt.Errorf("%s: %d bytes of pages, the %s pool of HBM holds %d of %d, %d of them evictable: %w",
			o.name(), o.pageBytes, p.name, p.used, p.budget, evictable, tier.ErrFull)
	}
	if overQuota > yields {
		return fmt.Errorf("%s: %d bytes in HBM, tenant %q is over its quota of %d by %d, %d of them in idle copies: %w",
			o.name(), o.bytes, t.Name, t.QuotaBytes, overQuota, yields, tier.ErrQuota)
	}
	if _, more := s.yieldLocked(t, overQuota); more {
		return errAgain
	}
	for n := 0; p.used+o.pageBytes > p.budget; n++ {
		if n == evictRows {
			return errAgain
		}
		id, ok := p.evict.Victim(anyID)
		if !ok {
			panic(fmt.Sprintf("tiering: no victim among %d copies although bytes are evictable", p.evict.Len()))
		}
		s.dropCopyLocked(s.objects.Get(id), dropRoom)
	}
	return nil
}

// idleAbove is what dropping a tenant's copies in HBM gives back.
func (t *tenant) idleAbove() int64 {
	return t.used[hbmPublicPool] + t.used[hbmPrivatePool] - t.pinnedAbove
}

// yieldLocked has a tenant give up copies in HBM, the least valuable first, until
// bytes are freed or none is left that may go, and answers what was freed. They are
// the first that a tenant pays with: nothing is lost by them. more: it has stopped
// after evictRows of them.
func (s *Store) yieldLocked(t *tenant, bytes int64) (freed int64, more bool) {
	if t.above == nil || s.hbm == nil {
		return 0, false
	}
	before := t.total()
	for n := 0; freed < bytes; n++ {
		if n == evictRows {
			return freed, true
		}
		id, ok := t.above.Victim(anyID)
		if !ok {
			break
		}
		s.dropCopyLocked(s.objects.Get(id), dropQuota)
		freed = before - t.total()
	}
	return freed, false
}

// writeSlack is how much more than its bytes in memory an entry of the lower tier is
// taken to need at most: a header, and parts rounded up to blocks (a guess on the safe
// side; a copy too many costs a promotion).
func writeSlack(bytes int64) int64 { return bytes/8 + 64<<10 }

// yieldToWriteLocked has a tenant at its quota give up copies in HBM, rather than
// entries of the lower tier, for an object that is to be written there.
func (s *Store) yieldToWriteLocked(o *object) {
	if t := o.tenant; t.QuotaBytes > 0 {
		s.yieldLocked(t, s.overQuota(t, o.bytes+writeSlack(o.bytes)))
	}
}

// placeHBMLocked gives an object of HBM its memory; there is room.
func (s *Store) placeHBMLocked(o *object, rank int) {
	extents, err := s.hbm.pages.Alloc(o.rankBytes)
	if err != nil {
		panic(fmt.Sprintf("tiering: the %s pool of HBM uses %d of %d bytes, yet: %v", o.pool.name, o.pool.used, o.pool.budget, err))
	}
	o.shares[rank].extents = trim(extents, o.rankBytes)
	s.bookLocked(o)
}

// freeHBMLocked gives it back.
func (s *Store) freeHBMLocked(o *object) {
	for i := range o.shares {
		whole := slices.Clone(o.shares[i].extents)
		for k := range whole {
			whole[k].Len = s.hbm.pagesOf(whole[k].Len)
		}
		s.hbm.pages.Free(whole)
	}
}

func (h *hbm) pagesOf(bytes int64) int64 {
	page := int64(h.cfg.PageBytes)
	return (bytes + page - 1) / page * page
}

// measureHBM sets what one rank's share costs in HBM. Token ids are not there.
func (s *Store) measureHBM(o *object, bytes int64) {
	o.rankBytes, o.bytes, o.pageBytes = bytes, bytes, s.hbm.pagesOf(bytes)
}
