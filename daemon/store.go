package daemon

import (
	"context"
	"errors"

	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/costs"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// openGPUs opens the configured devices. Engines on a device that cannot be used have one tier
// less. The reason is kept for the health check, and announce logs it once.
func (d *Daemon) openGPUs(ctx context.Context) {
	if d.config.UsesHBM() {
		d.gpus = gpu.Open(ctx, &d.config, d.accelerators, newEpoch, d.log)
		d.gpus.Listen(d.gpuChanged)
	}
}

// openStore opens the store, with the memory of the available devices.
func (d *Daemon) openStore() (err error) {
	config := d.storeConfig()
	for _, g := range d.gpus.Opened() {
		config.HBM = append(config.HBM, d.hbmConfig(g))
	}
	if d.store, err = tiering.Open(config); err != nil {
		return err
	}
	for _, g := range d.gpus.Opened() {
		g.Serve()
		if state, why := g.State(); state == gpu.Missing && !errors.Is(why, hbm.ErrNoAnswer) {
			g.Close() // frees the memory of the device's context for other processes
		}
	}
	return nil
}

func (d *Daemon) hbmConfig(g *gpu.GPU) hbm.Config {
	c := &d.config
	return hbm.Config{
		Device: g.Device, Way: g.RegionWay(), PublicBytes: int64(c.HBMPublic), PrivateBytes: int64(c.HBMPrivate),
		PageBytes: int(c.HBMPageBytes), AfterMatch: c.HBMAhead, OpenTimeout: gpu.Patience(c), Lost: g.Fail,
	}
}

func (d *Daemon) storeConfig() tiering.Config {
	c := &d.config
	huge := map[string]gpuipc.HugePages{"auto": gpuipc.HugeAuto, "never": gpuipc.HugeNever, "require": gpuipc.HugeRequire}
	config := tiering.Config{
		Device: d.device, PublicBytes: int64(c.Arena), PrivateBytes: int64(c.Private), PageBytes: int(c.PageBytes),
		Huge: huge[c.HugePages], Tenants: d.tenants, Eviction: evictionOf(c.Eviction), Now: d.now,
		LeaseTTL: c.LeaseTTL, MaxLeaseTTL: c.MaxLeaseTTL, FillTTL: c.FillTTL,
		MaxLeases: c.MaxLeases, MaxReservations: c.MaxReservations, MaxProfiles: c.MaxProfiles, Log: d.log,
		EvictionPublic: evictionOf(c.EvictionPublic), EvictionPrivate: evictionOf(c.EvictionPrivate), Cost: costsOf(c),
		Advise: advise.Config{
			Bytes: int64(c.AdviseMemory), Nodes: c.AdviseNodes, Checkpoints: c.AdviseCheckpoints, SolveEvery: c.AdviseSolveEvery,
		},
		MaxDecisions: c.Decisions, Decided: d.decided(), Held: d.held,
	}
	if c.AdviseMemory == 0 {
		config.Advise.Bytes = -1
	}
	if config.Remote = d.remote(); config.Remote != nil {
		config.ReadAhead = c.ReadAhead
	}
	config.Outlets = d.outlets()
	if d.disk == nil {
		return config
	}
	config.Lower, config.Find = d.disk, d.segments
	if d.lower != nil {
		config.Lower = d.lower(d.disk)
	}
	config.DefaultLevel, config.WriteBehind, config.ReadAhead = levels[c.AckLevel], c.WriteBehind, c.ReadAhead
	config.HighWater, config.LowWater = float64(c.MemoryHigh)/100, float64(c.MemoryLow)/100
	config.MaxPromotions = c.DiskWorkers
	return config
}

// evictionOf returns the constructor of the policy with a validated name; nil for an empty name.
func evictionOf(name string) func() policy.Eviction {
	build, _ := policy.Named(name)
	return build
}

// costsOf returns the assumed costs of engine, memory and disk, which apply until they are
// measured.
func costsOf(c *settings.Config) costs.Priors {
	priors := costs.Priors{DRAMBytesPerSecond: float64(c.MemoryBandwidth), DiskBytesPerSecond: float64(c.DiskBandwidth)}
	if c.PrefillSpeed > 0 {
		guess := cost.DefaultPrefill
		perToken := 1e3 / float64(c.PrefillSpeed)
		priors.Prefill = cost.Prefill{Fixed: guess.Fixed, PerToken: perToken, PerTokenSquared: guess.PerTokenSquared * perToken / guess.PerToken}
	}
	return priors
}

// tenantsOf numbers the tenants of the configuration from 1; 0 stands for no tenant.
func tenantsOf(c *settings.Config) tiering.Tenants {
	var list tiering.Tenants
	for i, t := range c.Tenants {
		list = append(list, tiering.Tenant{ID: tier.TenantID(i + 1), Name: t.Name, Salt: []byte(t.Salt), QuotaBytes: int64(t.Quota)})
	}
	return list
}
