package tiering

import (
	"context"
	"errors"
	"fmt"
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
//	sessions              lease objects to clients
//	fills                 lets clients reserve, commit and publish objects
//	evictor, budgets      make room, by the policies, budgets and quotas
//	promotions            reads objects into memory
//	writes, offloads      write objects to the lower tier and to outlets
//	remote                knows what is cached outside this node
//	removals, pins        remove objects, and keep them in memory, for operators
//	registry              knows the profiles of the clients
type Store struct {
	*registry
	*lookup
	*sessions
	*pins
	*removals
	cat        *catalog
	hbm        hbm.List
	plans      *plan.Runner
	remote     *remote
	writes     *writes
	offloads   *offloads
	evictor    *evictor
	budgets    *budgets
	promotions *promotions
	fills      *fills
	advisor    *advise.Advisor
}

// newStore returns a store and connects its parts. Each part uses only parts to its left:
//
//	remote, writes < offloads < evictor < budgets, registry, promotions < fills < lookup, sessions, pins, removals
//
// A remote lookup passes what it has found to promotions, through a function.
func newStore(c *catalog, devices hbm.List, plans *plan.Runner) *Store {
	s := &Store{cat: c, hbm: devices, plans: plans, remote: &remote{catalog: c}}
	s.writes = &writes{catalog: c, remote: s.remote}
	s.offloads = &offloads{catalog: c, remote: s.remote}
	s.evictor = &evictor{catalog: c, remote: s.remote, writes: s.writes, offloads: s.offloads}
	s.budgets = &budgets{catalog: c, writes: s.writes, evictor: s.evictor}
	s.registry = &registry{catalog: c, evictor: s.evictor, parts: plan.NewParts()}
	s.promotions = &promotions{catalog: c, remote: s.remote, evictor: s.evictor, memory: plans.Memory}
	s.remote.promote = func(w wanted) { s.promotions.promoteLocked(w) }
	s.remote.coming = func(n tier.Name) bool { return s.promotions.promotionLocked(n) != nil }
	s.fills = &fills{catalog: c, writes: s.writes, offloads: s.offloads, evictor: s.evictor, budgets: s.budgets, promotions: s.promotions, memory: plans.Memory}
	s.lookup = &lookup{catalog: c, hbm: devices, remote: s.remote, promotions: s.promotions}
	s.sessions = &sessions{
		catalog: c, hbm: devices, plans: plans, remote: s.remote, writes: s.writes, offloads: s.offloads, evictor: s.evictor,
		promotions: s.promotions, fills: s.fills, lookup: s.lookup, open: map[*Session]struct{}{},
	}
	s.pins = newPins(c, s.sessions)
	s.removals = &removals{catalog: c, pins: s.pins, writes: s.writes, promotions: s.promotions}
	c.launch, c.freedLocked = s.launchTransfers, s.promotions.kickLocked
	s.advisor = newAdvisor(s)
	return s
}

// Open opens a store and its arena. The arena takes up physical memory only as it is used.
func Open(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, err := openCatalog(cfg)
	if err != nil {
		return nil, err
	}
	devices := hbm.Open(cfg.HBM, hbm.Options{
		Lock: &c.mu, Objects: c.objects, Memory: c.dev, Arena: c.arena,
		Name: cfg.Name + "-hbm", Running: &c.running, Now: cfg.Now, Log: cfg.Log,
		Took: c.durations.fetched.hbm.Observe,
	})
	s := newStore(c, devices, newRunner(c, devices))
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
	s.budgets.open()
	return s, nil
}

// Arena returns the region that extents of leases refer to.
func (s *Store) Arena() gpuipc.Region { return s.cat.arena }

// NewLeaseID returns an id from the sequence of leases, for leases that the caller keeps
// (slots). No id is returned twice.
func (s *Store) NewLeaseID() tier.LeaseID { return s.cat.newLeaseID() }

// Run ends expired leases and reservations, runs the deferred work of the advisor, and carries
// out promotions and cleaning, all until ctx ends. Promotions that are unfinished at that time
// fail, so that no caller waits for them.
func (s *Store) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { s.advisor.Run(ctx) })
	wake := context.AfterFunc(ctx, s.cat.wakeCleaner)
	defer wake()
	if s.cat.cfg.Lower != nil {
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
	s.cat.mu.Lock()
	defer s.cat.mu.Unlock()
	if s.promotions.engine != nil {
		f(s.promotions.engine, laneBelow, s.cat.cfg.MaxPromotions)
	}
	if s.remote.engine != nil {
		f(s.promotions.engine, laneBeyond, s.cat.cfg.MaxFetches)
		f(s.remote.engine, 0, s.cat.cfg.MaxFinds)
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
	tick := time.NewTicker(s.cat.cfg.SweepEvery)
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
	s.cat.mu.Lock()
	s.cat.closed = true
	s.endPinsLocked(func(*objects.Object) bool { return true })
	s.cat.mu.Unlock()
	s.closeAll()
	s.stopTransfers()
	for _, e := range [...]*transfer.Engine[*objects.Object]{s.writes.engine, s.offloads.engine} {
		if e == nil {
			continue
		}
		_ = s.cat.inTurns(func() error { // parked writes end, since the store is closed
			if e.Kick(); e.Parked() > 0 {
				return objects.ErrAgain
			}
			return nil
		})
	}
	s.cat.launch()
	s.cat.running.Wait()
	s.remote.closeBeyond()
	var failed []error
	for _, h := range s.hbm {
		failed = append(failed, h.Close()) // reads the arena
	}
	if err := s.cat.arena.Close(); err != nil {
		failed = append(failed, fmt.Errorf("close arena: %w", err))
	}
	return errors.Join(failed...)
}

// Flush writes every published object that the lower tier does not have, parents first, and
// waits for the writes. It is meant for shutdown: objects published meanwhile may be left
// out. Run must still be running, since it retries writes to a busy tier. The first result
// is the number of objects that the tier accepted. The error says how many objects the tier
// refused (ErrUnavailable), or did not accept before ctx ended (the context's error).
func (s *Store) Flush(ctx context.Context) (written int, err error) { return s.writes.flush(ctx) }

// Offload sends copies of every published object that the outlets want, and waits for them.
// Like Flush it is meant for shutdown, and Run must still be running. The first result is the
// number of copies that arrived. The error says how many copies did not arrive at all
// (ErrUnavailable), or not before ctx ended (the context's error).
func (s *Store) Offload(ctx context.Context) (sent int, err error) { return s.offloads.sendAll(ctx) }

// Budgets returns the target values. The current values of pools and tenants may still
// differ from them.
func (s *Store) Budgets() Budgets { return s.budgets.targets() }

// CheckBudgets returns the error that SetBudgets would return for b. ErrUnavailable means
// that b needs a restart, ErrInvalid that no daemon accepts it.
func (s *Store) CheckBudgets(b Budgets) error { return s.budgets.check(b) }

// SetBudgets changes budgets and quotas. Tenants that b.Quotas does not name keep their
// quotas. Eviction of the excess begins at once. For a tenant that had no quota, it begins
// once the tenant's policies know its objects. It returns the same errors as
// CheckBudgets; on an error nothing has changed.
func (s *Store) SetBudgets(b Budgets) error { return s.budgets.set(b) }

// ArenaBytes returns the size of both pools together.
func (s *Store) ArenaBytes() int64 { return s.budgets.arenaBytes() }

// Decisions returns the log of the last decisions and their counts.
func (s *Store) Decisions() *decision.Log { return s.cat.decisions }

func newAdvisor(s *Store) *advise.Advisor {
	o := advise.Options{
		Config: s.cat.cfg.Advise, Store: forAdvice{s}, MaxProfiles: s.cat.cfg.MaxProfiles, Log: s.cat.decisions, Now: s.cat.cfg.Now,
	}
	for i := range s.cat.cfg.Tenants {
		o.Tenants = append(o.Tenants, s.cat.cfg.Tenants[i].ID)
	}
	return advise.New(o)
}

// Advisor returns the advisor, which says what is worth storing of a prompt. Run does its
// deferred work.
func (s *Store) Advisor() *advise.Advisor { return s.advisor }

// forAdvice is the advisor's view of a Store.
type forAdvice struct{ store *Store }

func (f forAdvice) Costs(id tier.ProfileID) (*costs.Learned, error) {
	p, err := f.store.cat.profile(id)
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
		return advise.Limit{MaxBytes: f.store.budgets.budgetOf(p) / mostShare, Floor: p.FloorValue()}
	}
	return limit(f.store.cat.objects.Pools[objects.PublicPool]), limit(f.store.cat.objects.Pools[objects.PrivatePool])
}

// Trials returns how many objects were published under the trial profile, and their bytes.
// Counters leaves them out.
func (s *Store) Trials() (objects, bytes uint64) {
	s.cat.mu.Lock()
	defer s.cat.mu.Unlock()
	n := s.cat.objects.Records.Trials()
	return n.Published, n.PublishedBytes
}

// Counters returns a snapshot.
func (s *Store) Counters() stats.Counters {
	s.cat.mu.Lock()
	defer s.cat.mu.Unlock()
	return s.countersLocked()
}

// countersLocked returns the store's counters with those of the transfer engines, the
// devices and the plans.
func (s *Store) countersLocked() stats.Counters {
	c := s.cat.counters
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
	s.cat.mu.Lock()
	defer s.cat.mu.Unlock()
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
	p, err := s.cat.profile(id)
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
	_ = s.cat.inTurns(func() error {
		if !s.cat.objects.HBM.Sweep(first, holdRows) {
			return nil
		}
		first += holdRows
		return objects.ErrAgain
	})
}

// sweepLower does the part of a sweep that concerns the lower tier and the outlets: it brings
// tenants back under their quotas, and retries refused transfers. A tenant can be over its
// quota if the tier opened late, or if its entries were written under a larger quota or
// counted in another way.
func (s *Store) sweepLower() {
	if s.cat.cfg.Lower != nil {
		for _, t := range s.cat.objects.Tenants {
			_ = s.cat.inTurns(func() error { return s.evictor.trimTenantLocked(t) })
		}
	}
	if s.writes.engine != nil || s.offloads.engine != nil {
		s.cat.mu.Lock()
		s.writes.resumeLocked()
		if s.writes.engine != nil {
			s.promotions.kickLocked()
		}
		s.offloads.kickLocked()
		s.cat.sweptLocked()
		s.cat.mu.Unlock()
	}
	s.cat.launch()
}

// Sweep ends expired leases and reservations, and does the other periodic work of a store.
// Run calls it. It is exported for callers that use another clock.
func (s *Store) Sweep() {
	now := s.cat.cfg.Now()
	s.sweepLower()
	s.budgets.settle()
	s.sweepPins()
	s.remote.sweepBeyond(now)
	s.sweepHBM()
	for _, ps := range *s.cat.profiles.Load() {
		ps.Costs.Forget(now)
	}
	leases, reservations := 0, 0
	_ = s.cat.inTurns(func() error {
		l, r := s.sweepLocked(now)
		leases, reservations = leases+l, reservations+r
		if l+r == holdRows {
			return objects.ErrAgain
		}
		return nil
	})
	if leases+reservations > 0 {
		s.cat.cfg.Log.Warn().Int("leases", leases).Int("reservations", reservations).Msg("expired")
	}
}

func (s *Store) sweepLocked(now time.Time) (leases, reservations int) {
	for range holdRows { // expired pins are not counted; the next sweep ends the rest
		due := s.cat.objects.Deadlines.First()
		if due == nil || now.Before(due.At) {
			return leases, reservations
		}
		switch of := due.Of.(type) {
		case *lease:
			s.expireLocked(of)
			leases++
			continue
		case *pin:
			s.setPinLocked(of.object, time.Time{}, "")
			continue
		case *objects.Object:
			s.overdueLocked(of)
		case overdue:
			of.overdueLocked()
		}
		reservations++
	}
	return leases, reservations
}

// overdue is what has a deadline and ends at it.
type overdue interface{ overdueLocked() }

// overdueLocked ends the fill of an object, or its status as read ahead, at its deadline.
func (s *Store) overdueLocked(o *objects.Object) {
	if o.Ahead {
		s.cat.objects.EndReadAhead(o, &s.cat.counters.ReadAheadWasted)
	} else {
		s.fills.killLocked(o, stats.CauseExpiry)
	}
}

// newRunner returns the runner of the store's plans.
func newRunner(c *catalog, devices hbm.List) *plan.Runner {
	r := &plan.Runner{Memory: &plan.Device{Device: c.dev, Place: c.place}, Now: c.cfg.Now, Took: c.planTook}
	for _, h := range devices {
		r.HBM = append(r.HBM, &plan.Device{Device: h.Device(), Place: tier.PlaceHBM, Batch: h.Device(), Failed: h.Failed})
	}
	return r
}
