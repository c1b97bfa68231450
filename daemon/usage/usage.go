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

const (
	// maxRows is how many profiles of one tenant have sums of their own; those of more
	// are added to one row without a profile. A guess with room.
	maxRows = 256
	// ringBytes bounds the requests that are kept one by one: some 10,000 of eight
	// segments each.
	ringBytes = 8 << 20
)

// Key names what sums are about. Fingerprints, unlike ids, are the same after a restart.
type Key struct {
	Tenant      tier.TenantID
	Fingerprint profile.Fingerprint // zero: all profiles that have no row of their own
}

// Sums are over requests. All counts of tokens are exact: Prompt is the sum of Sources,
// and the computed ones that of Missed.
type Sums struct {
	Ways    [wire.WayReplay + 1]uint64 // requests by wire.Way
	Prompt  uint64
	Sources [Froms]uint64
	Missed  [causes]uint64 // computed tokens by Cause
	Saved   float64        // milliseconds by requests that were the quicker for it, as the cost model predicts
	Lost    float64        // milliseconds by those that were slower
	First   float64        // milliseconds to first tokens, of those that told
	Timed   uint64         // how many told
}

// Requests is how many there were.
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
	s.Saved, s.Lost = s.Saved+o.Saved, s.Lost+o.Lost
	s.First, s.Timed = s.First+o.First, s.Timed+o.Timed
}

func add(to, from []uint64) {
	for i, n := range from {
		to[i] += n
	}
}

func (s *Sums) count(r *Request) {
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
	if r.First > 0 {
		s.First += float64(r.First) / float64(time.Millisecond)
		s.Timed++
	}
}

// Row is the sums of one tenant and profile.
type Row struct {
	Key
	Model  string
	Since  Sums      // this daemon's start
	Before Sums      // of earlier starts
	Began  time.Time // when the first of them all was told
}

// Total is over all starts.
func (r *Row) Total() Sums {
	sums := r.Before
	sums.Add(&r.Since)
	return sums
}

// Usage is what engines told of their requests.
type Usage struct {
	now  func() time.Time
	told func(*Request) // called after each; nil = nobody is told

	mu struct {
		sync.Mutex
		rows   map[Key]*Row
		ring   ring
		number uint64
	}
}

// New makes one that was told nothing. told is called after each request, which it must
// not change.
func New(now func() time.Time, told func(*Request)) *Usage {
	u := &Usage{now: now, told: told}
	u.mu.rows = map[Key]*Row{}
	return u
}

// Served takes how a prompt was served, and answers the number that it is listed under.
// predicted is what computing takes.
func (u *Usage) Served(who Who, m *wire.ServedRequest, predicted cost.Prefill) (uint64, error) {
	r, err := read(m)
	if err != nil {
		return 0, err
	}
	r.At, r.Who = u.now(), who
	r.Saved = saved(r, predicted)
	u.mu.Lock()
	u.mu.number++
	r.Number = u.mu.number
	u.rowLocked(who.Key, who.Model).Since.count(r)
	u.mu.ring.add(r)
	u.mu.Unlock()
	if u.told != nil {
		u.told(r)
	}
	return r.Number, nil
}

// saved is what computing all that the engine did not have would have taken longer than
// computing what was, and waiting for the rest. It is an estimate: computed tokens are
// priced as the prompt's last ones, which attend to most.
func saved(r *Request, predicted cost.Prefill) float64 {
	all := predicted.Marginal(int(r.Sources[Engine]), int(r.Tokens))
	rest := predicted.Marginal(int(uint64(r.Tokens)-r.Sources[Computed]), int(r.Tokens))
	return all - rest - float64(r.Wait)/float64(time.Millisecond)
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

// Rows copies all sums, in the order of tenants and fingerprints.
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

// Last copies the requests that are kept, the newest first. They are read only.
func (u *Usage) Last() []*Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.ring.newest()
}

// Request answers one that is kept.
func (u *Usage) Request(number uint64) (*Request, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.ring.find(number)
}

// restore adds what an earlier start has counted.
func (u *Usage) restore(of Key, model string, sums *Sums, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.rowLocked(of, model)
	r.Before.Add(sums)
	if began.Before(r.Began) {
		r.Began = began
	}
}

// ring keeps the last requests, whose sizes sum to ringBytes at most.
type ring struct {
	list  []*Request // ascending numbers, from head on
	head  int
	bytes int
}

func (r *ring) add(q *Request) {
	r.list = append(r.list, q)
	r.bytes += sizeOf(q)
	for r.bytes > ringBytes {
		r.bytes -= sizeOf(r.list[r.head])
		r.list[r.head] = nil
		r.head++
	}
	if r.head > len(r.list)/2 {
		r.list, r.head = slices.Delete(r.list, 0, r.head), 0
	}
}

func (r *ring) newest() []*Request {
	list := slices.Clone(r.list[r.head:])
	slices.Reverse(list)
	return list
}

func (r *ring) find(number uint64) (*Request, bool) {
	kept := r.list[r.head:]
	i, ok := slices.BinarySearchFunc(kept, number, func(q *Request, n uint64) int { return cmp.Compare(q.Number, n) })
	if !ok {
		return nil, false
	}
	return kept[i], true
}

// sizeOf is about what a request takes in memory.
func sizeOf(q *Request) int {
	const fixed, span = 320, 48 // bytes of a Request and a Span, measured with unsafe.Sizeof and rounded up
	return fixed + span*cap(q.Spans) + 8*cap(q.Ways) + len(q.Name) + len(q.Who.Client)
}
