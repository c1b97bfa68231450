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
	"github.com/spliced-kv/spliced/tiering/internal/catalog"
	"github.com/spliced-kv/spliced/tiering/internal/fill"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/internal/serve"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// Store keeps segments and checkpoints in memory and moves them between tiers. Its parts
// share the catalog, whose lock guards their state.
type Store struct {
	*registry     // knows the profiles of the clients
	*serve.Lookup // finds objects for clients
	*pins         // keep objects in memory, for operators
	*removals     // remove objects, for operators
	cat           *catalog.Catalog
	hbm           hbm.List
	plans         *plan.Runner
	move          *move.Mover     // moves objects between tiers, and makes room
	fills         *fill.Fills     // lets clients reserve, commit and publish objects
	sessions      *serve.Sessions // lease objects to clients
	advisor       *advise.Advisor
}

// newStore returns a store and connects its parts. Each part uses only parts to its left:
//
//	move < registry, fills < lookup, sessions < pins, removals
func newStore(c *catalog.Catalog, devices hbm.List, plans *plan.Runner) *Store {
	s := &Store{cat: c, hbm: devices, plans: plans, move: move.New(c, plans.Memory)}
	s.registry = &registry{cat: c, evictor: s.move.Evictor, parts: plan.NewParts()}
	s.fills = fill.New(c, s.move, plans.Memory)
	s.Lookup, s.sessions = serve.New(c, devices, plans, s.move, s.fills)
	s.pins = newPins(c, s.sessions)
	s.removals = &removals{cat: c, pins: s.pins, writes: s.move.Writes, promotions: s.move.Promotions}
	s.advisor = newAdvisor(s)
	return s
}

// Open opens a store and its arena. The arena takes up physical memory only as it is used.
func Open(cfg Config) (*Store, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, err := catalog.Open(cfg)
	if err != nil {
		return nil, err
	}
	devices := hbm.Open(cfg.HBM, hbm.Options{
		Lock: &c.Mu, Objects: c.Objects, Memory: c.Device, Arena: c.Arena,
		Name: cfg.Name + "-hbm", Running: &c.Running, Now: cfg.Now, Log: cfg.Log,
		Took: c.Durations.Fetched.HBM.Observe,
	})
	return newStore(c, devices, newRunner(c, devices)), nil
}

// Arena returns the region that extents of leases refer to.
func (s *Store) Arena() gpuipc.Region { return s.cat.Arena }

// NewLeaseID returns an id from the sequence of leases, for leases that the caller keeps
// (slots). No id is returned twice.
func (s *Store) NewLeaseID() tier.LeaseID { return s.cat.NewLeaseID() }

// Run ends expired leases and reservations, runs the deferred work of the advisor, and carries
// out promotions and cleaning, all until ctx ends. Promotions that are unfinished at that time
// fail, so that no caller waits for them.
func (s *Store) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	workers.Go(func() { s.advisor.Run(ctx) })
	workers.Go(func() { s.move.Run(ctx) })
	s.withTransfers(func(e move.Transfers, lane, n int) {
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

// withTransfers calls f under the lock for each lane of each engine whose workers the store
// runs, with the lane's number of workers.
func (s *Store) withTransfers(f func(e move.Transfers, lane, workers int)) {
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	s.move.WithTransfersLocked(f)
	for _, h := range s.hbm {
		f(h.Flights, 0, h.Workers())
	}
}

// stopTransfers ends all transfers of these engines with ErrStopped. No new one starts.
func (s *Store) stopTransfers() {
	s.withTransfers(func(e move.Transfers, _, _ int) { e.Stop(transfer.ErrStopped) })
}

func (s *Store) sweepUntil(ctx context.Context) {
	tick := time.NewTicker(s.cat.Config.SweepEvery)
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
	s.cat.Mu.Lock()
	s.cat.Closed = true
	s.endPinsLocked(func(*objects.Object) bool { return true })
	s.cat.Mu.Unlock()
	s.sessions.CloseAll()
	s.stopTransfers()
	s.move.Close()
	var failed []error
	for _, h := range s.hbm {
		failed = append(failed, h.Close()) // reads the arena
	}
	if err := s.cat.Arena.Close(); err != nil {
		failed = append(failed, fmt.Errorf("close arena: %w", err))
	}
	return errors.Join(failed...)
}

// Flush writes every published object that the lower tier does not have, parents first, and
// waits for the writes. It is meant for shutdown: objects published meanwhile may be left
// out. Run must still be running, since it retries writes to a busy tier. The first result
// is the number of objects that the tier accepted. The error says how many objects the tier
// refused (ErrUnavailable), or did not accept before ctx ended (the context's error).
func (s *Store) Flush(ctx context.Context) (written int, err error) { return s.move.Writes.Flush(ctx) }

// Offload sends copies of every published object that the outlets want, and waits for them.
// Like Flush it is meant for shutdown, and Run must still be running. The first result is the
// number of copies that arrived. The error says how many copies did not arrive at all
// (ErrUnavailable), or not before ctx ended (the context's error).
func (s *Store) Offload(ctx context.Context) (sent int, err error) {
	return s.move.Offloads.SendAll(ctx)
}

// Budgets returns the target values. The current values of pools and tenants may still
// differ from them.
func (s *Store) Budgets() Budgets { return s.move.Limits.Targets() }

// CheckBudgets returns the error that SetBudgets would return for b. ErrUnavailable means
// that b needs a restart, ErrInvalid that no daemon accepts it.
func (s *Store) CheckBudgets(b Budgets) error { return s.move.Limits.Check(b) }

// SetBudgets changes budgets and quotas. Tenants that b.Quotas does not name keep their
// quotas. Eviction of the excess begins at once. For a tenant that had no quota, it begins
// once the tenant's policies know its objects. It returns the same errors as
// CheckBudgets; on an error nothing has changed.
func (s *Store) SetBudgets(b Budgets) error { return s.move.Limits.Set(b) }

// ArenaBytes returns the size of both pools together.
func (s *Store) ArenaBytes() int64 { return s.move.Limits.ArenaBytes() }

// NewSession begins a session. The name is recorded as the publisher of objects that the session
// fills.
func (s *Store) NewSession(name string) *Session { return s.sessions.NewSession(name) }

// Leases lists up to limit leases of clients in ascending order of id, beginning with the
// first id greater than the id after. It holds the lock for a few leases at a time, so a
// page is not a snapshot.
func (s *Store) Leases(f LeaseFilter, after tier.LeaseID, limit int) []LeaseInfo {
	return s.sessions.Leases(f, after, limit)
}

// CountLeases returns the number of leases of clients, expired ones included.
func (s *Store) CountLeases() (n int) { return s.sessions.CountLeases() }

// Decisions returns the log of the last decisions and their counts.
func (s *Store) Decisions() *decision.Log { return s.cat.Decisions }

func newAdvisor(s *Store) *advise.Advisor {
	o := advise.Options{
		Config: s.cat.Config.Advise, Store: forAdvice{s}, MaxProfiles: s.cat.Config.MaxProfiles, Log: s.cat.Decisions, Now: s.cat.Config.Now,
	}
	for i := range s.cat.Config.Tenants {
		o.Tenants = append(o.Tenants, s.cat.Config.Tenants[i].ID)
	}
	return advise.New(o)
}

// Advisor returns the advisor, which says what is worth storing of a prompt. Run does its
// deferred work.
func (s *Store) Advisor() *advise.Advisor { return s.advisor }

// forAdvice is the advisor's view of a Store.
type forAdvice struct{ store *Store }

func (f forAdvice) Costs(id tier.ProfileID) (*costs.Learned, error) { return f.store.Learned(id) }

// mostShare bounds the size of objects that advice recommends: one object should take at
// most 1/mostShare of its pool. A pool with room for fewer than two objects would leave an
// eviction nothing to choose from.
const mostShare = 2

func (f forAdvice) Limits() (segments, checkpoints advise.Limit) {
	limit := func(p *objects.Pool) advise.Limit {
		return advise.Limit{MaxBytes: f.store.move.Limits.BudgetOf(p) / mostShare, Floor: p.FloorValue()}
	}
	return limit(f.store.cat.Objects.Pools[objects.PublicPool]), limit(f.store.cat.Objects.Pools[objects.PrivatePool])
}

// Trials returns how many objects were published under the trial profile, and their bytes.
// Counters leaves them out.
func (s *Store) Trials() (objects, bytes uint64) {
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	n := s.cat.Objects.Records.Trials()
	return n.Published, n.PublishedBytes
}

// Counters returns a snapshot of the store's counters with those of the transfer engines,
// the devices and the plans.
func (s *Store) Counters() stats.Counters {
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	c := s.cat.Counters
	s.move.CountersLocked(&c)
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
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
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
	p, err := s.cat.Profile(id)
	if err == nil {
		err = p.CheckRank(rank)
	}
	if err == nil && s.hbm.Of(on) == nil {
		err = serve.ErrNoDevice(on)
	}
	if err != nil {
		return nil, fmt.Errorf("attach an engine: %w", err)
	}
	return s.hbm.Of(on).AttachEngine(p, rank), nil
}

// sweepHBM drops copies in HBM that no client can ask for any more.
func (s *Store) sweepHBM() {
	if len(s.hbm) == 0 {
		return
	}
	first := 0
	_ = s.cat.InTurns(func() error {
		if !s.cat.Objects.HBM.Sweep(first, catalog.HoldRows) {
			return nil
		}
		first += catalog.HoldRows
		return objects.ErrAgain
	})
}

// Sweep ends expired leases and reservations, and does the other periodic work of a store.
// Run calls it. It is exported for callers that use another clock.
func (s *Store) Sweep() {
	now := s.cat.Config.Now()
	s.move.Sweep(now)
	s.sweepPins()
	s.sweepHBM()
	for _, ps := range *s.cat.Profiles.Load() {
		ps.Costs.Forget(now)
	}
	leases, reservations := 0, 0
	_ = s.cat.InTurns(func() error {
		l, r := s.sweepLocked(now)
		leases, reservations = leases+l, reservations+r
		if l+r == catalog.HoldRows {
			return objects.ErrAgain
		}
		return nil
	})
	if leases+reservations > 0 {
		s.cat.Config.Log.Warn().Int("leases", leases).Int("reservations", reservations).Msg("expired")
	}
}

func (s *Store) sweepLocked(now time.Time) (leases, reservations int) {
	expired := s.cat.Counters.LeasesExpired
	for range catalog.HoldRows { // expired pins are not counted; the next sweep ends the rest
		due := s.cat.Objects.Deadlines.First()
		if due == nil || now.Before(due.At) {
			break
		}
		reservations++
		switch of := due.Of.(type) {
		case *pin:
			s.setPinLocked(of.object, time.Time{}, "")
			reservations--
		case *objects.Object:
			s.overdueLocked(of)
		case catalog.Overdue:
			of.OverdueLocked()
		}
	}
	leases = int(s.cat.Counters.LeasesExpired - expired)
	return leases, reservations - leases
}

// overdueLocked ends the fill of an object, or its status as read ahead, at its deadline.
func (s *Store) overdueLocked(o *objects.Object) {
	if o.Ahead {
		s.cat.Objects.EndReadAhead(o, &s.cat.Counters.ReadAheadWasted)
	} else {
		s.fills.KillLocked(o, stats.CauseExpiry)
	}
}

// newRunner returns the runner of the store's plans.
func newRunner(c *catalog.Catalog, devices hbm.List) *plan.Runner {
	r := &plan.Runner{Memory: &plan.Device{Device: c.Device, Place: c.Place}, Now: c.Config.Now, Took: c.PlanTook}
	for _, h := range devices {
		r.HBM = append(r.HBM, &plan.Device{Device: h.Device(), Place: tier.PlaceHBM, Batch: h.Device(), Failed: h.Failed})
	}
	return r
}
