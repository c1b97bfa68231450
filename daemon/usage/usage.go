package usage

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// maxRows is the number of profiles of one tenant with separate sums; further ones share a
// row without a profile. A generous guess.
const maxRows = 256

// Key identifies sums. Fingerprints, unlike ids, stay the same after a restart.
type Key struct {
	Tenant      tier.TenantID
	Fingerprint profile.Fingerprint // zero: all profiles without a separate row
}

// Sums are over requests with verified reports: their connection found everything that they
// report as reused from the daemon. Token counts are exact: Prompt is the sum of Sources,
// and its computed tokens are the sum of Missed. Other requests count only in Unverified.
type Sums struct {
	Ways    [wire.WayReplay + 1]uint64 // requests by wire.Way
	Prompt  uint64
	Sources [Froms]uint64
	Missed  [causes]uint64 // computed tokens by Cause
	Saved   float64        // milliseconds saved by requests that became faster, an estimate
	Lost    float64        // milliseconds lost by those that became slower
	Guessed float64        // part of Saved less Lost without a measured time
	First   float64        // milliseconds to first tokens, of Timed requests
	Timed   uint64         // requests that reported this time

	Unverified       uint64 // requests
	UnverifiedTokens uint64 // of their prompts
}

// Requests returns the number of requests.
func (s *Sums) Requests() uint64 {
	n := uint64(0)
	for _, of := range s.Ways {
		n += of
	}
	return n
}

// Add adds other sums.
func (s *Sums) Add(o *Sums) {
	add(s.Ways[:], o.Ways[:])
	s.Prompt += o.Prompt
	add(s.Sources[:], o.Sources[:])
	add(s.Missed[:], o.Missed[:])
	s.Saved, s.Lost, s.Guessed = s.Saved+o.Saved, s.Lost+o.Lost, s.Guessed+o.Guessed
	s.First, s.Timed = s.First+o.First, s.Timed+o.Timed
	s.Unverified, s.UnverifiedTokens = s.Unverified+o.Unverified, s.UnverifiedTokens+o.UnverifiedTokens
}

func add(to, from []uint64) {
	for i, n := range from {
		to[i] += n
	}
}

func (s *Sums) count(r *Request) {
	if r.Unverified {
		s.Unverified++
		s.UnverifiedTokens += uint64(r.Tokens)
		return
	}
	s.Ways[r.Way]++
	s.Prompt += uint64(r.Tokens)
	add(s.Sources[:], r.Sources[:])
	for i := range r.Spans {
		if span := &r.Spans[i]; span.From == Computed {
			s.Missed[span.Cause] += uint64(span.End - span.Begin)
		}
	}
	s.Saved += max(0, r.Saved)
	s.Lost += max(0, -r.Saved)
	if r.By == ByGuess {
		s.Guessed += r.Saved
	}
	if r.First > 0 {
		s.First += float64(r.First) / float64(time.Millisecond)
		s.Timed++
	}
}

// Row holds the sums of one tenant and profile.
type Row struct {
	Key
	Model  string
	Since  Sums      // since this daemon's start
	Before Sums      // of earlier starts
	Began  time.Time // when the first of them was reported
}

// Total returns the sums over all starts.
func (r *Row) Total() Sums {
	sums := r.Before
	sums.Add(&r.Since)
	return sums
}

// Usage collects engines' reports of their requests.
type Usage struct {
	now  func() time.Time
	told func(*Request) // called after each; nil = no listener

	mu struct {
		sync.Mutex
		rows   map[Key]*Row
		rings  rings
		firsts firsts
		number uint64
	}
}

// New creates an empty Usage. told is called after each request, which it must not change.
func New(now func() time.Time, told func(*Request)) *Usage {
	u := &Usage{now: now, told: told}
	u.mu.rows = map[Key]*Row{}
	return u
}

// Prediction predicts compute times; Measured = from prefills timed by engines.
type Prediction struct {
	cost.Prefill
	Measured bool
}

// Served records how a prompt was served, and returns its number. verify reports whether
// the daemon had found for the client what it reports as reused.
func (u *Usage) Served(who Who, m *wire.ServedRequest, predicted Prediction, verify func(*wire.ServedRequest) bool) (uint64, error) {
	r, err := read(m)
	if err != nil {
		return 0, err
	}
	r.At, r.Who, r.Unverified = u.now(), who, !verify(m)
	u.mu.Lock()
	u.mu.number++
	r.Number = u.mu.number
	if !r.Unverified {
		u.mu.firsts.saved(r, &predicted)
	}
	u.rowLocked(who.Key, who.Model).Since.count(r)
	u.mu.rings.add(r)
	u.mu.Unlock()
	if u.told != nil {
		u.told(r)
	}
	return r.Number, nil
}

func (u *Usage) rowLocked(of Key, model string) *Row {
	if r := u.mu.rows[of]; r != nil {
		return r
	}
	n := 0
	for key := range u.mu.rows {
		if key.Tenant == of.Tenant && key.Fingerprint != (profile.Fingerprint{}) {
			n++
		}
	}
	if n >= maxRows {
		of.Fingerprint, model = profile.Fingerprint{}, ""
	}
	r := u.mu.rows[of]
	if r == nil {
		r = &Row{Key: of, Model: model, Began: u.now()}
		u.mu.rows[of] = r
	}
	return r
}

// Rows copies all sums, ordered by tenant and fingerprint.
func (u *Usage) Rows() []Row {
	u.mu.Lock()
	rows := make([]Row, 0, len(u.mu.rows))
	for r := range maps.Values(u.mu.rows) {
		rows = append(rows, *r)
	}
	u.mu.Unlock()
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), slices.Compare(a.Fingerprint[:], b.Fingerprint[:]))
	})
	return rows
}

// Last returns the newest requests that pass, up to a limit, newest first. They must not be
// modified. If there are more, each tenant gets a share, and so do its unverified requests,
// so that none displaces others.
func (u *Usage) Last(limit int, pass func(*Request) bool) []*Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.rings.newest(limit, pass)
}

// Request returns a recorded request.
func (u *Usage) Request(number uint64) (*Request, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.rings.find(number)
}

// restore adds the counts of an earlier start.
func (u *Usage) restore(of Key, model string, sums *Sums, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.rowLocked(of, model)
	r.Before.Add(sums)
	if began.Before(r.Began) {
		r.Began = began
	}
}
