package tiering

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// LeasePlace is where the memory of a lease or a buffer of the session lies; false
// when it has neither of that id.
func (c *Session) LeasePlace(id tier.LeaseID) (tier.Place, bool) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := c.behindLocked(id); o != nil {
		return s.placeOf(o), true
	}
	return tier.PlaceNone, false
}

// behindLocked is the object of a lease, or the memory of a buffer.
func (c *Session) behindLocked(id tier.LeaseID) *object {
	if l := c.leases[id]; l != nil {
		return l.object
	}
	if b := c.buffers[id]; b != nil {
		return b.rows
	}
	return nil
}

// PlanPlace is where a plan would be carried out: where all its leases lie. What is
// handed to Compose, Rotate and Assemble beside them has to lie there as well.
// ErrInvalid: some lie in HBM and some in memory. PlaceNone: it names no lease of
// this session; it is then carried out where its answer lies.
func (c *Session) PlanPlace(from From, pl *Plan) (tier.Place, error) {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	var held []*object
	if from.Kind == FromCheckpoint {
		held = append(held, c.behindLocked(from.Lease))
	}
	for i := range pl.Spans {
		if pl.Spans[i].Kind == SpanSegment {
			held = append(held, c.behindLocked(pl.Spans[i].Lease))
		}
	}
	place := tier.PlaceNone
	for _, o := range held {
		if o == nil {
			continue
		}
		if at := s.placeOf(o); place == tier.PlaceNone {
			place = at
		} else if at != place {
			return tier.PlaceNone, errMixed
		}
	}
	return place, nil
}

var errMixed = fmt.Errorf("leases in HBM and leases in memory in one plan: %w", tier.ErrInvalid)

// oneDeviceOf finds out whether a plan is carried out in HBM: where what it holds lies,
// or where its answer goes when it holds nothing.
func (s *Store) oneDeviceOf(h *heldPlan, answer gpuipc.Region) error {
	for i, o := range h.held {
		if i > 0 && o.inHBM() != h.above {
			return errMixed
		}
		h.above = o.inHBM()
	}
	if len(h.held) == 0 {
		h.above = s.isAbove(answer)
	}
	return nil
}

// isAbove tells memory of the accelerator from host memory.
func (s *Store) isAbove(r gpuipc.Region) bool {
	_, shared := r.(gpuipc.SharedRegion)
	return shared && s.hbm != nil
}

// device is that of HBM, or that of memory.
func (s *Store) device(above bool) gpuipc.Device {
	if above {
		return s.hbm.dev
	}
	return s.dev
}

// deviceFailed gives an error of a plan's device one of our kinds. An accelerator
// that is lost takes all copies with it.
func (s *Store) deviceFailed(above bool, what string, err error) error {
	if above {
		s.failedHBM(err)
	}
	return deviceError(what, err)
}

// launches is the device jobs of a plan. In memory each runs when it is made; on an
// accelerator run starts all of them, in as few launches as the device can.
//
// Invariant: no job of a plan writes what another one reads or writes, apart from a
// layer's state that is moved in place by its one job.
type launches struct {
	store    *Store
	above    bool
	composes []gpuipc.ComposeJob
	rotates  []gpuipc.RotateJob
}

func (l *launches) compose(ctx context.Context, layer int, job *gpuipc.ComposeJob) error {
	if l.above {
		l.composes = append(l.composes, *job)
		return nil
	}
	return deviceError(fmt.Sprintf("compose layer %d", layer), l.store.dev.Compose(ctx, job))
}

func (l *launches) rotate(ctx context.Context, job *gpuipc.RotateJob) error {
	if l.above {
		l.rotates = append(l.rotates, *job)
		return nil
	}
	return l.store.dev.Rotate(ctx, job)
}

// run carries out what was put off.
func (l *launches) run(ctx context.Context) error {
	if !l.above {
		return nil
	}
	dev := l.store.hbm.dev
	if len(l.composes) > 0 {
		if err := dev.ComposeAll(ctx, l.composes); err != nil {
			return l.store.deviceFailed(true, fmt.Sprintf("compose %d layers", len(l.composes)), err)
		}
	}
	if len(l.rotates) > 0 {
		if err := dev.RotateAll(ctx, l.rotates); err != nil {
			return l.store.deviceFailed(true, fmt.Sprintf("rotate %d parts", len(l.rotates)), err)
		}
	}
	return nil
}

// counter picks the counter of an operation by where it runs.
func (h *heldPlan) counter(memory, above *uint64) *uint64 {
	if h.above {
		return above
	}
	return memory
}

// claimHBMLocked takes memory of the private pool of HBM, as claimLocked.
func (s *Store) claimHBMLocked(sc planScope, bytes int64) (*object, error) {
	if s.hbm.lost {
		return nil, fmt.Errorf("buffer: the device is lost: %w", tier.ErrUnavailable)
	}
	o := &object{profile: sc.profile, tenant: sc.tenant, pool: s.hbm.pools[privatePool], kind: bufferKind, depth: 1}
	o.shares = make([]share, 1)
	s.measureHBM(o, bytes)
	if err := s.turnsLocked(func() error { return s.makeHBMRoomLocked(o, false) }); err != nil {
		s.counters.refused(err)
		return nil, err
	}
	o.created, o.used = s.cfg.Now(), s.cfg.Now()
	s.placeHBMLocked(o, 0)
	s.useLocked(o)
	return o, nil
}
