package serve

import (
	"fmt"
	"slices"

	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Plans returns the part of the session that carries out plans over its leases and owns
// its buffers.
func (c *Session) Plans() *plan.Session { return c.plans }

// leased implements plan.Store for a session.
type leased struct{ *Session }

// Geometry returns the geometry of a scope's profile.
func (c leased) Geometry(sc plan.Scope) (*plan.Geometry, error) {
	p, _, err := c.sessions.cat.Scope(sc.Profile, sc.Tenant, sc.Rank)
	if err != nil {
		return nil, err
	}
	return p.Geometry, nil
}

// On returns the device or memory that the leases are on; nil if the session has none of
// them. Leases in different places are ErrInvalid.
func (c leased) On(leases []tier.LeaseID) (on *plan.Device, err error) {
	c.sessions.cat.Mu.Lock()
	defer c.sessions.cat.Mu.Unlock()
	for _, id := range leases {
		if l := c.leases[id]; l != nil {
			if on, err = c.sessions.alsoOn(on, l.object); err != nil {
				return nil, err
			}
		}
	}
	return on, nil
}

// alsoOn returns the device or memory that an object is on. If the parameter on is another
// device, the error is ErrInvalid; nil = any device.
func (ses *Sessions) alsoOn(on *plan.Device, o *objects.Object) (*plan.Device, error) {
	d := ses.plans.Memory
	if o.InHBM() {
		d = ses.plans.HBM[o.Pool.Device.ID-1]
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
	s := c.sessions
	p, t, err := s.cat.Scope(sc.Profile, sc.Tenant, sc.Rank)
	if err != nil {
		return nil, err
	}
	held := &plan.Held{Sources: make([]plan.Source, len(leases))}
	objects := make([]*objects.Object, len(leases))
	now := s.cat.Config.Now()
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
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
func (ses *Sessions) sourceLocked(o *objects.Object, rank int) plan.Source {
	src := plan.Source{Name: o.Label(), Spec: o.Spec, Begin: o.Begin, End: o.End, Share: ses.cat.Objects.Memory.ShareOf(o, rank)}
	if o.Packed != "" {
		src.Parts = o.Layout()
	}
	if o.Kind != 0 && o.Depth > 1 {
		src.Ancestors = make([]plan.Source, o.Depth-1)
		for i, up := o.Depth-2, o.Parent; i >= 0; i, up = i-1, up.Parent {
			src.Ancestors[i] = plan.Source{Name: up.Label(), Begin: up.Begin, End: up.End, Share: ses.cat.Objects.Memory.ShareOf(up, rank)}
		}
	}
	return src
}

// keepLocked keeps the memory of objects allocated, and the store open, until the returned
// function is called.
func (ses *Sessions) keepLocked(objects ...*objects.Object) (release func()) {
	ses.cat.Running.Add(1)
	for _, o := range objects {
		ses.cat.Objects.Use(o)
	}
	return func() {
		defer ses.cat.Running.Done()
		ses.cat.Mu.Lock()
		defer ses.cat.Mu.Unlock()
		for _, o := range objects {
			ses.cat.Objects.Unuse(o)
		}
	}
}

// Admit returns ErrBusy if the session has too many leases and buffers together.
func (c leased) Admit(buffers int) error {
	s := c.sessions
	s.cat.Mu.Lock()
	defer s.cat.Mu.Unlock()
	if err := c.openLocked(); err != nil {
		return err
	}
	if len(c.leases)+buffers >= s.cat.Config.MaxLeases {
		s.cat.Counters.RefusedBusy++
		return fmt.Errorf("session %q has %d leases and %d buffers: %w", c.client.Name, len(c.leases), buffers, tier.ErrBusy)
	}
	return nil
}

// NewID returns a new id for a lease or buffer.
func (c leased) NewID() tier.LeaseID { return c.sessions.cat.NewLeaseID() }

// Claim allocates bytes for a buffer in the private pool of memory or of a device.
func (c leased) Claim(sc plan.Scope, on *plan.Device, bytes int64) (*plan.Claimed, error) {
	s := c.sessions
	p, t, err := s.cat.Scope(sc.Profile, sc.Tenant, sc.Rank)
	if err != nil {
		return nil, err
	}
	o := &objects.Object{Profile: p, Tenant: t, Pool: s.cat.Objects.Pools[objects.PrivatePool], Kind: objects.BufferKind, Depth: 1, Shares: make([]objects.Share, 1)}
	if i := slices.Index(s.plans.HBM, on); i >= 0 {
		o.Pool = s.hbm[i].Pools()[objects.PrivatePool]
		s.cat.Objects.HBM.Measure(o, bytes, 0)
	} else {
		s.cat.Objects.Memory.MeasureBuffer(o, bytes)
	}
	claimed := &plan.Claimed{}
	defer s.cat.Launch()
	err = s.cat.InTurns(func() error {
		if err := c.mayClaimLocked(o); err != nil {
			return err
		}
		if err := s.fills.ClaimLocked(o); err != nil {
			return err
		}
		claimed.Memory, claimed.Release = s.cat.Objects.Memory.ShareOf(o, 0), s.keepLocked(o)
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
