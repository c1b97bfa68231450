package tiering

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/deadline"
	"github.com/spliced-kv/spliced/tiering/internal/ghost"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/internal/lockhold"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Store is the catalogue and the memory behind it.
type Store struct {
	// Fixed after Open.
	cfg     Config
	dev     gpuipc.Device
	place   tier.Place
	tenants map[tier.TenantID]*tenant

	plans     *plan.Runner
	profiles  atomic.Pointer[[]*profileState] // replaced under mu, never changed
	leaseIDs  atomic.Uint64
	advisor   *advise.Advisor
	decisions *decision.Log

	running sync.WaitGroup // operations that touch memory; grows only under mu while open

	arena      gpuipc.Region
	profileMu  sync.Mutex // held while a profile is added, taken before mu
	profileTop tier.ProfileID

	mu          lockhold.Mutex
	hbm         *hbm // nil without; its fields say what guards them
	closed      bool
	pages       *gpuipc.PageAllocator
	pools       [poolCount]*pool
	objects     policy.Table[object]
	segments    *index.Map[object]
	checkpoints *index.Map[object] // heads of lists of siblings
	ghosts      *ghost.List
	sessions    map[*Session]struct{}
	deadlines   deadline.Heap[timed]
	counters    Counters
	corrupt     int // objects in memory that are
	lowerTier
	cleaner
}

// Open makes a store and its arena. Memory is touched only as it is used.
func Open(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	page := int64(cfg.PageBytes)
	public, private := cfg.PublicBytes/page*page, cfg.PrivateBytes/page*page
	arena, err := cfg.Device.NewRegion(gpuipc.RegionSpec{
		Name: cfg.Name, Bytes: public + private, Access: gpuipc.ClientReads, Huge: cfg.Huge,
	})
	if err != nil {
		return nil, fmt.Errorf("arena of %d bytes: %w", public+private, err)
	}
	s := &Store{
		cfg: cfg, dev: cfg.Device, arena: arena, place: tier.PlaceHBM,
		tenants:     map[tier.TenantID]*tenant{},
		pages:       gpuipc.NewPageAllocator(public+private, cfg.PageBytes),
		segments:    index.New[object](),
		checkpoints: index.New[object](),
		ghosts:      ghost.New(cfg.MaxDeparted),
		sessions:    map[*Session]struct{}{},
		decisions:   decision.NewLog(cfg.MaxDecisions),
	}
	if cfg.Device.Describe().Kind == "host" {
		s.place = tier.PlaceDRAM
	}
	s.profiles.Store(&[]*profileState{})
	s.advisor = newAdvisor(s)
	s.pools[publicPool] = &pool{name: "public", number: publicPool, budget: public, evict: cfg.EvictionPublic()}
	s.pools[privatePool] = &pool{name: "private", number: privatePool, budget: private, evict: cfg.EvictionPrivate()}
	for _, t := range cfg.Tenants {
		s.tenants[t.ID] = newTenant(t, cfg.Eviction)
	}
	s.changed.L = &s.mu
	if cfg.Lower != nil {
		s.deleting, s.writes = map[tier.Name]int{}, map[tier.Name][]*object{}
		s.pools[publicPool].dirty, s.pools[privatePool].dirty = cfg.EvictionPublic(), cfg.EvictionPrivate()
		s.openPromotions()
		s.openWrites()
	}
	if err := s.openHBM(); err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	s.plans = s.newRunner()
	return s, nil
}

func newTenant(t Tenant, eviction func() policy.Eviction) *tenant {
	state := &tenant{Tenant: t}
	if t.QuotaBytes > 0 {
		state.evict = eviction()
	}
	return state
}

// Arena is the region that extents of leases refer to.
func (s *Store) Arena() gpuipc.Region { return s.arena }

// NewLeaseID draws an id from the sequence of leases, for leases that the caller
// keeps itself (slots): no id is ever given twice.
func (s *Store) NewLeaseID() tier.LeaseID { return tier.LeaseID(s.leaseIDs.Add(1)) }

// Run looks for leases and reservations past their time until ctx ends, does what
// advice leaves to it, and carries out promotions and cleaning. What is promoted then fails, so that
// nobody waits for it.
func (s *Store) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { s.advisor.Run(ctx) })
	if s.cfg.Lower != nil {
		wake := context.AfterFunc(ctx, s.wakeCleaner)
		defer wake()
		workers.Go(func() { s.clean(ctx) })
	}
	s.withTransfers(func(e transfers, n int) {
		e.Resume()
		for range n {
			workers.Go(func() { e.Work(ctx) })
		}
	})
	s.sweepUntil(ctx)
	workers.Wait()
	s.stopTransfers()
	return nil
}

// transfers is what the store does with the engines that have workers.
type transfers interface {
	Work(ctx context.Context)
	Resume()
	Stop(err error)
}

// withTransfers calls f under the lock with each engine and its number of workers.
func (s *Store) withTransfers(f func(e transfers, workers int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up != nil {
		f(s.up, s.cfg.MaxPromotions)
	}
	if s.hbm != nil {
		f(s.hbm.up, s.hbm.cfg.Promotions)
	}
}

// stopTransfers ends the promotions that are left; none begins any more.
func (s *Store) stopTransfers() {
	s.withTransfers(func(e transfers, _ int) { e.Stop(transfer.ErrStopped) })
}

// wakeCleaner has the cleaner look at its context.
func (s *Store) wakeCleaner() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

func (s *Store) sweepUntil(ctx context.Context) {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.Sweep()
		}
	}
}

// Close closes every session, waits for the operations that still touch memory
// (their callers cancel them), for the writes that the lower tier has begun, and
// unmaps the arena. It is called once, after Run has returned and before the lower
// tier is closed. It writes nothing: Flush does.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	open := make([]*Session, 0, len(s.sessions))
	for session := range s.sessions {
		open = append(open, session)
	}
	s.mu.Unlock()
	for _, session := range open {
		session.Close()
	}
	s.stopTransfers()
	if s.down != nil {
		_ = s.inTurns(func() error { // what is parked ends, since the store is closed
			if s.down.Kick(); s.down.Parked() > 0 {
				return errAgain
			}
			return nil
		})
		s.launch()
	}
	s.running.Wait()
	above := s.closeHBM() // which reads the arena
	if err := s.arena.Close(); err != nil {
		return errors.Join(above, fmt.Errorf("close arena: %w", err))
	}
	return above
}

// scope finds what every query names.
func (s *Store) scope(p tier.ProfileID, t tier.TenantID, rank int) (*profileState, *tenant, error) {
	ps, err := s.profile(p)
	if err != nil {
		return nil, nil, err
	}
	if err := ps.CheckRank(rank); err != nil {
		return nil, nil, err
	}
	tn, err := s.tenant(t)
	return ps, tn, err
}

func (s *Store) tenant(id tier.TenantID) (*tenant, error) {
	t, ok := s.tenants[id]
	if !ok {
		return nil, fmt.Errorf("tenant %d is not configured: %w", id, tier.ErrInvalid)
	}
	return t, nil
}

// segmentLocked finds a segment, published or being filled, if it belongs to
// this profile and tenant.
func (s *Store) segmentLocked(key *[32]byte, p *profileState, t *tenant) *object {
	o := s.segments.Find(key)
	if o == nil || o.profile != p || o.tenant != t {
		return nil
	}
	return o
}

// checkpointLocked finds the checkpoint of one kind.
func (s *Store) checkpointLocked(hash *[32]byte, kind tier.CheckpointKind, p *profileState, t *tenant) *object {
	for o := s.checkpoints.Find(hash); o != nil; o = o.sibling {
		if o.profile == p && o.tenant == t && o.kind == kind {
			return o
		}
	}
	return nil
}
