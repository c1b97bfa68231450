// Package canary counts the comparisons of reused and recomputed segments that engines report. It
// also records the profiles for which splicing is switched off, which its Memory keeps across
// restarts. Package server answers requests about such profiles with misses.
package canary

import (
	"cmp"
	"context"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxRows is the largest number of profiles of one tenant for which reports are kept. The limit is
// needed, since a tenant may register one identity after another. Its value is a generous guess.
const maxRows = 256

// Canary has, per tenant, the reports of engines and the profiles that are switched off for
// splicing. Tenants share no segments, so the reports of one tenant say nothing about the segments
// of another, and must not switch off splicing for the other tenant.
type Canary struct {
	now      func() time.Time
	offs     atomic.Int64           // number of rows that are off; if it is 0, IsOff takes no lock
	withheld atomic.Uint64          // segment keys answered as misses because of a switch-off
	unknown  atomic.Pointer[string] // why the note cannot be read, and everything is off; nil = it was read
	changed  chan struct{}          // capacity 1: signals changes to the set of switched-off profiles
	share    atomic.Uint64          // bits of the share that Share returns

	remembered bool // a Memory writes changes to disk; fixed before use

	mu struct {
		sync.Mutex
		rows    map[Key]*Reports
		changes uint64        // number of changes so far
		noted   uint64        // changes up to this number are in the note on disk
		trouble error         // error of the last attempt to write the note
		wake    chan struct{} // closed when noted or trouble is set
	}
}

// Key identifies the tenant and profile of reports. It has the fingerprint, since ids change at a
// restart.
type Key struct {
	Tenant      tier.TenantID
	Fingerprint profile.Fingerprint
}

// Reports sums up the reports on one profile of one tenant.
type Reports struct {
	Model            string
	Compared, Failed uint64
	Worst, Bound     float64 // Worst is since the daemon's start, Bound of the last report
	Last             time.Time
	Off              bool
	Since            time.Time // when it was switched off
	Why              string    // text of the report, or of the operator
	Losses           Losses

	last wire.ReportRequest // last report that asked to switch off
}

// New returns a canary without reports.
func New(now func() time.Time) *Canary {
	c := &Canary{now: now, changed: make(chan struct{}, 1)}
	c.SetShare(-1)
	c.mu.rows, c.mu.wake = map[Key]*Reports{}, make(chan struct{})
	return c
}

// Share returns the share of spliced requests, from 0 to 1, that engines also compute in full to
// compare the results. A negative value means that each engine uses its own setting. An engine
// learns the value from the reply to its next report of a served request.
func (c *Canary) Share() float64 { return math.Float64frombits(c.share.Load()) }

// SetShare sets the share that Share returns.
func (c *Canary) SetShare(share float64) { c.share.Store(math.Float64bits(share)) }

// IsOff reports whether splicing is switched off for a profile of a tenant.
func (c *Canary) IsOff(of Key) bool {
	if c.unknown.Load() != nil {
		return true
	}
	if c.offs.Load() == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.rows[of]
	return r != nil && r.Off
}

// Unknown returns the reason why the switched-off profiles are not known, or "" if they are known.
// While they are not known, every profile of every tenant is off.
func (c *Canary) Unknown() string {
	if why := c.unknown.Load(); why != nil {
		return *why
	}
	return ""
}

// setUnknown switches everything off for the given reason. With the reason "", the rows of the
// profiles apply again.
func (c *Canary) setUnknown(why string) {
	if why == "" {
		c.unknown.Store(nil)
		return
	}
	c.unknown.Store(&why)
}

// Add counts a report. The result off reports whether the profile is off now, and the result
// switched whether this report switched it off. If the switch-off could not be written to disk, the
// client sends the same report again, and Add does not count it again.
func (c *Canary) Add(of Key, model string, m *wire.ReportRequest) (off, switched bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mu.rows[of]
	if r == nil {
		if r, err = c.newRowLocked(of); err != nil {
			return false, false, err
		}
		r.Model = model
	}
	if again := r.Off && m.Off == 1 && reflect.DeepEqual(&r.last, m); !again {
		r.Compared += uint64(m.Compared)
		r.Failed += uint64(m.Failed)
		r.Losses.add(&m.Losses)
	}
	if m.Off == 1 {
		r.last = *m // its slices are in the receive buffer, which is reused
		r.last.Losses.Compared = slices.Clone(m.Losses.Compared)
		r.last.Losses.Changed = slices.Clone(m.Losses.Changed)
	}
	if m.Losses.Offline == 0 { // an offline report has no comparisons
		r.Worst, r.Bound = max(r.Worst, m.Worst), m.Bound
	}
	r.Last = c.now()
	if switched = m.Off == 1 && !r.Off; switched {
		r.Off, r.Since, r.Why = true, r.Last, PlainText(m.Text)
		c.offs.Add(1)
		c.noteChangeLocked()
	}
	return r.Off || c.unknown.Load() != nil, switched, nil
}

// newRowLocked adds a row. If there are maxRows, it replaces the row that has been silent the
// longest and is not off.
func (c *Canary) newRowLocked(of Key) (*Reports, error) {
	n := 0
	var oldest *Key
	for key, r := range c.mu.rows {
		if key.Tenant != of.Tenant {
			continue
		}
		n++
		if !r.Off && (oldest == nil || r.Last.Before(c.mu.rows[*oldest].Last)) {
			oldest = &key
		}
	}
	if n >= maxRows {
		if oldest == nil {
			return nil, codes.Refuse(wire.Full, "%d profiles are switched off", n)
		}
		delete(c.mu.rows, *oldest)
	}
	r := &Reports{}
	c.mu.rows[of] = r
	return r, nil
}

func (c *Canary) noteChangeLocked() {
	c.mu.changes++
	c.mu.trouble = nil // that attempt did not include this change
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Durable waits until the current switch-offs would survive a kill of the daemon and a loss of
// power. Without a Memory, nothing is written to disk, and Durable returns at once. If the disk
// fails, Durable returns an error with wire.Unavailable; the switch-offs are in force nevertheless,
// and Memory retries.
func (c *Canary) Durable(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for want := c.mu.changes; c.remembered && c.mu.noted < want; {
		if why := c.Unknown(); why != "" {
			return codes.Refuse(wire.Unavailable, "in force, but not saved for the next start: %s", why)
		}
		if err := c.mu.trouble; err != nil {
			return codes.Refuse(wire.Unavailable, "in force, but not saved yet for the next start: %v", err)
		}
		wake := c.mu.wake
		c.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil && c.mu.noted < want {
			return codes.Refuse(wire.Unavailable, "in force, but not saved yet for the next start: the disk does not answer")
		}
	}
	return nil
}

// noting returns all rows and the number of changes that they include. settled needs that number.
func (c *Canary) noting() (rows []Row, changes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listLocked(), c.mu.changes
}

// settled records the result of writing a note with the given number of changes.
func (c *Canary) settled(changes uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.mu.noted = max(c.mu.noted, changes)
	case changes == c.mu.changes:
		c.mu.trouble = err
	default:
		return // another attempt follows at once
	}
	close(c.mu.wake)
	c.mu.wake = make(chan struct{})
}

// Set switches a profile off or on for a tenant, on behalf of an operator. It reports whether that
// changed anything. The change is in force at once; Durable waits until it would survive a restart.
// While the file of switched-off profiles cannot be read, no profile can be switched on.
func (c *Canary) Set(of Key, model string, off bool, why string) (changed bool, err error) {
	if unknown := c.Unknown(); unknown != "" && !off {
		return false, codes.Refuse(wire.Unavailable, "all profiles are switched off: %s", unknown)
	}
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
		r.Model, r.Last = model, c.now()
	}
	if r.Off == off {
		return false, nil
	}
	r.Off, r.Since, r.Why = off, c.now(), PlainText(why)
	if off {
		c.offs.Add(1)
	} else {
		c.offs.Add(-1)
		r.Since = time.Time{}
	}
	c.noteChangeLocked()
	return true, nil
}

// Row is a copy of the reports on one profile of one tenant.
type Row struct {
	Key
	Reports
}

// List returns copies of all rows, ordered by tenant and fingerprint. While the file of
// switched-off profiles cannot be read, every row is off, with that reason.
func (c *Canary) List() []Row {
	c.mu.Lock()
	rows := c.listLocked()
	c.mu.Unlock()
	if why := c.Unknown(); why != "" {
		for i := range rows {
			if r := &rows[i]; !r.Off {
				r.Off, r.Why = true, why
			}
		}
	}
	return rows
}

func (c *Canary) listLocked() []Row {
	rows := make([]Row, 0, len(c.mu.rows))
	for key, r := range c.mu.rows {
		rows = append(rows, Row{key, *r})
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), slices.Compare(a.Fingerprint[:], b.Fingerprint[:]))
	})
	return rows
}

// Withhold counts segment keys that were answered as misses because their profile is off.
func (c *Canary) Withhold(n int) { c.withheld.Add(uint64(n)) }

// Sums are totals over all profiles.
type Sums struct {
	Compared uint64 `count:"canary_compared"`
	Failed   uint64 `count:"canary_failed"`
	Withheld uint64 `count:"canary_withheld" prom:"canary_withheld_total" help:"Segment keys that match requests got as misses, because splicing is switched off for their profile. They do not count as lookups."`
	Off      int    `count:"profiles_switched_off"`
}

// Sums returns the totals.
func (c *Canary) Sums() Sums {
	sums := Sums{Withheld: c.withheld.Load()}
	for _, r := range c.List() {
		sums.Compared, sums.Failed = sums.Compared+r.Compared, sums.Failed+r.Failed
		if r.Off {
			sums.Off++
		}
	}
	return sums
}

// PlainText replaces characters of a client's text that are not printable, such as terminal
// controls.
func PlainText(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
