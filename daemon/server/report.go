package server

import (
	"math"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// switchedOff reports whether segments may not be used by a request.
func (t *task) switchedOff(id tier.ProfileID) bool {
	c := t.conn.server.canary
	if c.Off() == 0 {
		return false
	}
	of, ok := t.reported(id)
	return ok && c.IsOff(of)
}

func (t *task) reported(id tier.ProfileID) (key canary.Key, ok bool) {
	p, ok := t.conn.server.store.Profile(id)
	if !ok {
		return key, false
	}
	return canary.Key{Tenant: tier.TenantID(t.header.Tenant), Fingerprint: p.Fingerprint()}, true
}

// report takes what a canary has seen.
func (t *task) report() (wire.Message, error) {
	s := t.conn.server
	var m wire.ReportRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, _, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if err := checkReport(&m); err != nil {
		return nil, err
	}
	p, ok := s.store.Profile(id)
	if !ok {
		return nil, codes.Refuse(wire.Gone, "profile %d", m.Profile)
	}
	of, model := canary.Key{Tenant: tier.TenantID(t.header.Tenant), Fingerprint: p.Fingerprint()}, p.Identity().Model
	off, switched, err := s.canary.Add(of, model, &m)
	if err != nil {
		return nil, err
	}
	t.tellReport(of, model, &m, switched)
	if switched {
		s.log.Warn().Str("model", model).Hex("profile", of.Fingerprint[:8]).Str("tenant", s.TenantName(of.Tenant)).
			Str("client", t.at.client).Uint32("compared", m.Compared).Uint32("failed", m.Failed).Float64("worst", m.Worst).
			Float64("bound", m.Bound).Str("why", canary.PlainText(m.Text)).Msg("splicing is switched off for this profile until an operator switches it on")
	}
	return &wire.ReportReply{Off: oneIf(off)}, nil
}

func checkReport(m *wire.ReportRequest) error {
	switch {
	case m.Failed > m.Compared:
		return codes.Refuse(wire.Invalid, "%d of %d comparisons failed", m.Failed, m.Compared)
	case !(m.Worst >= 0) || !(m.Bound >= 0): // NaN fails every comparison
		return codes.Refuse(wire.Invalid, "worst %v, bound %v", m.Worst, m.Bound)
	case math.IsInf(m.Bound, 1):
		return codes.Refuse(wire.Invalid, "a bound without end")
	case m.Off > 1:
		return codes.Refuse(wire.Invalid, "off %d", m.Off)
	}
	return nil
}
