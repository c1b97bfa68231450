package move

import (
	"fmt"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// errLeaving is the ErrBusy returned if enough memory will become free, but the lower tier
// or a sink still reads it.
var errLeaving = fmt.Errorf("room is being demoted: %w", tier.ErrBusy)

// Evictor is the part of a store that frees memory for objects. It has no state.
type Evictor struct {
	cat      *catalog.Catalog
	remote   *Remote
	writes   *Writes
	offloads *Offloads
}

// MakeRoomLocked evicts objects until o fits its tenant's quota and its pool. If that is
// impossible it evicts nothing and returns why.
//
// If the tenant is over its quota, its bytes are freed in this order. First it loses copies in
// HBM, which are never the only copy. Then the lower tier evicts entries of the tenant, except
// those that the parameter spare names. Last it loses its least valuable objects in either pool.
// These are not written to the lower tier, since that would free nothing of the quota.
//
// Only then are the least valuable objects of the pool evicted, of any tenant. Objects that must
// be written first keep their memory until the write has ended; the result is then errLeaving.
// While writes hang, MakeRoomLocked does not count on memory that they will free, and starts no
// more writes.
//
// One call evicts at most objects.EvictRows objects, or as many entries as the lower tier evicts
// in one call. ErrAgain means that the caller must release the lock and call again.
func (ev *Evictor) MakeRoomLocked(o *objects.Object, spare Spared) error {
	p := o.Pool
	hang := ev.writes.WritesHangLocked()
	overPool := p.Used + o.PageBytes - p.Budget
	if !hang {
		overPool -= p.Bytes[objects.ClassDemoting]
	}
	overQuota, err := ev.quotaLocked(o, ev.Trimmable(o.Tenant, spare.bytes))
	if err != nil {
		return err
	}
	switch evictable := p.Used - p.Pinned; {
	case overPool <= evictable:
	case overPool <= evictable+p.Bytes[objects.ClassOffloading]:
		return errLeaving
	default:
		return fmt.Errorf("%s: %d bytes of pages, %s pool holds %d of %d, %d of them evictable: %w",
			o.Name(), o.PageBytes, p.Name, p.Used, p.Budget, evictable, tier.ErrFull)
	}
	freed, more := ev.cat.Objects.HBM.Yield(o.Tenant, overQuota)
	if more {
		return objects.ErrAgain
	}
	overQuota -= freed
	if overQuota, err = ev.trimLocked(o, overQuota, spare); err != nil {
		return err
	}
	pages, bytes := p.StayingBytes(), o.Tenant.StayingBytes()
	left := func() (fromPool, fromTenant int64) { return pages - p.StayingBytes(), bytes - o.Tenant.StayingBytes() }
	n := 0
	for given := int64(0); overQuota > given; _, given = left() {
		if n++; n > objects.EvictRows {
			return objects.ErrAgain
		}
		fromPool, _ := left()
		ev.EvictLocked(o.Tenant.Evict, forQuota, &shortage{p, overPool - fromPool, o.Tenant, overQuota - given, o})
	}
	way := ForRoom
	if hang {
		way = forRoomWithoutDemotion
	}
	for given, _ := left(); overPool > given; given, _ = left() {
		if n++; n > objects.EvictRows {
			return objects.ErrAgain
		}
		ev.EvictLocked(p.Evict, way, &shortage{pool: p, pages: overPool - given, rival: o})
	}
	if p.Used+o.PageBytes > p.Budget || ev.cat.Objects.Quotas.Over(o.Tenant, o.Charge()) > 0 {
		return errLeaving
	}
	return nil
}

// quotaLocked returns how many bytes a tenant has to give up for o, in addition to bytes that
// are already leaving memory. It returns ErrQuota if the tenant cannot give up as many, even
// after the lower tier evicts entries. The parameter below is the number of bytes that the lower
// tier can evict.
func (ev *Evictor) quotaLocked(o *objects.Object, below int64) (over int64, err error) {
	t := o.Tenant
	if over = ev.cat.Objects.Quotas.Over(t, o.Charge()); !ev.writes.WritesHangLocked() {
		over -= t.Leaving
	}
	if evictable := t.Total() - t.Pinned; over > evictable+below {
		return 0, fmt.Errorf("%s: %d bytes, tenant %q holds %d of %d and %d in the lower tier, %d of them evictable: %w",
			o.Name(), o.Charge(), t.Name, t.Total(), t.QuotaBytes, ev.cat.Objects.Below.Used(t), evictable+below, tier.ErrQuota)
	}
	return over, nil
}

// Trimmable returns the bytes that the lower tier could evict for a tenant, without those that
// it must keep (the parameter spare).
func (ev *Evictor) Trimmable(t *objects.Tenant, spare int64) int64 {
	return max(0, ev.cat.Objects.Below.Used(t)-spare)
}

// trimLocked makes the lower tier evict entries of a tenant that is over its quota, and
// returns how many bytes memory still has to free.
func (ev *Evictor) trimLocked(o *objects.Object, over int64, spare Spared) (int64, error) {
	bytes := min(over, ev.Trimmable(o.Tenant, spare.bytes))
	if bytes <= 0 {
		return over, nil
	}
	if ev.trimBelowLocked(o.Tenant, bytes, spare.names) {
		return 0, objects.ErrAgain
	}
	return ev.quotaLocked(o, 0)
}

// Spared are entries that the lower tier must not evict for room, since they are about to
// be read.
type Spared struct {
	names []tier.Name
	bytes int64
}

// trimBelowLocked makes the lower tier evict entries of a tenant to free the given number of
// bytes, except the names in the list spare. One call evicts a bounded number of entries. The
// result is true if another call would free more bytes.
func (ev *Evictor) trimBelowLocked(t *objects.Tenant, bytes int64, spare []tier.Name) (more bool) {
	freed, more := ev.cat.Config.Lower.Trim(t.ID, bytes, spare)
	ev.cat.Counters.TrimmedBytes += uint64(freed)
	return more
}

// eviction is the reason of an eviction. It decides how the object is evicted.
type eviction uint8

const (
	ForRoom                eviction = iota // room in the pool: an object that the lower tier lacks is offered to it
	forRoomWithoutDemotion                 // room in the pool, while writes hang
	forQuota                               // the tenant's quota: a write to the lower tier would free nothing of it
)

func (e eviction) reason() decision.Reason {
	if e == forQuota {
		return decision.ForQuota
	}
	return decision.ForRoom
}

// EvictLocked evicts the policy's victim from memory, or only its states if another node extends
// it. A victim exists, since the callers have counted the evictable bytes. A victim that the
// lower tier has is dropped from memory. A victim that it does not have is first offered to the
// lower tier, if writing it serves the reason of the eviction. A victim whose write waits for a
// busy tier is dropped without the write: a disk that hangs must not block memory. A copy may be
// sent to the outlets if other evictions can still free the missing room (the parameter short).
func (ev *Evictor) EvictLocked(from policy.Eviction, way eviction, short *shortage) {
	o := ev.victimLocked(from)
	if o.Children > 0 {
		ev.cat.Objects.Strip(o, way.reason(), short.of())
		return
	}
	w := WriteOf(o)
	n := ev.cat.Of(o.Profile)
	if way == forQuota {
		n.EvictedQuota++
	} else {
		n.EvictedRoom++
	}
	ev.cat.Durations.Since(o, ev.cat.Durations.Evicted, ev.cat.Config.Now())
	n.EvictedBytes += uint64(o.Bytes)
	if w != nil && !w.moving() {
		ev.writes.withdrawLocked(o)
		ev.offloads.OffloadLocked(o, Leaving, short)
		ev.cat.Objects.Records.NoteLeft(o, decision.Evict, way.reason(), o.PageBytes, short.of())
		ev.cat.Objects.Unlink(o, tier.ReasonEvicted)
		return
	}
	_, held := ev.cat.Objects.Below.Of(o)
	switch {
	case w != nil: // the demotion is counted when the write ends
	case held:
		ev.cat.Counters.Demoted++
	case way != ForRoom || ev.cat.Config.Lower == nil || o.Profile.Trial || ev.remote.elsewhereLocked(o):
		n.Dropped++
	case ev.writes.WantLocked(o, tier.LevelLogged, false) != nil:
		ev.cat.Counters.DemotionsRefused++
	}
	w = WriteOf(o) // WantLocked may have started a write
	if w != nil {
		w.Leaving = true
	}
	ev.offloads.OffloadLocked(o, Leaving, short)
	what := decision.Evict
	if held || w != nil || o.Offload != nil {
		what = decision.Demote
	}
	ev.cat.Objects.Records.NoteLeft(o, what, way.reason(), o.PageBytes, short.of())
	ev.cat.Objects.Unlink(o, tier.ReasonEvicted)
}

// victimLocked returns the policy's victim. It prefers objects that were already offered to the
// outlets, if there is one among the policy's first aheadTries victims. An object with a child
// is evictable only while the lower tier has the object. If the tier has lost the object,
// victimLocked skips it.
func (ev *Evictor) victimLocked(from policy.Eviction) *objects.Object {
	for {
		tries := 0
		id, ok := from.Victim(func(id policy.ID) bool {
			tries++
			return ev.offloads.engine == nil || tries > aheadTries || ev.cat.Objects.Table.Get(id).Sending != objects.Candidate
		})
		if !ok { // there are fewer victims, and none of them was offered
			id, ok = from.Victim(objects.AnyID)
		}
		if !ok {
			panic(fmt.Sprintf("tiering: no victim among %d objects although bytes are evictable", from.Len()))
		}
		o := ev.cat.Objects.Table.Get(id)
		if o.Children == 0 || ev.cat.Config.Lower == nil {
			return o
		}
		if _, held := ev.cat.Objects.Below.Of(o); held {
			return o
		}
		ev.cat.Objects.Policies.SetStored(o, tier.LevelDefault)
	}
}

// TrimTenantLocked brings a tenant one step closer to its quota. ErrAgain means that more
// steps are needed.
func (ev *Evictor) TrimTenantLocked(t *objects.Tenant) error {
	if ev.cat.Closed {
		return nil
	}
	if _, more := ev.cat.Objects.HBM.Yield(t, ev.cat.Objects.Quotas.Over(t, 0)); more {
		return objects.ErrAgain
	}
	over := min(ev.cat.Objects.Quotas.Over(t, 0), ev.cat.Objects.Below.Used(t))
	if over > 0 && ev.trimBelowLocked(t, over, nil) {
		return objects.ErrAgain
	}
	return nil
}
