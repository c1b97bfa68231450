package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
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
		Checks: d.checks(),
	}
}

// Profiles implements api.Node.
func (v view) Profiles() []api.Profile {
	engines := map[tiering.ProfileID][]string{}
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
	add("requests_queued", float64(s.queue.length()))
	for _, p := range s.store.Pools() {
		add("pool_"+p.Name+"_capacity_bytes", float64(p.CapacityBytes))
		add("pool_"+p.Name+"_used_bytes", float64(p.UsedBytes))
		add("pool_"+p.Name+"_objects", float64(p.Objects))
	}
	whole := func(name string, value uint64) { add(name, float64(value)) }
	s.counts.each(whole)
	stored := s.store.Counters()
	stored.Each(whole)
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

// Segments implements api.Catalogue.
func (v view) Segments(q api.SegmentQuery) ([]api.Segment, error) {
	f := tiering.SegmentFilter{Prefix: q.Prefix}
	ok := false
	if f.Tenant, ok = v.tenant(q.Tenant); !ok {
		return nil, nil
	}
	if f.Profile, ok = profileFilter(q.Profile); !ok {
		return nil, nil
	}
	var list []api.Segment
	for _, s := range v.d.store.Segments(f, (*profile.SegmentKey)(q.After), q.Limit) {
		list = append(list, v.segment(&s))
	}
	return list, nil
}

// tenant turns a name into a filter: no name selects all, an unknown one none.
func (v view) tenant(name string) (*tiering.TenantID, bool) {
	if name == "" {
		return nil, true
	}
	for i := range v.d.server.tenants {
		if v.d.server.tenants[i].Name == name {
			return &v.d.server.tenants[i].ID, true
		}
	}
	return nil, false
}

// profileFilter: the store has no profile 0, its filter takes it for all.
func profileFilter(id *uint32) (tiering.ProfileID, bool) {
	if id == nil {
		return 0, true
	}
	return tiering.ProfileID(*id), *id != 0
}

func (v view) tenantName(id tiering.TenantID) string {
	for i := range v.d.server.tenants {
		if v.d.server.tenants[i].ID == id {
			return v.d.server.tenants[i].Name
		}
	}
	return ""
}

func (v view) segment(s *tiering.SegmentInfo) api.Segment {
	state := "pending"
	if s.Published {
		state = "published"
	}
	return api.Segment{
		Key: api.Digest(s.Key), Profile: uint32(s.Profile), Model: s.Model, Tenant: v.tenantName(s.Tenant), State: state,
		Tiers: []string{tierName(s.Place)}, Level: api.LevelMemory, Role: s.Spec.Role.String(), Tokens: s.Spec.Tokens, Interior: s.Interior, Bytes: s.Bytes,
		Leases: s.Leases, Hits: s.Hits, Publisher: s.Publisher, Created: s.Created, LastUsed: s.LastUsed,
	}
}

// Segment implements api.Catalogue.
func (v view) Segment(key api.Digest) (api.SegmentDetail, error) {
	s, ok := v.d.store.Segment(profile.SegmentKey(key))
	if !ok {
		return api.SegmentDetail{}, fmt.Errorf("segment %v: %w", key, api.ErrNotFound)
	}
	d := api.SegmentDetail{Segment: v.segment(&s.SegmentInfo), HeadExcluded: s.Spec.Head, TailExcluded: s.Spec.Tail}
	for rank, extents := range s.Extents {
		d.Extents += len(extents)
		for _, p := range s.Layout.Parts {
			d.Parts = append(d.Parts, api.SegmentPart{
				Rank: rank, Layer: p.Layer, Kind: strings.ToLower(p.Kind.String()), DType: strings.ToLower(p.DType.String()),
				Shape: shapeOf(p), Bytes: p.Len,
			})
		}
	}
	return d, nil
}

// shapeOf leaves out trailing dimensions of 1, but keeps one.
func shapeOf(p profile.Part) []int {
	n := len(p.Shape)
	for n > 1 && p.Shape[n-1] <= 1 {
		n--
	}
	return slices.Clone(p.Shape[:n])
}

// Checkpoints implements api.Catalogue.
func (v view) Checkpoints(q api.CheckpointQuery) ([]api.Checkpoint, error) {
	var f tiering.CheckpointFilter
	ok := false
	if f.Tenant, ok = v.tenant(q.Tenant); !ok {
		return nil, nil
	}
	if f.Profile, ok = profileFilter(q.Profile); !ok {
		return nil, nil
	}
	after, list := (*profile.PrefixHash)(q.After), []api.Checkpoint(nil)
	for {
		// Pending ones are left out, so one page of the store may not fill ours.
		page := v.d.store.Checkpoints(f, after, q.Limit)
		for i := range page {
			if page[i].Published {
				list = append(list, v.checkpoint(&page[i]))
			}
		}
		if len(page) < q.Limit || len(list) >= q.Limit {
			return list, nil
		}
		after = &page[len(page)-1].Hash
	}
}

func (v view) checkpoint(c *tiering.CheckpointInfo) api.Checkpoint {
	entry := api.Checkpoint{
		Hash: api.Digest(c.Hash), Profile: uint32(c.Profile), Model: c.Model, Tenant: v.tenantName(c.Tenant),
		Kind: "exact", Tiers: []string{tierName(v.d.store.Pools()[0].Place)}, Level: api.LevelMemory, Tokens: c.Tokens, Rows: c.Tokens - c.Begin, Bytes: c.Bytes, Leases: c.Leases,
		Children: c.Children, Created: c.Created, LastUsed: c.LastUsed,
	}
	if c.Kind == tiering.Spliced {
		entry.Kind = "spliced"
	}
	if c.Parent != (profile.PrefixHash{}) {
		parent := api.Digest(c.Parent)
		entry.Parent = &parent
	}
	return entry
}

// Remove implements api.Catalogue.
func (v view) Remove(key api.Digest) error {
	err := v.d.store.Evict(profile.SegmentKey(key))
	switch {
	case errors.Is(err, tiering.ErrGone):
		return fmt.Errorf("%w: %w", err, api.ErrNotFound)
	case errors.Is(err, tiering.ErrBusy):
		return fmt.Errorf("%w: %w", err, api.ErrBusy)
	}
	return err
}

func tierName(p tiering.Place) string {
	names := [...]string{tiering.PlaceNone: "none", tiering.PlaceHBM: "hbm", tiering.PlaceDRAM: "dram", tiering.PlaceDisk: "disk"}
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
	slices.SortFunc(list, func(a, b api.Check) int { return cmp.Compare(a.Name, b.Name) })
	return list
}
