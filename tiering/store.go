package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/lockhold"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Store is the catalogue and its memory.
type Store struct {
	// Fixed after Open.
	cfg   Config
	dev   gpuipc.Device
	place tier.Place

	plans     *plan.Runner
	durations *durations
	parts     *plan.Parts
	profiles  atomic.Pointer[[]*objects.Profile] // replaced under mu, never modified
	leaseIDs  atomic.Uint64
	advisor   *advise.Advisor
	decisions *decision.Log

	running sync.WaitGroup // operations that touch memory; grows only under mu while open

	arena      gpuipc.Region
	profileMu  sync.Mutex // held while a profile is added, locked before mu
	profileTop tier.ProfileID
	reclaimMu  sync.Mutex // held while room is made for a profile, locked before mu

	mu          lockhold.Mutex
	profileLeft uint64   // counter that orders profiles by the end of their last use
	hbm         hbm.List // by device; fixed after Open, its fields say what guards them
	closed      bool
	objects     *objects.Set
	sessions    map[*Session]struct{}
	counters    stats.Counters
	lowerTier
	out *transfer.Engine[*objects.Object] // copies in flight to outlets; nil without
	beyond
	cleaner
	pins
	budgets
}

// Open opens a store and its arena. Memory is touched only as it is used.
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
		cfg: cfg, dev: cfg.Device, arena: arena, place: tier.PlaceHBM, parts: plan.NewParts(),
		sessions:  map[*Session]struct{}{},
		decisions: decision.NewLog(cfg.MaxDecisions), durations: newDurations(),
	}
	s.decisions.Listen(cfg.Decided)
	if cfg.Device.Describe().Kind == "host" {
		s.place = tier.PlaceDRAM
	}
	tenants := make([]*objects.Tenant, len(cfg.Tenants))
	for i, t := range cfg.Tenants {
		tenants[i] = &objects.Tenant{ID: t.ID, Name: t.Name, Salt: t.Salt, QuotaBytes: t.QuotaBytes}
	}
	s.objects = objects.New(objects.Options{
		Now: cfg.Now, Log: s.decisions, Lower: cfg.Lower, Find: cfg.Find, Held: cfg.Held, Place: s.place, Arena: arena, PageBytes: cfg.PageBytes, Public: public, Private: private,
		MaxChain: cfg.MaxChain, MaxGhosts: cfg.MaxDeparted,
		EvictionPublic: cfg.EvictionPublic, EvictionPrivate: cfg.EvictionPrivate, Eviction: cfg.Eviction,
		HighWater: cfg.HighWater, LowWater: cfg.LowWater, Short: s.wakeIdleCleaner, Outlets: len(cfg.Outlets) > 0,
	}, tenants, &s.counters)
	s.objects.WriteBehind = cfg.WriteBehind
	s.objects.SendAll = slices.ContainsFunc(cfg.Outlets, func(o Outlet) bool { return o.All })
	s.profiles.Store(&[]*objects.Profile{})
	s.advisor = newAdvisor(s)
	s.changed.L = &s.mu
	if cfg.Lower != nil {
		s.writes = map[tier.Name][]*objects.Object{}
		s.openWrites()
	}
	if cfg.Lower != nil || cfg.Remote != nil {
		s.openPromotions()
	}
	if cfg.Remote != nil {
		s.openBeyond()
	}
	if len(cfg.Outlets) > 0 {
		s.openOffloads()
	}
	s.hbm = hbm.Open(cfg.HBM, hbm.Options{
		Lock: &s.mu, Objects: s.objects, Memory: s.dev, Arena: s.arena,
		Name: cfg.Name + "-hbm", Running: &s.running, Now: cfg.Now, Log: cfg.Log,
		Took: s.durations.fetched.hbm.Observe,
	})
	s.plans = s.newRunner()
	s.openPins()
	s.openBudgets()
	return s, nil
}

// Arena returns the region that extents of leases refer to.
func (s *Store) Arena() gpuipc.Region { return s.arena }

// NewLeaseID returns an id from the sequence of leases, for leases that the caller keeps
// (slots). No id is returned twice.
func (s *Store) NewLeaseID() tier.LeaseID { return tier.LeaseID(s.leaseIDs.Add(1)) }

// Run ends expired leases and reservations until ctx ends, runs the deferred work of the
// advisor, and carries out promotions and cleaning. Promotions that are left at the end
// fail, so that no caller waits for them.
func (s *Store) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { s.advisor.Run(ctx) })
	wake := context.AfterFunc(ctx, s.wakeCleaner)
	defer wake()
	if s.cfg.Lower != nil {
		workers.Go(func() { s.clean(ctx) })
	}
	if s.out != nil {
		workers.Go(func() { s.sendAhead(ctx) })
	}
	s.withTransfers(func(e transfers, lane, n int) {
		e.Resume()
		for range n {
			workers.Go(func() { e.Work(ctx, lane) })
		}
	})
	s.sweepUntil(ctx)
	workers.Wait()
	s.stopTransfers()
	return nil
}

// transfers is the part of an engine with workers that the store uses.
type transfers interface {
	Work(ctx context.Context, lane int)
	Resume()
	Stop(err error)
}

// withTransfers calls f under the lock with each lane of each engine and its number of
// workers.
func (s *Store) withTransfers(f func(e transfers, lane, workers int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up != nil {
		f(s.up, laneBelow, s.cfg.MaxPromotions)
	}
	if s.seek != nil {
		f(s.up, laneBeyond, s.cfg.MaxFetches)
		f(s.seek, 0, s.cfg.MaxFinds)
	}
	for _, h := range s.hbm {
		f(h.Flights, 0, h.Workers())
	}
}

// stopTransfers ends the remaining promotions; none starts any more.
func (s *Store) stopTransfers() {
	s.withTransfers(func(e transfers, _, _ int) { e.Stop(transfer.ErrStopped) })
}

// wakeCleaner makes the cleaner check its context.
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

// Close closes every session, waits for the operations that still touch memory (their
// callers cancel them) and for the writes that the lower tier or a sink has begun, and
// unmaps the arena. It is called once, after Run has returned and before the lower tier
// is closed. It writes nothing: Flush does.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	open := make([]*Session, 0, len(s.sessions))
	for session := range s.sessions {
		open = append(open, session)
	}
	s.endPinsLocked(func(*objects.Object) bool { return true })
	s.mu.Unlock()
	for _, session := range open {
		session.Close()
	}
	s.stopTransfers()
	for _, e := range [...]*transfer.Engine[*objects.Object]{s.down, s.out} {
		if e == nil {
			continue
		}
		_ = s.inTurns(func() error { // parked writes end, since the store is closed
			if e.Kick(); e.Parked() > 0 {
				return objects.ErrAgain
			}
			return nil
		})
	}
	s.launch()
	s.running.Wait()
	s.closeBeyond()
	var failed []error
	for _, h := range s.hbm {
		failed = append(failed, h.Close()) // reads the arena
	}
	if err := s.arena.Close(); err != nil {
		failed = append(failed, fmt.Errorf("close arena: %w", err))
	}
	return errors.Join(failed...)
}

// scope returns the profile and tenant that a query names.
func (s *Store) scope(p tier.ProfileID, t tier.TenantID, rank int) (*objects.Profile, *objects.Tenant, error) {
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

func (s *Store) tenant(id tier.TenantID) (*objects.Tenant, error) {
	t, ok := s.objects.Tenants[id]
	if !ok {
		return nil, fmt.Errorf("tenant %d is not configured: %w", id, tier.ErrInvalid)
	}
	return t, nil
}

// Decisions returns the log of the last decisions and their counts.
func (s *Store) Decisions() *decision.Log { return s.decisions }

func newAdvisor(s *Store) *advise.Advisor {
	o := advise.Options{
		Config: s.cfg.Advise, Store: forAdvice{s}, MaxProfiles: s.cfg.MaxProfiles, Log: s.decisions, Now: s.cfg.Now,
	}
	for i := range s.cfg.Tenants {
		o.Tenants = append(o.Tenants, s.cfg.Tenants[i].ID)
	}
	return advise.New(o)
}

// Advisor returns the advisor, which says what is worth storing of a prompt. Run does its
// deferred work.
func (s *Store) Advisor() *advise.Advisor { return s.advisor }

// forAdvice is the advisor's view of a Store.
type forAdvice struct{ store *Store }

func (f forAdvice) Costs(id tier.ProfileID) (*costs.Learned, error) {
	p, err := f.store.profile(id)
	if err != nil {
		return nil, err
	}
	return p.Costs, nil
}

// mostShare: one object should take at most this part of a pool: with less than two
// objects there is nothing to choose from.
const mostShare = 2

func (f forAdvice) Limits() (segments, checkpoints advise.Limit) {
	limit := func(p *objects.Pool) advise.Limit {
		return advise.Limit{MaxBytes: f.store.budgetOf(p) / mostShare, Floor: p.FloorValue()}
	}
	return limit(f.store.objects.Pools[objects.PublicPool]), limit(f.store.objects.Pools[objects.PrivatePool])
}

// of returns the counters of a profile's objects. The caller holds the lock.
func (s *Store) of(p *objects.Profile) *stats.Counters { return s.objects.CountersOf(p) }

// Trials returns what was published of the trial profile, which Counters leaves out.
func (s *Store) Trials() (objects, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.objects.Trials()
	return n.Published, n.PublishedBytes
}

// Counters returns a snapshot.
func (s *Store) Counters() stats.Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countersLocked()
}

// countersLocked adds what promotions and plans count themselves.
func (s *Store) countersLocked() stats.Counters {
	c := s.counters
	if s.up != nil {
		stats := s.up.Stats(laneBelow)
		c.Promotions, c.PromotionsBusy, c.Promoting = stats.Ended, stats.Busy, uint64(s.up.Len(laneBelow))
	}
	if s.seek != nil {
		finds := s.seek.Stats(0)
		c.Beyond.Finds, c.Beyond.FindsBusy, c.Beyond.Finding = finds.Ended, finds.Busy, uint64(s.seek.Len(0))
		c.Beyond.Fetches, c.Beyond.Fetching = s.up.Stats(laneBeyond).Ended, uint64(s.up.Len(laneBeyond))
	}
	for i := range s.hbm {
		device := s.deviceLocked(i)
		c.HBM.Add(&device)
	}
	c.Counters = s.plans.Counters()
	return c
}

// DeviceCounters returns a snapshot of the counters of each device, in the order of their
// ids.
func (s *Store) DeviceCounters() []stats.HBM {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]stats.HBM, len(s.hbm))
	for i := range s.hbm {
		list[i] = s.deviceLocked(i)
	}
	return list
}

func (s *Store) deviceLocked(i int) stats.HBM {
	c := s.hbm[i].Counters()
	c.Ran = s.plans.HBM[i].Ran()
	return c
}

// DeviceArena returns the region that extents of leases on a device refer to; nil if
// there is no such device. It is the same for the life of the store.
func (s *Store) DeviceArena(id tier.DeviceID) gpuipc.SharedRegion {
	if h := s.hbm.Of(id); h != nil {
		return h.Arena()
	}
	return nil
}

// DeviceFailed reports a failure of a device. If the device is lost, its copies are
// dropped.
func (s *Store) DeviceFailed(id tier.DeviceID, err error) {
	if h := s.hbm.Of(id); h != nil {
		h.Failed(err)
	}
}

// AttachEngine records that an engine of one rank of a profile reads on a device, until
// detach, which may be called again.
func (s *Store) AttachEngine(id tier.ProfileID, rank int, on tier.DeviceID) (detach func(), err error) {
	p, err := s.profile(id)
	if err == nil {
		err = p.CheckRank(rank)
	}
	if err == nil && s.hbm.Of(on) == nil {
		err = errNoDevice(on)
	}
	if err != nil {
		return nil, fmt.Errorf("attach an engine: %w", err)
	}
	return s.hbm.Of(on).AttachEngine(p, rank), nil
}

func errNoDevice(id tier.DeviceID) error {
	return fmt.Errorf("the store has no device %d: %w", id, tier.ErrUnavailable)
}

// sweepHBM drops copies that no client can ask for any more.
func (s *Store) sweepHBM() {
	if len(s.hbm) == 0 {
		return
	}
	first := 0
	_ = s.inTurns(func() error {
		if !s.objects.SweepCopies(first, holdRows) {
			return nil
		}
		first += holdRows
		return objects.ErrAgain
	})
}
