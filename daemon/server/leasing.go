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

// acquireDevice leases segments on the device.
func (t leaseOps) acquireDevice(m *wire.AcquireDeviceRequest) (wire.Message, error) {
	l, err := t.attachedDevice()
	if err != nil {
		return nil, err
	}
	q, err := t.leasing(m.Profile, m.Rank, m.TTLMs, m.Digests, m.All, m.Keys)
	if err != nil {
		return nil, err
	}
	q.Device, q.resident, q.atOnce = l.gpu.ID, true, m.Wait == 0
	if t.switchedOff(q.Profile) {
		return t.acquired(&q, make([]tiering.Acquired, len(m.Keys))), nil
	}
	l.reads(t.conn.server.store, q.Profile, q.Rank)
	return t.lease(&q)
}

// loadDevice leases a checkpoint on the device.
func (t leaseOps) loadDevice(m *wire.LoadDeviceRequest) (wire.Message, error) {
	l, err := t.attachedDevice()
	if err != nil {
		return nil, err
	}
	q, err := t.loading(&m.LoadRequest)
	if err != nil {
		return nil, err
	}
	q.Device = l.gpu.ID
	if !t.switchedOff(q.Profile) {
		l.reads(t.conn.server.store, q.Profile, q.Rank)
	}
	return t.loadFrom(t.at.session.LoadResident, t.at.session.AwaitLoadResident, q)
}
