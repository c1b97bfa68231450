package serve

import (
	"context"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// reader is the scope of a lease query and the memory that the query reads.
type reader struct {
	session *Session
	profile *objects.Profile
	tenant  *objects.Tenant
	above   *hbm.Cache // the device to read; nil = memory
}

// reader checks the ids of a query. The parameter on is the device whose copies the query reads;
// 0 = the query reads memory. The error is ErrUnavailable if there is no such device.
func (c *Session) reader(id tier.ProfileID, tenant tier.TenantID, rank int, on tier.DeviceID) (reader, error) {
	p, t, err := c.sessions.cat.Scope(id, tenant, rank)
	r := reader{c, p, t, c.sessions.hbm.Of(on)}
	if err == nil && on != 0 && r.above == nil {
		err = ErrNoDevice(on)
	}
	return r, err
}

// flightWait is a row whose object is in flight into memory or HBM. The caller counts as
// one of the flight's waiters until leaveLocked.
type flightWait struct {
	row    int
	flight *transfer.Flight
}

// arrival is a transfer job that brings an object into memory or HBM.
type arrival interface {
	Arrived() *objects.Object                // the object, after the job succeeded
	Reason(how transfer.Outcome) tier.Reason // why a row is a miss, after the job failed
}

// Acquire leases segments and appends one row to dst per key. A segment that is not cached,
// or belongs to another tenant or profile, is a miss. A segment that is only in the lower
// tier is also a miss, and its promotion begins. A segment with a remote hint is a miss,
// and a remote lookup begins. An error concerns the whole query; then nothing is leased.
func (c *Session) Acquire(q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	return c.acquire(context.Background(), q, dst, 0, false)
}

// AwaitAcquire is like Acquire but waits for promotions until ctx ends. A segment that is
// not in memory by then is a miss that is Promoting, and its promotion continues. The end
// of ctx is not an error. While it waits it holds no lock. A segment promoted for this
// call cannot be evicted before the call has leased it.
func (c *Session) AwaitAcquire(ctx context.Context, q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	return c.acquire(ctx, q, dst, 0, true)
}

// AcquireResident leases the copies on the query's device that belong to the query's rank. Hits
// have PlaceHBM and extents of DeviceArena. An object without such a copy is a miss that is
// Promoting, and its promotion begins. Once the device is lost, every row is a miss. The error is
// ErrUnavailable if there is no such device.
func (c *Session) AcquireResident(q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	if q.Device == 0 {
		return dst, ErrNoDevice(0)
	}
	return c.acquire(context.Background(), q, dst, q.Device, false)
}

// AwaitAcquireResident is like AcquireResident but waits for promotions until ctx ends, as
// AwaitAcquire does.
func (c *Session) AwaitAcquireResident(ctx context.Context, q *AcquireQuery, dst []Acquired) ([]Acquired, error) {
	if q.Device == 0 {
		return dst, ErrNoDevice(0)
	}
	return c.acquire(ctx, q, dst, q.Device, true)
}

func (c *Session) acquire(ctx context.Context, q *AcquireQuery, dst []Acquired, on tier.DeviceID, wait bool) ([]Acquired, error) {
	r, err := c.reader(q.Profile, q.Tenant, q.Rank, on)
	if err != nil {
		return dst, err
	}
	base := len(dst)
	if q.All && r.above == nil {
		var refused bool
		if dst, refused = c.refuseTogether(q, r.profile, r.tenant, dst); refused {
			return dst, nil
		}
	}
	dst, waits := r.acquireNow(q, dst, wait)
	rows := dst[base:]
	if len(waits) > 0 {
		r.acquireAfter(ctx, q, rows, waits)
	}
	if !q.Near {
		r.countMisses(rows, q.Again)
	}
	if q.All {
		c.keepTogether(rows)
	}
	return dst, nil
}

// acquireNow answers the rows for which it need not wait. If the parameter wait is true, it joins
// the flights of the remaining rows and returns these flights.
func (r reader) acquireNow(q *AcquireQuery, dst []Acquired, wait bool) ([]Acquired, []flightWait) {
	s := r.session.sessions
	now := s.cat.Config.Now()
	var waits []flightWait
	var far []int // indices of rows that share one remote lookup
	base := len(dst)
	s.cat.Mu.Each(len(q.Keys), catalog.HoldRows, func(i int) {
		row, flight := r.acquireLocked(&q.Keys[i], q, now, &far, i)
		if wait && flight != nil {
			flight.Join()
			waits = append(waits, flightWait{i, flight})
		}
		dst = append(dst, row)
	})
	if len(far) > 0 {
		waits = r.acquireFar(q, dst[base:], far, wait, waits)
	}
	return dst, waits
}

// acquireAfter waits for flights and for the flights that continue them, such as the copy into
// HBM after a promotion. Then it answers the rows of these flights. Leases that were taken before
// the wait get a new TTL when the wait is over.
func (r reader) acquireAfter(ctx context.Context, q *AcquireQuery, rows []Acquired, waits []flightWait) {
	c, s := r.session, r.session.sessions
	for len(waits) > 0 {
		ended := c.await(ctx, waits)
		now := s.cat.Config.Now()
		var further []flightWait
		s.cat.Mu.Each(len(waits), catalog.HoldRows, func(i int) {
			w := &waits[i]
			row, flight := r.acquireAfterLocked(w.flight, &q.Keys[w.row], q, now)
			if flight != nil && !ended {
				flight.Join()
				further = append(further, flightWait{w.row, flight})
			}
			rows[w.row] = row
		})
		waits = further
	}
	now := s.cat.Config.Now()
	s.cat.Mu.Each(len(rows), catalog.HoldRows, func(i int) {
		if l := c.leases[rows[i].Lease]; rows[i].Hit && l != nil && !l.expired() {
			s.timeLocked(l, q.TTL, now)
		}
	})
}

// await returns when all flights have ended, or when ctx or the session ends. If ctx or the
// session has ended, the result is true, and the caller should wait for nothing further.
func (c *Session) await(ctx context.Context, waits []flightWait) (ended bool) {
	for i := range waits {
		select {
		case <-waits[i].flight.Done():
		case <-ctx.Done():
			return true
		case <-c.client.Ended:
			return true
		}
	}
	return false
}

// acquireLocked leases a segment, or starts to bring it into memory or HBM. If the parameter far
// is not nil and the segment needs a remote lookup, acquireLocked does not start the lookup but
// appends i, the number of the row, to *far.
func (r reader) acquireLocked(key *[32]byte, q *AcquireQuery, now time.Time, far *[]int, i int) (Acquired, *transfer.Flight) {
	c, s := r.session, r.session.sessions
	if err := c.openLocked(); err != nil {
		return Acquired{Err: err}, nil
	}
	name := tier.Name{Key: *key}
	o := s.cat.Objects.Names.Segment(key, r.profile, r.tenant)
	if r.above != nil {
		if copied := s.cat.Objects.HBM.Copy(r.copyKey(name, q.Rank)); copied != nil {
			return c.leaseCopyLocked(copied, q, now), nil
		}
		if r.above.Lost() {
			return Acquired{Reason: tier.ReasonEvicted}, nil
		}
	} else if o != nil && o.Fill == nil {
		return c.leaseRowLocked(o, q, now), nil
	}
	switch {
	case o == nil:
		if _, ok := s.cat.Objects.Below.Segment(key, r.profile, r.tenant); ok {
			break
		}
		if q.Near {
			return Acquired{Reason: s.cat.Objects.Names.Gone(key, r.profile, r.tenant)}, nil
		}
		id := objects.Identity{Name: name, Profile: r.profile, Tenant: r.tenant}
		if q.Planned {
			s.remote.PlannedLocked(id)
		}
		at, why := s.promotions.BeyondLocked(id)
		switch {
		case at == move.NotRemote && why == tier.ReasonNone:
			return Acquired{Reason: s.cat.Objects.Names.Gone(key, r.profile, r.tenant)}, nil
		case at == move.NotRemote:
			return Acquired{Reason: why}, nil
		case at == move.Hinted && far != nil:
			*far = append(*far, i)
			return Acquired{Reason: tier.ReasonPending}, nil
		}
	case o.Fill != nil && (!o.Fill.Promoted || q.Near && s.promotions.FetchedLocked(name)):
		return Acquired{Reason: tier.ReasonPending}, nil
	}
	flight := r.bringLocked(name, q.Rank, o)
	return Acquired{Reason: tier.ReasonPending, Promoting: flight != nil}, flight
}

// copyKey returns the key of the copy that a rank reads.
func (r reader) copyKey(n tier.Name, rank int) objects.CopyKey {
	return objects.CopyKey{Identity: r.identity(n), Rank: rank, Device: r.above.ID()}
}

func (r reader) identity(n tier.Name) objects.Identity {
	return objects.Identity{Name: n, Profile: r.profile, Tenant: r.tenant}
}

// bringLocked starts the flight of an object. An object that is complete in memory goes to HBM;
// any other object goes into memory first. o is the object in memory, if any.
func (r reader) bringLocked(n tier.Name, rank int, o *objects.Object) *transfer.Flight {
	s := r.session.sessions
	if r.above != nil && o != nil && s.cat.Objects.Names.Promotable(o) {
		if p := r.above.Promote(r.identity(n), rank, true); p != nil {
			return p.Flight
		}
		return nil
	}
	w := move.Wanted{Name: n, Profile: r.profile, Tenant: r.tenant, Urgent: true}
	if o == nil && s.promotions.FarLocked(w.Identity()) {
		return s.remote.SeekLocked([]move.Wanted{w}, r.devices(rank))
	}
	p := s.promotions.PromoteLocked(w)
	if p == nil {
		return nil
	}
	p.Further = append(p.Further, r.devices(rank)...)
	return p.Flight
}

// acquireAfterLocked answers a row after its flight has ended, or when its caller stops
// waiting. It may return another flight to wait for.
func (r reader) acquireAfterLocked(f *transfer.Flight, key *[32]byte, q *AcquireQuery, now time.Time) (Acquired, *transfer.Flight) {
	c, s := r.session, r.session.sessions
	defer s.leaveLocked(f)
	if err := c.openLocked(); err != nil {
		return Acquired{Err: err}, nil
	}
	why, promoting, failed := missOf(f)
	if !failed {
		return r.acquireLocked(key, q, now, nil, 0)
	}
	// The segment may have arrived in another way.
	if o := s.cat.Objects.Names.Segment(key, r.profile, r.tenant); r.above == nil && o != nil && o.Fill == nil {
		return c.leaseRowLocked(o, q, now), nil
	}
	return Acquired{Reason: why, Promoting: promoting}, nil
}

// missOf returns why a row is a miss if its flight has failed or has not ended. The result failed
// is false once the flight has succeeded.
func missOf(f *transfer.Flight) (why tier.Reason, promoting, failed bool) {
	switch {
	case !f.Ended():
		return tier.ReasonPending, true, true
	case f.Err() != nil:
		return f.Job.(arrival).Reason(transfer.OutcomeOf(f.Err())), false, true
	}
	return tier.ReasonNone, false, false
}

// leaveLocked ends a caller's wait for a flight. If the flight has succeeded, it ends the
// caller's use of the object that arrived.
func (ses *Sessions) leaveLocked(f *transfer.Flight) {
	switch {
	case !f.Ended():
		f.Leave()
	case f.Err() == nil:
		ses.cat.Objects.Unuse(f.Job.(arrival).Arrived())
	}
}

// countMisses counts the rows that are misses. If the parameter again is true, rows that are
// Promoting do not count, since the caller asks for them a second time.
func (r reader) countMisses(rows []Acquired, again bool) {
	misses := uint64(0)
	for i := range rows {
		if row := &rows[i]; !row.Hit && row.Err == nil && !(row.Promoting && again) {
			misses++
		}
	}
	if misses == 0 {
		return
	}
	s := r.session.sessions
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	if r.above != nil {
		r.above.Count().AcquireMisses += misses
	} else {
		s.cat.Of(r.profile).AcquireMisses += misses
	}
}

// leaseRowLocked leases a published segment.
func (c *Session) leaseRowLocked(o *objects.Object, q *AcquireQuery, now time.Time) Acquired {
	s := c.sessions
	l, err := c.leaseLocked(o, q.Rank, q.TTL, now)
	if err != nil {
		return Acquired{Err: err}
	}
	if !q.Near {
		c.sessions.offloads.CameBackLocked(o)
		n := s.cat.Of(o.Profile)
		n.Acquired++
		n.AcquiredTokens += uint64(o.Tokens())
	}
	sh := &o.Shares[q.Rank]
	row := Acquired{
		Hit: true, Place: s.cat.Objects.Memory.PlaceOf(o), Lease: l.id, Bytes: o.RankBytes,
		Begin: o.Begin, Tokens: o.End - o.Begin, Packed: o.Packed, Extents: sh.Extents,
	}
	if q.Digests {
		row.Digests = sh.Digests
	}
	return row
}

// leaseCopyLocked leases a segment's copy in HBM.
func (c *Session) leaseCopyLocked(copied *objects.Object, q *AcquireQuery, now time.Time) Acquired {
	row := c.leaseRowLocked(copied, q, now)
	if row.Hit {
		counters := &copied.Pool.Device.Counters
		counters.Acquired++
		counters.AcquiredTokens += uint64(row.Tokens)
	}
	return row
}

// NeedsPromotion reports whether AwaitAcquire would have to wait for the lower tier or a
// remote fetch. It reads memory only. It returns false for a query that Acquire refuses.
func (look *Lookup) NeedsPromotion(q *AcquireQuery) bool {
	p, t, err := look.cat.Scope(q.Profile, q.Tenant, q.Rank)
	if err != nil || look.promotions.Engine == nil {
		return false
	}
	return look.anyLocked(q.Keys, func(key *[32]byte) bool {
		if o := look.cat.Objects.Names.Segment(key, p, t); o != nil {
			return o.Fill != nil && o.Fill.Promoted
		}
		return look.promotions.HeldFartherLocked(objects.Identity{Name: tier.Name{Key: *key}, Profile: p, Tenant: t})
	})
}

// NeedsHBMPromotion reports whether AwaitAcquireResident would have to wait. It reads
// memory only. It returns false for a query that AcquireResident refuses.
func (look *Lookup) NeedsHBMPromotion(q *AcquireQuery) bool {
	p, t, err := look.cat.Scope(q.Profile, q.Tenant, q.Rank)
	if err != nil || look.hbm.Of(q.Device) == nil {
		return false
	}
	return look.anyLocked(q.Keys, func(key *[32]byte) bool {
		n := objects.Identity{Name: tier.Name{Key: *key}, Profile: p, Tenant: t}
		return look.needsCopyLocked(objects.CopyKey{Identity: n, Rank: q.Rank, Device: q.Device})
	})
}

// anyLocked reports whether the function holds returns true for any of the keys.
func (look *Lookup) anyLocked(keys [][32]byte, holds func(key *[32]byte) bool) bool {
	found := false
	look.cat.Mu.Each(len(keys), catalog.HoldRows, func(i int) { found = found || holds(&keys[i]) })
	return found
}

// needsCopyLocked reports whether an object has no copy in HBM but could get one.
func (look *Lookup) needsCopyLocked(k objects.CopyKey) bool {
	if look.hbm.Of(k.Device).Lost() || look.cat.Objects.HBM.Copy(k) != nil {
		return false
	}
	o := look.cat.Objects.Names.Find(k.Name, k.Profile, k.Tenant)
	if o != nil && (look.cat.Objects.Names.Promotable(o) || o.Fill != nil && o.Fill.Promoted) {
		return true
	}
	if o != nil && o.Phase != objects.Stripped {
		return false
	}
	return look.promotions.HeldFartherLocked(k.Identity)
}

// devices returns the rank and the device that it reads; nil if it reads memory.
func (r reader) devices(rank int) []move.RankOnDevice {
	if r.above == nil {
		return nil
	}
	return []move.RankOnDevice{{Device: r.above, Rank: rank}}
}

// acquireFar looks up rows of an acquire that other nodes may have, in as few searches as
// possible. The parameter far has the indices of these rows. If the parameter wait is true,
// acquireFar joins the flights of these searches, and of searches that already run for such rows,
// and appends these flights to waits.
func (r reader) acquireFar(q *AcquireQuery, rows []Acquired, far []int, wait bool, waits []flightWait) []flightWait {
	s := r.session.sessions
	now := s.cat.Config.Now()
	for some := range slices.Chunk(far, move.MaxWants) {
		s.cat.Mu.Lock()
		var still []int
		for _, i := range some { // rows may have changed while others had the lock
			row, flight := r.acquireLocked(&q.Keys[i], q, now, &still, i)
			rows[i] = row
			if wait && flight != nil {
				flight.Join()
				waits = append(waits, flightWait{i, flight})
			}
		}
		ws := make([]move.Wanted, len(still))
		for j, i := range still {
			ws[j] = move.Wanted{Name: tier.Name{Key: q.Keys[i]}, Profile: r.profile, Tenant: r.tenant, Urgent: true, Planned: q.Planned}
		}
		if flight := s.remote.SeekLocked(ws, r.devices(q.Rank)); flight != nil {
			for _, i := range still {
				rows[i].Promoting = true
				if wait {
					flight.Join()
					waits = append(waits, flightWait{i, flight})
				}
			}
		}
		s.cat.Mu.Unlock()
	}
	return waits
}
