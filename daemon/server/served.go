package server

import (
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// served records an engine's report on how it served a prompt.
func (t reportOps) served() (wire.Message, error) {
	s := t.conn.server
	var m wire.ServedRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	if err := t.needs(wire.FeatureLosses, m.Loss.Present, "losses"); err != nil {
		return nil, err
	}
	id, tenant, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	p, ok := s.store.Profile(id)
	if !ok {
		return nil, codes.Refuse(wire.Gone, "profile %d", m.Profile)
	}
	who := usage.Who{
		Key:     usage.Key{Tenant: tier.TenantID(tenant), Fingerprint: p.Fingerprint()},
		Profile: id, Model: p.Model(), Client: t.at.client, Source: t.conn.process(),
	}
	var predicted usage.Prediction
	predicted.Prefill, predicted.Measured = s.store.Prefill(id)
	number, err := s.usage.Served(who, &m, predicted, t.at.claims.verify)
	if err != nil {
		return nil, err
	}
	return &wire.ServedReply{Number: number, CanaryShare: s.canary.Share()}, nil
}
