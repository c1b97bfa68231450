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
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Store is the catalogue and the memory behind it.
type Store struct {
	// Fixed after Open.
	cfg     Config
	dev     gpuipc.Device
	place   tier.Place
	tenants map[tier.TenantID]*tenant

	profiles  atomic.Pointer[[]*profileState] // replaced under mu, never changed
	leaseIDs  atomic.Uint64
	advisor   *advise.Advisor
	decisions *decision.Log

	running sync.WaitGroup // operations that touch memory; grows only under mu while open

	mu          sync.Mutex
	arena       gpuipc.Region
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
	lastProfile tier.ProfileID
	counters    Counters

	// With a lower tier.
	asked      tier.Name               // argument of the call that is made to it
	found      tier.Entry              // answer to a match
	doomed     map[tier.Name]int       // being removed from it by operators
	writes     map[tier.Name][]*object // with a write, wanted or running
	backlog    []*object               // whose writes wait for the tier, in order
	promotions map[tier.Name]*promotion
	demand     []*promotion // ready, first in first out; those that have moved on are skipped
	ahead      []*promotion
	matched    *aheadLine // nil without read-ahead
	stopped    bool       // Run has ended: nothing is promoted any more

	promoteBytes int64 // being read into
	roomWaiters  int   // promotions that wait for changed
	cleanerIdle  bool  // the cleaner waits for changed
	cleanerHolds bool  // until the next sweep, since a write has failed
	writesEnded  uint64
	sweeps       uint64
	spoilt       int       // objects in memory that are
	writeSweep   uint64    // sweeps when a write ended last, or the only one began
	work         sync.Cond // a promotion or a match's hit is there to be taken up
	changed      sync.Cond // one of the fields above, or room in memory
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
	s.work.L, s.changed.L = &s.mu, &s.mu
	if cfg.Lower != nil {
		s.doomed, s.writes, s.promotions = map[tier.Name]int{}, map[tier.Name][]*object{}, map[tier.Name]*promotion{}
		s.pools[publicPool].dirty, s.pools[privatePool].dirty = cfg.EvictionPublic(), cfg.EvictionPrivate()
		if cfg.ReadAhead {
			s.matched = &aheadLine{}
		}
	}
	if err := s.openHBM(); err != nil {
		return nil, errors.Join(err, arena.Close())
	}
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
		s.setStopped(false)
		wake := context.AfterFunc(ctx, s.wakeAll)
		defer wake()
		for range s.cfg.MaxPromotions {
			workers.Go(func() { s.promoter(ctx) })
		}
		workers.Go(func() { s.clean(ctx) })
	}
	if s.hbm != nil {
		s.setHBMStopped(false)
		wake := context.AfterFunc(ctx, s.wakeAll)
		defer wake()
		for range s.hbm.cfg.Promotions {
			workers.Go(func() { s.hbmPromoter(ctx) })
		}
	}
	s.sweepUntil(ctx)
	workers.Wait()
	if s.hbm != nil {
		s.setHBMStopped(true)
	}
	if s.cfg.Lower != nil {
		s.setStopped(true)
	}
	return nil
}

// setStopped begins or ends that promotions are taken up. Those that are left
// fail.
func (s *Store) setStopped(stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = stopped
	if stopped {
		for _, p := range s.promotions {
			if p.state != promotionEnded { // with one that it follows
				s.failPromotionLocked(p, promoteStopped)
			}
		}
	}
}

// wakeAll has every goroutine that waits for work look at its context.
func (s *Store) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.work.Broadcast()
	s.changed.Broadcast()
	if s.hbm != nil {
		s.hbm.work.Broadcast()
	}
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
	if s.cfg.Lower != nil {
		s.setStopped(true)
		s.dropBacklog()
	}
	if s.hbm != nil {
		s.setHBMStopped(true)
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

// deviceError gives an error of the device one of our kinds; what ended the
// context stays visible.
func deviceError(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case contextEnded(err):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, gpuipc.ErrInvalid):
		return fmt.Errorf("%s: %w: %w", what, tier.ErrInvalid, err)
	}
	return fmt.Errorf("%s: %w: %w", what, tier.ErrUnavailable, err)
}

// contextEnded tells an operation that stopped because it was told to from one
// that failed.
func contextEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
