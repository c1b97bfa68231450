package tiering

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Geometry returns the locations of the parts of a registered profile's objects, and the
// lengths of the results of plans.
func (s *Store) Geometry(id tier.ProfileID) (*plan.Geometry, error) {
	p, err := s.profile(id)
	if err != nil {
		return nil, err
	}
	return p.Geometry, nil
}

// Plans returns the part of the session that carries out plans over its leases and owns
// its buffers.
func (c *Session) Plans() *plan.Session { return c.plans }

// newRunner returns the runner of the store's plans.
func (s *Store) newRunner() *plan.Runner {
	r := &plan.Runner{Memory: &plan.Device{Device: s.dev, Place: s.place}, Now: s.cfg.Now, Took: s.planTook}
	for _, h := range s.hbm {
		r.HBM = append(r.HBM, &plan.Device{Device: h.Device(), Place: tier.PlaceHBM, Batch: h.Device(), Failed: h.Failed})
	}
	return r
}

// planTook updates the measured costs of composing, rotating and replaying with the time
// that a plan took on one rank. The other ranks do the same work in parallel.
func (s *Store) planTook(sc plan.Scope, t plan.Timing) {
	p, err := s.profile(sc.Profile)
	if err != nil {
		return // no longer registered
	}
	shape := &p.Costs.Model().Shape
	if t.Replay > 0 {
		_, bytes := shape.KeptBytes(0, t.Replayed)
		p.Costs.Did(cost.JobReplay, bytes, t.Replay)
		return
	}
	p.Costs.Did(cost.JobCompose, int64(t.Segments)*shape.SegmentTotalBytes(0), t.Compose)
	p.Costs.Did(cost.JobRotate, shape.RowBytes(t.Rows), t.Rotate)
}

// leased implements plan.Store for a session.
type leased struct{ *Session }

// Geometry returns the geometry of a scope's profile.
func (c leased) Geometry(sc plan.Scope) (*plan.Geometry, error) {
	p, _, err := c.store.scope(sc.Profile, sc.Tenant, sc.Rank)
	if err != nil {
		return nil, err
	}
	return p.Geometry, nil
}

// On returns the device or memory that the leases are on; nil if the session has none of
// them. Leases in different places are ErrInvalid.
func (c leased) On(leases []tier.LeaseID) (on *plan.Device, err error) {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	for _, id := range leases {
		if l := c.leases[id]; l != nil {
			if on, err = c.store.alsoOn(on, l.object); err != nil {
				return nil, err
			}
		}
	}
	return on, nil
}

// alsoOn returns the device or memory that an object is on. If the parameter on is another
// device, the error is ErrInvalid; nil = any device.
func (cat *catalog) alsoOn(on *plan.Device, o *objects.Object) (*plan.Device, error) {
	d := cat.plans.Memory
	if o.InHBM() {
		d = cat.plans.HBM[o.Pool.Device.ID-1]
	}
	switch {
	case on == nil || d == on:
	case d.Place == on.Place:
		return nil, fmt.Errorf("leases on two devices in one plan: %w", tier.ErrInvalid)
	default:
		return nil, fmt.Errorf("leases in HBM and leases in memory in one plan: %w", tier.ErrInvalid)
	}
	return d, nil
}

// Hold keeps leased objects in their place until the result's Release is called.
func (c leased) Hold(sc plan.Scope, leases []tier.LeaseID) (*plan.Held, error) {
	s := c.store
	p, t, err := s.scope(sc.Profile, sc.Tenant, sc.Rank)
	if err != nil {
		return nil, err
	}
	held := &plan.Held{Sources: make([]plan.Source, len(leases))}
	objects := make([]*objects.Object, len(leases))
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return nil, err
	}
	for i, id := range leases {
		l, err := c.useLeaseLocked(id, p, t, sc.Rank, now)
		if err != nil {
			return nil, err
		}
		if held.On, err = s.alsoOn(held.On, l.object); err != nil {
			return nil, err
		}
		objects[i] = l.object
		held.Sources[i] = s.sourceLocked(l.object, sc.Rank)
	}
	held.Release = s.keepLocked(objects...)
	return held, nil
}

// sourceLocked returns one rank's share of an object and of its ancestors.
func (cat *catalog) sourceLocked(o *objects.Object, rank int) plan.Source {
	src := plan.Source{Name: o.Label(), Spec: o.Spec, Begin: o.Begin, End: o.End, Share: cat.objects.Memory.ShareOf(o, rank)}
	if o.Packed != "" {
		src.Parts = o.Layout()
	}
	if o.Kind != 0 && o.Depth > 1 {
		src.Ancestors = make([]plan.Source, o.Depth-1)
		for i, up := o.Depth-2, o.Parent; i >= 0; i, up = i-1, up.Parent {
			src.Ancestors[i] = plan.Source{Name: up.Label(), Begin: up.Begin, End: up.End, Share: cat.objects.Memory.ShareOf(up, rank)}
		}
	}
	return src
}

// keepLocked keeps the memory of objects allocated, and the store open, until the returned
// function is called.
func (cat *catalog) keepLocked(objects ...*objects.Object) (release func()) {
	cat.running.Add(1)
	for _, o := range objects {
		cat.objects.Use(o)
	}
	return func() {
		defer cat.running.Done()
		cat.mu.Lock()
		defer cat.mu.Unlock()
		for _, o := range objects {
			cat.objects.Unuse(o)
		}
	}
}

// Admit returns ErrBusy if the session has too many leases and buffers together.
func (c leased) Admit(buffers int) error {
	s := c.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.openLocked(); err != nil {
		return err
	}
	if len(c.leases)+buffers >= s.cfg.MaxLeases {
		s.counters.RefusedBusy++
		return fmt.Errorf("session %q has %d leases and %d buffers: %w", c.name, len(c.leases), buffers, tier.ErrBusy)
	}
	return nil
}

// NewID returns a new id for a lease or buffer.
func (c leased) NewID() tier.LeaseID { return c.store.NewLeaseID() }

// Claim allocates bytes for a buffer in the private pool of memory or of a device.
func (c leased) Claim(sc plan.Scope, on *plan.Device, bytes int64) (*plan.Claimed, error) {
	s := c.store
	p, t, err := s.scope(sc.Profile, sc.Tenant, sc.Rank)
	if err != nil {
		return nil, err
	}
	o := &objects.Object{Profile: p, Tenant: t, Pool: s.objects.Pools[objects.PrivatePool], Kind: objects.BufferKind, Depth: 1, Shares: make([]objects.Share, 1)}
	if i := slices.Index(s.plans.HBM, on); i >= 0 {
		o.Pool = s.hbm[i].Pools()[objects.PrivatePool]
		s.objects.HBM.Measure(o, bytes, 0)
	} else {
		s.objects.Memory.MeasureBuffer(o, bytes)
	}
	claimed := &plan.Claimed{}
	defer s.launch()
	err = s.inTurns(func() error {
		if err := c.mayClaimLocked(o); err != nil {
			return err
		}
		if err := s.fills.claimLocked(o); err != nil {
			return err
		}
		claimed.Memory, claimed.Release = s.objects.Memory.ShareOf(o, 0), s.keepLocked(o)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return claimed, nil
}

func (c leased) mayClaimLocked(o *objects.Object) error {
	if err := c.openLocked(); err != nil {
		return err
	}
	if o.Profile.Forgotten {
		return fmt.Errorf("buffer: profile %d is not registered any more: %w", o.Profile.ID, tier.ErrInvalid)
	}
	if o.InHBM() && o.Pool.Device.Lost {
		return fmt.Errorf("buffer: the device is lost: %w", tier.ErrUnavailable)
	}
	return nil
}

// claimLocked makes room for o and allocates its memory. ErrAgain is as in makeRoomLocked.
func (fills *fills) claimLocked(o *objects.Object) (err error) {
	if o.InHBM() {
		err = fills.objects.HBM.MakeRoom(o, false)
	} else {
		err = fills.evictor.makeRoomLocked(o, spared{})
	}
	if err != nil {
		if !errors.Is(err, objects.ErrAgain) {
			fills.counters.Refused(err)
		}
		return err
	}
	o.Created, o.Used = fills.cfg.Now(), fills.cfg.Now()
	if o.InHBM() {
		fills.objects.HBM.Allocate(o, 0)
		return nil
	}
	fills.objects.Memory.Allocate(o, o.RankBytes)
	fills.objects.Accounts.Book(o)
	if fills.cleanerIdle && fills.objects.Policies.Short(o.Pool) {
		fills.changed.Broadcast()
	}
	return nil
}
