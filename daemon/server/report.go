package server

import (
	"math"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// switchedOff reports whether splicing is switched off for the request's tenant and profile.
// A profile that is no longer registered counts as off.
func (t *task) switchedOff(id tier.ProfileID) bool {
	p, ok := t.conn.server.store.Profile(id)
	return !ok || t.conn.server.canary.IsOff(canary.Key{Tenant: tier.TenantID(t.header.Tenant), Fingerprint: p.Fingerprint()})
}

// reportOps has the operations that take reports of engines, report and served (see served.go), and
// stats (see counts.go).
type reportOps struct{ *task }

// report counts the comparisons that an engine's canary has made of reused and computed results.
func (t reportOps) report() (wire.Message, error) {
	s := t.conn.server
	var m wire.ReportRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	id, _, err := t.scope(m.Profile)
	if err != nil {
		return nil, err
	}
	if err := t.needs(wire.FeatureLosses, m.Losses.Present, "losses"); err != nil {
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
	reply := &wire.ReportReply{Off: oneIf(off)}
	if m.Off == 0 {
		return reply, nil
	}
	// A client that receives off 1 may rely on it, even after a crash of the daemon.
	if !t.mayWait() {
		return nil, codes.Refuse(wire.Busy, "in force, but not saved yet: too many requests are waiting")
	}
	t.rest = func(t *task) (wire.Message, error) {
		ctx, stop := t.patience(0)
		defer stop()
		if err := s.canary.Durable(ctx); err != nil {
			return nil, err
		}
		return reply, nil
	}
	return nil, nil
}

func checkReport(m *wire.ReportRequest) error {
	switch {
	case m.Failed > m.Compared:
		return codes.Refuse(wire.Invalid, "failed: %d of %d comparisons", m.Failed, m.Compared)
	case !(m.Worst >= 0) || !(m.Bound >= 0): // NaN fails every comparison
		return codes.Refuse(wire.Invalid, "worst %v, bound %v", m.Worst, m.Bound)
	case math.IsInf(m.Bound, 1):
		return codes.Refuse(wire.Invalid, "bound: want a finite number")
	case m.Off > 1 || m.Losses.Offline > 1:
		return codes.Refuse(wire.Invalid, "off %d, offline %d", m.Off, m.Losses.Offline)
	case m.Losses.Offline == 1 && (m.Off == 1 || m.Compared > 0): // only a canary's report has these
		return codes.Refuse(wire.Invalid, "offline, with off %d and %d comparisons: want none", m.Off, m.Compared)
	}
	sum := uint64(0)
	for i, n := range m.Losses.Compared {
		sum += uint64(n)
		if m.Losses.Changed[i] > n {
			return codes.Refuse(wire.Invalid, "losses: %d of %d first tokens changed", m.Losses.Changed[i], n)
		}
	}
	if m.Losses.Offline == 0 && sum > uint64(m.Compared) {
		return codes.Refuse(wire.Invalid, "losses: of %d requests, in a report of %d comparisons", sum, m.Compared)
	}
	return nil
}
