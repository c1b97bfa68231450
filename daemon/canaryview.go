package daemon

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var _ api.Canaries = view{}

var (
	canaryCompared = describe("canary_compared_total", "Reuses that engines computed again and compared, as they reported.", "model", "profile", "tenant")
	canaryFailed   = describe("canary_failed_total", "Of these, those that differed by more than the engine's bound.", "model", "profile", "tenant")
	canaryWorst    = describe("canary_worst_difference", "Largest difference that was reported since the daemon's start.", "model", "profile", "tenant")
	canaryWithheld = describe("canary_withheld_total", "Segment keys that match answered as misses since their profile is switched off. They are not among the lookups.")
	canaryOff      = describe("profile_switched_off", "1 while a profile is switched off for splicing. Only an operator switches it on.", "model", "profile", "tenant")
)

// canary makes the metrics of reports. A tenant has at most canaryRows of them.
func (m metrics) canary(s sink) {
	c := m.d.server.canary
	for _, r := range c.list() {
		labels := []string{strings.ToValidUTF8(r.model, "?"), fmt.Sprintf("%x", r.fingerprint), m.d.server.tenantName(r.tenant)}
		s.count(canaryCompared, r.compared, labels...)
		s.count(canaryFailed, r.failed, labels...)
		s.gauge(canaryWorst, r.worst, labels...)
		s.gauge(canaryOff, float64(oneIf(r.off)), labels...)
	}
	s.count(canaryWithheld, c.withheld.Load())
}

// splicingCheck says what is switched off.
func (d *Daemon) splicingCheck() api.Check {
	check := api.Check{Name: "splicing", State: api.CheckOK}
	if d.server.canary.offs.Load() == 0 {
		return check
	}
	var off []string
	for _, r := range d.server.canary.list() {
		if r.off {
			off = append(off, fmt.Sprintf("%s (%x) for tenant %s since %s: %s", r.model, r.fingerprint[:6],
				d.server.tenantName(r.tenant), r.since.UTC().Format(time.RFC3339), r.why))
		}
	}
	if len(off) == 0 {
		return check
	}
	const most = 4
	more := ""
	if len(off) > most {
		more = fmt.Sprintf("; and %d more", len(off)-most)
		off = off[:most]
	}
	check.State = api.CheckDegraded
	check.Detail = "switched off: " + strings.Join(off, "; ") + more + ". splicectl profile on switches it on again"
	return check
}

// Canaries implements api.Canaries.
func (v view) Canaries() []api.Canary {
	var list []api.Canary
	for _, r := range v.d.server.canary.list() {
		list = append(list, v.canary(&r))
	}
	return list
}

func (v view) canary(r *canaryRow) api.Canary {
	c := api.Canary{
		Profile: api.Digest(r.fingerprint), Model: r.model, Tenant: v.d.server.tenantName(r.tenant), Off: r.off, Why: r.why,
		Compared: r.compared, Failed: r.failed, Bound: r.bound,
	}
	if !math.IsInf(r.worst, 1) {
		c.Worst = &r.worst
	}
	if r.off {
		c.Since = &r.since
	}
	if !r.last.IsZero() {
		c.Reported = &r.last
	}
	return c
}

// SwitchProfile implements api.Canaries.
func (v view) SwitchProfile(q api.SwitchQuery) ([]api.Canary, error) {
	tenants, err := v.tenantsOf(q.Tenant)
	if err != nil {
		return nil, err
	}
	of := profile.Fingerprint(q.Profile)
	model, known := v.model(of)
	c := v.d.server.canary
	for _, t := range tenants {
		if q.Dry || q.Off && !known {
			continue
		}
		if _, err := c.set(reported{t, of}, model, q.Off, q.Why); err != nil {
			return nil, errors.Join(err, api.ErrBusy)
		}
	}
	var list []api.Canary
	for _, r := range c.list() {
		name := v.d.server.tenantName(r.tenant)
		if r.fingerprint == of && (q.Tenant == "" || q.Tenant == name) {
			list = append(list, v.canary(&r))
		}
	}
	if len(list) == 0 && !(known && q.Off) {
		return nil, fmt.Errorf("profile %x: %w", of[:6], api.ErrNotFound)
	}
	return list, nil
}

// tenantsOf is one tenant by name, or with "" all.
func (v view) tenantsOf(name string) ([]tier.TenantID, error) {
	var list []tier.TenantID
	for i := range v.d.server.tenants {
		if t := &v.d.server.tenants[i]; name == "" || t.Name == name {
			list = append(list, t.ID)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("tenant %q: %w", name, api.ErrNotFound)
	}
	return list, nil
}

// model names the model of a profile that is registered, or that was reported on.
func (v view) model(of profile.Fingerprint) (string, bool) {
	for _, p := range v.d.store.Profiles() {
		if p.Profile.Fingerprint() == of {
			return p.Profile.Identity().Model, true
		}
	}
	for _, r := range v.d.server.canary.list() {
		if r.fingerprint == of {
			return r.model, true
		}
	}
	return "", false
}
