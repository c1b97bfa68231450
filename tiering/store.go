package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Store keeps segments and checkpoints in memory and moves them between tiers. Its parts
// share the catalog, whose lock guards their state:
//
//	lookup                finds objects for clients
//	fills                 lets clients reserve, commit and publish objects
//	evictor               makes room, by the policies and quotas
//	promotions            reads objects into memory
//	writes, offloads      write objects to the lower tier and to outlets
//	remote                knows what is cached outside this node
//	removals              removes objects for operators
//	registry, budgets, pins
type Store struct {
	*catalog
	*registry
	*budgets
	*pins
	*removals
	remote     *remote
	writes     *writes
	offloads   *offloads
	evictor    *evictor
	promotions *promotions
	fills      *fills
	lookup     *lookup
	advisor    *advise.Advisor
}

// newStore returns a store and connects its parts. Each part uses only parts to its left:
//
//	remote, writes < offloads < evictor < budgets, registry, promotions < fills, lookup, removals
//
// The exception is remote, which passes the objects that it has found to promotions.
func newStore(c *catalog) *Store {
	s := &Store{catalog: c, remote: &remote{catalog: c}, pins: newPins(c)}
	s.writes = &writes{catalog: c, remote: s.remote}
	s.offloads = &offloads{catalog: c, remote: s.remote}
	s.evictor = &evictor{catalog: c, remote: s.remote, writes: s.writes, offloads: s.offloads}
	s.budgets = &budgets{catalog: c, writes: s.writes, evictor: s.evictor}
	s.registry = &registry{catalog: c, evictor: s.evictor, parts: plan.NewParts()}
	s.promotions = &promotions{catalog: c, remote: s.remote, evictor: s.evictor}
	s.remote.promotions = s.promotions
	s.fills = &fills{catalog: c, writes: s.writes, offloads: s.offloads, evictor: s.evictor, budgets: s.budgets, promotions: s.promotions}
	s.lookup = &lookup{catalog: c, remote: s.remote, promotions: s.promotions}
	s.removals = &removals{catalog: c, pins: s.pins, writes: s.writes, promotions: s.promotions}
	c.launch, c.freedLocked = s.launchTransfers, s.promotions.kickLocked
	return s
}

// Open opens a store and its arena. The arena takes up physical memory only as it is used.
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
	s := newStore(&catalog{
		cfg: cfg, dev: cfg.Device, arena: arena, place: tier.PlaceHBM, sessions: map[*Session]struct{}{},
		decisions: decision.NewLog(cfg.MaxDecisions), durations: newDurations(),
	})
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
	s.objects.Policies.WriteBehind = cfg.WriteBehind
	s.objects.Policies.SendAll = slices.ContainsFunc(cfg.Outlets, func(o Outlet) bool { return o.All })
	s.profiles.Store(&[]*objects.Profile{})
	s.advisor = newAdvisor(s)
	s.changed.L = &s.mu
	if cfg.Lower != nil {
		s.writes.open()
	}
	if cfg.Lower != nil || cfg.Remote != nil {
		s.promotions.open()
	}
	if cfg.Remote != nil {
		s.remote.open()
	}
	if len(cfg.Outlets) > 0 {
		s.offloads.open()
	}
	s.hbm = hbm.Open(cfg.HBM, hbm.Options{
		Lock: &s.mu, Objects: s.objects, Memory: s.dev, Arena: s.arena,
		Name: cfg.Name + "-hbm", Running: &s.running, Now: cfg.Now, Log: cfg.Log,
		Took: s.durations.fetched.hbm.Observe,
	})
	s.plans = s.newRunner()
	s.budgets.open()
	return s, nil
}

// Arena returns the region that extents of leases refer to.
func (s *Store) Arena() gpuipc.Region { return s.arena }

// NewLeaseID returns an id from the sequence of leases, for leases that the caller keeps
// (slots). No id is returned twice.
func (s *Store) NewLeaseID() tier.LeaseID { return tier.LeaseID(s.leaseIDs.Add(1)) }

// Run ends expired leases and reservations, runs the deferred work of the advisor, and carries
// out promotions and cleaning, all until ctx ends. Promotions that are unfinished at that time
// fail, so that no caller waits for them.
func (s *Store) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { s.advisor.Run(ctx) })
	wake := context.AfterFunc(ctx, s.wakeCleaner)
	defer wake()
	if s.cfg.Lower != nil {
		workers.Go(func() { s.writes.clean(ctx) })
	}
	if s.offloads.engine != nil {
		workers.Go(func() { s.offloads.sendAhead(ctx) })
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

// transfers has the methods of a transfer engine whose workers the store runs.
type transfers interface {
	Work(ctx context.Context, lane int)
	Resume()
	Stop(err error)
}

// withTransfers calls f under the lock for each lane of each engine whose workers the store
// runs, with the lane's number of workers.
func (s *Store) withTransfers(f func(e transfers, lane, workers int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.promotions.engine != nil {
		f(s.promotions.engine, laneBelow, s.cfg.MaxPromotions)
	}
	if s.remote.engine != nil {
		f(s.promotions.engine, laneBeyond, s.cfg.MaxFetches)
		f(s.remote.engine, 0, s.cfg.MaxFinds)
	}
	for _, h := range s.hbm {
		f(h.Flights, 0, h.Workers())
	}
}

// launchTransfers starts, at the tiers, transfers that were begun under the lock.
func (s *Store) launchTransfers() {
	if s.writes.engine != nil {
		s.writes.engine.Launch()
	}
	if s.offloads.engine != nil {
		s.offloads.engine.Launch()
	}
	s.remote.closeDiscarded()
}

// stopTransfers ends all transfers of these engines with ErrStopped. No new one starts.
func (s *Store) stopTransfers() {
	s.withTransfers(func(e transfers, _, _ int) { e.Stop(transfer.ErrStopped) })
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

// Close closes every session and unmaps the arena. Before that it waits for operations
// that still touch memory, which their callers cancel, and for writes that the lower tier
// or a sink has begun. It is called once, after Run has returned and before the lower tier
// is closed. It starts no writes: call Flush first to keep what is only in memory.
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
	for _, e := range [...]*transfer.Engine[*objects.Object]{s.writes.engine, s.offloads.engine} {
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
	s.remote.closeBeyond()
	var failed []error
	for _, h := range s.hbm {
		failed = append(failed, h.Close()) // reads the arena
	}
	if err := s.arena.Close(); err != nil {
		failed = append(failed, fmt.Errorf("close arena: %w", err))
	}
	return errors.Join(failed...)
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

// mostShare bounds the size of objects that advice recommends: one object should take at
// most 1/mostShare of its pool. A pool with room for fewer than two objects would leave an
// eviction nothing to choose from.
const mostShare = 2

func (f forAdvice) Limits() (segments, checkpoints advise.Limit) {
	limit := func(p *objects.Pool) advise.Limit {
		return advise.Limit{MaxBytes: f.store.budgetOf(p) / mostShare, Floor: p.FloorValue()}
	}
	return limit(f.store.objects.Pools[objects.PublicPool]), limit(f.store.objects.Pools[objects.PrivatePool])
}

// Trials returns how many objects were published under the trial profile, and their bytes.
// Counters leaves them out.
func (s *Store) Trials() (objects, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.objects.Records.Trials()
	return n.Published, n.PublishedBytes
}

// Counters returns a snapshot.
func (s *Store) Counters() stats.Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.countersLocked()
}

// countersLocked returns the store's counters with those of the transfer engines, the
// devices and the plans.
func (s *Store) countersLocked() stats.Counters {
	c := s.counters
	if s.promotions.engine != nil {
		stats := s.promotions.engine.Stats(laneBelow)
		c.Promotions, c.PromotionsBusy, c.Promoting = stats.Ended, stats.Busy, uint64(s.promotions.engine.Len(laneBelow))
	}
	if s.remote.engine != nil {
		finds := s.remote.engine.Stats(0)
		c.Beyond.Finds, c.Beyond.FindsBusy, c.Beyond.Finding = finds.Ended, finds.Busy, uint64(s.remote.engine.Len(0))
		c.Beyond.Fetches, c.Beyond.Fetching = s.promotions.engine.Stats(laneBeyond).Ended, uint64(s.promotions.engine.Len(laneBeyond))
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

// DeviceArena returns the region that extents of leases on a device refer to; nil if there is
// no such device. The region is the same for the life of the store.
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

// AttachEngine records that an engine of one rank of a profile reads on a device, until the
// caller calls the returned function detach. A second call of detach does nothing.
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

// sweepHBM drops copies in HBM that no client can ask for any more.
func (s *Store) sweepHBM() {
	if len(s.hbm) == 0 {
		return
	}
	first := 0
	_ = s.inTurns(func() error {
		if !s.objects.HBM.Sweep(first, holdRows) {
			return nil
		}
		first += holdRows
		return objects.ErrAgain
	})
}
