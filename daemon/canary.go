package daemon

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// canaryRows is how many profiles of one tenant reports are kept of; a guess with
// room, since a tenant may register one identity after another.
const canaryRows = 256

// canary keeps what engines report of the reuses that they computed again, and
// which profiles are switched off for splicing. Both are per tenant: segments are
// not shared between tenants, so that what one has seen says nothing about those
// of another, and no tenant can take reuse from another.
type canary struct {
	now      func() time.Time
	offs     atomic.Int64  // rows that are off: while there is none, lookups ask no further
	withheld atomic.Uint64 // segment keys that were misses for it
	changed  chan struct{} // capacity 1: what is off has changed

	mu struct {
		sync.Mutex
		rows map[reported]*reports
	}
}

// reported names what reports are about. Fingerprints, unlike ids, are the same
// after a restart.
type reported struct {
	tenant      tier.TenantID
	fingerprint profile.Fingerprint
}

// reports is what came in about one profile of one tenant.
type reports struct {
	model            string
	compared, failed uint64
	worst, bound     float64 // of all since the daemon's start; of the last report
	last             time.Time
	off              bool
	since            time.Time // switched off
	why              string    // what the report said
}

func newCanary(now func() time.Time) *canary {
	c := &canary{now: now, changed: make(chan struct{}, 1)}
	c.mu.rows = map[reported]*reports{}
	return c
}

// isOff reports whether a profile is switched off for a tenant.
func (c *canary) isOff(of reported) bool {
	if c.offs.Load() == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.rows[of]
	return r != nil && r.off
}

// add counts a report and says whether the profile is off now, and whether it was
// this report that switched it.
func (c *canary) add(of reported, model string, m *wire.ReportRequest) (off, switched bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.rows[of]
	if r == nil {
		if r, err = c.newRowLocked(of); err != nil {
			return false, false, err
		}
		r.model = model
	}
	r.compared += uint64(m.Compared)
	r.failed += uint64(m.Failed)
	r.worst, r.bound = max(r.worst, m.Worst), m.Bound
	r.last = c.now()
	if switched = m.Off == 1 && !r.off; switched {
		r.off, r.since, r.why = true, r.last, plainText(m.Text)
		c.offs.Add(1)
		c.noteChange()
	}
	return r.off, switched, nil
}

// newRowLocked makes a row. At the bound it takes the place of the one that was
// silent longest and is not off.
func (c *canary) newRowLocked(of reported) (*reports, error) {
	n := 0
	var oldest *reported
	for key, r := range c.mu.rows {
		if key.tenant != of.tenant {
			continue
		}
		n++
		if !r.off && (oldest == nil || r.last.Before(c.mu.rows[*oldest].last)) {
			oldest = &key
		}
	}
	if n >= canaryRows {
		if oldest == nil {
			return nil, refuse(wire.Full, "%d profiles are switched off", n)
		}
		delete(c.mu.rows, *oldest)
	}
	r := &reports{}
	c.mu.rows[of] = r
	return r, nil
}

func (c *canary) noteChange() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// set switches a profile for a tenant, as an operator asks, and reports whether
// that changed anything.
func (c *canary) set(of reported, model string, off bool, why string) (changed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.rows[of]
	if r == nil {
		if !off {
			return false, nil
		}
		if r, err = c.newRowLocked(of); err != nil {
			return false, err
		}
		r.model, r.last = model, c.now()
	}
	if r.off == off {
		return false, nil
	}
	r.off, r.since, r.why = off, c.now(), plainText(why)
	if off {
		c.offs.Add(1)
	} else {
		c.offs.Add(-1)
		r.since = time.Time{}
	}
	c.noteChange()
	return true, nil
}

// row is a copy of what is kept of one profile and tenant.
type canaryRow struct {
	reported
	reports
}

// list copies all rows, in the order of tenants and fingerprints.
func (c *canary) list() []canaryRow {
	c.mu.Lock()
	defer c.mu.Unlock()
	rows := make([]canaryRow, 0, len(c.mu.rows))
	for key, r := range c.mu.rows {
		rows = append(rows, canaryRow{key, *r})
	}
	slices.SortFunc(rows, func(a, b canaryRow) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), slices.Compare(a.fingerprint[:], b.fingerprint[:]))
	})
	return rows
}

// each calls f with sums over all rows.
func (c *canary) each(f func(name string, value uint64)) {
	var compared, failed uint64
	for _, r := range c.list() {
		compared, failed = compared+r.compared, failed+r.failed
	}
	f("canary_compared", compared)
	f("canary_failed", failed)
	f("canary_withheld", c.withheld.Load())
	f("profiles_switched_off", uint64(max(0, c.offs.Load())))
}

// switchedOff reports whether segments may not be used by a request.
func (t *task) switchedOff(id tier.ProfileID) bool {
	c := t.conn.server.canary
	if c.offs.Load() == 0 {
		return false
	}
	of, ok := t.reported(id)
	return ok && c.isOff(of)
}

func (t *task) reported(id tier.ProfileID) (reported, bool) {
	p, ok := t.conn.server.store.Profile(id)
	if !ok {
		return reported{}, false
	}
	return reported{tier.TenantID(t.header.Tenant), p.Fingerprint()}, true
}

// report takes what a canary has seen.
func (t *task) report() (wire.Message, error) {
	s := t.conn.server
	var m wire.ReportRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, _, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if err := checkReport(&m); err != nil {
		return nil, err
	}
	p, ok := s.store.Profile(id)
	if !ok {
		return nil, refuse(wire.Gone, "profile %d", m.Profile)
	}
	of, model := reported{tier.TenantID(t.header.Tenant), p.Fingerprint()}, p.Identity().Model
	off, switched, err := s.canary.add(of, model, &m)
	if err != nil {
		return nil, err
	}
	if switched {
		s.log.Warn().Str("model", model).Hex("profile", of.fingerprint[:8]).Str("tenant", s.tenantName(of.tenant)).
			Str("client", t.at.client).Uint32("compared", m.Compared).Uint32("failed", m.Failed).Float64("worst", m.Worst).
			Float64("bound", m.Bound).Str("why", plainText(m.Text)).Msg("splicing is switched off for this profile until an operator switches it on")
	}
	return &wire.ReportReply{Off: oneIf(off)}, nil
}

func checkReport(m *wire.ReportRequest) error {
	switch {
	case m.Failed > m.Compared:
		return refuse(wire.Invalid, "%d of %d comparisons failed", m.Failed, m.Compared)
	case !(m.Worst >= 0) || !(m.Bound >= 0): // NaN fails every comparison
		return refuse(wire.Invalid, "worst %v, bound %v", m.Worst, m.Bound)
	case math.IsInf(m.Bound, 1):
		return refuse(wire.Invalid, "a bound without end")
	case m.Off > 1:
		return refuse(wire.Invalid, "off %d", m.Off)
	}
	return nil
}

// plainText is a client's text without what could move a person's terminal.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}

// tenantName names a tenant for people.
func (s *server) tenantName(id tier.TenantID) string {
	for i := range s.tenants {
		if s.tenants[i].ID == id {
			return s.tenants[i].Name
		}
	}
	return fmt.Sprintf("tenant %d", id)
}
