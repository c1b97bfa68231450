package serve

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// LeaseFilter selects leases; zero fields select all.
type LeaseFilter struct {
	Tenant  *tier.TenantID
	Session *Session
}

// LeaseInfo is one lease of a client.
type LeaseInfo struct {
	ID      tier.LeaseID
	Session *Session
	tier.Name
	Tenant  tier.TenantID
	Profile tier.ProfileID
	Rank    int
	Since   time.Time
	Expires time.Time // if in the past, the lease has expired but is not released yet
	Bytes   int64     // of all ranks of the object; of one rank for a copy in HBM
	Device  tier.DeviceID
}

// Leases lists leases of clients, see Store.Leases.
func (ses *Sessions) Leases(f LeaseFilter, after tier.LeaseID, limit int) []LeaseInfo {
	var page []LeaseInfo
	for _, session := range ses.holders(f.Session) {
		page = ses.leasesOf(session, &f, after, limit, page)
	}
	return page
}

// holders returns the sessions of clients, or only the given one.
func (ses *Sessions) holders(only *Session) []*Session {
	if only != nil {
		return []*Session{only}
	}
	ses.cat.Mu.Lock()
	defer ses.cat.Mu.Unlock()
	return slices.Collect(maps.Keys(ses.open))
}

// leasesOf adds a session's leases to a page. It holds the lock for a few leases at a
// time, and others may add and remove leases in between. The language guarantees for a map
// that changes during an iteration that each entry that stays is visited exactly once.
func (ses *Sessions) leasesOf(c *Session, f *LeaseFilter, after tier.LeaseID, limit int, page []LeaseInfo) []LeaseInfo {
	next, stop := iter.Pull(maps.Values(c.leases))
	defer stop()
	turns := ses.cat.Mu.Turns()
	for more := limit > 0; more; {
		turns.Lock()
		for range catalog.HoldRows {
			var l *lease
			if l, more = next(); !more {
				break
			}
			if l.id > after && (f.Tenant == nil || *f.Tenant == l.object.Tenant.ID) {
				page = insertLease(page, l, limit)
			}
		}
		turns.Unlock()
	}
	return page
}

// insertLease inserts a lease into a page in order of id, and keeps only the first limit.
func insertLease(page []LeaseInfo, l *lease, limit int) []LeaseInfo {
	i, _ := slices.BinarySearchFunc(page, l.id, func(x LeaseInfo, id tier.LeaseID) int { return cmp.Compare(x.ID, id) })
	if i == limit {
		return page
	}
	if len(page) == limit {
		page = page[:limit-1]
	}
	o := l.object
	info := LeaseInfo{
		ID: l.id, Session: l.session, Name: o.Label(), Tenant: o.Tenant.ID, Profile: o.Profile.ID, Rank: l.rank,
		Since: l.since, Expires: l.until.At, Bytes: o.Bytes,
	}
	if o.InHBM() {
		info.Device = o.Pool.Device.ID
	}
	return slices.Insert(page, i, info)
}

// CountLeases returns the number of leases of clients, expired ones included.
func (ses *Sessions) CountLeases() (n int) {
	ses.cat.Mu.Lock()
	defer ses.cat.Mu.Unlock()
	for c := range ses.open {
		n += len(c.leases)
	}
	return n
}
