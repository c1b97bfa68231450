package view

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/decided"
	"github.com/spliced-kv/spliced/daemon/events"
	"github.com/spliced-kv/spliced/daemon/gpu"
	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/daemon/server"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/object"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Options are the data sources of a view. A nil field means that the node does not have that part.
type Options struct {
	Config  *settings.Config
	Machine settings.Machine
	// Shortfalls are the settings that require more than the machine provides.
	Shortfalls []settings.Shortfall
	Version    string
	Commit     string
	Started    time.Time
	Epoch      uint64
	Socket     string
	Guard      Guard // watches the path of the socket
	Pidfds     bool  // true if the kernel reports the end of a client's process
	Serving    func() bool

	Store   *tiering.Store
	Place   tier.Place // where the store's memory is
	Device  gpuipc.Device
	GPUs    gpu.Devices // devices that the configuration requests
	Disk    *disk.Tier
	Object  *object.Store
	Server  *server.Server
	Canary  *canary.Canary
	Usage   *usage.Usage
	History *usage.History
	Tenants tiering.Tenants
	Decided *decided.Memory // decisions of earlier starts

	// Cluster returns this node's view of the other nodes.
	Cluster func() api.Cluster
	// Members are the nodes that Locate compares.
	Members *Members
	// Copies returns how many other nodes are believed to have an object, and whether the object store
	// is believed to have it; nil = there are no other nodes and no object store.
	Copies func(profile.Fingerprint, tier.TenantID, tier.Name) (nodes int, shared bool)
	// Remotes have the counters of parts that exchange data with other programs.
	Remotes []Remote
	Events  *events.Publisher
	Journal *journal.Journal // records actions of operators; nil = none

	// Reload reads keys, tokens and certificates again. If dry is true, it only checks them.
	Reload func(dry bool) (api.Reloaded, error)
	// Level is the log's level, which can be changed; nil = the level is fixed.
	Level Level
	Now   func() time.Time // nil = time.Now
}

// Parallel is the name of the Remote for segments that engines compute for each other. It is not a
// source of objects.
const Parallel = "parallel"

// Spans is the name of the Remote for the export of spans. It is not a source of objects.
const Spans = "spans"

// Remote is a part that exchanges data with programs outside the node, usually a source of objects.
type Remote struct {
	// Name is the part that its series belong to (see package metric). It is also the prefix of its
	// counters' names in listings, such as peer or object.
	Name string
	// Counters returns pointers to structs that declare counters, always of the same types.
	Counters func() []any
	// Durations are its histograms.
	Durations []prometheus.Histogram
}

// holds reports whether the Remote is a source of objects.
func (r Remote) holds() bool {
	return r.Name != remoteEvents && r.Name != remoteJournal && r.Name != Spans && r.Name != Parallel
}

// Names of the Remotes for data that the node publishes: KV events for routers, and the journal for
// operators.
const (
	remoteEvents  = "events"
	remoteJournal = "journal"
)

// Guard reports whether clients that use the path of the daemon's socket reach the daemon.
type Guard interface {
	Trouble() string // why they do not; "" = they do
	Replaced() uint64
}

// View provides what operators see of a daemon. All methods may be called concurrently. It consists
// of parts that share base.
type View struct {
	*base
	*listing
	*checks
	*operator
	*exporter
}

// base has the fields that all parts of a View use: its options, names of tenants and models, and
// the journal.
type base struct {
	o      Options
	labels labels
}

// listing lists objects, leases and requests, and looks prompts up.
type listing struct{ *base }

// checks are the health checks.
type checks struct{ *base }

// operator makes the changes that operators request: removals, pins, settings, canaries.
type operator struct {
	*base
	*listing
	removing sync.Mutex // held by a removal of many objects
}

// exporter provides the metrics for Prometheus.
type exporter struct {
	*base
	*checks
	first *prometheus.HistogramVec // time to the first token in seconds, by profile
}

// New creates a view.
func New(o Options) *View {
	if o.Events != nil {
		o.Remotes = append(o.Remotes, Remote{Name: remoteEvents, Counters: func() []any {
			c := o.Events.Counters()
			return []any{&c}
		}})
	}
	if o.Journal != nil {
		o.Remotes = append(o.Remotes, Remote{Name: remoteJournal, Counters: func() []any {
			c := o.Journal.Counters()
			return []any{&c}
		}})
	}
	b := &base{o: o, labels: newLabels()}
	l, c := &listing{b}, &checks{b}
	return &View{b, l, c, &operator{base: b, listing: l}, &exporter{b, c, newFirst()}}
}

var (
	_ api.Node      = (*View)(nil)
	_ api.Catalogue = (*View)(nil)
)

// Status implements api.Node.
func (v *View) Status() api.Status {
	device := v.o.Device.Describe()
	return api.Status{
		Ready: v.o.Serving() && !v.o.Server.Draining(), Alive: v.o.Server.Alive(time.Now()),
		Node: v.o.Config.Node, Version: v.o.Version, BootEpoch: v.o.Epoch, Started: v.o.Started,
		Socket: v.o.Socket, Device: device.Kind + " " + device.Name, Features: device.Features,
		GPUs: v.gpus(), Checks: v.Checks(),
	}
}

// Profiles implements api.Node.
func (v *listing) Profiles() []api.Profile {
	engines := map[tier.ProfileID][]string{}
	for _, c := range v.o.Server.Connections() {
		for _, b := range c.Bindings {
			if !slices.Contains(engines[b.Profile], b.Engine) {
				engines[b.Profile] = append(engines[b.Profile], b.Engine)
			}
		}
	}
	var list []api.Profile
	for _, p := range v.o.Store.Profiles() {
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

// rowBytes returns the bytes of keys and values of one token, without the padding of parts.
func rowBytes(p *profile.Profile) int64 {
	var n int64
	for _, i := range p.AttentionLayers() {
		a := &p.Layer(i).Attention
		n += int64(p.RankKVHeads(i)) * int64(a.KeyDim+a.ValueDim) * int64(a.DType.Size())
	}
	return n
}

// Pools implements api.Node.
func (v *View) Pools() []api.Pool {
	var list []api.Pool
	for _, p := range v.o.Store.Pools() {
		pool := api.Pool{
			Name: p.Name, Tier: tierName(p.Place), Device: v.gpuName(p.Device), CapacityBytes: p.CapacityBytes, UsedBytes: p.UsedBytes,
			LeasedBytes: p.LeasedBytes, PendingBytes: p.PendingBytes, QuarantinedBytes: p.QuarantinedBytes,
			PageBytes: int64(p.PageBytes), Objects: p.Objects,
		}
		for _, t := range p.Tenants {
			pool.Tenants = append(pool.Tenants, api.TenantPool{Tenant: t.Name, UsedBytes: t.UsedBytes, QuotaBytes: t.QuotaBytes})
		}
		list = append(list, pool)
	}
	return slices.Concat(list, v.diskPools(), v.objectPools())
}

// diskPools returns the pools on disk. A tenant that is no longer configured is listed while it has
// objects there.
func (v *View) diskPools() []api.Pool {
	if v.o.Disk == nil {
		return nil
	}
	quota := v.o.Store.Budgets().Quotas
	var list []api.Pool
	u := v.o.Disk.Usage()
	for i := range u.Pools {
		p := &u.Pools[i]
		pool := api.Pool{
			Name: p.Name, Tier: tierName(tier.PlaceDisk), CapacityBytes: p.BudgetBytes, UsedBytes: p.UsedBytes,
			PageBytes: int64(v.o.Config.DiskGranule), Objects: p.Entries,
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
func (v *listing) Connections() []api.Connection {
	var list []api.Connection
	for _, c := range v.o.Server.Connections() {
		list = append(list, c.Connection)
	}
	return list
}

// Counters implements api.Node. The operation stats on the engine socket returns the same list.
func (v *View) Counters() []api.Counter {
	var list []api.Counter
	add := func(name string, value float64) { list = append(list, api.Counter{Name: name, Value: value}) }
	declared := func(prefix string, c any) {
		metric.Each(c, func(name string, value uint64) { add(prefix+name, float64(value)) })
	}
	load, stored := v.o.Server.Load(), v.o.Store.Counters()
	declared("", &load)
	declared("", &stored)
	for _, p := range poolTotals(v.o.Store.Pools()) {
		name := "pool_" + p.Name
		if p.Place == tier.PlaceHBM {
			name = "hbm_" + name
		}
		add(name+"_capacity_bytes", float64(p.CapacityBytes))
		add(name+"_used_bytes", float64(p.UsedBytes))
		add(name+"_objects", float64(p.Objects))
	}
	if len(v.o.GPUs) > 0 {
		var lent int64
		for _, g := range v.o.GPUs {
			lent += g.ConnectionBytes()
		}
		add("hbm_connection_bytes", float64(lent))
	}
	if v.o.Disk != nil {
		u, below := v.o.Disk.Usage(), v.o.Disk.Counters()
		for i := range u.Pools {
			p := &u.Pools[i]
			add("disk_pool_"+p.Name+"_capacity_bytes", float64(p.BudgetBytes))
			add("disk_pool_"+p.Name+"_used_bytes", float64(p.UsedBytes))
			add("disk_pool_"+p.Name+"_objects", float64(p.Entries))
		}
		declared("disk_", &below)
	}
	counts, sums, advised := v.o.Server.Counts(), v.o.Canary.Sums(), v.o.Store.Advisor().Stats()
	for _, r := range v.o.Remotes {
		for _, c := range r.Counters() {
			declared(r.Name+"_", c)
		}
	}
	declared("", counts)
	declared("", &sums)
	advised.Each(func(name string, value uint64) { add(name, float64(value)) })
	counts.EachAnswer(func(op, code string, answers, rows uint64) {
		if answers > 0 {
			add("requests_"+op+"_"+code, float64(answers))
		}
		if rows > 0 {
			add("rows_"+op+"_"+code, float64(rows))
		}
	})
	v.o.Store.Decisions().Counts(func(what decision.What, why decision.Reason, n uint64) {
		add("decisions_"+what.String()+"_"+slug(why.String()), float64(n))
	})
	slices.SortFunc(list, func(a, b api.Counter) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// poolTotals adds up pools that have the same name on several devices.
func poolTotals(pools []tiering.PoolInfo) (totals []tiering.PoolInfo) {
	for _, p := range pools {
		i := slices.IndexFunc(totals, func(t tiering.PoolInfo) bool { return t.Place == p.Place && t.Name == p.Name })
		if i < 0 {
			totals = append(totals, p)
			continue
		}
		t := &totals[i]
		t.CapacityBytes += p.CapacityBytes
		t.UsedBytes += p.UsedBytes
		t.LeasedBytes += p.LeasedBytes
		t.PendingBytes += p.PendingBytes
		t.QuarantinedBytes += p.QuarantinedBytes
		t.DemotingBytes += p.DemotingBytes
		t.Objects += p.Objects
	}
	return totals
}

func tierName(p tier.Place) string {
	names := [...]string{tier.PlaceNone: "none", tier.PlaceHBM: "hbm", tier.PlaceDRAM: "dram", tier.PlaceDisk: "disk", tier.PlacePeer: "peer", tier.PlaceObject: "object"}
	return names[min(int(p), len(names)-1)]
}

// Checks lists the node's capabilities and problems. The node stays in service with all of them.
func (v *checks) Checks() []api.Check {
	trouble := map[string]string{ // by the check's name; "" = none
		"peer_pidfd": "", "memory": "", "profiles": "", "connections": "", "splicing": v.splicingTrouble(), "socket": v.o.Guard.Trouble(),
	}
	if n := len(v.o.Store.Profiles()); n >= v.o.Config.MaxProfiles {
		trouble["profiles"] = fmt.Sprintf("%d profiles are registered, the maximum: a new one is refused unless one of them is unused and holds nothing", n)
	}
	if !v.o.Pidfds {
		trouble["peer_pidfd"] = "the kernel has no SO_PEERPIDFD (Linux 6.5): a killed client whose socket survives in a child is noticed only when the child ends"
	}
	total := v.o.Config.Arena + v.o.Config.Private + v.o.Config.ConnectionMemory
	if limit := v.o.Machine.MemoryBytes; limit > 0 && total > limit {
		trouble["memory"] = fmt.Sprintf("pools and connection memory may grow to %v, this process may use %v", total, limit)
	}
	for _, short := range v.o.Shortfalls {
		trouble[short.Check] = strings.TrimSuffix(short.Text+"; "+trouble[short.Check], "; ")
	}
	if v.o.Server.Draining() {
		trouble["drain"] = "no new clients and objects are accepted until the drain is undone: splicectl drain --undo, or DELETE /api/v1/drain"
	}
	if v.o.Disk != nil {
		trouble["disk"] = diskTrouble(v.o.Disk.Health())
	}
	if v.o.Object != nil {
		trouble["object"] = v.o.Object.Health().Trouble
	}
	if v.o.Config.UsesHBM() {
		trouble["hbm"] = v.gpuTrouble()
	}
	if v.o.Events != nil {
		trouble["events"] = v.o.Events.Trouble()
	}
	var list []api.Check
	for _, name := range slices.Sorted(maps.Keys(trouble)) {
		check := api.Check{Name: name, State: api.CheckOK, Detail: trouble[name]}
		if check.Detail != "" {
			check.State = api.CheckDegraded
		}
		list = append(list, check)
	}
	return list
}
