package tiering

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// fill is the state of an object between its reservation and its publication.
// Guarded by the store's lock; fields up to ranks are fixed.
type fill struct {
	layout *plan.PartMap
	ranks  []filler // by rank; session is nil until the rank joins

	left    int        // ranks that are not complete
	copying int        // commits, or a read of the lower tier, that write into the object's memory now
	level   tier.Level // highest that a commit asked for
	dead    bool       // aborted; memory is free once copying is 0

	promotion *promotion // the store fills it itself, no rank may join

	// What the writer says of it; a stripped checkpoint may have had another parent.
	begin   int
	extends profile.PrefixHash
}

// filler is one rank's share of a fill: a reservation.
type filler struct {
	id      tier.ReservationID
	object  *object
	rank    int
	session *Session
	chunks  []chunkState // of all parts, in order
	left    int          // chunks that are not done
	digests []uint64     // of the share's chunks, the share's once the object is published
}

type chunkState uint8

const (
	chunkAbsent chunkState = iota
	chunkCopying
	chunkDone
)

// cause says why a fill ended without publication.
type cause uint8

const (
	causeAbort   cause = iota // its client said so
	causeDeath                // a client of it went away
	causeCorrupt              // a digest did not match
	causeDevice               // the device failed
	causeExpiry
	causes
)

// Reserve asks for room for one rank's share of a segment. The key is computed
// again from the tokens. All ranks share one reservation: the first to come
// takes the memory of all, the others join. ErrExists when the segment is
// published or this rank has a reservation already.
func (c *Session) Reserve(q *ReserveQuery) (Reservation, error) {
	p, t, err := c.store.scope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return Reservation{}, err
	}
	if err := p.CheckSpec(q.Spec); err != nil {
		return Reservation{}, fmt.Errorf("segment %x: %w: %w", q.Key[:8], tier.ErrInvalid, err)
	}
	if len(q.Tokens) != q.Spec.Tokens {
		return Reservation{}, fmt.Errorf("segment %x: %d token ids for %d tokens: %w", q.Key[:8], len(q.Tokens), q.Spec.Tokens, tier.ErrInvalid)
	}
	if key := p.SegmentKey(t.Salt, q.Spec, q.Tokens); key != q.Key {
		return Reservation{}, fmt.Errorf("segment %x: its tokens have key %x: %w", q.Key[:8], key[:8], tier.ErrInvalid)
	}
	begin, count := q.Spec.Interior()
	o := &object{
		key: q.Key, profile: p, tenant: t, pool: c.store.pools[publicPool],
		spec: q.Spec, begin: begin, end: begin + count, depth: 1, ids: slices.Clone(q.Tokens),
	}
	return c.place(o, q.Rank)
}

// Save asks for room for one rank's share of a checkpoint, joined by the other
// ranks like a segment. Exact and spliced checkpoints of one hash lie beside each
// other. Parent names a published checkpoint of fewer tokens, an exact one for
// an exact child, whose rows this one shares: only rows of tokens [parent,
// Tokens) are stored. A parent that is not held is ErrGone; one that lies in the
// lower tier is promoted, ErrBusy until it is there. A checkpoint that has lost its
// states is saved again as if it were not there, with any parent: its rows are
// acknowledged, but those that are in memory stay.
func (c *Session) Save(q *SaveQuery) (Reservation, error) {
	s := c.store
	p, t, err := s.scope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return Reservation{}, err
	}
	if q.Kind != tier.Exact && q.Kind != tier.Spliced {
		return Reservation{}, fmt.Errorf("checkpoint %x: kind %d: %w", q.Hash[:8], q.Kind, tier.ErrInvalid)
	}
	if q.Hash == (profile.PrefixHash{}) {
		return Reservation{}, fmt.Errorf("checkpoint without a hash: %w", tier.ErrInvalid)
	}
	if q.Tokens < 1 || q.Tokens > profile.MaxTokens {
		return Reservation{}, fmt.Errorf("checkpoint %x: %d tokens: %w", q.Hash[:8], q.Tokens, tier.ErrInvalid)
	}
	o := &object{
		key: q.Hash, kind: q.Kind, profile: p, tenant: t, pool: s.pools[privatePool],
		end: q.Tokens, extends: q.Parent, depth: 1,
	}
	if q.Parent != (profile.PrefixHash{}) {
		s.mu.Lock()
		o.parent, err = s.parentLocked(q, p, t)
		s.mu.Unlock()
		if err != nil {
			return Reservation{}, err
		}
		o.begin, o.depth, o.extendsKind = o.parent.end, o.parent.depth+1, o.parent.kind
	}
	return c.place(o, q.Rank)
}

// parentLocked finds the node that a checkpoint extends.
func (s *Store) parentLocked(q *SaveQuery, p *profileState, t *tenant) (*object, error) {
	accept := q.Kind | tier.Exact // an exact parent serves both kinds
	parent, why := s.bestNodeLocked((*[32]byte)(&q.Parent), accept, p, t, true)
	switch {
	case parent == nil && why == tier.ReasonFlagOnly:
		return nil, fmt.Errorf("checkpoint %x: exact, but its parent %x is spliced: %w", q.Hash[:8], q.Parent[:8], tier.ErrInvalid)
	case parent == nil:
		return nil, s.promoteParentLocked(q, p, t)
	case parent.end >= q.Tokens:
		return nil, fmt.Errorf("checkpoint %x: %d tokens, its parent %x has %d: %w", q.Hash[:8], q.Tokens, q.Parent[:8], parent.end, tier.ErrInvalid)
	case parent.depth >= s.cfg.MaxChain:
		return nil, fmt.Errorf("checkpoint %x: its parent is node %d of a chain: %w", q.Hash[:8], parent.depth, tier.ErrInvalid)
	}
	return parent, nil
}

// promoteParentLocked begins to promote the parent of a checkpoint that is to be
// saved, if the lower tier has it, and says why there is none to extend now: ErrBusy
// while it comes, ErrFull if it never can, since its chain is larger than the pool.
func (s *Store) promoteParentLocked(q *SaveQuery, p *profileState, t *tenant) error {
	e, held := s.bestBelowLocked((*[32]byte)(&q.Parent), q.Kind|tier.Exact, p, t)
	if !held {
		return fmt.Errorf("checkpoint %x: its parent %x is not held: %w", q.Hash[:8], q.Parent[:8], tier.ErrGone)
	}
	budget := s.pools[privatePool].budget
	if bytes := s.chainPagesLocked(&e, p, t); bytes > budget {
		return fmt.Errorf("checkpoint %x: its parent %x and what that extends take %d bytes of pages, the pool has %d: %w",
			q.Hash[:8], q.Parent[:8], bytes, budget, tier.ErrFull)
	}
	if s.promoteLocked(wanted{e.Name, p, t, true}) == nil {
		return fmt.Errorf("checkpoint %x: its parent %x cannot be promoted now: %w", q.Hash[:8], q.Parent[:8], tier.ErrGone)
	}
	return fmt.Errorf("checkpoint %x: its parent %x is being promoted: %w", q.Hash[:8], q.Parent[:8], tier.ErrBusy)
}

// chainPagesLocked is what an entry of the lower tier and all that it extends take of
// their pool once they are in memory.
func (s *Store) chainPagesLocked(e *tier.Entry, p *profileState, t *tenant) (bytes int64) {
	node, held := *e, true
	for range s.cfg.MaxChain {
		bytes += s.pagesOf(p.CheckpointParts(node.End-node.Begin).Bytes) * int64(p.ranks)
		if node.Parent == (tier.Name{}) {
			return bytes
		}
		up := node.Parent
		if node, held = s.lookupLocked(up, p, t); !held {
			for o := s.namedLocked(up, p, t); o != nil; o = o.parent {
				bytes += o.pageBytes
			}
			return bytes
		}
	}
	return bytes
}

// place joins the reservation of a segment or checkpoint, or begins it with the
// object o.
func (c *Session) place(o *object, rank int) (Reservation, error) {
	s := c.store
	l := o.layout()
	o.publisher = c.name
	if err := s.size(o, l.Bytes); err != nil {
		return Reservation{}, err
	}
	now := s.cfg.Now()
	var f *filler
	err := s.inTurns(func() (err error) {
		f, err = c.placeLocked(o, rank, l, now)
		return err
	})
	s.launch()
	if err != nil {
		return Reservation{}, err
	}
	return Reservation{ID: f.id, Bytes: l.Bytes}, nil
}

// size works out what an object costs. The bytes of one rank's layout fit an
// int64; those of all ranks need not.
func (s *Store) size(o *object, rankBytes int64) error {
	ranks := int64(o.profile.ranks)
	switch {
	case rankBytes == 0:
		return fmt.Errorf("%s: its profile keeps no state: %w", o.name(), tier.ErrInvalid)
	case rankBytes > o.pool.budget/ranks:
		s.mu.Lock()
		defer s.mu.Unlock()
		err := fmt.Errorf("%s: %d bytes for each of %d ranks, %s pool has %d: %w", o.name(), rankBytes, ranks, o.pool.name, o.pool.budget, tier.ErrFull)
		s.refuseLocked(o, err)
		return err
	}
	s.measure(o, rankBytes)
	return nil
}

// measure sets what an object costs, a segment with its token ids.
func (s *Store) measure(o *object, rankBytes int64) {
	ranks, ids := int64(o.profile.ranks), 4*int64(o.spec.Tokens)
	o.shares = make([]share, ranks)
	o.rankBytes = rankBytes
	for _, run := range o.layout().StatePages {
		o.stateBytes += run.Len * ranks
		o.statePages += s.pagesOf(run.Len) * ranks
	}
	o.bytes = rankBytes*ranks + ids
	o.pageBytes = s.pagesOf(rankBytes)*ranks + ids
}

func (c *Session) placeLocked(o *object, rank int, l *plan.PartMap, now time.Time) (*filler, error) {
	s := c.store
	if err := c.openLocked(); err != nil {
		return nil, err
	}
	if o.profile.forgotten {
		return nil, fmt.Errorf("%s: profile %d is not registered any more: %w", o.name(), o.profile.id, tier.ErrInvalid)
	}
	if len(c.fills) >= s.cfg.MaxReservations {
		s.counters.RefusedBusy++
		return nil, fmt.Errorf("%s: session %q has %d reservations: %w", o.name(), c.name, len(c.fills), tier.ErrBusy)
	}
	known := s.sameLocked(o)
	if p := s.promotionLocked(o.label()); p != nil && p.profile == o.profile && p.tenant == o.tenant && (known == nil || known.phase == stripped) {
		s.counters.Exists++
		return nil, fmt.Errorf("%s is being promoted: %w", o.name(), tier.ErrExists)
	}
	if known != nil && known.phase == stripped && known.fill == nil {
		if err := s.refillLocked(known, o, l, now); err != nil {
			return nil, err
		}
	}
	if known != nil {
		return c.joinLocked(known, o, rank)
	}
	if err := s.beginLocked(o, l, now); err != nil {
		return nil, err
	}
	return c.joinLocked(o, o, rank)
}

// sameLocked finds the object that o would be a second copy of.
func (s *Store) sameLocked(o *object) *object {
	return s.namedLocked(o.label(), o.profile, o.tenant)
}

// namedLocked finds an object in memory, published or being filled.
func (s *Store) namedLocked(n tier.Name, p *profileState, t *tenant) *object {
	if n.Kind == 0 {
		return s.segmentLocked(&n.Key, p, t)
	}
	return s.checkpointLocked(&n.Key, n.Kind, p, t)
}

// beginLocked gives o its memory and makes it known as pending.
func (s *Store) beginLocked(o *object, l *plan.PartMap, now time.Time) error {
	if o.parent != nil {
		// It was found under another critical section, and making room must
		// not evict it.
		if !o.parent.linked() {
			return fmt.Errorf("%s: its parent has left: %w", o.name(), tier.ErrGone)
		}
		o.parent.ops++
		s.settleLocked(o.parent)
		defer func() {
			o.parent.ops--
			s.settleLocked(o.parent)
		}()
	}
	if err := s.makeRoomLocked(o, spared{}); err != nil {
		s.refuseLocked(o, err)
		return err
	}
	s.allocateLocked(o, l.Bytes)
	o.created, o.used = now, now
	o.fill = newFill(o, l)
	s.linkLocked(o)
	s.expectLocked(o, now)
	return nil
}

func newFill(want *object, l *plan.PartMap) *fill {
	ranks := want.profile.ranks
	return &fill{layout: l, ranks: make([]filler, ranks), left: ranks, begin: want.begin, extends: want.extends}
}

// expectLocked gives what is being filled its time.
func (s *Store) expectLocked(o *object, now time.Time) {
	o.until = deadline.Deadline[timed]{At: now.Add(s.cfg.FillTTL), Order: s.leaseIDs.Add(1), Of: o}
	s.deadlines.Add(&o.until)
	s.counters.Reserved++
}

// joinLocked gives a rank its share of an object; want is what the rank asked
// for.
func (c *Session) joinLocked(o, want *object, rank int) (*filler, error) {
	s := c.store
	if o.fill == nil || o.fill.dead || o.fill.promotion != nil || o.fill.ranks[rank].session != nil {
		s.counters.Exists++
		return nil, fmt.Errorf("%s: %w", o.name(), tier.ErrExists)
	}
	// Parents are compared by hash: an exact one may have come to stand beside
	// a spliced one since the first rank asked.
	if o.fill.begin != want.begin || o.end != want.end || o.fill.extends != want.extends {
		return nil, fmt.Errorf("%s: rank %d asks for tokens [%d, %d), it is being filled with [%d, %d): %w",
			o.name(), rank, want.begin, want.end, o.fill.begin, o.end, tier.ErrInvalid)
	}
	f := &o.fill.ranks[rank]
	n := o.fill.layout.Chunks()
	*f = filler{id: tier.ReservationID(s.leaseIDs.Add(1)), object: o, rank: rank, session: c, chunks: make([]chunkState, n), left: n}
	if o.phase == stripped {
		f.digests = slices.Clone(o.shares[rank].digests) // those of its rows stay
	} else {
		f.digests = make([]uint64, n)
	}
	c.fills[f.id] = f
	return f, nil
}

// Abort gives up a reservation, for all ranks. ErrGone when the session has no
// such reservation.
func (c *Session) Abort(id tier.ReservationID) error {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	f := c.fills[id]
	if f == nil {
		return fmt.Errorf("reservation %d: %w", id, tier.ErrGone)
	}
	s.killLocked(f.object, causeAbort)
	return nil
}

// killLocked ends a fill without publication: all its reservations are gone at
// once, its memory when no commit writes into it any more.
func (s *Store) killLocked(o *object, why cause) {
	s.counters.Aborted[why]++
	f := o.fill
	f.dead = true
	s.deadlines.Remove(&o.until)
	for i := range f.ranks {
		if session := f.ranks[i].session; session != nil {
			delete(session.fills, f.ranks[i].id)
		}
	}
	if o.phase != stripped {
		s.unlinkLocked(o, tier.ReasonAborted)
	}
	if f.copying == 0 {
		s.unfillLocked(o)
	}
}

// unfillLocked ends a fill that is dead and that nobody writes any more.
func (s *Store) unfillLocked(o *object) {
	o.fill = nil
	if o.phase == stripped {
		s.freeStatesLocked(o)
	}
	s.settleLocked(o)
}

// refuseLocked remembers and counts an object that found no room.
func (s *Store) refuseLocked(o *object, err error) {
	if err == errAgain { //nolint:errorlint // never wrapped
		return
	}
	s.counters.refused(err)
	s.decideLocked(o, decision.Refuse, whyRefused(err), o.pageBytes)
	s.ghosts.Note(ghost.Entry{
		Key: o.key, Profile: o.profile.id, Tenant: o.tenant.ID, Reason: tier.ReasonRefused, Tokens: uint32(o.tokens()),
	})
}

func whyRefused(err error) decision.Reason {
	switch {
	case errors.Is(err, tier.ErrFull):
		return decision.NoRoom
	case errors.Is(err, tier.ErrQuota):
		return decision.OverQuota
	}
	return decision.Busy
}
