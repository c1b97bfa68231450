package server

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// leasing is an acquire of segments, in host memory or on the device.
type leasing struct {
	tiering.AcquireQuery
	resident bool // lease copies in device memory
	atOnce   bool // never wait for a promotion
}

func (q *leasing) acquire(c *tiering.Session, dst []tiering.Acquired) ([]tiering.Acquired, error) {
	if q.resident {
		return c.AcquireResident(&q.AcquireQuery, dst)
	}
	return c.Acquire(&q.AcquireQuery, dst)
}

func (q *leasing) await(ctx context.Context, c *tiering.Session) ([]tiering.Acquired, error) {
	if q.resident {
		return c.AwaitAcquireResident(ctx, &q.AcquireQuery, nil)
	}
	return c.AwaitAcquire(ctx, &q.AcquireQuery, nil)
}

func (q *leasing) needsWait(s *tiering.Store) bool {
	if q.resident {
		return s.NeedsHBMPromotion(&q.AcquireQuery)
	}
	return s.NeedsPromotion(&q.AcquireQuery)
}

// keepTogether refuses all rows of an all-or-none request if its reply does not fit a frame.
func (t leaseOps) keepTogether(q *leasing, rows []tiering.Acquired) {
	left := newRoom(len(rows))
	for i := range rows {
		row := &rows[i]
		if row.Hit && !left.take(row) {
			t.giveAllBack(rows)
			err := fmt.Errorf("%d rows together do not fit a frame: %w", len(rows), tier.ErrFull)
			for k := range rows {
				rows[k] = tiering.Acquired{Err: err}
			}
			return
		}
	}
}

// giveAllBack releases leases that are not reported to the client.
func (t leaseOps) giveAllBack(rows []tiering.Acquired) {
	for i := range rows {
		if rows[i].Hit {
			t.giveBack(rows[i].Lease)
		}
	}
}

// scopeOnDevice is like scope, for a request that needs device memory. It also returns that memory.
func (t leaseOps) scopeOnDevice(profileID uint32) (*attachedGPU, tier.ProfileID, tier.TenantID, error) {
	l, err := t.attachedDevice()
	if err != nil {
		return nil, 0, 0, err
	}
	id, tenant, err := t.scope(profileID)
	return l, id, tenant, err
}

// acquireDevice leases segments on the device.
func (t leaseOps) acquireDevice(m *wire.AcquireDeviceRequest) (wire.Message, error) {
	l, id, tenant, err := t.scopeOnDevice(m.Profile)
	if err != nil {
		return nil, err
	}
	ttl, err := t.lifeOf(m.TTLMs)
	if err != nil {
		return nil, err
	}
	q := leasing{
		AcquireQuery: tiering.AcquireQuery{
			Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), TTL: ttl,
			Digests: m.Digests != 0, All: m.All != 0, Keys: m.Keys, Device: l.gpu.ID,
		},
		resident: true, atOnce: m.Wait == 0,
	}
	if t.switchedOff(id) {
		return t.acquired(&q, make([]tiering.Acquired, len(m.Keys))), nil
	}
	l.reads(t.conn.server.store, id, q.Rank)
	return t.lease(&q)
}

// loadDevice leases a checkpoint on the device.
func (t leaseOps) loadDevice(m *wire.LoadDeviceRequest) (wire.Message, error) {
	l, id, tenant, err := t.scopeOnDevice(m.Profile)
	if err != nil {
		return nil, err
	}
	ttl, err := t.lifeOf(m.TTLMs)
	if err != nil {
		return nil, err
	}
	if !t.switchedOff(id) {
		l.reads(t.conn.server.store, id, rankOf(m.Rank))
	}
	return t.loadFrom(t.at.session.LoadResident, t.at.session.AwaitLoadResident, tiering.LoadQuery{
		Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Accept: tier.CheckpointKind(m.Accept),
		TTL: ttl, Digests: m.Digests != 0, Again: t.mayWait(), Hash: m.Hash, Device: l.gpu.ID,
	})
}
