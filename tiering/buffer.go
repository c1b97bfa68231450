package tiering

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// buffer is the rows of recent tokens beside the states that they move on: what a
// decoding engine has instead of a state for each token (KVBuffer). It belongs to a
// session and leaves with it. Guarded by the store's lock, apart from what is fixed.
//
// Rows are a ring: a flush takes them from the front, appending adds at the back.
//
//	base ── row begin ── … ── row accepted-1 ── row accepted ── … ── row end-1
//	states       certain                            drafted
//
// Invariant: an operation reads rows before accepted only, and appending writes
// rows from end on only, so that the two may run at once.
type buffer struct {
	id       tier.LeaseID
	scope    planScope
	capacity int
	layout   *plan.PartMap // of all rows
	rows     *object       // its memory

	base     *object // its states are those before the first row; nil = zero states
	begin    int     // prompt position of the first row
	first    int     // its place in the ring
	accepted int     // prompt positions
	end      int

	above     bool // in HBM, with its base; fixed
	appending bool
	flushing  bool
	replays   int
	released  bool
}

// bufferKind marks the memory of buffers, which no lookup finds: rows, and states
// that rows were flushed into.
const bufferKind tier.CheckpointKind = 1 << 7

// AppendQuery adds rows to a buffer, or opens one.
type AppendQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Buffer  tier.LeaseID // 0 = open one

	// Of a buffer that is opened. The base is zero states, a loaded checkpoint, or
	// the bytes of profile.CheckpointLayout(0), which are copied.
	Base     From
	Capacity int

	Begin int        // prompt position of the first row
	Rows  int        // at least 1, or 0 when a buffer is opened
	Src   gpuipc.Ref // the rows as profile.BufferLayout(Rows)
}

// BufferState is what a buffer holds, in prompt positions.
type BufferState struct {
	Buffer   tier.LeaseID
	Begin    int // of the first row
	Accepted int // tokens before it are certain
	End      int
}

// AcceptQuery keeps the first Tokens drafted rows and drops the others.
type AcceptQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Buffer  tier.LeaseID
	Tokens  int
}

// ReplayQuery asks for the states and convolution tails behind an accepted token.
type ReplayQuery struct {
	Profile tier.ProfileID
	Tenant  tier.TenantID
	Rank    int
	Buffer  tier.LeaseID
	Token   int        // tokens before it are in the answer
	Flush   bool       // the rows before Token become part of the base
	Out     gpuipc.Ref // at least profile.CheckpointLayout(0)
}

func (b *buffer) state() BufferState {
	return BufferState{Buffer: b.id, Begin: b.begin, Accepted: b.accepted, End: b.end}
}

// Accept keeps drafted rows: those that a verification has confirmed.
func (c *Session) Accept(q *AcceptQuery) (BufferState, error) {
	s := c.store
	sc, err := s.planScope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return BufferState{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := c.bufferLocked(q.Buffer, &sc)
	switch {
	case err != nil:
		return BufferState{}, err
	case b.appending || b.flushing:
		return BufferState{}, b.busy()
	case q.Tokens < 0 || q.Tokens > b.end-b.accepted:
		return BufferState{}, fmt.Errorf("buffer %d: accept %d of %d drafted rows: %w", b.id, q.Tokens, b.end-b.accepted, tier.ErrInvalid)
	}
	s.counters.RowsAccepted += uint64(q.Tokens)
	s.counters.RowsDropped += uint64(b.end - b.accepted - q.Tokens)
	b.accepted += q.Tokens
	b.end = b.accepted
	return b.state(), nil
}

// bufferLocked finds a buffer of this session. It does not tell another tenant's
// from none.
func (c *Session) bufferLocked(id tier.LeaseID, sc *planScope) (*buffer, error) {
	if err := c.openLocked(); err != nil {
		return nil, err
	}
	b := c.buffers[id]
	switch {
	case b == nil || b.scope.tenant != sc.tenant:
		return nil, fmt.Errorf("buffer %d: %w", id, tier.ErrGone)
	case b.scope.profile != sc.profile || b.scope.rank != sc.rank:
		return nil, fmt.Errorf("buffer %d is of profile %d and rank %d, not %d and %d: %w",
			id, b.scope.profile.id, b.scope.rank, sc.profile.id, sc.rank, tier.ErrInvalid)
	}
	return b, nil
}

func (b *buffer) busy() error {
	return fmt.Errorf("buffer %d is being written: %w", b.id, tier.ErrBusy)
}

// openBuffer makes a buffer that nobody else can see yet, with its base held.
func (c *Session) openBuffer(q *AppendQuery, sc planScope) (*buffer, error) {
	s := c.store
	l := sc.profile.BufferParts(q.Capacity)
	b := &buffer{id: s.NewLeaseID(), scope: sc, capacity: q.Capacity, layout: l, begin: q.Begin, accepted: q.Begin, end: q.Begin}
	now := s.cfg.Now()
	defer s.launch()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return nil, err
	}
	if sc.profile.forgotten {
		return nil, fmt.Errorf("buffer: profile %d is not registered any more: %w", sc.profile.id, tier.ErrInvalid)
	}
	if len(c.leases)+len(c.buffers) >= s.cfg.MaxLeases {
		s.counters.RefusedBusy++
		return nil, fmt.Errorf("session %q has %d leases and %d buffers: %w", c.name, len(c.leases), len(c.buffers), tier.ErrBusy)
	}
	var base *object
	b.above = s.isAbove(q.Src.Region) || s.isAbove(q.Base.State.Region)
	if q.Base.Kind == FromCheckpoint {
		l, err := c.useLeaseLocked(q.Base.Lease, &sc, now)
		if err != nil {
			return nil, err
		}
		if base = l.object; base.kind == 0 || base.end != q.Begin {
			return nil, fmt.Errorf("%s as the first %d tokens: %w", base.name(), q.Begin, tier.ErrInvalid)
		}
		b.above = base.inHBM()
		s.useLocked(base)
	}
	rows, err := s.claimLocked(sc, l.Bytes, b.above)
	if err != nil {
		s.unuseLocked(base)
		return nil, err
	}
	b.base, b.rows, b.appending = base, rows, true
	s.running.Add(1)
	return b, nil
}

// claimLocked takes memory of the private pool, or of that of HBM, that is in use
// until unuseLocked, and that its tenant pays for. It may let go of the lock while it
// makes room.
func (s *Store) claimLocked(sc planScope, bytes int64, above bool) (*object, error) {
	if above {
		return s.claimHBMLocked(sc, bytes)
	}
	o := &object{profile: sc.profile, tenant: sc.tenant, pool: s.pools[privatePool], kind: bufferKind, depth: 1}
	o.rankBytes, o.bytes, o.pageBytes = bytes, bytes, s.pagesOf(bytes)
	o.shares = make([]share, 1)
	if err := s.turnsLocked(func() error { return s.makeRoomLocked(o, spared{}) }); err != nil {
		s.counters.refused(err)
		return nil, err
	}
	s.allocateLocked(o, bytes)
	o.created, o.used = s.cfg.Now(), s.cfg.Now()
	s.bookLocked(o)
	s.useLocked(o)
	if s.cleanerIdle && s.shortLocked(o.pool) {
		s.changed.Broadcast()
	}
	return o, nil
}

// useLocked keeps an object's memory, unuseLocked lets go of it. nil is nothing.
func (s *Store) useLocked(o *object) {
	if o != nil {
		o.ops++
		s.settleLocked(o)
	}
}

func (s *Store) unuseLocked(o *object) {
	if o != nil {
		o.ops--
		s.settleLocked(o)
	}
}

// releaseBufferLocked ends a buffer. Operations that read it keep its memory until
// they end.
func (c *Session) releaseBufferLocked(b *buffer) {
	if b.released {
		return
	}
	b.released = true
	if c.buffers[b.id] == b {
		delete(c.buffers, b.id)
		c.store.counters.Buffers--
	}
	c.store.unuseLocked(b.rows)
	c.store.unuseLocked(b.base)
}

// ring is where the rows of n tokens from a prompt position on lie: one or two runs
// of places.
func (b *buffer) ring(token, n int) []run {
	at := (b.first + token - b.begin) % b.capacity
	head := min(n, b.capacity-at)
	return slices.DeleteFunc([]run{{at, head}, {0, n - head}}, func(r run) bool { return r.n == 0 })
}

// run is n rows in consecutive places.
type run struct{ at, n int }

// rowsOf names the given rows of a part.
func rowsOf(of gpuipc.Ref, part *profile.Part, r run) gpuipc.Ref {
	row := part.Len / int64(part.Shape[0])
	return of.Slice(part.Off+int64(r.at)*row, int64(r.n)*row)
}
