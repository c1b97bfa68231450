package objects

import (
	"time"

	"github.com/spliced-kv/spliced/policy"
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

// Quotas limits what tenants have in memory, HBM and the lower tier together.
type Quotas struct {
	cfg      *Options
	table    *policy.Table[Object]
	below    *Below
	policies *Policies
}

// Set sets a tenant's quota; 0 = none. The quota counts at once, unless the tenant's
// policies are incomplete. In that case it counts when CatchUp has completed them.
func (quotas *Quotas) Set(t *Tenant, bytes int64) {
	if t.Evict == nil && bytes > 0 {
		t.Evict, t.behind = quotas.cfg.Eviction(), &catchUp{}
		if len(t.Used) > PoolCount { // there are devices
			t.Above = quotas.cfg.Eviction()
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
func (quotas *Quotas) CatchUp(t *Tenant) (more bool) {
	b := t.behind
	if b == nil {
		return false
	}
	if places := quotas.table.Places(); b.listed < len(places) {
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
		n -= quotas.tellUse(next.Of, next.At)
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
func (quotas *Quotas) tellUse(o *Object, used time.Time) (calls int) {
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
			calls = quotas.tellUse(up, used)
		}
		o.InTenant.change(o.Ranked, own, o.ID, quotas.policies.Item(o), used)
		o.InTenant = o.Ranked
	}
	return calls + 1
}

// Over returns by how many bytes a tenant would exceed its quota if it were charged
// this number of bytes more. If the result is negative, the quota leaves room for as many
// bytes. The result is 0 for a tenant without a quota.
func (quotas *Quotas) Over(t *Tenant, bytes int64) int64 {
	if t.QuotaBytes == 0 {
		return 0
	}
	return t.Total() + quotas.below.Used(t) + bytes - t.QuotaBytes
}
