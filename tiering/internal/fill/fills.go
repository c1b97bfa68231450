package fill

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Fills is the part of a store that lets clients reserve, commit and publish objects. It has
// no state: reservations belong to sessions and objects.
type Fills struct {
	cat        *catalog.Catalog
	writes     *move.Writes
	offloads   *move.Offloads
	evictor    *move.Evictor
	limits     *move.Limits
	promotions *move.Promotions
	memory     *plan.Device // buffers in memory are on it
}

// Reservations are those of one client: its shares of objects being filled. Guarded by the
// store's lock.
type Reservations struct {
	fills  *Fills
	client *catalog.Client
	plans  *plan.Session // of the same client; has its own lock
	held   map[tier.ReservationID]*objects.Filler
}

// NewReservations returns the reservations of a new client.
func (fills *Fills) NewReservations(c *catalog.Client, plans *plan.Session) *Reservations {
	return &Reservations{fills: fills, client: c, plans: plans, held: map[tier.ReservationID]*objects.Filler{}}
}

// CountLocked returns the number of a client's reservations.
func (fills *Fills) CountLocked(c *Reservations) int { return len(c.held) }

// EndAll aborts all reservations of a closed client, for all ranks that joined them, in
// order of their ids.
func (fills *Fills) EndAll(c *Reservations) {
	fills.cat.Mu.Lock()
	ids := slices.Collect(maps.Keys(c.held))
	fills.cat.Mu.Unlock()
	slices.Sort(ids)
	fills.cat.Mu.Each(len(ids), catalog.HoldRows, func(i int) {
		if f := c.held[ids[i]]; f != nil { // nil if it ended together with another rank's share
			fills.KillLocked(f.Object, stats.CauseDeath)
		}
	})
}

// New returns the part without reservations. The parameter memory is what buffers in
// memory are on.
func New(c *catalog.Catalog, m *move.Mover, memory *plan.Device) *Fills {
	return &Fills{cat: c, writes: m.Writes, offloads: m.Offloads, evictor: m.Evictor, limits: m.Limits, promotions: m.Promotions, memory: memory}
}

// Reserve reserves room for one rank's share of a segment. It recomputes the key from the
// tokens and checks it. All ranks share one reservation: the first rank reserves memory
// for all ranks, and the other ranks join. The error is ErrExists if the segment is
// published or this rank already has a reservation.
func (c *Reservations) Reserve(q *ReserveQuery) (Reservation, error) {
	p, t, err := c.fills.cat.Scope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return Reservation{}, err
	}
	if err := p.CheckSpec(q.Spec); err != nil {
		return Reservation{}, errkind.With(fmt.Errorf("segment %x: %w", q.Key[:8], err), tier.ErrInvalid)
	}
	if len(q.Tokens) != q.Spec.Tokens {
		return Reservation{}, fmt.Errorf("segment %x: %d token ids for %d tokens: %w", q.Key[:8], len(q.Tokens), q.Spec.Tokens, tier.ErrInvalid)
	}
	if key := p.SegmentKey(t.Salt, q.Spec, q.Tokens); key != q.Key {
		return Reservation{}, fmt.Errorf("segment %x: its tokens have key %x: %w", q.Key[:8], key[:8], tier.ErrInvalid)
	}
	begin, count := q.Spec.Interior()
	o := &objects.Object{
		Key: q.Key, Profile: p, Tenant: t, Pool: c.fills.cat.Objects.Pools[objects.PublicPool],
		Spec: q.Spec, Begin: begin, End: begin + count, Depth: 1, TokenIDs: slices.Clone(q.Tokens),
		Hash: p.RollingHash(t.Salt).Segment(q.Spec, q.Tokens),
	}
	return c.reserve(o, q.Rank)
}

// Save reserves room for one rank's share of a checkpoint. The other ranks join as for a
// segment. An exact and a spliced checkpoint of one hash can coexist.
//
// Parent names a published checkpoint of fewer tokens whose rows the new one shares, so that
// only the rows of the tokens after the parent's last token are stored. The parent of an
// exact checkpoint must be exact. If the parent is not cached, the error is ErrGone. If it is
// in the lower tier, it is promoted, and the error is ErrBusy until it has arrived. A
// checkpoint of kind Rows extends nothing, or a checkpoint that is not spliced and has not
// lost its states.
//
// A checkpoint that has lost its states is saved again as if it were absent, with any parent.
// The client's rows are acknowledged, but the rows already in memory stay.
func (c *Reservations) Save(q *SaveQuery) (Reservation, error) {
	s := c.fills
	p, t, err := s.cat.Scope(q.Profile, q.Tenant, q.Rank)
	if err != nil {
		return Reservation{}, err
	}
	if q.Kind == 0 || q.Kind&(q.Kind-1) != 0 || !q.Kind.Known(p.Profile) {
		return Reservation{}, fmt.Errorf("checkpoint %x: kind %d: %w", q.Hash[:8], q.Kind, tier.ErrInvalid)
	}
	if q.Hash == (profile.PrefixHash{}) {
		return Reservation{}, fmt.Errorf("hash: a checkpoint of %d tokens without a name (were its prefixes named without a block size?): %w", q.Tokens, tier.ErrInvalid)
	}
	if q.Tokens < 1 || q.Tokens > profile.MaxTokens {
		return Reservation{}, fmt.Errorf("checkpoint %x: %d tokens: %w", q.Hash[:8], q.Tokens, tier.ErrInvalid)
	}
	o := &objects.Object{
		Key: q.Hash, Kind: q.Kind, Profile: p, Tenant: t, Pool: s.cat.Objects.Pools[objects.PrivatePool],
		End: q.Tokens, Extends: q.Parent, Depth: 1,
	}
	if q.Parent != (profile.PrefixHash{}) {
		s.cat.Mu.Lock()
		o.Parent, err = s.parentLocked(q, p, t)
		s.cat.Mu.Unlock()
		if err != nil {
			return Reservation{}, err
		}
		o.Begin, o.Depth, o.ExtendsKind = o.Parent.End, o.Parent.Depth+1, o.Parent.Kind
	}
	return c.reserve(o, q.Rank)
}

// parentLocked finds the parent of a checkpoint that is being saved.
func (fills *Fills) parentLocked(q *SaveQuery, p *objects.Profile, t *objects.Tenant) (*objects.Object, error) {
	rows := q.Kind != tier.Rows // a checkpoint of kind Rows also needs its parent's states
	parent, why := fills.cat.Objects.Names.BestNode((*[32]byte)(&q.Parent), q.Kind.Extends(), p, t, rows)
	switch {
	case parent == nil && why == tier.ReasonFlagOnly:
		return nil, fmt.Errorf("checkpoint %x: exact, but its parent %x is spliced: %w", q.Hash[:8], q.Parent[:8], tier.ErrInvalid)
	case parent == nil:
		return nil, fills.promoteParentLocked(q, p, t)
	case parent.End >= q.Tokens:
		return nil, fmt.Errorf("checkpoint %x: %d tokens, its parent %x has %d: %w", q.Hash[:8], q.Tokens, q.Parent[:8], parent.End, tier.ErrInvalid)
	case parent.Depth >= fills.cat.Config.MaxChain:
		return nil, fmt.Errorf("checkpoint %x: its parent is node %d of a chain: %w", q.Hash[:8], parent.Depth, tier.ErrInvalid)
	}
	return parent, nil
}

// promoteParentLocked starts to promote the parent of a checkpoint that is to be saved, if
// the lower tier has it. It returns why the parent cannot be extended now: ErrBusy during
// the promotion, ErrFull if the parent's chain is larger than the pool.
func (fills *Fills) promoteParentLocked(q *SaveQuery, p *objects.Profile, t *objects.Tenant) error {
	e, held := fills.cat.Objects.Below.Best((*[32]byte)(&q.Parent), q.Kind.Extends(), p, t)
	if !held {
		return fmt.Errorf("checkpoint %x: its parent %x is not held: %w", q.Hash[:8], q.Parent[:8], tier.ErrGone)
	}
	budget := fills.cat.Objects.Pools[objects.PrivatePool].Budget
	if bytes := fills.cat.ChainPagesLocked(&e, p, t); bytes > budget {
		return fmt.Errorf("checkpoint %x: its parent %x and what that extends take %d bytes of pages, the pool has %d: %w",
			q.Hash[:8], q.Parent[:8], bytes, budget, tier.ErrFull)
	}
	if fills.promotions.PromoteLocked(move.Wanted{Name: e.Name, Profile: p, Tenant: t, Urgent: true}) == nil {
		return fmt.Errorf("checkpoint %x: its parent %x cannot be promoted now: %w", q.Hash[:8], q.Parent[:8], tier.ErrGone)
	}
	return fmt.Errorf("checkpoint %x: its parent %x is being promoted: %w", q.Hash[:8], q.Parent[:8], tier.ErrBusy)
}

// reserve joins the reservation of a segment or checkpoint, or starts one with o.
func (c *Reservations) reserve(o *objects.Object, rank int) (Reservation, error) {
	s := c.fills
	l := o.Layout()
	o.Publisher = c.client.Name
	if err := s.size(o, l.Bytes); err != nil {
		return Reservation{}, err
	}
	now := s.cat.Config.Now()
	var f *objects.Filler
	err := s.cat.InTurns(func() (err error) {
		f, err = c.reserveLocked(o, rank, l, now)
		return err
	})
	s.cat.Launch()
	if err != nil {
		return Reservation{}, err
	}
	return Reservation{ID: f.ID, Bytes: l.Bytes}, nil
}

// size sets the sizes of an object. It checks them first: the bytes of one rank's layout
// fit an int64, but the bytes of all ranks may not.
func (fills *Fills) size(o *objects.Object, rankBytes int64) error {
	ranks := int64(o.Profile.Ranks)
	switch {
	case rankBytes == 0:
		return fmt.Errorf("%s: its profile keeps no state: %w", o.Name(), tier.ErrInvalid)
	case rankBytes > fills.limits.BudgetOf(o.Pool)/ranks:
		fills.cat.Mu.Lock()
		defer fills.cat.Mu.Unlock()
		err := fmt.Errorf("%s: %d bytes for each of %d ranks, %s pool has %d: %w", o.Name(), rankBytes, ranks, o.Pool.Name, o.Pool.Budget, tier.ErrFull)
		fills.cat.Objects.Records.Refuse(o, err)
		return err
	}
	fills.cat.Objects.Memory.Measure(o)
	return nil
}

func (c *Reservations) reserveLocked(o *objects.Object, rank int, l *plan.PartMap, now time.Time) (*objects.Filler, error) {
	s := c.fills
	if err := s.cat.OpenLocked(c.client); err != nil {
		return nil, err
	}
	if o.Profile.Forgotten {
		return nil, fmt.Errorf("%s: profile %d is not registered any more: %w", o.Name(), o.Profile.ID, tier.ErrInvalid)
	}
	if len(c.held) >= s.cat.Config.MaxReservations {
		s.cat.Of(o.Profile).RefusedBusy++
		return nil, fmt.Errorf("%s: session %q has %d reservations: %w", o.Name(), c.client.Name, len(c.held), tier.ErrBusy)
	}
	known := s.cat.Objects.Names.Same(o)
	if p := s.promotions.PromotionLocked(o.Label()); p != nil && p.Profile == o.Profile && p.Tenant == o.Tenant && (known == nil || known.Phase == objects.Stripped) {
		s.existsLocked(o)
		return nil, fmt.Errorf("%s is being promoted: %w", o.Name(), tier.ErrExists)
	}
	if known != nil && known.Phase == objects.Stripped && known.Fill == nil {
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

// beginLocked allocates the memory of o and adds o to the catalog as an object being filled.
func (fills *Fills) beginLocked(o *objects.Object, l *plan.PartMap, now time.Time) error {
	if o.Parent != nil {
		// An earlier critical section found the parent. It may have left since, and making
		// room must not evict it.
		if !o.Parent.Linked() {
			return fmt.Errorf("%s: its parent has left: %w", o.Name(), tier.ErrGone)
		}
		if o.NeedsStates() && o.Parent.Phase == objects.Stripped {
			return fmt.Errorf("%s: the states of its parent have left: %w", o.Name(), tier.ErrGone)
		}
		fills.cat.Objects.Use(o.Parent)
		defer fills.cat.Objects.Unuse(o.Parent)
	}
	if o.Kind == 0 && fills.cat.Objects.Names.Segments.Find(&o.Key) != nil {
		// Keys do not collide, so this is an object that a peer claims to have for another
		// tenant and whose bytes have not been checked yet.
		return fmt.Errorf("%s: its key is being checked: %w", o.Name(), tier.ErrBusy)
	}
	if err := fills.evictor.MakeRoomLocked(o, move.Spared{}); err != nil {
		fills.cat.Objects.Records.Refuse(o, err)
		return err
	}
	fills.cat.Objects.Memory.Allocate(o, l.Bytes)
	o.Created, o.Used = now, now
	o.Fill = objects.NewFill(o, l)
	fills.cat.Objects.Link(o)
	fills.expectLocked(o, now)
	return nil
}

// expectLocked starts the fill timeout of an object.
func (fills *Fills) expectLocked(o *objects.Object, now time.Time) {
	o.Until = deadline.Deadline[any]{At: now.Add(fills.cat.Config.FillTTL), Order: fills.cat.LeaseIDs.Add(1), Of: o}
	fills.cat.Objects.Deadlines.Add(&o.Until)
	fills.cat.Of(o.Profile).Reserved++
}

// joinLocked gives a rank its share of the object o that is being filled. The parameter want
// is the object that the rank has requested.
func (c *Reservations) joinLocked(o, want *objects.Object, rank int) (*objects.Filler, error) {
	s := c.fills
	if o.Fill == nil || o.Fill.Dead || o.Fill.Promoted || o.Fill.Ranks[rank].Of != nil {
		s.existsLocked(want)
		return nil, fmt.Errorf("%s: %w", o.Name(), tier.ErrExists)
	}
	// Parents are compared by hash, not by kind: since the first rank asked, an exact
	// parent may have been added next to a spliced one.
	if o.Fill.Begin != want.Begin || o.End != want.End || o.Fill.Extends != want.Extends {
		return nil, fmt.Errorf("%s: rank %d asks for tokens [%d, %d), it is being filled with [%d, %d): %w",
			o.Name(), rank, want.Begin, want.End, o.Fill.Begin, o.End, tier.ErrInvalid)
	}
	f := &o.Fill.Ranks[rank]
	n := o.Fill.Layout.Chunks()
	*f = objects.Filler{ID: tier.ReservationID(s.cat.LeaseIDs.Add(1)), Object: o, Rank: rank, Of: c.held, Chunks: make([]objects.ChunkState, n), Left: n}
	if o.Phase == objects.Stripped {
		f.Digests = slices.Clone(o.Shares[rank].Digests) // the digests of its rows stay
	} else {
		f.Digests = make([]uint64, n)
	}
	c.held[f.ID] = f
	return f, nil
}

// existsLocked counts a reservation that is refused because the rank's share is already
// stored or being filled.
func (fills *Fills) existsLocked(o *objects.Object) {
	n := fills.cat.Of(o.Profile)
	n.Exists++
	n.ExistsBytes += uint64(o.RankBytes)
}

// Abort aborts a reservation for all ranks. The error is ErrGone if the session has no
// such reservation.
func (c *Reservations) Abort(id tier.ReservationID) error {
	s := c.fills
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	f := c.held[id]
	if f == nil {
		return fmt.Errorf("reservation %d: %w", id, tier.ErrGone)
	}
	s.KillLocked(f.Object, stats.CauseAbort)
	return nil
}

// KillLocked ends a fill without publication. All its reservations end at once. Its memory
// is freed when no commit writes into it any more.
func (fills *Fills) KillLocked(o *objects.Object, why stats.Cause) {
	fills.cat.Of(o.Profile).Aborted[why]++
	f := o.Fill
	f.Dead = true
	fills.cat.Objects.Deadlines.Remove(&o.Until)
	for i := range f.Ranks {
		delete(f.Ranks[i].Of, f.Ranks[i].ID)
	}
	if o.Phase != objects.Stripped {
		fills.cat.Objects.Unlink(o, tier.ReasonAborted)
	}
	if f.Copying == 0 {
		fills.unfillLocked(o)
	}
}

// unfillLocked ends an aborted fill that no commit writes any more.
func (fills *Fills) unfillLocked(o *objects.Object) {
	o.Fill = nil
	if o.Phase == objects.Stripped {
		fills.cat.Objects.FreeStates(o)
	}
	fills.cat.Objects.Account(o)
}

// refillLocked allocates memory for the states of a stripped checkpoint o, so that clients
// can fill it again. The parameter want is the checkpoint that they have requested.
func (fills *Fills) refillLocked(o, want *objects.Object, l *plan.PartMap, now time.Time) error {
	if want.End != o.End {
		return fmt.Errorf("%s: %d tokens, its hash stands for %d: %w", o.Name(), want.End, o.End, tier.ErrInvalid)
	}
	states := objects.Object{
		Key: o.Key, Kind: o.Kind, Profile: o.Profile, Tenant: o.Tenant, Pool: o.Pool, End: o.End,
		Size: objects.Size{Bytes: o.StateBytes, PageBytes: o.StatePages},
	}
	fills.cat.Objects.Use(o) // so that making room does not evict it or its ancestors
	defer fills.cat.Objects.Unuse(o)
	err := fills.evictor.MakeRoomLocked(&states, move.Spared{})
	if err == nil {
		fills.cat.Objects.AllocateStates(o)
		o.Fill = objects.NewFill(want, l)
		fills.expectLocked(o, now)
	} else {
		fills.cat.Objects.Records.Refuse(&states, err)
	}
	return err
}

// ChunkSpan returns the total bytes of chunks [first, first+chunks) of a part of a
// reservation, which is the length that CommitItem.Src must have. The error is ErrInvalid
// if the part does not have these chunks.
func (c *Reservations) ChunkSpan(id tier.ReservationID, part, first, chunks int) (int64, error) {
	s := c.fills
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	if err := s.cat.OpenLocked(c.client); err != nil {
		return 0, err
	}
	f := c.held[id]
	if f == nil {
		return 0, fmt.Errorf("reservation %d: %w", id, tier.ErrGone)
	}
	parts := f.Object.Fill.Layout.Parts
	if part < 0 || part >= len(parts) {
		return 0, fmt.Errorf("%s: part %d of %d: %w", f.Object.Name(), part, len(parts), tier.ErrInvalid)
	}
	have := gpuipc.Chunks(parts[part].Len)
	if chunks <= 0 || first < 0 || first > have-chunks {
		return 0, fmt.Errorf("%s part %d: chunks [%d, +%d) of %d: %w", f.Object.Name(), part, first, chunks, have, tier.ErrInvalid)
	}
	off := int64(first) * gpuipc.ChunkBytes
	return min(int64(chunks)*gpuipc.ChunkBytes, parts[part].Len-off), nil
}

// ClaimLocked makes room for o and allocates its memory. ErrAgain is as in MakeRoomLocked.
func (fills *Fills) ClaimLocked(o *objects.Object) (err error) {
	if o.InHBM() {
		err = fills.cat.Objects.HBM.MakeRoom(o, false)
	} else {
		err = fills.evictor.MakeRoomLocked(o, move.Spared{})
	}
	if err != nil {
		if !errors.Is(err, objects.ErrAgain) {
			fills.cat.Counters.Refused(err)
		}
		return err
	}
	o.Created, o.Used = fills.cat.Config.Now(), fills.cat.Config.Now()
	if o.InHBM() {
		fills.cat.Objects.HBM.Allocate(o, 0)
		return nil
	}
	fills.cat.Objects.Memory.Allocate(o, o.RankBytes)
	fills.cat.Objects.Accounts.Book(o)
	if fills.cat.CleanerIdle && fills.cat.Objects.Policies.Short(o.Pool) {
		fills.cat.Changed.Broadcast()
	}
	return nil
}
