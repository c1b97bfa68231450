package tiering

import (
	"slices"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// The model of HBM is a list of copies. From what memory and the lower tier have, it says what
// has to be in HBM, what every lookup answers and how every promotion ends.

// modelCopy is a copy in HBM that lookups find, or that only leases keep.
type modelCopy struct {
	key        objects.CopyKey
	charge     int64 // of its tenant
	pages      int64
	private    bool
	from       []uint64 // digests of what it was made of
	generation uint64   // of the lower tier's entry, once the object has left memory
	loose      bool     // the object has left memory
	content    []byte   // of the parts
	layout     profile.Layout
	extents    []gpuipc.Extent
	found      bool
	leases     int
	stamp      int
}

// sizeHBM turns numbers of copies into bytes.
func (m *model) sizeHBM(p *profile.Profile) {
	o := &m.o
	o.states = true
	pages := func(bytes int64) int64 { return (bytes + 8191) / 8192 * 8192 }
	segment, prefix := p.SegmentLayout(24+3*(o.segments-1)), p.CheckpointLayout(10+4*(o.checkpoints-1))
	o.private = o.public
	o.hbmPublic, o.hbmPrivate = int64(o.copies)*pages(segment.Bytes), int64(o.prefixes)*pages(prefix.Bytes)
	o.quota = int64(o.paid) * (pages(segment.Bytes) + recordOf(1, segment))
}

// anyDevice returns one of the devices.
func (m *model) anyDevice() *hbm.Cache { return m.hbm[m.rng.IntN(len(m.hbm))] }

// copyOf names a rank's copy on one of the devices.
func (m *model) copyOf(o *modelObject, rank int) objects.CopyKey {
	id := objects.Identity{Name: o.Name, Profile: m.profileState(), Tenant: m.cat.Objects.Tenants[o.tenant]}
	return objects.CopyKey{Identity: id, Rank: rank, Device: m.anyDevice().ID()}
}

// sameCopy reads a copy's parts.
func (m *model) sameCopy(c *modelCopy, digests []uint64) {
	m.Helper()
	ref := gpuipc.Ref{Region: m.DeviceArena(c.key.Device), Extents: c.extents}
	got := make([]byte, ref.Len())
	m.must(m.twins[c.key.Device-1].Load(m.ctx, got, ref))
	m.wantParts(&c.layout, c.content, got, digests)
}

func partDigests(l *profile.Layout, data []byte) (digests []uint64) {
	for _, p := range l.Parts {
		digests = gpuipc.AppendDigests(digests, data[p.Off:p.Off+p.Len])
	}
	return digests
}

// source returns the object of a name, if it is whole in memory.
func (m *model) source(k objects.Identity) *objects.Object {
	m.cat.Mu.Lock()
	defer m.cat.Mu.Unlock()
	o := m.cat.Objects.Names.Find(k.Name, k.Profile, k.Tenant)
	if o == nil || o.Phase != objects.Whole || o.Fill != nil {
		return nil
	}
	return o
}

// entry returns the generation of the lower tier's entry.
func (m *model) entry(n tier.Name) (generation uint64, ok bool) {
	m.tier.mu.Lock()
	defer m.tier.mu.Unlock()
	if e := m.tier.entries[n]; e != nil {
		return e.Generation, true
	}
	return 0, false
}

// sources returns the objects of the copies that lookups find.
func (m *model) sources() map[objects.Identity]*objects.Object {
	was := map[objects.Identity]*objects.Object{}
	for _, c := range m.copies {
		if c.found {
			was[c.key.Identity] = m.source(c.key.Identity)
		}
	}
	return was
}

// follow takes over what an operation did to the objects of copies, given those before it.
func (m *model) follow(was map[objects.Identity]*objects.Object) {
	if m.kind != above {
		return
	}
	m.yielded() // for a write of an object, before that object leaves memory
	for _, c := range m.copies {
		before, known := was[c.key.Identity]
		if !c.found || !known {
			continue
		}
		o := m.source(c.key.Identity)
		if o == nil && before != nil { // it has left memory
			c.loose = true
			c.generation, c.found = m.entry(c.key.Name)
		}
		if o != nil && o != before { // it has come back, perhaps of another run
			c.loose = false
			c.found = slices.Equal(c.from, o.Shares[c.key.Rank].Digests)
		}
	}
	m.forgetCopies()
}

// dropEach evicts all objects from memory that may be evicted, one by one.
func (m *model) dropEach() {
	for before := m.sources(); m.dropNext(); before = m.sources() {
		m.follow(before)
	}
	m.cat.Launch()
}

// yielded drops the copies that were dropped for a quota: as many as were counted, those first
// that were used longest ago.
func (m *model) yielded() {
	n := m.Counters().HBM.Dropped[stats.DropQuota]
	for ; m.dropped < n; m.dropped++ {
		if m.o.quota == 0 {
			m.fatal("a copy was dropped for a quota")
		}
		m.oldestCopy(func(c *modelCopy) bool { return c.key.Tenant.ID == tenantA }).found = false
		m.forgetCopies()
	}
}

// oldestCopy returns the copy that may be dropped and was used longest ago; nil = none.
func (m *model) oldestCopy(of func(*modelCopy) bool) (first *modelCopy) {
	for _, c := range m.copies {
		if c.found && c.leases == 0 && of(c) && (first == nil || c.stamp < first.stamp) {
			first = c
		}
	}
	return first
}

// forgetCopies forgets what neither lookups nor leases have.
func (m *model) forgetCopies() {
	m.copies = slices.DeleteFunc(m.copies, func(c *modelCopy) bool { return !c.found && c.leases == 0 })
}

// findCopy returns the copy that a lookup must find.
func (m *model) findCopy(k objects.CopyKey) *modelCopy {
	for _, c := range m.copies {
		if c.found && c.key == k {
			if generation, below := m.entry(k.Name); c.loose && (!below || generation != c.generation) {
				return nil
			}
			return c
		}
	}
	return nil
}

func (m *model) useCopy(c *modelCopy) {
	m.stamps++
	c.stamp = m.stamps
}

// acquireCopy leases a segment's copy on one of the devices.
func (m *model) acquireCopy(i, n, rank int) {
	if m.o.hbmPublic == 0 {
		return
	}
	want := m.described(false, n)
	k := m.copyOf(want, rank)
	c := m.findCopy(k)
	q := &AcquireQuery{Profile: m.id, Tenant: want.tenant, Rank: rank, Digests: true, Keys: [][32]byte{want.Key}, Device: k.Device}
	rows, err := m.sessions[i].AcquireResident(q, nil)
	m.must(err)
	m.leasedCopy(i, k, c, rows[0].Promoting, rows[0].Hit, rows[0].Lease, LoadedNode{Extents: rows[0].Extents, Digests: rows[0].Digests})
}

func (m *model) loadCopy(i, n, rank int) {
	want := m.described(true, n)
	k := m.copyOf(want, rank)
	c := m.findCopy(k)
	if m.source(k.Identity) == nil && !m.onDisk(want) {
		c = nil
	}
	q := &LoadQuery{Profile: m.id, Tenant: tenantA, Rank: rank, Accept: tier.Exact | tier.Spliced, Digests: true, Hash: want.Key, Device: k.Device}
	got, err := m.sessions[i].LoadResident(q)
	m.must(err)
	m.leasedCopy(i, k, c, got.Promoting, got.Hit, got.Lease, append(got.Nodes, LoadedNode{})[0])
}

// leasedCopy checks the answer to a lookup in HBM, which has to find the copy c (nil = none).
func (m *model) leasedCopy(i int, k objects.CopyKey, c *modelCopy, promoting, hit bool, id tier.LeaseID, got LoadedNode) {
	m.Helper()
	if hit != (c != nil) {
		m.fatal("%x rank %d: hit %v, in HBM %v", k.Name.Key[:4], k.Rank, hit, c != nil)
	}
	if hit {
		if !slices.Equal(got.Extents, c.extents) {
			m.fatal("%x rank %d is at %v, was put at %v", k.Name.Key[:4], k.Rank, got.Extents, c.extents)
		}
		m.sameCopy(c, got.Digests)
		m.useCopy(c)
		c.leases++
		m.sessions[i].leases = append(m.sessions[i].leases, &modelLease{copy: c, id: id})
		return
	}
	m.dropStale(func(c *modelCopy) bool { return c.key.Identity == k.Identity })
	if m.source(k.Identity) == nil {
		return
	}
	m.cat.Mu.Lock()
	flights := m.hbm.Of(k.Device).Flights
	wanted, full := flights.Find(k) != nil, flights.Len(0) >= m.o.promotions
	m.cat.Mu.Unlock()
	if promoting != wanted || !wanted && !full {
		m.fatal("%x rank %d: promoting %v, among the promotions %v", k.Name.Key[:4], k.Rank, promoting, wanted)
	}
}

// dropStale drops copies whose object is on no tier any more, which a lookup or a sweep notices.
func (m *model) dropStale(of func(*modelCopy) bool) {
	for _, c := range m.copies {
		if c.found && of(c) && m.findCopy(c.key) == nil {
			c.found = false
		}
	}
	m.forgetCopies()
}

// promoteCopy carries out the next promotion into HBM, which has to end as the model says.
func (m *model) promoteCopy() {
	h := m.anyDevice()
	m.cat.Mu.Lock()
	f := h.Flights.Peek()
	if f == nil {
		h.Guess()
		f = h.Flights.Peek()
	}
	m.cat.Mu.Unlock()
	if f == nil {
		return
	}
	p := f.Job.(*hbm.Promotion)
	want, c := m.planned(p)
	if want == transfer.Done && m.rng.IntN(6) == 0 {
		m.twins[h.ID()-1].Spoil(1)
		want = transfer.Corrupt
	}
	h.Flights.Try(m.ctx, 0)
	if how := transfer.OutcomeOf(p.Err()); !p.Ended() || how != want {
		m.fatal("promotion of %x ended as %q, want %q", p.Name.Key[:4], how, want)
	}
	m.dropped = m.Counters().HBM.Dropped[stats.DropQuota]
	if want == transfer.Done {
		c.extents = p.Copy.Shares[p.Rank].Extents
		m.useCopy(c)
		m.copies = append(m.copies, c)
	}
	m.forgetCopies()
}

// planned returns how a promotion has to end, and the copy that it makes. The copies that have
// to make room for it are dropped from the model.
func (m *model) planned(p *hbm.Promotion) (transfer.Outcome, *modelCopy) {
	o := m.source(p.Identity)
	if o == nil {
		return transfer.Gone, nil
	}
	c := &modelCopy{key: p.CopyKey, private: o.Kind != 0, found: true, from: o.Shares[p.Rank].Digests}
	c.layout, c.content = m.flat(o, p.Rank)
	c.pages = (c.layout.Bytes + 8191) / 8192 * 8192
	c.charge = c.pages + recordOf(1, c.layout)
	mine := func(x *modelCopy) bool { return x.key.Tenant == o.Tenant }
	same := func(x *modelCopy) bool { return x.private == c.private && x.key.Device == c.key.Device }
	budget := m.o.hbmPublic
	if c.private {
		budget = m.o.hbmPrivate
	}
	sum := func(of func(*modelCopy) bool, size func(*modelCopy) int64) (n, idle int64) {
		for _, x := range m.copies {
			if of(x) {
				n += size(x)
				if x.leases == 0 {
					idle += size(x)
				}
			}
		}
		return n, idle
	}
	pages := func(x *modelCopy) int64 { return x.pages }
	used, idle := sum(same, pages)
	charged, yields := sum(mine, func(x *modelCopy) int64 { return x.charge })
	m.cat.Mu.Lock()
	elsewhere := o.Tenant.Used[objects.PublicPool] + o.Tenant.Used[objects.PrivatePool] + m.cat.Objects.Below.Used(o.Tenant)
	m.cat.Mu.Unlock()
	overQuota := int64(0)
	if q := o.Tenant.QuotaBytes; q > 0 {
		overQuota = elsewhere + charged + c.charge - q
	}
	if used+c.pages-budget > idle || overQuota > yields {
		return transfer.NoRoom, nil
	}
	drop := func(of func(*modelCopy) bool) int64 {
		x := m.oldestCopy(of)
		x.found = false
		m.forgetCopies()
		return x.charge
	}
	for overQuota > 0 {
		overQuota -= drop(mine)
	}
	for used, _ = sum(same, pages); used+c.pages > budget; used, _ = sum(same, pages) {
		drop(same)
	}
	return transfer.Done, c
}

// flat returns what a copy of an object has to hold: the object's bytes, or a chain as one node.
func (m *model) flat(o *objects.Object, rank int) (profile.Layout, []byte) {
	if o.Kind == 0 {
		return o.Layout().Layout, m.loadShare(o.Shares[rank].Extents)
	}
	l := m.profile.CheckpointLayout(o.End)
	out := make([]byte, l.Bytes)
	last := o
	for ; o != nil; o = o.Parent {
		node, data := o.Layout(), m.loadShare(o.Shares[rank].Extents)
		for i, part := range l.Parts {
			from := node.Parts[i]
			bytes := data[from.Off : from.Off+from.Len]
			switch {
			case plan.IsRows(part.Kind):
				copy(out[part.Off+part.Len/int64(part.Shape[0])*int64(o.Begin):], bytes)
			case o == last:
				copy(out[part.Off:], bytes)
			}
		}
	}
	return l, out
}

// compareCopies wants the store to have the model's copies, no byte more and none less.
func (m *model) compareCopies() {
	m.Helper()
	m.sweepHBM()
	m.dropStale(func(*modelCopy) bool { return true })
	used := make([][2]int64, len(m.hbm))
	found := 0
	for _, c := range m.copies {
		if at := &used[c.key.Device-1]; c.private {
			at[1] += c.pages
		} else {
			at[0] += c.pages
		}
		if !c.found {
			continue
		}
		found++
		m.cat.Mu.Lock()
		have := m.cat.Objects.HBM.Copy(c.key)
		m.cat.Mu.Unlock()
		if have == nil || !slices.Equal(have.Shares[c.key.Rank].Extents, c.extents) {
			m.fatal("%x rank %d is not on device %d as it should be", c.key.Name.Key[:4], c.key.Rank, c.key.Device)
		}
	}
	if n := m.Counters().HBM.Copies; n != uint64(found) {
		m.fatal("%d copies are found, want %d", n, found)
	}
	for i, p := range m.Pools()[objects.PoolCount:] {
		if want := used[i/2][i%2]; p.UsedBytes != want || p.Device != tier.DeviceID(i/2+1) {
			m.fatal("pool %s of device %d uses %d bytes, want %d", p.Name, p.Device, p.UsedBytes, want)
		}
	}
	if len(m.copies) > 0 {
		c := m.copies[m.rng.IntN(len(m.copies))]
		m.sameCopy(c, partDigests(&c.layout, c.content))
	}
}

// lose takes a device away while something is promoted. All copies on it are dropped. Memory and
// other devices do not change. Leases on it are released, since it is not read any more.
func (m *model) lose(h *hbm.Cache) {
	before := m.Pools()[:objects.PoolCount]
	want, c := m.described(false, 0), m.sessions[0]
	rows, err := c.AcquireResident(&AcquireQuery{Profile: m.id, Tenant: want.tenant, Keys: [][32]byte{want.Key}, Device: h.ID()}, nil)
	m.must(err)
	if rows[0].Hit {
		m.must(c.Release(rows[0].Lease))
	}
	m.twins[h.ID()-1].Lose()
	h.Failed(gpuipc.ErrUnavailable)
	for _, c := range m.copies {
		c.found = c.found && c.key.Device != h.ID()
	}
	m.forgetCopies()
	for i, after := range m.Pools()[:objects.PoolCount] {
		if before[i].UsedBytes != after.UsedBytes {
			m.fatal("pool %s of memory has %d bytes, had %d", after.Name, after.UsedBytes, before[i].UsedBytes)
		}
	}
	for _, s := range m.sessions {
		for _, l := range slices.Clone(s.leases) {
			if l.copy != nil && l.copy.key.Device == h.ID() {
				m.must(s.Release(l.id))
				m.drop(s, l)
			}
		}
	}
}
