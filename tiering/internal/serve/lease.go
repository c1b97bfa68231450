package serve

import (
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// leaseLocked leases a published object. This counts as a use of the object.
func (c *Session) leaseLocked(o *objects.Object, rank int, ttl time.Duration, now time.Time) (*lease, error) {
	s := c.sessions
	if len(c.leases) >= s.cat.Config.MaxLeases {
		s.cat.Of(o.Profile).RefusedBusy++
		return nil, fmt.Errorf("%s: session %q has %d leases: %w", o.Name(), c.client.Name, len(c.leases), tier.ErrBusy)
	}
	l := &lease{id: s.cat.NewLeaseID(), object: o, rank: rank, session: c, since: now}
	s.timeLocked(l, ttl, now)
	c.leases[l.id] = l
	o.Lease(1)
	s.cat.Counters.Leases++
	o.Hits++
	s.cat.Objects.EndReadAhead(o, &s.cat.Counters.ReadAheadUsed)
	if o.Stored != 0 {
		s.cat.Objects.Below.Touch(o.Label())
	}
	s.cat.Objects.Account(o)
	s.cat.Durations.Since(o, s.cat.Durations.Reused, now)
	s.cat.Objects.Policies.Used(o, now)
	if o.Resident != nil && o.InHBM() {
		s.cat.Objects.HBM.Used(o, now)
	}
	return l, nil
}

// timeLocked sets or renews the expiry of a lease.
func (ses *Sessions) timeLocked(l *lease, ttl time.Duration, now time.Time) {
	if ttl <= 0 {
		ttl = ses.cat.Config.LeaseTTL
	}
	ses.cat.Objects.Deadlines.Remove(&l.until)
	l.until = deadline.Deadline[any]{At: now.Add(min(ttl, ses.cat.Config.MaxLeaseTTL)), Order: uint64(l.id), Of: l}
	ses.cat.Objects.Deadlines.Add(&l.until)
}

// Release releases a lease, expired or not, or a buffer. The client must no longer read
// the memory. The error is ErrGone if the session has no lease or buffer with this id.
func (c *Session) Release(id tier.LeaseID) error {
	if c.dropLease(id) || c.plans.ReleaseBuffer(id) {
		return nil
	}
	return fmt.Errorf("lease %d: %w", id, tier.ErrGone)
}

// Leased describes a leased object with the shares of all ranks, whichever rank the lease
// is for. For a checkpoint it describes the last node. The bytes may be read until the
// lease is released. The error is ErrGone if the session does not have the lease, if it
// has expired, or if it is a lease on a copy in HBM.
func (c *Session) Leased(id tier.LeaseID) (*tier.Object, error) {
	s := c.sessions
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	l := c.leases[id]
	if l == nil || l.expired() || l.object.InHBM() {
		return nil, fmt.Errorf("lease %d: %w", id, tier.ErrGone)
	}
	return s.cat.Objects.Memory.Describe(l.object), nil
}

// LeasedChain returns the nodes that a lease of a checkpoint covers, from the root to the
// checkpoint. Nodes before the last may have lost their states; the state parts of their
// shares must not be read. The result is valid as long as the lease.
func (c *Session) LeasedChain(id tier.LeaseID) ([]*tier.Object, error) {
	s := c.sessions
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	l := c.leases[id]
	if l == nil || l.expired() || l.object.InHBM() {
		return nil, fmt.Errorf("lease %d: %w", id, tier.ErrGone)
	}
	var chain []*tier.Object
	for o := l.object; o != nil; o = o.Parent {
		chain = append(chain, s.cat.Objects.Memory.Describe(o))
	}
	slices.Reverse(chain)
	return chain, nil
}

func (c *Session) dropLease(id tier.LeaseID) bool {
	s := c.sessions
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	l := c.leases[id]
	if l != nil {
		s.dropLeaseLocked(l)
	}
	return l != nil
}

func (ses *Sessions) dropLeaseLocked(l *lease) {
	delete(l.session.leases, l.id)
	if l.expired() {
		l.object.Expired--
		ses.cat.Counters.Quarantined--
	} else {
		ses.cat.Objects.Deadlines.Remove(&l.until)
		l.object.Lease(-1)
		ses.cat.Counters.Leases--
		ses.cat.Durations.Ended(l.object, l.since, ses.cat.Durations.Released, ses.cat.Config.Now())
	}
	ses.cat.Objects.Account(l.object)
}

// expireLocked quarantines an expired lease. The lease gives no right any more, but its
// holder may still be reading, so the memory stays allocated.
func (ses *Sessions) expireLocked(l *lease) {
	ses.cat.Objects.Deadlines.Remove(&l.until)
	l.object.Lease(-1)
	l.object.Expired++
	ses.cat.Durations.Ended(l.object, l.since, ses.cat.Durations.Expired, ses.cat.Config.Now())
	ses.cat.Counters.LeasesExpired++
	ses.cat.Counters.Leases--
	ses.cat.Counters.Quarantined++
	ses.cat.Objects.Account(l.object)
}

// OverdueLocked quarantines a lease at its deadline.
func (l *lease) OverdueLocked() { l.session.sessions.expireLocked(l) }

// useLeaseLocked finds an active lease of this session for an operation. A lease of
// another session gets the same error as an unknown one.
func (c *Session) useLeaseLocked(id tier.LeaseID, p *objects.Profile, t *objects.Tenant, rank int, now time.Time) (*lease, error) {
	l := c.leases[id]
	if l == nil {
		return nil, fmt.Errorf("lease %d: %w", id, tier.ErrGone)
	}
	if !l.expired() && !now.Before(l.until.At) {
		c.sessions.expireLocked(l) // before the sweep does
	}
	switch o := l.object; {
	case l.expired():
		return nil, fmt.Errorf("lease %d has expired: %w", id, tier.ErrGone)
	case o.Tenant != t:
		return nil, fmt.Errorf("lease %d: %w", id, tier.ErrGone)
	case o.Profile != p:
		return nil, fmt.Errorf("lease %d is of profile %d, not %d: %w", id, o.Profile.ID, p.ID, tier.ErrInvalid)
	case l.rank != rank:
		return nil, fmt.Errorf("lease %d is of rank %d, not %d: %w", id, l.rank, rank, tier.ErrInvalid)
	}
	return l, nil
}
