// Package canary keeps what engines report of reuses that they computed again, and
// which profiles are switched off for splicing; Memory remembers the latter across
// restarts. What a switched-off profile is answered is the server's.
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

// maxRows is how many profiles of one tenant reports are kept of; a guess with
// room, since a tenant may register one identity after another.
const maxRows = 256

// Canary keeps what engines report of the reuses that they computed again, and
// which profiles are switched off for splicing. Both are per tenant: segments are
// not shared between tenants, so that what one has seen says nothing about those
// of another, and no tenant can take reuse from another.
type Canary struct {
	now      func() time.Time
	offs     atomic.Int64           // rows that are off: while there is none, IsOff takes no lock
	withheld atomic.Uint64          // segment keys that were misses for it
	unknown  atomic.Pointer[string] // why it is not known what is off: then all is; nil = it is known
	changed  chan struct{}          // capacity 1: what is off has changed
	share    atomic.Uint64          // bits of the share that engines are told; negative = as they were told

	remembered bool // true if a Memory writes changes to disk; fixed before use

	mu struct {
		sync.Mutex
		rows    map[Key]*Reports
		changes uint64        // of what is off
		noted   uint64        // of them, in the note on disk
		trouble error         // why the last attempt to note them failed
		wake    chan struct{} // closed when noted or trouble was set
	}
}

// Key names what reports are about. Fingerprints, unlike ids, are the same
// after a restart.
type Key struct {
	Tenant      tier.TenantID
	Fingerprint profile.Fingerprint
}

// Reports is what came in about one profile of one tenant.
type Reports struct {
	Model            string
	Compared, Failed uint64
	Worst, Bound     float64 // of all since the daemon's start; of the last report
	Last             time.Time
	Off              bool
	Since            time.Time // switched off
	Why              string    // what the report said
	Losses           Losses

	last wire.ReportRequest // that asked for a switch-off
}

// New makes a canary that nothing was reported to.
func New(now func() time.Time) *Canary {
	c := &Canary{now: now, changed: make(chan struct{}, 1)}
	c.SetShare(-1)
	c.mu.rows, c.mu.wake = map[Key]*Reports{}, make(chan struct{})
	return c
}

// Share is what share of spliced requests engines are told to compute again, from 0 to 1;
// negative: each goes by its own settings. They hear it with the next request that they
// tell of.
func (c *Canary) Share() float64 { return math.Float64frombits(c.share.Load()) }

// SetShare changes what Share answers.
func (c *Canary) SetShare(share float64) { c.share.Store(math.Float64bits(share)) }

// IsOff reports whether a profile is switched off for a tenant.
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

// Unknown is why it is not known what is switched off, "" if it is. While it is not,
// every profile of every tenant is.
func (c *Canary) Unknown() string {
	if why := c.unknown.Load(); why != nil {
		return *why
	}
	return ""
}

// setUnknown switches everything off, or with "" goes by what is known again.
func (c *Canary) setUnknown(why string) {
	if why == "" {
		c.unknown.Store(nil)
		return
	}
	c.unknown.Store(&why)
}

// Add counts a report, which it may keep, and says whether the profile is off now, and whether
// it was this report that switched it. One that comes again since it could not be noted counts once.
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
		r.last = *m // the slices alias the receive buffer, which is reused
		r.last.Losses.Compared = slices.Clone(m.Losses.Compared)
		r.last.Losses.Changed = slices.Clone(m.Losses.Changed)
	}
	if m.Losses.Offline == 0 { // else no canary has reported
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

// newRowLocked makes a row. At the bound it takes the place of the one that was
// silent longest and is not off.
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
	c.mu.trouble = nil // of an attempt that did not have this change
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Durable waits until what is switched off now outlives the daemon: a kill, and a loss of
// power. Without a Memory nothing does, and it returns at once. ErrUnavailable: it could not
// be noted; it is in force all the same, and Memory tries again.
func (c *Canary) Durable(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for want := c.mu.changes; c.remembered && c.mu.noted < want; {
		if why := c.Unknown(); why != "" {
			return codes.Refuse(wire.Unavailable, "in force, but not noted for the next start: %s", why)
		}
		if err := c.mu.trouble; err != nil {
			return codes.Refuse(wire.Unavailable, "in force, but not noted yet for the next start: %v", err)
		}
		wake := c.mu.wake
		c.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil && c.mu.noted < want {
			return codes.Refuse(wire.Unavailable, "in force, but not noted yet for the next start: the disk does not answer")
		}
	}
	return nil
}

// noting returns all rows, and the number of changes that they include, for settled.
func (c *Canary) noting() (rows []Row, changes uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listLocked(), c.mu.changes
}

// settled records the result of writing the note as of a number of changes.
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

// Set switches a profile for a tenant, as an operator asks, and reports whether
// that changed anything. While it is not known what is off, nothing is switched on.
// The change is in force at once; Durable waits until it outlives the daemon.
func (c *Canary) Set(of Key, model string, off bool, why string) (changed bool, err error) {
	if unknown := c.Unknown(); unknown != "" && !off {
		return false, codes.Refuse(wire.Unavailable, "everything is switched off: %s", unknown)
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

// Row is a copy of what is kept of one profile and tenant.
type Row struct {
	Key
	Reports
}

// List copies all rows, in the order of tenants and fingerprints. While the note cannot be
// read every row is off, with the reason.
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

// Withhold counts segment keys that were answered as misses for it.
func (c *Canary) Withhold(n int) { c.withheld.Add(uint64(n)) }

// Sums are over all profiles.
type Sums struct {
	Compared uint64 `count:"canary_compared"`
	Failed   uint64 `count:"canary_failed"`
	Withheld uint64 `count:"canary_withheld" prom:"canary_withheld_total" help:"Segment keys that match answered as misses since their profile is switched off. They are not among the lookups."`
	Off      int    `count:"profiles_switched_off"`
}

// Sums adds up what was reported.
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

// PlainText is a client's text without what could move a person's terminal.
func PlainText(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
}
