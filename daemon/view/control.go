package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/decided"
	"github.com/spliced-kv/spliced/daemon/server"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/errkind"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var _ api.Control = (*View)(nil)

// Level is a log's level, which can be changed.
type Level interface {
	Level() zerolog.Level
	SetLevel(zerolog.Level)
}

// kindOf converts an error of the store to the one of the REST API.
func kindOf(err error) error {
	for _, k := range []struct{ is, as error }{
		{tier.ErrGone, api.ErrNotFound}, {tier.ErrBusy, api.ErrBusy}, {tier.ErrFull, api.ErrFull}, {tier.ErrQuota, api.ErrFull},
		{tier.ErrUnavailable, api.ErrUnavailable}, {tier.ErrInvalid, api.ErrInvalid},
	} {
		if errors.Is(err, k.is) {
			return errkind.With(errors.New(strings.TrimSuffix(err.Error(), ": "+k.is.Error())), k.as)
		}
	}
	return err
}

// filterTenant is like tenant, but returns an error if the name is unknown.
func (v *base) filterTenant(name string) (*tier.TenantID, error) {
	id, ok := v.tenant(name)
	if !ok {
		return nil, api.NotFound("tenant %.128q is not configured", name)
	}
	return id, nil
}

// Leases implements api.Control.
func (v *listing) Leases(q api.LeaseQuery) ([]api.Lease, error) {
	var f tiering.LeaseFilter
	ok := false
	if f.Tenant, ok = v.tenant(q.Tenant); !ok {
		return nil, nil
	}
	by := map[*tiering.Session]server.Holder{}
	for _, h := range v.o.Server.Holders() {
		by[h.Session] = h
		if q.Connection != nil && *q.Connection == h.Connection {
			f.Session = h.Session
		}
	}
	if q.Connection != nil && f.Session == nil {
		return nil, api.NotFound("no such connection: %d", *q.Connection)
	}
	var list []api.Lease
	for _, l := range v.o.Store.Leases(f, tier.LeaseID(q.After), q.Limit) {
		h, ok := by[l.Session]
		if !ok { // the client attached or ended after Holders was called
			h.Client = l.Session.Name()
		}
		list = append(list, api.Lease{
			Lease: uint64(l.ID), Object: decided.Object(l.Kind), Key: l.Key, Tenant: v.o.Tenants.NameOf(l.Tenant), Profile: uint32(l.Profile),
			Client: h.Client, Connection: h.Connection, Rank: l.Rank, Since: l.Since, Expires: l.Expires, Bytes: l.Bytes, Device: v.gpuName(l.Device),
		})
	}
	return list, nil
}

// Pins implements api.Pinner.
func (v *listing) Pins() ([]api.Pin, error) { return v.pins(v.o.Store.Pins()), nil }

func (v *listing) pins(of []tiering.PinInfo) []api.Pin {
	var list []api.Pin
	for _, p := range of {
		list = append(list, api.Pin{
			Key: p.Key, Object: decided.Object(p.Kind), Tenant: v.o.Tenants.NameOf(p.Tenant), Profile: uint32(p.Profile),
			Bytes: p.Bytes, Expires: p.Expires, By: p.By,
		})
	}
	return list
}

// Pin implements api.Pinner.
func (v *operator) Pin(ctx context.Context, q api.PinQuery) ([]api.Pin, error) {
	list, err := v.o.Store.Pin(ctx, tiering.PinQuery{Key: q.Key, TTL: q.TTL, By: q.By, Dry: q.Dry})
	v.tellControl(q.Dry, err, "%v pinned for %v by %s", q.Key, q.TTL, q.By)
	if errors.Is(err, tier.ErrGone) {
		return nil, api.NotFound("no such segment or checkpoint")
	}
	return v.pins(list), kindOf(err)
}

// Unpin implements api.Pinner.
func (v *operator) Unpin(key api.Digest, dry bool) ([]api.Pin, error) {
	list, err := v.o.Store.Unpin(key, dry)
	v.tellControl(dry, err, "%v unpinned", key)
	if errors.Is(err, tier.ErrGone) {
		return nil, api.NotFound("it is not pinned")
	}
	return v.pins(list), kindOf(err)
}

// Drain implements api.Operator.
func (v *operator) Drain(on, dry bool) (api.Drained, error) {
	if !dry {
		v.o.Server.Drain(on)
	}
	if on {
		v.tellControl(dry, nil, "the node is drained: it accepts no new clients and objects")
	} else {
		v.tellControl(dry, nil, "the drain is undone")
	}
	return api.Drained{Draining: on, DryRun: dry, Connections: len(v.o.Server.Holders()), Leases: v.o.Store.CountLeases()}, nil
}

// Reload implements api.Operator.
func (v *operator) Reload(dry bool) (api.Reloaded, error) {
	r, err := v.o.Reload(dry)
	v.tellControl(dry, err, "keys, tokens and certificates were reread")
	return r, err
}

// Config implements api.Operator.
func (v *operator) Config() (api.Config, error) {
	b := v.o.Store.Budgets()
	c := api.Config{
		LogLevel: v.o.Config.LogLevel, PublicBytes: b.Public, PrivateBytes: b.Private, Quotas: map[string]api.Quota{},
		PoolsBytes: v.o.Store.ArenaBytes(), Draining: v.o.Server.Draining(), Settings: v.o.Config.Shown(),
	}
	if v.o.Level != nil {
		c.LogLevel = v.o.Level.Level().String()
	}
	if share := v.o.Canary.Share(); share >= 0 {
		c.CanaryShare = &share
	}
	for id, quota := range b.Quotas {
		c.Quotas[v.o.Tenants.NameOf(id)] = api.Quota{QuotaBytes: quota}
	}
	return c, nil
}

// ChangeConfig implements api.Operator.
func (v *operator) ChangeConfig(to api.Config, dry bool) (api.Config, error) {
	was, err := v.Config()
	if err != nil {
		return was, err
	}
	level, err := v.checkLevel(&was, &to)
	if err != nil {
		return was, err
	}
	b, err := v.checkBudgets(&was, &to)
	if err != nil || dry {
		to.PoolsBytes, to.Draining, to.Settings = was.PoolsBytes, was.Draining, was.Settings
		return to, err
	}
	if err := v.o.Store.SetBudgets(b); err != nil {
		return was, kindOf(err)
	}
	if level != nil {
		v.o.Level.SetLevel(*level)
	}
	share := -1.0
	if to.CanaryShare != nil {
		share = *to.CanaryShare
	}
	v.o.Canary.SetShare(share)
	v.tellControl(false, nil, "the configuration of the running node was changed")
	return v.Config()
}

// checkLevel returns the log level to set; nil = unchanged.
func (v *operator) checkLevel(was, to *api.Config) (*zerolog.Level, error) {
	if was.LogLevel == to.LogLevel {
		return nil, nil
	}
	level, err := zerolog.ParseLevel(to.LogLevel)
	if err != nil || level < zerolog.TraceLevel || to.LogLevel == "" || !slices.Contains(levels, level.String()) {
		return nil, api.Invalid(api.Violation{Parameter: "log_level", Detail: fmt.Sprintf("%.20q is not one of %s", to.LogLevel, strings.Join(levels, ", "))})
	}
	if v.o.Level == nil {
		return nil, api.Unsupported("log_level", "the log level of this daemon is fixed")
	}
	return &level, nil
}

// levels are the values of the setting log-level.
var levels = []string{"trace", "debug", "info", "warn", "error", "disabled"}

// checkBudgets returns the new budgets. It returns an error if the store would not accept them.
func (v *operator) checkBudgets(was, to *api.Config) (tiering.Budgets, error) {
	b := tiering.Budgets{Public: to.PublicBytes, Private: to.PrivateBytes, Quotas: map[tier.TenantID]int64{}}
	if bad := v.checkPools(was, to); bad != nil {
		return b, api.Invalid(bad...)
	}
	for i := range v.o.Tenants {
		t := &v.o.Tenants[i]
		quota, ok := to.Quotas[t.Name]
		if !ok || quota == was.Quotas[t.Name] {
			continue
		}
		if quota.QuotaBytes < 0 {
			return b, api.Invalid(api.Violation{Parameter: "quotas." + t.Name + ".quota_bytes", Detail: "is negative"})
		}
		b.Quotas[t.ID] = quota.QuotaBytes
	}
	return b, kindOf(v.o.Store.CheckBudgets(b))
}

// checkPools returns what is wrong with the sizes of the pools.
func (v *operator) checkPools(was, to *api.Config) (bad []api.Violation) {
	type pool struct {
		name    string
		bytes   settings.Bytes
		changed bool
	}
	page, total := v.o.Config.PageBytes, settings.Bytes(was.PoolsBytes)
	pools := []pool{
		{"public_bytes", settings.Bytes(to.PublicBytes), was.PublicBytes != to.PublicBytes},
		{"private_bytes", settings.Bytes(to.PrivateBytes), was.PrivateBytes != to.PrivateBytes},
	}
	for _, p := range pools {
		switch {
		case p.bytes < page:
			bad = append(bad, api.Violation{Parameter: p.name, Detail: fmt.Sprintf("%v is less than a page of %v", p.bytes, page)})
		case p.bytes > total-page:
			bad = append(bad, api.Violation{Parameter: p.name, Detail: fmt.Sprintf("%v is too much: the arena has %v, fixed at the start, for both pools", p.bytes, total)})
		}
	}
	if sum := pools[0].bytes + pools[1].bytes; bad == nil && sum > total {
		p, other := pools[0], pools[1]
		if !p.changed {
			p, other = other, p
		}
		bad = append(bad, api.Violation{Parameter: p.name, Detail: fmt.Sprintf("with %s it is %v together, the arena has %v: lower %s in the same change", other.name, sum, total, other.name)})
	}
	return bad
}
