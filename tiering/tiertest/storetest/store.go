// Package storetest makes a store a subject of tiertest.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// Store makes a subject of a tiering.Store, alone or with a lower tier. It uses the store as the
// daemon does: a session reserves, commits and leases. The store's goroutines run until Stop.
type Store struct {
	*tiering.Store
	Memory *tiertest.Memory // staging
	Trait  tiertest.Traits

	page    int64 // page size of memory in bytes
	lower   tier.Tier
	session *tiering.Session
	ids     map[profile.Fingerprint]tier.ProfileID
	cancel  context.CancelFunc
	ended   chan error
	stop    sync.Once
	stopErr error
}

// Tenants converts a subject's tenants for a store.
func Tenants(list []tiertest.Tenant) []tiering.Tenant {
	out := make([]tiering.Tenant, len(list))
	for i, t := range list {
		out[i] = tiering.Tenant{ID: t.ID, Name: t.Name, Salt: t.Salt, QuotaBytes: t.QuotaBytes}
	}
	return out
}

// New opens a store and runs it.
func New(cfg tiering.Config, m *tiertest.Memory, trait tiertest.Traits) (*Store, error) {
	store, err := tiering.Open(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Store{
		Store: store, Memory: m, Trait: trait, page: int64(store.Pools()[0].PageBytes), lower: cfg.Lower, session: store.NewSession("tiertest"),
		ids: map[profile.Fingerprint]tier.ProfileID{}, cancel: cancel, ended: make(chan error, 1),
	}
	for _, p := range [...]*profile.Profile{tiertest.Small, tiertest.Pair, tiertest.Linear, tiertest.WideF32, tiertest.WideF16, tiertest.Heavy} {
		if s.ids[p.Fingerprint()], err = store.AddProfile(p); err != nil {
			cancel()
			return nil, errors.Join(err, store.Close())
		}
	}
	go func() { s.ended <- store.Run(ctx) }()
	return s, nil
}

// Stop ends the store's goroutines and closes it. If the parameter flush is true, it first
// writes all objects to the lower tier, except those that a quota keeps out. A second Stop does
// nothing.
func (s *Store) Stop(flush bool) error {
	s.stop.Do(func() {
		if flush {
			_, _ = s.Flush(context.Background())
		}
		s.cancel()
		s.stopErr = errors.Join(<-s.ended, s.Store.Close())
	})
	return s.stopErr
}

// Close implements Subject, as do the methods below.
func (s *Store) Close() error            { return s.Stop(false) }
func (s *Store) Traits() tiertest.Traits { return s.Trait }

func (s *Store) Used(t tier.TenantID) (bytes int64) {
	for _, p := range s.Pools() {
		for _, u := range p.Tenants {
			if u.ID == t {
				bytes += u.UsedBytes
			}
		}
	}
	if s.lower != nil {
		bytes += s.lower.Used(t)
	}
	return bytes
}

// Settle writes dirty objects to the lower tier and waits for transfers.
func (s *Store) Settle() {
	if s.lower == nil {
		return
	}
	_, _ = s.Flush(context.Background()) // refused objects stay in memory
	tiertest.Wait(time.Minute, func() bool {
		c := s.Counters()
		return c.Writing == 0 && c.Promoting == 0
	})
}

// Find uses Match to decide whether the object is found, and the listings for its bytes.
func (s *Store) Find(o *tiertest.Object) (tiertest.Entry, bool) {
	q := &tiering.MatchQuery{Profile: s.ids[o.Profile.Fingerprint()], Tenant: o.Tenant.ID}
	if o.Kind == 0 {
		q.Keys = [][32]byte{o.Key}
	} else {
		q.Accept, q.Positions, q.Prefixes = o.Kind, []uint32{uint32(o.End)}, [][32]byte{o.Key}
	}
	var got tiering.MatchResult
	if err := s.Match(q, &got); err != nil {
		return tiertest.Entry{}, false
	}
	if o.Kind == 0 && got.Segments[0].Status != tier.StatusHit || o.Kind != 0 && got.PrefixTokens == 0 {
		return tiertest.Entry{}, false
	}
	e := tiertest.Entry{Level: tier.LevelMemory}
	if s.inMemory(o) {
		e.Bytes = s.charge(o)
	}
	if s.lower != nil {
		if below, ok := s.lower.Lookup(&o.Name); ok {
			e.Bytes, e.Level = e.Bytes+below.Bytes, below.Level
		}
	}
	return e, true
}

// Held returns the bytes in the pools of memory.
func (s *Store) Held() (bytes int64) {
	for _, p := range s.Pools() {
		bytes += p.UsedBytes
	}
	return bytes
}

// charge returns the bytes that an object in memory is charged to its tenant's quota: its
// pages, 4 bytes per token id, and for the daemon's records 1,280 bytes plus, for each
// rank, 96 bytes and 8 bytes per digest.
func (s *Store) charge(o *tiertest.Object) int64 {
	n := 1280 + 4*int64(len(o.Tokens))
	for rank, b := range o.Bytes {
		n += (int64(len(b))+s.page-1)/s.page*s.page + 96 + 8*int64(len(o.Digests[rank]))
	}
	return n
}

func (s *Store) inMemory(o *tiertest.Object) bool {
	if o.Kind == 0 {
		d, ok := s.Segment(o.Key)
		return ok && d.Published
	}
	before := o.Key
	for i := len(before) - 1; i >= 0; i-- {
		if before[i]--; before[i] != 0xff {
			break
		}
	}
	for _, c := range s.Checkpoints(tiering.CheckpointFilter{Tenant: &o.Tenant.ID}, (*profile.PrefixHash)(&before), 1) {
		if c.Hash == o.Key && c.Kind == o.Kind && c.Published {
			return true
		}
	}
	return false
}

func (s *Store) Remove(o *tiertest.Object) bool { return o.Kind == 0 && s.Evict(o.Key) == nil }

func (s *Store) Begin(o *tiertest.Object) (tiertest.Filling, error) {
	f := &storeFilling{store: s, object: o}
	for rank := range o.Bytes {
		r, err := s.reserve(o, rank)
		if err != nil {
			f.Cancel()
			return nil, err
		}
		f.ranks = append(f.ranks, r.ID)
	}
	return f, nil
}

func (s *Store) reserve(o *tiertest.Object, rank int) (tiering.Reservation, error) {
	id := s.ids[o.Profile.Fingerprint()]
	if o.Kind == 0 {
		return s.session.Reserve(&tiering.ReserveQuery{Profile: id, Tenant: o.Tenant.ID, Rank: rank, Key: o.Key, Spec: o.Spec, Tokens: o.Tokens})
	}
	return s.session.Save(&tiering.SaveQuery{
		Profile: id, Tenant: o.Tenant.ID, Rank: rank, Kind: o.Kind, Hash: o.Key, Tokens: o.End, Parent: o.Parent.Key,
	})
}

type storeFilling struct {
	store  *Store
	object *tiertest.Object
	ranks  []tier.ReservationID
}

func (f *storeFilling) Cancel() {
	if len(f.ranks) > 0 { // aborting one rank aborts all
		_ = f.store.session.Abort(f.ranks[0])
	}
}

// Finish commits the parts of each rank in order.
func (f *storeFilling) Finish(ctx context.Context, level tier.Level) (tier.Level, error) {
	l := f.object.Layout()
	var last tiering.Committed
	chunk := 0
	for rank, id := range f.ranks {
		chunk = 0
		for i, p := range l.Parts {
			n := gpuipc.Chunks(p.Len)
			if n == 0 {
				continue
			}
			item := tiering.CommitItem{Reservation: id, Part: i, Digests: f.object.Digests[rank][chunk : chunk+n], Level: level}
			var err error
			if last, err = f.commit(ctx, item, f.object.Bytes[rank][p.Off:p.Off+p.Len]); err != nil {
				return tier.LevelMemory, err
			}
			chunk += n
		}
	}
	switch {
	case !last.Published:
		return tier.LevelMemory, fmt.Errorf("%v: committed as a whole, and not published: %w", f.object, tiertest.ErrWrong)
	case last.Durable == nil:
		return tier.LevelMemory, nil
	}
	return last.Durable.Wait(ctx), nil
}

func (f *storeFilling) commit(ctx context.Context, item tiering.CommitItem, b []byte) (tiering.Committed, error) {
	m := f.store.Memory
	var err error
	if item.Src, err = m.Put(b); err != nil {
		return tiering.Committed{}, err
	}
	done, err := f.store.session.Commit(ctx, item)
	return done, errors.Join(err, m.Spend(item.Src))
}

// missed returns the error of a miss: ErrBusy if the object is pending, or if a lookup
// still finds it, so that it only could not be promoted now; else ErrGone.
func (s *Store) missed(o *tiertest.Object, why tier.Reason, promoting bool) error {
	kind := tier.ErrGone
	if promoting || why == tier.ReasonPending {
		kind = tier.ErrBusy
	} else if _, ok := s.Find(o); ok {
		kind = tier.ErrBusy
	}
	return fmt.Errorf("%v: %v, promoting %v: %w", o, why, promoting, kind)
}

func (s *Store) Get(ctx context.Context, o *tiertest.Object) (*tiertest.Content, error) {
	c := &tiertest.Content{}
	for rank := range o.Bytes {
		lease, extents, digests, err := s.lease(ctx, o, rank)
		if err != nil {
			return nil, err
		}
		b, err := s.Memory.Load(gpuipc.Ref{Region: s.Arena(), Extents: extents})
		if err := errors.Join(err, s.session.Release(lease)); err != nil {
			return nil, err
		}
		c.Bytes, c.Digests = append(c.Bytes, b), append(c.Digests, digests)
	}
	return c, nil
}

func (s *Store) lease(ctx context.Context, o *tiertest.Object, rank int) (tier.LeaseID, []gpuipc.Extent, []uint64, error) {
	id := s.ids[o.Profile.Fingerprint()]
	if o.Kind == 0 {
		rows, err := s.session.AwaitAcquire(ctx, &tiering.AcquireQuery{Profile: id, Tenant: o.Tenant.ID, Rank: rank, Digests: true, Keys: [][32]byte{o.Key}}, nil)
		switch {
		case err != nil:
			return 0, nil, nil, err
		case rows[0].Err != nil:
			return 0, nil, nil, rows[0].Err
		case !rows[0].Hit:
			return 0, nil, nil, s.missed(o, rows[0].Reason, rows[0].Promoting)
		}
		return rows[0].Lease, rows[0].Extents, rows[0].Digests, nil
	}
	got, err := s.session.AwaitLoad(ctx, &tiering.LoadQuery{Profile: id, Tenant: o.Tenant.ID, Rank: rank, Accept: o.Kind, Digests: true, Hash: o.Key})
	switch {
	case err != nil:
		return 0, nil, nil, err
	case !got.Hit:
		return 0, nil, nil, s.missed(o, got.Reason, got.Promoting)
	}
	last := got.Nodes[len(got.Nodes)-1]
	if last.Begin != o.Begin || last.End != o.End {
		return 0, nil, nil, fmt.Errorf("%v: rows [%d, %d): %w", o, last.Begin, last.End, tiertest.ErrWrong)
	}
	return got.Lease, last.Extents, last.Digests, nil
}
