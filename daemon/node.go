package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// view is what people see of a daemon: api.Node and api.Catalogue.
type view struct{ d *Daemon }

var (
	_ api.Node      = view{}
	_ api.Catalogue = view{}
)

// Status implements api.Node.
func (v view) Status() api.Status {
	d := v.d
	device := d.device.Describe()
	return api.Status{
		Ready: d.serving.Load(), Alive: d.server.watcher.alive(time.Now()),
		Node: d.config.Node, Version: d.build.Version, BootEpoch: d.server.epoch, Started: d.started,
		Socket: d.socketPath(), Device: device.Kind + " " + device.Name, Features: device.Features,
		GPU: v.gpu(), Checks: d.checks(),
	}
}

// Profiles implements api.Node.
func (v view) Profiles() []api.Profile {
	engines := map[tier.ProfileID][]string{}
	for _, c := range v.d.server.list() {
		for _, b := range c.bindings() {
			if !slices.Contains(engines[b.profile], b.engine) {
				engines[b.profile] = append(engines[b.profile], b.engine)
			}
		}
	}
	var list []api.Profile
	for _, p := range v.d.store.Profiles() {
		fixed := p.Profile.SegmentLayout(0).Bytes
		id := p.Profile.Identity()
		slices.Sort(engines[p.ID])
		list = append(list, api.Profile{
			ID: uint32(p.ID), Fingerprint: api.Digest(p.Profile.Fingerprint()), Model: id.Model, TPSize: p.Profile.TPSize(),
			Layers: len(id.Layers), LinearLayers: len(p.Profile.LinearLayers()), AttentionLayers: len(p.Profile.AttentionLayers()),
			StateBytes: fixed, RowBytes: rowBytes(p.Profile),
			Segments: p.Segments, Checkpoints: p.Checkpoints, Engines: engines[p.ID],
		})
	}
	return list
}

// rowBytes is K and V of one token, without the padding of parts.
func rowBytes(p *profile.Profile) int64 {
	var n int64
	for _, i := range p.AttentionLayers() {
		a := &p.Layer(i).Attention
		n += int64(p.RankKVHeads(i)) * int64(a.KeyDim+a.ValueDim) * int64(a.DType.Size())
	}
	return n
}

// Pools implements api.Node.
func (v view) Pools() []api.Pool {
	var list []api.Pool
	for _, p := range v.d.store.Pools() {
		pool := api.Pool{
			Name: p.Name, Tier: tierName(p.Place), CapacityBytes: p.CapacityBytes, UsedBytes: p.UsedBytes,
			LeasedBytes: p.LeasedBytes, PendingBytes: p.PendingBytes, QuarantinedBytes: p.QuarantinedBytes,
			PageBytes: int64(p.PageBytes), Objects: p.Objects,
		}
		for _, t := range p.Tenants {
			pool.Tenants = append(pool.Tenants, api.TenantPool{Tenant: t.Name, UsedBytes: t.UsedBytes, QuotaBytes: t.QuotaBytes})
		}
		list = append(list, pool)
	}
	return append(list, v.diskPools()...)
}

// diskPools are the budgets on disk. A tenant that is not configured any more is
// listed while something of it is there.
func (v view) diskPools() []api.Pool {
	if v.d.disk == nil {
		return nil
	}
	quota := map[tier.TenantID]int64{}
	for _, t := range v.d.server.tenants {
		quota[t.ID] = t.QuotaBytes
	}
	var list []api.Pool
	u := v.d.disk.Usage()
	for i := range u.Pools {
		p := &u.Pools[i]
		pool := api.Pool{
			Name: p.Name, Tier: tierName(tier.PlaceDisk), CapacityBytes: p.BudgetBytes, UsedBytes: p.UsedBytes,
			PageBytes: int64(v.d.config.DiskGranule), Objects: p.Entries,
		}
		for _, t := range p.Tenants {
			if t.ID != 0 || t.UsedBytes > 0 {
				pool.Tenants = append(pool.Tenants, api.TenantPool{Tenant: t.Name, UsedBytes: t.UsedBytes, QuotaBytes: quota[t.ID]})
			}
		}
		list = append(list, pool)
	}
	return list
}

// Connections implements api.Node.
func (v view) Connections() []api.Connection {
	var list []api.Connection
	for _, c := range v.d.server.list() {
		entry := api.Connection{
			ID: c.id, UID: c.peer.uid, GID: c.peer.gid, PID: c.peer.pid, Since: c.since,
			Requests: c.requests.Load(), InFlight: int(c.flying.Load()),
		}
		if a := c.attached.Load(); a != nil {
			entry.Client, entry.Tenants = a.client, a.names
			entry.Leases, entry.Reservations = a.session.Holdings()
			held, _ := a.slots.held()
			entry.Leases += held
			entry.StagingBytes, entry.SlotBytes = a.stagingBytes, a.slotBytes
			if l := a.lent.Load(); l != nil {
				held, _ := l.slots.held()
				entry.Leases += held
				entry.DeviceBytes = l.bytes()
			}
			for _, b := range c.bindings() {
				if !slices.Contains(entry.Profiles, uint32(b.profile)) {
					entry.Profiles = append(entry.Profiles, uint32(b.profile))
				}
			}
		}
		list = append(list, entry)
	}
	return list
}

func (c *conn) bindings() []binding {
	a := c.attached.Load()
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.mu.bindings)
}

// Counters implements api.Node; stats on the socket answers the same.
func (v view) Counters() []api.Counter { return v.d.server.counters() }

func (s *server) counters() []api.Counter {
	var list []api.Counter
	add := func(name string, value float64) { list = append(list, api.Counter{Name: name, Value: value}) }
	add("connections", float64(len(s.list())))
	add("requests_in_flight", float64(s.busy.Load()))
	add("requests_queued", float64(s.queued()))
	add("requests_waiting", float64(s.waiting.Load()))
	for _, p := range s.store.Pools() {
		name := "pool_" + p.Name
		if p.Place == tier.PlaceHBM {
			name = "hbm_" + name
		}
		add(name+"_capacity_bytes", float64(p.CapacityBytes))
		add(name+"_used_bytes", float64(p.UsedBytes))
		add(name+"_objects", float64(p.Objects))
	}
	whole := func(name string, value uint64) { add(name, float64(value)) }
	if s.gpu != nil {
		add("hbm_connection_bytes", float64(s.gpu.lentBytes()))
	}
	if s.disk != nil {
		u := s.disk.Usage()
		for i := range u.Pools {
			add("disk_pool_"+u.Pools[i].Name+"_capacity_bytes", float64(u.Pools[i].BudgetBytes))
			add("disk_pool_"+u.Pools[i].Name+"_used_bytes", float64(u.Pools[i].UsedBytes))
			add("disk_pool_"+u.Pools[i].Name+"_objects", float64(u.Pools[i].Entries))
		}
		below := s.disk.Counters()
		below.Each(func(name string, value uint64) { whole("disk_"+name, value) })
	}
	s.counts.each(whole)
	s.canary.each(whole)
	stored := s.store.Counters()
	stored.Each(whole)
	advised := s.store.AdviceStats()
	advised.Each(whole)
	s.store.EachDecision(func(what tiering.What, why tiering.Because, n uint64) {
		whole("decisions_"+what.String()+"_"+slug(why.String()), n)
	})
	slices.SortFunc(list, func(a, b api.Counter) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// stats is the operation on the socket.
func (t *task) stats() (wire.Message, error) {
	var m wire.StatsRequest
	if err := m.Decode(t.body); err != nil {
		return nil, err
	}
	out := &wire.StatsReply{}
	for _, c := range t.conn.server.counters() {
		if len(out.Names) == wire.MaxStats {
			break
		}
		out.Names = append(out.Names, c.Name)
		out.Values = append(out.Values, c.Value)
	}
	return out, nil
}

func tierName(p tier.Place) string {
	names := [...]string{tier.PlaceNone: "none", tier.PlaceHBM: "hbm", tier.PlaceDRAM: "dram", tier.PlaceDisk: "disk"}
	return names[min(int(p), len(names)-1)]
}

// checks lists what this node can and cannot do. None of it takes the node out
// of service.
func (d *Daemon) checks() []api.Check {
	list := []api.Check{
		{Name: "peer_pidfd", State: api.CheckOK},
		{Name: "memory", State: api.CheckOK},
		{Name: "profiles", State: api.CheckOK},
	}
	if n := len(d.store.Profiles()); n >= d.config.MaxProfiles {
		list[2].State = api.CheckDegraded
		list[2].Detail = fmt.Sprintf("%d profiles are registered, the most: a new one is refused unless one of them is neither used nor held", n)
	}
	if !d.pidfds {
		list[0].State = api.CheckDegraded
		list[0].Detail = "the kernel has no SO_PEERPIDFD (Linux 6.5): a killed client whose socket lives on in a child is noticed only when that ends"
	}
	total := d.config.Arena + d.config.Private + d.config.ConnectionMemory
	if limit := d.machine.MemoryBytes; limit > 0 && total > limit {
		list[1].State = api.CheckDegraded
		list[1].Detail = fmt.Sprintf("pools and connection memory may grow to %v, this process may use %v", total, limit)
	}
	list = append(list, d.splicingCheck())
	if check, ok := d.diskCheck(); ok {
		list = append(list, check)
	}
	if check, ok := d.gpuCheck(); ok {
		list = append(list, check)
	}
	slices.SortFunc(list, func(a, b api.Check) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
