package serve

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// errWithheld is the error of a segment that could have been leased, but is not, because
// another key of an all-or-none query could not be leased.
var errWithheld = fmt.Errorf("another key of the request is not to be had: %w", tier.ErrWithheld)

// together sums up the bytes that an all-or-none query needs. A charge is the number of
// bytes that count towards the tenant's quota.
type together struct {
	missing bool  // a key is not cached, or is being filled
	joins   int64 // pool bytes of segments in memory that are not in use yet
	joined  int64 // bytes of these segments that count towards the tenant's quota
	comes   int64 // pool bytes of segments to be read from the lower tier
	charge  int64 // bytes of these segments that would count towards the tenant's quota
	below   int64 // bytes that these segments take in the lower tier
}

// refuseTogether answers the rows of an all-or-none query that cannot be served now. For a
// refused query nothing is leased, evicted or promoted. A query may use all room that is
// not taken by objects in use. So if two queries do not fit into memory together, the later
// one is refused, and neither evicts objects that the other is about to read.
func (c *Session) refuseTogether(q *AcquireQuery, p *objects.Profile, t *objects.Tenant, dst []Acquired) (rows []Acquired, refused bool) {
	s := c.sessions
	var need together
	base := len(dst)
	seen := make(map[[32]byte]int, len(q.Keys))
	s.cat.Mu.Each(len(q.Keys), catalog.HoldRows, func(i int) {
		row := Acquired{Err: errWithheld}
		if before, again := seen[q.Keys[i]]; again {
			row = dst[before]
		} else if why := s.lookup.needLocked(&q.Keys[i], p, t, &need); why != tier.ReasonNone {
			row = Acquired{Reason: why}
		}
		seen[q.Keys[i]] = len(dst)
		dst = append(dst, row)
	})
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	if need.missing {
		for _, row := range dst[base:] {
			if row.Err == nil {
				s.cat.Of(p).AcquireMisses++
			}
		}
		return dst, true
	}
	err := c.roomLocked(&need, t, len(q.Keys))
	if err == nil {
		return dst[:base], false
	}
	s.cat.Counters.AcquireRefused++
	why := decision.Together
	if errors.Is(err, tier.ErrBusy) {
		why = decision.Busy
	}
	s.cat.Decisions.Note(decision.Decision{
		At: s.cat.Config.Now(), What: decision.Refuse, Why: why, Name: tier.Name{Key: q.Keys[0]}, Profile: q.Profile, Tenant: q.Tenant,
		Bytes: need.joins + need.comes,
	})
	for i := range dst[base:] {
		dst[base+i] = Acquired{Err: err}
	}
	return dst, true
}

// needLocked adds to n what one key needs. If the key is a miss, it returns the reason.
func (look *Lookup) needLocked(key *[32]byte, p *objects.Profile, t *objects.Tenant, n *together) tier.Reason {
	o := look.cat.Objects.Names.Segment(key, p, t)
	switch {
	case o == nil:
		e, ok := look.cat.Objects.Below.Segment(key, p, t)
		if !ok {
			n.missing = true
			why, _ := look.cat.Objects.Names.Ghosts.Why(key, p.ID, t.ID)
			return why
		}
		size := look.cat.Objects.Memory.SizeOf(p, p.PartsOf(&e), e.Spec.Tokens)
		n.comes += size.PageBytes
		n.charge += size.Charge()
		n.below += e.Bytes
	case o.Fill != nil && !o.Fill.Promoted:
		n.missing = true
		return tier.ReasonPending
	case o.Pins == 0:
		n.joins += o.PageBytes
		n.joined += o.Charge()
	}
	return tier.ReasonNone
}

// roomLocked checks that the bytes that a query needs fit next to the objects in use.
func (c *Session) roomLocked(n *together, t *objects.Tenant, keys int) error {
	s := c.sessions
	pool := s.cat.Objects.Pools[objects.PublicPool]
	if len(c.leases)+keys > s.cat.Config.MaxLeases {
		return fmt.Errorf("acquire: session %q has %d leases and wants %d together: %w", c.client.Name, len(c.leases), keys, tier.ErrBusy)
	}
	inUse := pool.Pinned
	if !s.writes.WritesHangLocked() {
		inUse -= pool.Bytes[objects.ClassDemoting] // their pages become free without an eviction
	}
	if n.comes > 0 && inUse+n.joins+n.comes > pool.Budget {
		return fmt.Errorf("acquire: %d bytes together, %d of them to be read, beside %d in use of %d in the %s pool: %w",
			n.joins+n.comes, n.comes, inUse, pool.Budget, pool.Name, tier.ErrFull)
	}
	if n.comes == 0 || t.QuotaBytes == 0 {
		return nil
	}
	if over := s.cat.Objects.Quotas.Over(t, n.charge) - t.Leaving; over > t.Total()-t.Pinned-n.joined+s.evictor.Trimmable(t, n.below) {
		return fmt.Errorf("acquire: %d bytes to be read together, tenant %q is over its quota of %d by %d: %w",
			n.charge, t.Name, t.QuotaBytes, over, tier.ErrFull)
	}
	return nil
}

// keepTogether finishes an all-or-none acquire: unless every row is a hit, it releases
// all leases.
func (c *Session) keepTogether(rows []Acquired) {
	all := true
	for i := range rows {
		all = all && rows[i].Hit
	}
	if all {
		return
	}
	s := c.sessions
	s.cat.Mu.Each(len(rows), catalog.HoldRows, func(i int) {
		if !rows[i].Hit {
			return
		}
		if l := c.leases[rows[i].Lease]; l != nil { // the session may have ended
			s.dropLeaseLocked(l)
		}
		rows[i] = Acquired{Err: errWithheld}
	})
}
