package view

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var _ api.Canaries = (*View)(nil)

// splicingTrouble lists the profiles for which splicing is switched off; "" = none.
func (v *checks) splicingTrouble() string {
	if why := v.o.Canary.Unknown(); why != "" {
		return "all profiles are switched off: " + why
	}
	var off []string
	for _, r := range v.o.Canary.List() {
		if r.Off {
			why := cmp.Or(r.Why, "(no reason given)")
			off = append(off, fmt.Sprintf("%s (%x) for tenant %s since %s: %s", r.Model, r.Fingerprint[:6],
				v.o.Server.TenantName(r.Tenant), r.Since.UTC().Format(time.RFC3339), why))
		}
	}
	if len(off) == 0 {
		return ""
	}
	const most = 4
	if n := len(off) - most; n > 0 {
		off = append(off[:most], fmt.Sprintf("and %d more", n))
	}
	return "switched off: " + strings.Join(off, "; ") + ". splicectl profile on switches it on again"
}

// Canaries implements api.Canaries.
func (v *listing) Canaries() []api.Canary {
	var list []api.Canary
	for _, r := range v.o.Canary.List() {
		list = append(list, v.canary(&r))
	}
	return list
}

func (v *listing) canary(r *canary.Row) api.Canary {
	c := api.Canary{
		Profile: api.Digest(r.Fingerprint), Model: r.Model, Tenant: v.o.Server.TenantName(r.Tenant), Off: r.Off, Why: r.Why,
		Compared: r.Compared, Failed: r.Failed, Bound: r.Bound,
	}
	if !math.IsInf(r.Worst, 1) {
		c.Worst = &r.Worst
	}
	if !r.Since.IsZero() {
		c.Since = &r.Since
	}
	if !r.Last.IsZero() {
		c.Reported = &r.Last
	}
	for _, l := range r.Losses.Known() {
		out := api.Loss{
			Primed: l.Primed, Refreshed: l.Refreshed, Compared: l.Canary.Compared, Changed: l.Canary.Changed,
			OfflineCompared: l.Offline.Compared, OfflineChanged: l.Offline.Changed,
		}
		if loss := l.Expected(); loss >= 0 {
			out.Expected = &loss
		}
		c.Losses = append(c.Losses, out)
	}
	return c
}

// switchPatience is the longest time that an operator's request waits until a switch is on disk.
// That is less than the clients' timeouts, and far more than a healthy disk needs.
const switchPatience = 3 * time.Second

// SwitchProfile implements api.Canaries.
func (v *operator) SwitchProfile(q api.SwitchQuery) ([]api.Canary, error) {
	tenants, err := v.tenantsOf(q.Tenant)
	if err != nil {
		return nil, err
	}
	of := profile.Fingerprint(q.Profile)
	model, known := v.model(of)
	c := v.o.Canary
	for _, t := range tenants {
		if q.Dry || q.Off && !known {
			continue
		}
		changed, err := c.Set(canary.Key{Tenant: t, Fingerprint: of}, model, q.Off, q.Why)
		if err != nil {
			return nil, errkind.With(err, api.ErrBusy)
		}
		if changed {
			v.tellSwitched(of, t, model, &q)
		}
	}
	if !q.Dry {
		ctx, stop := context.WithTimeout(context.Background(), switchPatience)
		defer stop()
		if err := c.Durable(ctx); err != nil {
			return nil, errkind.With(err, api.ErrUnavailable)
		}
	}
	var list []api.Canary
	for _, r := range c.List() {
		name := v.o.Server.TenantName(r.Tenant)
		if r.Fingerprint == of && (q.Tenant == "" || q.Tenant == name) {
			list = append(list, v.canary(&r))
		}
	}
	if len(list) == 0 && !(known && q.Off) {
		if known {
			return nil, api.NotFound("splicing was never switched off for it, and no engine has reported on it")
		}
		return nil, api.NotFound("no engine has registered it with this node, and nothing on disk is of it")
	}
	return list, nil
}

// tenantsOf returns the tenant with this name, or all tenants for "".
func (v *base) tenantsOf(name string) ([]tier.TenantID, error) {
	var list []tier.TenantID
	for i := range v.o.Tenants {
		if t := &v.o.Tenants[i]; name == "" || t.Name == name {
			list = append(list, t.ID)
		}
	}
	if len(list) == 0 {
		return nil, api.NotFound("tenant %.128q is not configured", name)
	}
	return list, nil
}

// model returns the model of a profile that is registered, has reports, or has objects on disk.
func (v *base) model(of profile.Fingerprint) (string, bool) {
	if _, p, ok := v.o.Store.FindProfile(of); ok {
		return p.Identity().Model, true
	}
	for _, r := range v.o.Canary.List() {
		if r.Fingerprint == of {
			return r.Model, true
		}
	}
	if v.o.Disk != nil {
		for _, e := range v.o.Disk.List(disk.Filter{Fingerprint: of}, nil, 1) {
			return e.Model, true
		}
	}
	return "", false
}
