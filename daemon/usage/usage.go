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

// maxRows is the number of profiles of one tenant with a separate row of sums. Further profiles
// share a row without a profile. A generous guess.
const maxRows = 256

// Key identifies a row of sums. It has the fingerprint, since ids change at a restart.
type Key struct {
	Tenant      tier.TenantID
	Fingerprint profile.Fingerprint // zero = all profiles that have no separate row
}

// Sums are sums over requests with verified reports: lookups of the connection found all that the
// report says was reused from the daemon. Token counts are exact: Prompt is the sum of Sources, and
// its computed tokens are the sum of Missed. Requests that are not verified count only in the last
// fields.
type Sums struct {
	Ways    [wire.WayReplay + 1]uint64 // requests by wire.Way
	Prompt  uint64
	Sources [Froms]uint64
	Missed  [causes]uint64 // computed tokens, by Cause
	Saved   float64        // estimated milliseconds saved by requests that became faster
	Lost    float64        // estimated milliseconds lost by requests that became slower
	Guessed float64        // part of Saved minus Lost that no measured time supports
	First   float64        // milliseconds to the first token, summed over Timed requests
	Timed   uint64         // requests that reported the time to their first token

	Unverified       uint64 // requests that are not verified
	UnverifiedTokens uint64 // tokens of their prompts
}

// Requests returns the number of verified requests.
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
	Since  Sums      // since the start of this daemon
	Before Sums      // of earlier starts
	Began  time.Time // when the first request was reported
}

// Total returns the sums over all starts.
func (r *Row) Total() Sums {
	sums := r.Before
	sums.Add(&r.Since)
	return sums
}

// Usage collects the reports of engines about their requests.
type Usage struct {
	now  func() time.Time
	told func(*Request) // called after each request; nil = no listener

	mu struct {
		sync.Mutex
		rows   map[Key]*Row
		rings  rings
		firsts firsts
		number uint64
	}
}

// New creates an empty Usage. The function told is called after each request and must not change
// it.
func New(now func() time.Time, told func(*Request)) *Usage {
	u := &Usage{now: now, told: told}
	u.mu.rows = map[Key]*Row{}
	return u
}

// Prediction predicts the time to compute tokens. Measured means that it is based on prefills that
// engines have timed.
type Prediction struct {
	cost.Prefill
	Measured bool
}

// Served records how a prompt was served, and returns the number of the record. The function verify
// reports whether lookups of the client found what the report says was reused.
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

// Rows returns copies of all rows, ordered by tenant and fingerprint.
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

// Last returns the newest requests for which pass returns true, at most limit, newest first. The
// caller must not modify them. If there are more than limit, each tenant gets a share, and so do
// the unverified requests of each tenant, so that no writer displaces another.
func (u *Usage) Last(limit int, pass func(*Request) bool) []*Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.rings.newest(limit, pass)
}

// Request returns a recorded request by its number; false = it is not kept.
func (u *Usage) Request(number uint64) (*Request, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.rings.find(number)
}

// restore adds the sums of earlier starts.
func (u *Usage) restore(of Key, model string, sums *Sums, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.rowLocked(of, model)
	r.Before.Add(sums)
	if began.Before(r.Began) {
		r.Began = began
	}
}
