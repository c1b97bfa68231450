package serve

import (
	"context"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Load leases the checkpoint of a prefix hash and returns the chain of its nodes. It
// prefers an exact checkpoint to a spliced one, and memory to the lower tier. If only the
// lower tier has the checkpoint, the result is a miss and its promotion begins.
func (c *Session) Load(q *LoadQuery) (Loaded, error) {
	return c.load(context.Background(), q, 0, false)
}

// AwaitLoad is Load that waits for promotions, like AwaitAcquire.
func (c *Session) AwaitLoad(ctx context.Context, q *LoadQuery) (Loaded, error) {
	return c.load(ctx, q, 0, true)
}

// LoadResident leases the copy of a checkpoint on the query's device. The result is one
// node with the states of the checkpoint and the rows of its whole chain, laid out as
// profile.CheckpointLayout(Tokens).
func (c *Session) LoadResident(q *LoadQuery) (Loaded, error) {
	if q.Device == 0 {
		return Loaded{}, ErrNoDevice(0)
	}
	return c.load(context.Background(), q, q.Device, false)
}

// AwaitLoadResident is LoadResident that waits, like AwaitAcquireResident.
func (c *Session) AwaitLoadResident(ctx context.Context, q *LoadQuery) (Loaded, error) {
	if q.Device == 0 {
		return Loaded{}, ErrNoDevice(0)
	}
	return c.load(ctx, q, q.Device, true)
}

func (c *Session) load(ctx context.Context, q *LoadQuery, on tier.DeviceID, wait bool) (Loaded, error) {
	r, err := c.reader(q.Profile, q.Tenant, q.Rank, on)
	if err == nil && (q.Accept == 0 || q.Accept&^tier.AnyKind != 0) {
		err = fmt.Errorf("accepts kinds %#x: %w", q.Accept, tier.ErrInvalid)
	}
	if err != nil {
		return Loaded{}, fmt.Errorf("load: %w", err)
	}
	if on != 0 { // a copy in HBM has states, so it is never of kind Rows
		near := *q
		if near.Accept &^= tier.Rows; near.Accept == 0 {
			return Loaded{Reason: tier.ReasonFlagOnly}, nil
		}
		q = &near
	}
	got, flight, err := r.loadTurn(q, nil, wait)
	for err == nil && flight != nil {
		ended := c.await(ctx, []flightWait{{0, flight}})
		got, flight, err = r.loadTurn(q, flight, !ended)
	}
	if err == nil && !got.Hit && !(got.Promoting && q.Again) && !q.Near {
		r.countLoadMiss()
	}
	return got, err
}

func (r reader) countLoadMiss() {
	s := r.session.sessions
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	if r.above != nil {
		r.above.Count().LoadMisses++
	} else {
		s.cat.Of(r.profile).LoadMisses++
	}
}

// loadTurn answers a load, or answers it again after a flight. If the parameter wait is
// true, it may return a flight to wait for.
func (r reader) loadTurn(q *LoadQuery, after *transfer.Flight, wait bool) (Loaded, *transfer.Flight, error) {
	c, s := r.session, r.session.sessions
	now := s.cat.Config.Now()
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	if after != nil {
		defer s.leaveLocked(after)
	}
	if err := c.openLocked(); err != nil {
		return Loaded{}, nil, err
	}
	if after != nil {
		if why, promoting, failed := missOf(after); failed {
			return r.loadFailedLocked(q, Loaded{Reason: why, Promoting: promoting}, now)
		}
	}
	got, flight, err := r.loadLocked(q, now)
	if !wait || err != nil || flight == nil {
		return got, nil, err
	}
	flight.Join()
	return got, flight, nil
}

// loadFailedLocked answers a load whose flight failed or has not ended. The checkpoint may
// have arrived in memory in another way.
func (r reader) loadFailedLocked(q *LoadQuery, miss Loaded, now time.Time) (Loaded, *transfer.Flight, error) {
	if o, _ := r.session.sessions.cat.Objects.Names.Best((*[32]byte)(&q.Hash), q.Accept, r.profile, r.tenant); r.above == nil && o != nil {
		got, err := r.session.leaseCheckpointLocked(o, q, now)
		return got, nil, err
	}
	return miss, nil, nil
}

// loadLocked leases a checkpoint, or starts to bring it into memory or HBM. A query that
// reads HBM gets the same checkpoint as one that reads memory.
func (r reader) loadLocked(q *LoadQuery, now time.Time) (Loaded, *transfer.Flight, error) {
	c, s := r.session, r.session.sessions
	name, o, why := s.lookup.namedByLocked(q, r.profile, r.tenant)
	switch {
	case name == (tier.Name{}):
		return Loaded{Reason: why}, nil, nil
	case r.above != nil:
		if copied := s.cat.Objects.HBM.Copy(r.copyKey(name, q.Rank)); copied != nil {
			got, err := c.leaseCheckpointLocked(copied, q, now)
			if err == nil {
				r.above.Count().Loaded++
				r.above.Count().LoadedTokens += uint64(got.Tokens)
			}
			return got, nil, err
		}
		if r.above.Lost() {
			return Loaded{Reason: tier.ReasonEvicted}, nil, nil
		}
	case o != nil:
		got, err := c.leaseCheckpointLocked(o, q, now)
		return got, nil, err
	}
	flight := r.bringLocked(name, q.Rank, o)
	return Loaded{Reason: tier.ReasonPending, Promoting: flight != nil}, flight, nil
}

// namedByLocked finds the checkpoint that a load names: in memory (then o is not nil),
// else in the lower tier, else outside the node. If there is none, it returns the reason.
func (look *Lookup) namedByLocked(q *LoadQuery, p *objects.Profile, t *objects.Tenant) (n tier.Name, o *objects.Object, why tier.Reason) {
	hash := (*[32]byte)(&q.Hash)
	if o, why = look.cat.Objects.Names.Best(hash, q.Accept, p, t); o != nil {
		return o.Label(), o, tier.ReasonNone
	}
	if e, ok := look.cat.Objects.Below.Best(hash, q.Accept, p, t); ok {
		return e.Name, nil, tier.ReasonNone
	}
	far := tier.ReasonNone
	if !q.Near {
		n, far = look.promotions.BestBeyondLocked(hash, q.Accept, p, t)
	}
	if far == tier.ReasonNone && n != (tier.Name{}) {
		return n, nil, tier.ReasonNone
	}
	why = objects.MoreTelling(why, far)
	if why == tier.ReasonNone {
		why = look.cat.Objects.Names.Gone(hash, p, t)
	}
	return tier.Name{}, nil, why
}

// leaseCheckpointLocked leases a published checkpoint.
func (c *Session) leaseCheckpointLocked(o *objects.Object, q *LoadQuery, now time.Time) (Loaded, error) {
	s := c.sessions
	l, err := c.leaseLocked(o, q.Rank, q.TTL, now)
	if err != nil {
		return Loaded{}, err
	}
	if !q.Near {
		c.sessions.offloads.CameBackLocked(o)
		n := s.cat.Of(o.Profile)
		n.Loaded++
		n.LoadedTokens += uint64(o.End)
	}
	return Loaded{Hit: true, Place: s.cat.Objects.Memory.PlaceOf(o), Lease: l.id, Kind: o.Kind, Tokens: o.End, Nodes: chain(o, q.Rank, q.Digests)}, nil
}

// chain lists a checkpoint's nodes from the root. While the checkpoint is leased, the rows
// of all nodes and the states of the last node do not change.
func chain(o *objects.Object, rank int, digests bool) []LoadedNode {
	nodes := make([]LoadedNode, o.Depth)
	for i := o.Depth - 1; i >= 0; i-- {
		nodes[i] = LoadedNode{Kind: o.Kind, Begin: o.Begin, End: o.End, Extents: o.Shares[rank].Extents}
		if digests {
			nodes[i].Digests = o.Shares[rank].Digests
		}
		o = o.Parent
	}
	return nodes
}
