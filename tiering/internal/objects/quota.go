package objects

import (
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/deadline"
)

// A tenant that has never had a quota has no policies. With its first quota it gets new
// policies. Its objects are added to these policies a few at a time, in the order of their
// last use, which many policies rely on. "listing" collects the objects, "telling" adds
// them:
//
//	none ──► listing ──► telling ──► complete: the quota counts
//
// Until the policies are complete nothing is evicted for the quota. The policies stay when
// the quota is removed.

// catchUp is the progress of a tenant's policies.
type catchUp struct {
	quota  int64                  // quota to enforce once the policies are complete
	listed int                    // rows of the table that have been scanned
	uses   deadline.Heap[*Object] // uses not yet reported to the policies, oldest first
	came   uint64                 // number of uses since the start
	seen   uint64                 // value of came at the last step
}

// placesAtOnce is the number of rows of the table that one critical section scans.
const placesAtOnce = 64

// SetQuota sets a tenant's quota; 0 = none. The quota counts at once, unless the tenant's
// policies are incomplete. In that case it counts when CatchUp has completed them.
func (s *Set) SetQuota(t *Tenant, bytes int64) {
	if t.Evict == nil && bytes > 0 {
		t.Evict, t.behind = s.cfg.Eviction(), &catchUp{}
		if s.HBM != nil {
			t.Above = s.cfg.Eviction()
		}
	}
	if t.behind != nil {
		t.behind.quota = bytes
	} else {
		t.QuotaBytes = bytes
	}
}

// WantedQuota returns the quota that was set last.
func (t *Tenant) WantedQuota() int64 {
	if t.behind != nil {
		return t.behind.quota
	}
	return t.QuotaBytes
}

// CatchUp passes some uses that a tenant's policies have missed to these policies. The
// result is true if the policies are still incomplete. Each call passes EvictRows more uses
// than were added since the last call, so that the work ends however often objects are used
// meanwhile.
func (s *Set) CatchUp(t *Tenant) (more bool) {
	b := t.behind
	if b == nil {
		return false
	}
	if places := s.Table.Places(); b.listed < len(places) {
		end := min(b.listed+placesAtOnce, len(places))
		for _, o := range places[b.listed:end] {
			if o != nil && o.Tenant == t && o.Ranked != Absent {
				b.uses.Add(&deadline.Deadline[*Object]{At: o.Used, Order: uint64(o.ID) >> 1, Of: o})
			}
		}
		b.listed, b.seen = end, b.came
		return true
	}
	for n := EvictRows + int(b.came-b.seen); n > 0 && b.uses.Len() > 0; {
		next := b.uses.First()
		b.uses.Remove(next)
		n -= s.tellUse(next.Of, next.At)
	}
	b.seen = b.came
	if b.uses.Len() > 0 {
		return true
	}
	t.QuotaBytes, t.behind = b.quota, nil
	return false
}

// add queues a use for the policies, after queued uses of the same time.
func (b *catchUp) add(o *Object, at time.Time) {
	b.came++
	b.uses.Add(&deadline.Deadline[*Object]{At: at, Order: 1<<63 | b.came, Of: o})
}

// tellUse reports a use to a tenant's policy, unless the object has been evicted since. It
// returns the number of policy calls. It reports ancestors first, since a policy counts
// that an object extends another only if it knows the other.
func (s *Set) tellUse(o *Object, used time.Time) (calls int) {
	own := o.Tenant.evictionOf(o)
	switch {
	case o.Ranked == Absent:
	case o.InTenant != Absent:
		own.Touch(o.ID, used)
	default:
		up := o.Parent
		for up != nil && up.Ranked == Absent {
			up = up.Parent
		}
		if up != nil && up.InTenant == Absent {
			calls = s.tellUse(up, used)
		}
		o.InTenant.change(o.Ranked, own, o.ID, s.Item(o), used)
		o.InTenant = o.Ranked
	}
	return calls + 1
}
