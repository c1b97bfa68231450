package tiering

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/hbm"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// The model of HBM is a list of copies. What memory and the lower tier hold it takes
// from the store as given, and says from that what has to be in HBM, what every
// lookup answers and how every promotion ends. Random operations go to the store;
// after each of them the two must agree.

type hbmOptions struct {
	ranks           int
	segments, loads int // of the largest ones, how many copies fit into HBM
	quota           int // the same of the quota, over all tiers; 0 = none
	queue           int
	memory          int64 // of each pool of memory
	devices         int   // 0 = one; each with the room above

	public, private int64 // of HBM, in bytes
}

var hbmOptionSets = []hbmOptions{
	{ranks: 1, segments: 3, loads: 2, queue: 100, memory: 4 << 20},
	{ranks: 2, segments: 4, loads: 2, queue: 3, memory: 800 << 10},
	{ranks: 1, segments: 20, loads: 20, quota: 14, queue: 100, memory: 4 << 20},
	{ranks: 2, segments: 0, loads: 3, queue: 10, memory: 800 << 10},
	{ranks: 2, segments: 3, loads: 2, queue: 100, memory: 4 << 20, devices: 2},
	{ranks: 1, segments: 20, loads: 20, quota: 14, queue: 3, memory: 4 << 20, devices: 2},
}

// sized turns numbers of copies into bytes.
func (o hbmOptions) sized(t *testing.T) (_ hbmOptions, quota int64) {
	p, err := profile.New(stateful(o.ranks))
	if err != nil {
		t.Fatal(err)
	}
	pages := func(bytes int64) int64 { return (bytes + 8191) / 8192 * 8192 }
	segment, checkpoint := p.SegmentLayout(24+6*7), p.CheckpointLayout(48)
	o.public, o.private = int64(o.segments)*pages(segment.Bytes), int64(o.loads)*pages(checkpoint.Bytes)
	return o, int64(o.quota) * (pages(segment.Bytes) + recordOf(1, segment))
}

// modelCopy is a copy in HBM, found or only held by leases.
type modelCopy struct {
	key        objects.CopyKey
	charge     int64 // of its tenant
	pages      int64
	private    bool
	from       []uint64 // digests of what it was made of
	generation uint64   // of the entry, once the object has left memory
	loose      bool
	content    []byte // of the parts
	layout     profile.Layout
	extents    []gpuipc.Extent
	found      bool
	leases     int
	stamp      int
}

type hbmLease struct {
	copy    *modelCopy
	session int
	id      tier.LeaseID
}

type hbmModel struct {
	*several
	o        hbmOptions
	rng      *rand.Rand
	pieces   []piece
	copies   []*modelCopy
	leases   []hbmLease
	sessions []*Session
	stamps   int
	step     int
	runs     int
	dropped  uint64 // by quota, as last counted
}

func TestHBMAgreesWithItsModel(t *testing.T) {
	runRandom(t, hbmOptionSets, min(*modelSeeds, 4), 1, 400, 250, runHBMModel, func(o hbmOptions, seeds uint64, seen *met) map[string]bool {
		p, d := &seen.HBM.Promotions, &seen.HBM.Dropped
		return map[string]bool{
			"promoted": p[transfer.Done] >= 5*seeds, "corrupt": p[transfer.Corrupt] > 0, "gone": p[transfer.Gone] > 0, "no room": p[transfer.NoRoom] > 0,
			"loaded": seen.HBM.Loaded > 0, "acquired": o.segments == 0 || seen.HBM.Acquired > 0, "removed": o.segments == 0 || d[stats.DropRemoved] > 0,
			"gone with its object": d[stats.DropObject] > 0, "dropped for room": d[stats.DropRoom] > 0 || o.quota > 0,
			"dropped for a quota": (o.quota > 0) == (d[stats.DropQuota] > 0), "lost": d[stats.DropLost] > 0, "busy": o.queue >= 5 || seen.HBM.PromotionsBusy > 0,
		}
	})
}

func runHBMModel(t *testing.T, o hbmOptions, seed uint64, steps int, seen *met) {
	o, quota := o.sized(t)
	m := &hbmModel{o: o, rng: rand.New(rand.NewPCG(seed, 17))}
	m.several = newSeveral(t, stateful(o.ranks), func(c *Config) {
		c.PublicBytes, c.PrivateBytes = o.memory, o.memory
		c.HBM = c.HBM[:max(o.devices, 1)]
		for i := range c.HBM {
			c.HBM[i].PublicBytes, c.HBM[i].PrivateBytes, c.HBM[i].Queue = o.public, o.private, o.queue
		}
		c.Tenants[0].QuotaBytes = quota
		c.LeaseTTL = 20 * time.Second
	})
	for i := range 8 {
		m.pieces = append(m.pieces, m.mid(100+i, 24+6*i, 4))
	}
	for range 3 {
		m.sessions = append(m.sessions, m.NewSession("client"))
	}
	for m.step = range steps {
		if m.one() {
			m.compare()
		}
		if t.Failed() {
			t.Fatalf("at step %d", m.step)
		}
	}
	for _, h := range m.hbm {
		m.loseIt(h)
		m.compare()
	}
	for i := range m.sessions {
		m.closeSession(i)
	}
	m.compare()
	if len(m.copies) > 0 {
		m.fatal("%d copies are left", len(m.copies))
	}
	seen.add(m.Counters())
}

func (m *hbmModel) fatal(format string, args ...any) {
	m.Helper()
	m.Fatalf("step %d: "+format, append([]any{m.step}, args...)...)
}

// one does one random operation and tells whether everything is to be compared
// behind it: what the disk loses is noticed by the next lookup, if no sweep comes
// before it.
func (m *hbmModel) one() (compare bool) {
	i := m.rng.IntN(len(m.sessions))
	switch n := m.rng.IntN(100); {
	case n < 12:
		m.fillOne(m.pieces[m.rng.IntN(len(m.pieces))])
	case n < 22:
		m.saveOne()
	case n < 42 && m.o.public > 0:
		m.acquireOne(i, m.pieces[m.rng.IntN(len(m.pieces))], m.rng.IntN(m.o.ranks))
	case n < 56:
		m.loadOne(i, m.prefix(), m.rng.IntN(m.o.ranks))
	case n < 72:
		m.promoteOne()
	case n < 78:
		m.observe(func() { m.writeOut(); m.carryOne() }) // it must not wait for room that is being written
	case n < 86:
		m.releaseOne()
	case n < 89:
		m.observe(func() { m.writeOut() })
	case n < 91:
		m.observe(func() { m.dropAll() })
	case n < 93:
		m.removeOne()
	case n < 96:
		m.observe(m.loseOnDisk)
		return m.rng.IntN(2) == 0
	case n < 98:
		m.observe(func() { m.clock.advance(time.Duration(m.rng.IntN(12)) * time.Second); m.Sweep() })
	case n < 99:
		m.closeSession(i)
	default:
		m.thinOne()
	}
	return true
}

// fillOne publishes a segment if nobody has it.
func (m *hbmModel) fillOne(p piece) {
	m.observe(func() {
		for rank := range m.o.ranks {
			r, err := m.c.Reserve(m.reserveQuery(p, rank))
			if err != nil {
				return
			}
			m.commitAll(m.c, r, &p.layout, contentOf(p, rank))
		}
	})
}

func (m *hbmModel) prefix() int { return 1 + m.rng.IntN(3) }

// any is one of the devices.
func (m *hbmModel) any() *hbm.Cache { return m.hbm[m.rng.IntN(len(m.hbm))] }

// read is what lies in extents of a device.
func (m *hbmModel) read(d tier.DeviceID, extents []gpuipc.Extent) []byte {
	m.Helper()
	ref := gpuipc.Ref{Region: m.DeviceArena(d), Extents: extents}
	out := make([]byte, ref.Len())
	m.must(m.twins[d-1].Load(m.ctx, out, ref))
	return out
}

// wantContent looks at what lies where a copy does.
func (m *hbmModel) wantContent(c *modelCopy, digests []uint64) {
	m.Helper()
	m.wantParts(&c.layout, c.content, m.read(c.key.Device, c.extents), digests)
}

// saveOne saves one of three checkpoints, the later ones behind the earlier, each
// time of another run.
func (m *hbmModel) saveOne() {
	n := m.prefix()
	m.runs++
	m.observe(func() {
		l := m.profile.CheckpointLayout(16)
		for rank := range m.o.ranks {
			q := m.saveQuery(1, 16*n, 16*(n-1), tier.Exact)
			q.Rank = rank
			r, err := m.c.Save(q)
			if err != nil {
				return
			}
			m.commitAll(m.c, r, &l, content(&l, uint64(m.runs*8+rank)))
		}
	})
}

func (m *hbmModel) writeOut() {
	m.cat.Mu.Lock()
	_, _ = m.move.Writes.FlushLocked(0, nil)
	m.cat.Mu.Unlock()
	m.cat.Launch()
	m.tier.finishAll()
}

// thinOne thins the first checkpoint, if it may be.
func (m *hbmModel) thinOne() {
	m.observe(func() {
		m.cat.Mu.Lock()
		if o := m.node(1, 16); o != nil && o.Ranked == objects.Candidate && o.Children == 1 && m.cat.Objects.Policies.MayStrip(o) {
			m.cat.Objects.Strip(o, decision.ForRoom, nil)
		}
		m.cat.Mu.Unlock()
	})
}

// loseOnDisk has the lower tier forget an entry, or write it anew.
func (m *hbmModel) loseOnDisk() {
	m.tier.mu.Lock()
	defer m.tier.mu.Unlock()
	var names []tier.Name
	for n, e := range m.tier.entries {
		if e.children == 0 && e.readers == 0 {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return
	}
	slices.SortFunc(names, func(a, b tier.Name) int { return slices.Compare(a.Key[:], b.Key[:]) })
	e := m.tier.entries[names[m.rng.IntN(len(names))]]
	if m.rng.IntN(2) == 0 {
		m.tier.forget(e)
		return
	}
	m.tier.given++
	e.Generation = m.tier.given
}

// removeOne has an operator remove a segment.
func (m *hbmModel) removeOne() {
	p := m.pieces[m.rng.IntN(len(m.pieces))]
	m.observe(func() { _ = m.Evict(p.key) })
	for _, c := range m.copies {
		if c.key.Name.Key == p.key {
			c.found = false
		}
	}
}

// source is the object of a name, if it is whole in memory.
func (m *hbmModel) source(k objects.Identity) *objects.Object {
	m.cat.Mu.Lock()
	defer m.cat.Mu.Unlock()
	o := m.cat.Objects.Names.Find(k.Name, k.Profile, k.Tenant)
	if o == nil || !o.Published() || o.Phase == objects.Stripped || o.Fill != nil {
		return nil
	}
	return o
}

func (m *hbmModel) entry(n tier.Name) (uint64, bool) {
	m.tier.mu.Lock()
	defer m.tier.mu.Unlock()
	e := m.tier.entries[n]
	if e == nil {
		return 0, false
	}
	return e.Generation, true
}

// observe does something to memory or the disk and follows what became of the
// objects of copies.
func (m *hbmModel) observe(do func()) {
	type before struct {
		o     *objects.Object
		gen   uint64
		below bool
	}
	was := map[objects.Identity]before{}
	for _, c := range m.copies {
		if c.found {
			gen, below := m.entry(c.key.Name)
			was[c.key.Identity] = before{m.source(c.key.Identity), gen, below}
		}
	}
	do()
	for _, c := range m.copies {
		if !c.found {
			continue
		}
		b, o := was[c.key.Identity], m.source(c.key.Identity)
		gen, below := m.entry(c.key.Name)
		if o == nil && b.o != nil { // it has left
			c.loose, c.generation = true, gen
			c.found = below
		}
		if o != nil && o != b.o { // it has come
			c.loose = false
			c.found = slices.Equal(c.from, o.Shares[c.key.Rank].Digests)
		}
	}
	m.yielded()
}

// yielded follows the copies that their tenant gave up for its quota: as many as were
// counted, those first that were used longest ago.
func (m *hbmModel) yielded() {
	n := m.hbmCounters().Dropped[stats.DropQuota]
	for ; m.dropped < n; m.dropped++ {
		if m.o.quota == 0 {
			m.fatal("a copy was dropped for a quota")
		}
		m.oldest(func(c *modelCopy) bool { return c.key.Tenant.ID == tenantA }).found = false
	}
	m.forget()
}

// oldest is the copy that may leave and was used longest ago; nil = none.
func (m *hbmModel) oldest(of func(*modelCopy) bool) (first *modelCopy) {
	for _, c := range m.copies {
		if c.found && c.leases == 0 && of(c) && (first == nil || c.stamp < first.stamp) {
			first = c
		}
	}
	return first
}

// forget drops what neither lookups nor leases hold.
func (m *hbmModel) forget() {
	m.copies = slices.DeleteFunc(m.copies, func(c *modelCopy) bool { return !c.found && c.leases == 0 })
}

// find is the copy that a lookup must find.
func (m *hbmModel) find(k objects.CopyKey) *modelCopy {
	for _, c := range m.copies {
		if c.found && c.key == k {
			if gen, below := m.entry(k.Name); c.loose && (!below || gen != c.generation) {
				return nil
			}
			return c
		}
	}
	return nil
}

func (m *hbmModel) use(c *modelCopy) {
	m.stamps++
	c.stamp = m.stamps
}

// acquireOne leases a segment's copy if it is there.
func (m *hbmModel) acquireOne(i int, p piece, rank int) {
	k := objects.CopyKey{Identity: objects.Identity{Name: tier.Name{Key: p.key}, Profile: m.profileState(), Tenant: m.cat.Objects.Tenants[tenantA]}, Rank: rank, Device: m.any().ID()}
	c := m.find(k)
	rows, err := m.sessions[i].AcquireResident(&AcquireQuery{Profile: m.id, Tenant: tenantA, Rank: rank, Digests: true, Keys: [][32]byte{p.key}, Device: k.Device}, nil)
	m.must(err)
	row := rows[0]
	m.answered(i, k, c, row.Hit, row.Promoting, row.Lease, row.Extents, row.Digests)
}

func (m *hbmModel) loadOne(i, n, rank int) {
	k := objects.CopyKey{Identity: objects.Identity{Name: tier.Name{Kind: tier.Exact, Key: hashOf(1, 16*n)}, Profile: m.profileState(), Tenant: m.cat.Objects.Tenants[tenantA]}, Rank: rank, Device: m.any().ID()}
	q := &LoadQuery{Profile: m.id, Tenant: tenantA, Rank: rank, Accept: tier.Exact | tier.Spliced, Digests: true, Hash: hashOf(1, 16*n), Device: k.Device}
	c := m.find(k)
	if _, below := m.entry(k.Name); m.source(k.Identity) == nil && !below {
		c = nil
	}
	got, err := m.sessions[i].LoadResident(q)
	m.must(err)
	if !got.Hit {
		got.Nodes = []LoadedNode{{}}
	}
	m.answered(i, k, c, got.Hit, got.Promoting, got.Lease, got.Nodes[0].Extents, got.Nodes[0].Digests)
}

func (m *hbmModel) answered(i int, k objects.CopyKey, c *modelCopy, hit, promoting bool, id tier.LeaseID, extents []gpuipc.Extent, digests []uint64) {
	m.Helper()
	if hit != (c != nil) {
		m.fatal("%x rank %d: hit %v, in HBM %v", k.Name.Key[:4], k.Rank, hit, c != nil)
	}
	if !hit {
		for _, stale := range m.copies { // dropped now, if it was not before
			if stale.found && stale.key.Identity == k.Identity && m.find(stale.key) == nil {
				stale.found = false
			}
		}
		m.forget()
		if o := m.source(k.Identity); o != nil {
			m.cat.Mu.Lock()
			wanted := m.hbm.Of(k.Device).Flights.Find(k) != nil
			full := m.hbm.Of(k.Device).Flights.Len(0) >= m.o.queue
			m.cat.Mu.Unlock()
			if promoting != wanted || !wanted && !full {
				m.fatal("%x rank %d: promoting %v, among the promotions %v", k.Name.Key[:4], k.Rank, promoting, wanted)
			}
		}
		return
	}
	if !slices.Equal(extents, c.extents) {
		m.fatal("%x rank %d lies at %v, was put at %v", k.Name.Key[:4], k.Rank, extents, c.extents)
	}
	m.wantContent(c, digests)
	m.use(c)
	c.leases++
	m.leases = append(m.leases, hbmLease{c, i, id})
}

func (m *hbmModel) releaseOne() {
	if len(m.leases) == 0 {
		return
	}
	i := m.rng.IntN(len(m.leases))
	l := m.leases[i]
	m.wantContent(l.copy, partDigests(&l.copy.layout, l.copy.content))
	m.must(m.sessions[l.session].Release(l.id))
	l.copy.leases--
	m.leases = slices.Delete(m.leases, i, i+1)
	m.forget()
}

func (m *hbmModel) closeSession(i int) {
	m.sessions[i].Close()
	m.leases = slices.DeleteFunc(m.leases, func(l hbmLease) bool {
		if l.session == i {
			l.copy.leases--
		}
		return l.session == i
	})
	m.forget()
	m.sessions[i] = m.NewSession("client")
}

func partDigests(l *profile.Layout, data []byte) (digests []uint64) {
	for _, p := range l.Parts {
		digests = gpuipc.AppendDigests(digests, data[p.Off:p.Off+p.Len])
	}
	return digests
}

// promoteOne carries the next promotion into HBM and says how it has to end.
func (m *hbmModel) promoteOne() {
	h := m.any()
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
	m.dropped = m.hbmCounters().Dropped[stats.DropQuota]
	if want == transfer.Done {
		c.extents = p.Copy.Shares[p.Rank].Extents
		m.use(c)
		m.copies = append(m.copies, c)
	}
	m.forget()
}

// planned is how a promotion has to end, and the copy that it makes. What has to
// leave for it leaves the model.
func (m *hbmModel) planned(p *hbm.Promotion) (transfer.Outcome, *modelCopy) {
	o := m.source(p.Identity)
	if o == nil {
		return transfer.Gone, nil
	}
	c := &modelCopy{key: p.CopyKey, private: o.Kind != 0, found: true, from: o.Shares[p.Rank].Digests}
	c.layout, c.content = m.flat(o, p.Rank)
	c.pages = m.costHBM(c.layout.Bytes)
	c.charge = c.pages + recordOf(1, c.layout)
	mine := func(x *modelCopy) bool { return x.key.Tenant == o.Tenant }
	same := func(x *modelCopy) bool { return x.private == c.private && x.key.Device == c.key.Device }
	budget := m.o.public
	if c.private {
		budget = m.o.private
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
	charge := func(x *modelCopy) int64 { return x.charge }
	used, idle := sum(same, pages)
	held, yields := sum(mine, charge)
	m.cat.Mu.Lock()
	memory := o.Tenant.Used[objects.PublicPool] + o.Tenant.Used[objects.PrivatePool] + m.cat.Objects.Below.Used(o.Tenant)
	m.cat.Mu.Unlock()
	overQuota := int64(0)
	if q := o.Tenant.QuotaBytes; q > 0 {
		overQuota = memory + held + c.charge - q
	}
	if used+c.pages-budget > idle || overQuota > yields {
		return transfer.NoRoom, nil
	}
	for freed := int64(0); freed < overQuota; {
		x := m.oldest(mine)
		freed += x.charge
		x.found = false
		m.forget()
	}
	for {
		if used, _ = sum(same, pages); used+c.pages <= budget {
			return transfer.Done, c
		}
		m.oldest(same).found = false
		m.forget()
	}
}

// flat is what a copy of an object has to hold: the object's bytes, or a chain's as
// one node.
func (m *hbmModel) flat(o *objects.Object, rank int) (profile.Layout, []byte) {
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

// compare wants the store to have the model's copies, no byte more and none less.
func (m *hbmModel) compare() {
	m.Helper()
	m.sweepHBM()
	for _, c := range m.copies {
		if c.found && m.find(c.key) == nil {
			c.found = false
		}
	}
	m.forget()
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
	if n := m.hbmCounters().Copies; n != uint64(found) {
		m.fatal("%d copies are found, want %d", n, found)
	}
	m.audit()
	for i, p := range m.Pools()[objects.PoolCount:] {
		if want := used[i/2][i%2]; p.UsedBytes != want || p.Device != tier.DeviceID(i/2+1) {
			m.fatal("pool %s of device %d uses %d bytes, want %d", p.Name, p.Device, p.UsedBytes, want)
		}
	}
	if len(m.copies) > 0 {
		c := m.copies[m.rng.IntN(len(m.copies))]
		m.wantContent(c, partDigests(&c.layout, c.content))
	}
}

// loseIt takes a device away while something is promoted; all copies on it go, and
// memory, and other devices, are as they were.
func (m *hbmModel) loseIt(h *hbm.Cache) {
	p := m.mid(99, 30, 4)
	m.fillOne(p)
	before := m.Pools()[:2]
	if row := m.on(h.ID(), m.pieces[0], 0); row.Hit {
		m.must(m.c.Release(row.Lease))
	}
	m.twins[h.ID()-1].Lose()
	h.Failed(gpuipc.ErrUnavailable)
	for _, c := range m.copies {
		c.found = c.found && c.key.Device != h.ID()
	}
	m.forget()
	after := m.Pools()[:2]
	for i := range before {
		if before[i].UsedBytes != after[i].UsedBytes {
			m.fatal("pool %s of memory has %d bytes, had %d", after[i].Name, after[i].UsedBytes, before[i].UsedBytes)
		}
	}
	// What follows reads the lost device no more.
	m.leases = slices.DeleteFunc(m.leases, func(l hbmLease) bool {
		if l.copy.key.Device != h.ID() {
			return false
		}
		m.must(m.sessions[l.session].Release(l.id))
		l.copy.leases--
		return true
	})
	m.forget()
}
