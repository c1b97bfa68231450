package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// acquireDevice leases segments on the device.
func (t *task) acquireDevice() (wire.Message, error) {
	m := &t.scratch.acquireDevice
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	l, err := t.attachedDevice()
	if err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	q := leasing{
		AcquireQuery: tiering.AcquireQuery{
			Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), TTL: milliseconds(m.TTLMs),
			Digests: m.Digests != 0, All: m.All != 0, Keys: m.Keys,
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
func (t *task) loadDevice() (wire.Message, error) {
	m := &t.scratch.loadDevice
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	l, err := t.attachedDevice()
	if err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if !t.switchedOff(id) {
		l.reads(t.conn.server.store, id, rankOf(m.Rank))
	}
	return t.loadFrom(t.at.session.LoadResident, t.at.session.AwaitLoadResident, tiering.LoadQuery{
		Profile: id, Tenant: tenant, Rank: rankOf(m.Rank), Accept: tier.CheckpointKind(m.Accept),
		TTL: milliseconds(m.TTLMs), Digests: m.Digests != 0, Again: t.conn.mayWait(), Hash: m.Hash,
	})
}
