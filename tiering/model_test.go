package tiering

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The model is the store once more, out of slices and maps, with every rule
// spelled out and nothing kept that can be counted. Random operations go to
// both; every answer, every status and every account must agree.

// tiny is a model of a few kilobytes a segment, with each kind of part.
func tiny(ranks int) profile.Identity {
	return profile.Identity{
		Model: "tiny", Weights: [32]byte{3}, Tokenizer: "bytes", TPSize: ranks,
		Layers: []profile.Layer{
			{Kind: profile.KindLinear, Linear: profile.Linear{
				Family: profile.GDN, KeyHeads: 2, ValueHeads: 4, KeyDim: 8, ValueDim: 4, StateDType: profile.F32, TransitionDType: profile.F16,
				Conv: profile.Conv{Kernel: 4, Channels: []int{32}, DType: profile.BF16},
			}},
			{Kind: profile.KindFull, Attention: profile.Attention{
				KVHeads: 2, KeyDim: 16, ValueDim: 16, DType: profile.BF16, Keys: profile.AtZero, Rope: profile.Rope{Dims: 8, Theta: 1e4},
			}},
		},
	}
}

// stateful is tiny with states of several pages, before, between and behind its rows.
func stateful(ranks int) profile.Identity {
	id := tiny(ranks)
	linear, full := id.Layers[0], id.Layers[1]
	linear.Linear.KeyDim, linear.Linear.ValueDim = 32, 24
	id.Model, id.Layers = "stateful", []profile.Layer{linear, linear, full, linear, full, linear}
	return id
}

// modelOptions is one way to set a store up.
type modelOptions struct {
	states                bool // of pages: nodes of chains can be stripped
	ranks                 int
	page                  int
	public, private       int64
	quota                 int64
	leases, reservations  int
	chain                 int
	lower                 bool // a tier that refuses all: nothing may change by it
	segments, checkpoints int
}

var modelOptionSets = []modelOptions{
	{ranks: 1, page: 4096, public: 64 << 10, private: 64 << 10, leases: 100, reservations: 100, chain: 10, segments: 20, checkpoints: 20},
	{ranks: 2, page: 4096, public: 64 << 10, private: 64 << 10, leases: 8, reservations: 6, chain: 4, segments: 12, checkpoints: 12},
	{ranks: 2, page: 8192, public: 48 << 10, private: 48 << 10, quota: 40 << 10, leases: 4, reservations: 3, chain: 3, segments: 8, checkpoints: 8},
	{ranks: 4, page: 4096, public: 200 << 10, private: 100 << 10, quota: 150 << 10, leases: 50, reservations: 20, chain: 5, lower: true, segments: 10, checkpoints: 10},
	{ranks: 1, page: 16384, public: 160 << 10, private: 0, quota: 60 << 10, leases: 20, reservations: 4, chain: 4, segments: 16, checkpoints: 4},
	{ranks: 1, page: 4096, public: 0, private: 80 << 10, leases: 20, reservations: 4, chain: 6, segments: 4, checkpoints: 30},
	{states: true, ranks: 1, page: 4096, public: 200 << 10, private: 400 << 10, leases: 20, reservations: 8, chain: 6, segments: 4, checkpoints: 24},
	{states: true, ranks: 2, page: 4096, public: 200 << 10, private: 900 << 10, quota: 400 << 10, leases: 8, reservations: 8, chain: 5, segments: 4, checkpoints: 20},
	{states: true, ranks: 1, page: 8192, public: 200 << 10, private: 400 << 10, leases: 4, reservations: 3, chain: 8, lower: true, segments: 4, checkpoints: 16},
}

// modelObject is a segment or checkpoint of the model.
type modelObject struct {
	name     string // of what it is, the same for both kinds of a checkpoint's hash
	number   int
	kind     tier.CheckpointKind
	key      [32]byte
	tenant   tier.TenantID
	private  bool
	end      int
	begin    int
	parent   *modelObject
	depth    int
	ids      int64 // bytes of token ids
	pages    int64
	record   int64
	states   [2]int64 // what thinning gives back: bytes, bytes of pages
	stripped bool
	layout   profile.Layout
	filling  map[int]*modelFill // by rank, while it is not published
	until    time.Time
	linked   bool
	holds    int // leases
	stamp    int // when it was used last
	complete int // ranks
}

type modelFill struct {
	object  *modelObject
	rank    int
	session int
	id      tier.ReservationID
	parts   map[int]bool // committed
}

type modelLease struct {
	object *modelObject
	id     tier.LeaseID
	rank   int
	until  time.Time
}

type modelSession struct {
	*Session
	leases []*modelLease
	fills  []*modelFill
}

type model struct {
	*bench
	o        modelOptions
	rng      *rand.Rand
	objects  []*modelObject // whose memory is not free
	why      map[string]tier.Reason
	made     map[uint64][]byte // bytes of shares
	stamps   int
	sessions []*modelSession
	step     int
}

var modelSeeds = flag.Uint64("model.seeds", 8, "seeds of the model test for each set of options")

func TestStoreAgreesWithModel(t *testing.T) {
	runRandom(t, modelOptionSets, *modelSeeds, 1, 600, 300, runModel, func(o modelOptions, seeds uint64, seen *met) map[string]bool {
		strips := o.states && !o.lower
		return map[string]bool{
			"published": seen.Published >= 10*seeds, "evicted for room": seen.EvictedRoom > 0, "read": seen.Acquired+seen.Loaded >= 3*seeds,
			"corrupt": seen.Aborted[stats.CauseCorrupt] > 0, "expired": seen.LeasesExpired > 0, "evicted for a quota": o.quota == 0 || seen.EvictedQuota > 0,
			"refused below": o.lower == (seen.DemotionsRefused > 0),
			"stripped":      strips == (seen.Stripped > 10 && seen.StrippedFilled > 0 && seen.StrippedDropped > 0),
		}
	})
}

func runModel(t *testing.T, o modelOptions, seed uint64, steps int, seen *met) {
	m := &model{o: o, rng: rand.New(rand.NewPCG(seed, 11)), why: map[string]tier.Reason{}, made: map[uint64][]byte{}}
	lower := newMapTier(t, nil, 0)
	lower.refuse = tier.ErrFull
	id := tiny(o.ranks)
	if o.states {
		id = stateful(o.ranks)
	}
	m.bench = newBench(t, id, func(c *Config) {
		c.PageBytes, c.PublicBytes, c.PrivateBytes = o.page, o.public, o.private
		c.Tenants[0].QuotaBytes = o.quota
		c.MaxLeases, c.MaxReservations, c.MaxChain = o.leases, o.reservations, o.chain
		c.LeaseTTL, c.FillTTL = 20*time.Second, 30*time.Second
		if o.lower {
			c.Lower = lower
		}
	})
	lower.attach(m.bench, true)
	for range 3 {
		m.sessions = append(m.sessions, &modelSession{Session: m.NewSession("client")})
	}
	for m.step = range steps {
		m.one()
		m.compare()
		if t.Failed() {
			t.Fatalf("at step %d", m.step)
		}
	}
	for i := range m.sessions {
		m.closeSession(i)
	}
	m.compare()
	seen.add(m.Counters())
	for _, p := range m.Pools() {
		if p.PendingBytes+p.LeasedBytes+p.QuarantinedBytes+p.DemotingBytes != 0 {
			t.Fatalf("bytes held by nobody: PendingBytes+p.LeasedBytes+p.QuarantinedBytes+p.DemotingBytes %v, want 0", p.PendingBytes+p.LeasedBytes+p.QuarantinedBytes+p.DemotingBytes)
		}
	}
}

func (m *model) fatal(format string, args ...any) {
	m.Helper()
	m.Fatalf("step %d: "+format, append([]any{m.step}, args...)...)
}

// one does one random operation. Half of the time an object is filled in one
// go: chance alone hardly ever brings all parts of all ranks together.
func (m *model) one() {
	i := m.rng.IntN(len(m.sessions))
	s := m.sessions[i]
	switch n := m.rng.IntN(200); {
	case n < 20:
		m.reserve(i, m.rng.IntN(m.o.segments), m.rng.IntN(m.o.ranks))
	case n < 38:
		m.save(i, m.rng.IntN(m.o.checkpoints), m.rng.IntN(m.o.ranks))
	case n < 60 && len(s.fills) > 0:
		m.commit(s.fills[m.rng.IntN(len(s.fills))])
	case n < 62 && len(s.fills) > 0:
		f := s.fills[m.rng.IntN(len(s.fills))]
		m.must(s.Abort(f.id))
		m.kill(f.object)
	case n < 80:
		m.acquire(i, m.rng.IntN(m.o.segments), m.rng.IntN(m.o.ranks))
	case n < 90:
		m.loadOne(i, m.rng.IntN(m.o.checkpoints), m.rng.IntN(m.o.ranks))
	case n < 116:
		m.release(s)
	case n < 120:
		m.clock.advance(time.Duration(m.rng.IntN(16)) * time.Second)
		m.Sweep()
		due := slices.DeleteFunc(slices.Clone(m.objects), func(o *modelObject) bool {
			return o.filling == nil || m.clock.now.Before(o.until)
		})
		slices.SortStableFunc(due, func(a, b *modelObject) int { return a.until.Compare(b.until) }) // then by age
		for _, o := range due {
			m.kill(o)
		}
	case n < 121:
		m.closeSession(i)
		m.sessions[i] = &modelSession{Session: m.NewSession("client")}
	case n < 122:
		m.remove(m.rng.IntN(m.o.segments))
	case n < 160:
		m.fill(func(rank int) { m.reserve(i, m.rng.IntN(m.o.segments), rank) })
	default:
		m.fill(func(rank int) { m.save(i, m.rng.IntN(m.o.checkpoints), rank) })
	}
}

// fill begins something and then completes one object that is being filled.
func (m *model) fill(begin func(rank int)) {
	begin(m.rng.IntN(m.o.ranks))
	at := slices.IndexFunc(m.objects, func(o *modelObject) bool { return o.filling != nil })
	if at < 0 {
		return
	}
	o := m.objects[at]
	for rank := 0; rank < m.o.ranks && o.filling != nil; rank++ {
		if o.filling[rank] == nil {
			m.join(o, rank)
		}
		if f := o.filling[rank]; f == nil {
			return // the session may not hold more
		}
		for f := o.filling[rank]; o.filling != nil && len(f.parts) < len(o.layout.Parts); {
			m.commit(f)
		}
	}
}

func (m *model) join(o *modelObject, rank int) {
	i := m.rng.IntN(len(m.sessions))
	if o.private {
		m.save(i, o.number, rank)
	} else {
		m.reserve(i, o.number, rank)
	}
}

func (m *model) releaseAll(s *modelSession) {
	for len(s.leases) > 0 {
		m.drop(s, s.leases[0])
	}
}

func (m *model) closeSession(i int) {
	s := m.sessions[i]
	s.Close()
	for len(s.fills) > 0 { // both are in order of ids
		m.kill(s.fills[0].object)
	}
	m.releaseAll(s)
}

// segment returns segment number n, and what the model knows of it.
func (m *model) segment(n int) (piece, *modelObject) {
	tenant := tier.TenantID(1 + n%2)
	spec, _ := m.profile.MidSpec(24+3*n, 4)
	if n%3 == 0 {
		spec.Primer = profile.PrimerID{1}
	}
	p := m.pieceOf(tenant, n, spec)
	begin, count := spec.Interior()
	return p, m.sized(&modelObject{
		name: fmt.Sprintf("segment %d", n), number: n, key: p.key, tenant: tenant, begin: begin, end: begin + count, layout: p.layout, depth: 1,
		ids: 4 * int64(len(p.tokens)),
	})
}

func (m *model) sized(o *modelObject) *modelObject {
	page := int64(m.o.page)
	o.record = recordOf(m.o.ranks, o.layout)
	o.pages = (o.layout.Bytes+page-1)/page*page*int64(m.o.ranks) + o.ids
	if !o.private {
		return o
	}
	for at := int64(0); at < o.layout.Bytes; at += page {
		end := min(at+page, o.layout.Bytes)
		if !slices.ContainsFunc(o.layout.Parts, func(part profile.Part) bool {
			return (part.Kind == profile.PartK || part.Kind == profile.PartV) && part.Off < end && at < part.Off+part.Len
		}) {
			o.states[0] += (end - at) * int64(m.o.ranks)
			o.states[1] += page * int64(m.o.ranks)
		}
	}
	return o
}

// hasRows: another checkpoint can extend it.
func (o *modelObject) hasRows() bool { return o.filling == nil || o.stripped }

// find gives the object that lookups see.
func (m *model) find(name string, kind tier.CheckpointKind) *modelObject {
	for _, o := range m.objects {
		if o.linked && o.name == name && o.kind == kind {
			return o
		}
	}
	return nil
}

func (m *model) reserve(i, n, rank int) {
	p, want := m.segment(n)
	r, err := m.sessions[i].Reserve(&ReserveQuery{Profile: m.id, Tenant: want.tenant, Rank: rank, Key: p.key, Spec: p.spec, Tokens: p.tokens})
	m.placed(i, rank, want, r, err)
}

// save extends checkpoint number n/2, in a binary tree, if n is odd or that
// one is held; kinds alternate.
func (m *model) save(i, n, rank int) {
	kind := tier.Exact
	if n%3 == 2 {
		kind = tier.Spliced
	}
	want := &modelObject{
		name: fmt.Sprintf("checkpoint %d", n), number: n, kind: kind, private: true, key: treeHash(n), tenant: tenantA, end: 10 + 4*n, depth: 1,
	}
	q := &SaveQuery{Profile: m.id, Tenant: tenantA, Rank: rank, Kind: kind, Hash: treeHash(n), Tokens: want.end}
	if n%4 != 0 {
		q.Parent = treeHash(n / 2)
		parent, err := m.parent(n/2, kind)
		if err == nil && parent.depth >= m.o.chain {
			err = tier.ErrInvalid
		}
		if err != nil {
			_, got := m.sessions[i].Save(q)
			if !errors.Is(got, err) {
				m.fatal("save %s: %v, want %v", want.name, got, err)
			}
			return
		}
		want.parent, want.begin, want.depth = parent, parent.end, parent.depth+1
	}
	want.layout = m.profile.CheckpointLayout(want.end - want.begin)
	m.sized(want)
	r, err := m.sessions[i].Save(q)
	m.placed(i, rank, want, r, err)
}

func (m *model) parent(n int, kind tier.CheckpointKind) (*modelObject, error) {
	name := fmt.Sprintf("checkpoint %d", n)
	exact, spliced := m.find(name, tier.Exact), m.find(name, tier.Spliced)
	switch {
	case exact != nil && exact.hasRows():
		return exact, nil
	case kind == tier.Spliced && spliced != nil && spliced.hasRows():
		return spliced, nil
	case kind == tier.Exact && spliced != nil && spliced.hasRows():
		return nil, tier.ErrInvalid
	}
	return nil, tier.ErrGone
}

// placed is what a reservation should have answered and done.
func (m *model) placed(i, rank int, want *modelObject, r Reservation, got error) {
	m.Helper()
	o, err := m.place(i, rank, want)
	if !errors.Is(got, err) || (got == nil) != (err == nil) {
		m.fatal("%s rank %d: %v, want %v", want.name, rank, got, err)
	}
	if err != nil {
		return
	}
	if r.Bytes != o.layout.Bytes {
		m.fatal("%s: %d bytes, want %d", want.name, r.Bytes, o.layout.Bytes)
	}
	f := &modelFill{object: o, rank: rank, session: i, id: r.ID, parts: map[int]bool{}}
	o.filling[rank] = f
	m.sessions[i].fills = append(m.sessions[i].fills, f)
}

func (m *model) place(i, rank int, want *modelObject) (*modelObject, error) {
	if want.layout.Bytes > m.budget(want)/int64(m.o.ranks) {
		m.why[want.name] = tier.ReasonRefused
		return nil, tier.ErrFull // alone in an empty pool
	}
	if len(m.sessions[i].fills) >= m.o.reservations {
		return nil, tier.ErrBusy
	}
	if o := m.find(want.name, want.kind); o != nil {
		if o.stripped && o.filling == nil {
			if err := m.makeRoom(&modelObject{tenant: o.tenant, private: true, pages: o.states[1]}, o); err != nil {
				return nil, err
			}
			m.resize(o, 1)
			o.filling, o.until, o.complete = map[int]*modelFill{}, m.clock.now.Add(30*time.Second), 0
			return o, nil
		}
		if o.filling == nil || o.filling[rank] != nil {
			return nil, tier.ErrExists
		}
		return o, nil
	}
	if err := m.makeRoom(want, want.parent); err != nil {
		m.why[want.name] = tier.ReasonRefused
		return nil, err
	}
	want.linked, want.filling, want.until = true, map[int]*modelFill{}, m.clock.now.Add(30*time.Second)
	m.objects = append(m.objects, want)
	return want, nil
}

// resize gives a checkpoint memory for its states, or takes it.
func (m *model) resize(o *modelObject, sign int64) {
	o.pages += sign * o.states[1]
}

// makeRoom finds room for what has the size of want while something is in use.
func (m *model) makeRoom(want, inUse *modelObject) error {
	inTenant := func(o *modelObject) bool { return o.tenant == want.tenant }
	inPool := func(o *modelObject) bool { return o.private == want.private }
	sum := func(of func(*modelObject) bool, size func(*modelObject) int64) (n int64) {
		for _, o := range m.objects {
			if of(o) {
				n += size(o)
			}
		}
		return n
	}
	charge := func(o *modelObject) int64 { return o.pages + o.record }
	pages := func(o *modelObject) int64 { return o.pages }
	reclaimable := func(of func(*modelObject) bool) func(*modelObject) bool {
		return func(o *modelObject) bool { return of(o) && m.reclaimable(o, inUse) }
	}
	quota, budget := m.o.quota, m.budget(want)
	if want.tenant != tenantA || quota == 0 {
		quota = 1 << 60
	}
	if sum(inTenant, charge)+charge(want)-quota > max(0, sum(reclaimable(inTenant), charge)) {
		return tier.ErrQuota
	}
	if sum(inPool, pages)+want.pages-budget > max(0, sum(reclaimable(inPool), pages)) {
		return tier.ErrFull
	}
	for sum(inTenant, charge)+charge(want) > quota {
		m.evictOldest(inTenant, inUse)
	}
	for sum(inPool, pages)+want.pages > budget {
		m.evictOldest(inPool, inUse)
	}
	return nil
}

// budget is that of the pool, in whole pages.
func (m *model) budget(o *modelObject) int64 {
	page, budget := int64(m.o.page), m.o.public
	if o.private {
		budget = m.o.private
	}
	return budget / page * page
}

// reclaimable: eviction could free it, after those that extend it. The parent of
// what room is made for is in use.
func (m *model) reclaimable(o, parent *modelObject) bool {
	if o.filling != nil || o.holds > 0 || !o.linked || o == parent {
		return false
	}
	for _, child := range m.objects {
		if child.parent == o && !m.reclaimable(child, parent) {
			return false
		}
	}
	return true
}

// evictOldest evicts or thins what was used longest ago.
func (m *model) evictOldest(of func(*modelObject) bool, inUse *modelObject) {
	var oldest *modelObject
	for _, o := range m.objects {
		n := m.children(o)
		may := n == 0 || n == 1 && o.states[1] > 0 && !m.o.lower // a tier that holds nothing
		if of(o) && m.reclaimable(o, inUse) && !o.stripped && may && (oldest == nil || o.stamp < oldest.stamp) {
			oldest = o
		}
	}
	if m.children(oldest) == 1 {
		oldest.stripped = true
		m.resize(oldest, -1)
		return
	}
	oldest.linked = false
	m.why[oldest.name] = tier.ReasonEvicted
	m.free(oldest)
	m.dropShells(oldest.parent, inUse)
}

func (m *model) children(o *modelObject) (n int) {
	for _, child := range m.objects {
		if child.parent == o {
			n++
		}
	}
	return n
}

// dropShells drops stripped nodes that nothing extends any more.
func (m *model) dropShells(o, inUse *modelObject) {
	for ; o != nil && o.stripped && o.filling == nil && o != inUse && m.children(o) == 0; o = o.parent {
		o.linked = false
		m.why[o.name] = tier.ReasonEvicted
		m.free(o)
	}
}

// free gives back what nothing needs.
func (m *model) free(o *modelObject) {
	if !o.linked && o.holds == 0 {
		m.objects = slices.DeleteFunc(m.objects, func(other *modelObject) bool { return other == o })
	}
}

func (m *model) kill(o *modelObject) {
	for _, f := range o.filling {
		s := m.sessions[f.session]
		s.fills = slices.DeleteFunc(s.fills, func(other *modelFill) bool { return other == f })
	}
	o.filling = nil
	if o.stripped {
		m.resize(o, -1)
		m.dropShells(o, nil)
		return
	}
	o.linked = false
	m.why[o.name] = tier.ReasonAborted
	m.free(o)
	m.dropShells(o.parent, nil)
}

// bytesOf is what a rank publishes.
func (m *model) bytesOf(o *modelObject, rank int) []byte {
	seed := uint64(o.key[0])<<16 | uint64(o.key[1])<<8 | uint64(o.kind)<<4 | uint64(rank)
	if m.made[seed] == nil {
		m.made[seed] = content(&o.layout, seed)
	}
	return m.made[seed]
}

// commit hands over one part: mostly a missing one, sometimes one that was there
// before, rarely one with a wrong digest.
func (m *model) commit(f *modelFill) {
	o, s := f.object, m.sessions[f.session]
	part := m.rng.IntN(len(o.layout.Parts))
	for f.parts[part] && m.rng.IntN(4) > 0 {
		part = (part + 1) % len(o.layout.Parts)
	}
	at := o.layout.Parts[part]
	item := m.item(f.id, part, 0, m.bytesOf(o, f.rank)[at.Off:at.Off+at.Len])
	wrong := m.rng.IntN(200) == 0
	if wrong {
		item.Digests[0]++
	}
	got, err := s.Commit(m.ctx, item)
	switch {
	case f.parts[part]:
		if !errors.Is(err, tier.ErrInvalid) {
			m.fatal("part %d of %s twice: %v", part, o.name, err)
		}
		return
	case wrong && o.stripped && (at.Kind == profile.PartK || at.Kind == profile.PartV):
		m.must(err) // nobody looks at them
	case wrong:
		if !errors.Is(err, tier.ErrCorrupt) {
			m.fatal("wrong digest: %v", err)
		}
		m.kill(o)
		return
	case err != nil:
		m.fatal("commit of %s: %v", o.name, err)
	}
	f.parts[part] = true
	if len(f.parts) == len(o.layout.Parts) {
		o.complete++
	}
	published := got.Published
	if published != (o.complete == m.o.ranks) {
		m.fatal("%s: published %v with %d ranks of %d", o.name, published, o.complete, m.o.ranks)
	}
	if published {
		for _, f := range o.filling {
			s := m.sessions[f.session]
			s.fills = slices.DeleteFunc(s.fills, func(other *modelFill) bool { return other == f })
		}
		o.filling, o.stripped = nil, false
		m.use(o)
	}
}

// use: the object that was asked for, not what it extends.
func (m *model) use(o *modelObject) {
	m.stamps++
	o.stamp = m.stamps
}

func (m *model) acquire(i, n, rank int) {
	p, want := m.segment(n)
	rows, err := m.sessions[i].Acquire(&AcquireQuery{Profile: m.id, Tenant: want.tenant, Rank: rank, Digests: true, Keys: [][32]byte{p.key}}, nil)
	m.must(err)
	row := rows[0]
	o := m.find(want.name, 0)
	if o == nil || o.filling != nil {
		if row.Hit || row.Err != nil || row.Reason != m.reason(want.name, o) {
			m.fatal("acquire %s: hit %v, reason %v, error %v, want a miss for %v", want.name, row.Hit, row.Reason, row.Err, m.reason(want.name, o))
		}
		return
	}
	if m.leased(i, o, rank, row.Lease, row.Hit, row.Err) && (row.Begin != o.begin || row.Tokens != o.end-o.begin) {
		m.fatal("acquire %s: %d tokens from %d, want %d from %d", o.name, row.Tokens, row.Begin, o.end-o.begin, o.begin)
	}
	if row.Hit {
		m.sameBytes(o, rank, row.Extents, row.Digests)
	}
}

func (m *model) reason(name string, pending *modelObject) tier.Reason {
	if pending != nil {
		return tier.ReasonPending
	}
	if why, ok := m.why[name]; ok {
		return why
	}
	return tier.ReasonUnknown
}

// leased books a lease, or the refusal of one too many.
func (m *model) leased(i int, o *modelObject, rank int, id tier.LeaseID, hit bool, err error) bool {
	s := m.sessions[i]
	if len(s.leases) >= m.o.leases {
		if hit || !errors.Is(err, tier.ErrBusy) {
			m.fatal("lease %d of %d: %v", len(s.leases)+1, m.o.leases, err)
		}
		return false
	}
	if !hit || err != nil {
		m.fatal("lease of %s: hit %v, %v", o.name, hit, err)
	}
	s.leases = append(s.leases, &modelLease{object: o, id: id, rank: rank, until: m.clock.now.Add(20 * time.Second)})
	o.holds++
	m.use(o)
	return true
}

// sameBytes reads what a lease names.
func (m *model) sameBytes(o *modelObject, rank int, extents []gpuipc.Extent, digests []uint64) {
	got, want := m.loadShare(extents), m.bytesOf(o, rank)
	holes := int64(0)
	if o.stripped && o.filling == nil {
		holes = o.states[0] / int64(m.o.ranks)
	}
	if n := holesOf(extents); n != holes {
		m.fatal("%s rank %d: holes of %d bytes, want %d", o.name, rank, n, holes)
	}
	for i, part := range o.layout.Parts {
		if o.stripped && part.Kind != profile.PartK && part.Kind != profile.PartV {
			continue
		}
		if string(got[part.Off:part.Off+part.Len]) != string(want[part.Off:part.Off+part.Len]) {
			m.fatal("%s rank %d: part %d has other bytes", o.name, rank, i)
		}
		if digests[i] != gpuipc.DigestBytes(want[part.Off:part.Off+part.Len]) {
			m.fatal("%s rank %d: part %d has another digest", o.name, rank, i)
		}
	}
}

func (m *model) loadOne(i, n, rank int) {
	accept := tier.CheckpointKind(1 + m.rng.IntN(3))
	name := fmt.Sprintf("checkpoint %d", n)
	l, err := m.sessions[i].Load(&LoadQuery{
		Profile: m.id, Tenant: tenantA, Rank: rank, Accept: accept, Digests: true, Hash: treeHash(n),
	})
	o, why := m.best(name, accept)
	if o == nil {
		if l.Hit || err != nil || l.Reason != why {
			m.fatal("load %s: hit %v, reason %v, error %v, want a miss for %v", name, l.Hit, l.Reason, err, why)
		}
		return
	}
	if !m.leased(i, o, rank, l.Lease, l.Hit, err) {
		return
	}
	if l.Kind != o.kind || l.Tokens != o.end || len(l.Nodes) != o.depth {
		m.fatal("load %s: kind %v, %d tokens, %d nodes, want %v, %d, %d", name, l.Kind, l.Tokens, len(l.Nodes), o.kind, o.end, o.depth)
	}
	for k := len(l.Nodes) - 1; k >= 0; k, o = k-1, o.parent {
		if l.Nodes[k].Begin != o.begin || l.Nodes[k].End != o.end {
			m.fatal("load %s: node %d is [%d, %d), want [%d, %d)", name, k, l.Nodes[k].Begin, l.Nodes[k].End, o.begin, o.end)
		}
		m.sameBytes(o, rank, l.Nodes[k].Extents, l.Nodes[k].Digests)
	}
}

func (m *model) best(name string, accept tier.CheckpointKind) (*modelObject, tier.Reason) {
	var found *modelObject
	seen := map[tier.Reason]bool{}
	for _, kind := range []tier.CheckpointKind{tier.Exact, tier.Spliced} {
		switch o := m.find(name, kind); {
		case o == nil:
		case o.filling != nil:
			seen[tier.ReasonPending] = true
		case o.stripped:
			seen[tier.ReasonEvicted] = true
		case kind&accept == 0:
			seen[tier.ReasonFlagOnly] = true
		case found == nil:
			found = o
		}
	}
	for _, why := range []tier.Reason{tier.ReasonFlagOnly, tier.ReasonPending, tier.ReasonEvicted} {
		if seen[why] && found == nil {
			return nil, why
		}
	}
	return found, m.reason(name, nil)
}

func (m *model) release(s *modelSession) {
	if len(s.leases) == 0 {
		if err := s.Release(tier.LeaseID(1 << 40)); !errors.Is(err, tier.ErrGone) {
			m.fatal("release of nothing: %v", err)
		}
		return
	}
	l := s.leases[m.rng.IntN(len(s.leases))]
	for _, other := range m.sessions {
		if other != s && !errors.Is(other.Release(l.id), tier.ErrGone) {
			m.fatal("another session released lease %d", l.id)
		}
	}
	m.must(s.Release(l.id))
	m.drop(s, l)
}

func (m *model) drop(s *modelSession, l *modelLease) {
	s.leases = slices.DeleteFunc(s.leases, func(other *modelLease) bool { return other == l })
	l.object.holds--
	m.free(l.object)
}

func (m *model) remove(n int) {
	p, want := m.segment(n)
	err := m.Evict(p.key)
	o := m.find(want.name, 0)
	switch {
	case o == nil:
		m.wantErr(err, tier.ErrGone)
	case o.filling != nil:
		m.wantErr(err, tier.ErrBusy)
	default:
		m.must(err)
		o.linked = false
		m.why[o.name] = tier.ReasonRemoved
		m.free(o)
	}
}

// compare checks every status and account.
func (m *model) compare() {
	m.audit()
	var used [objects.PoolCount]int64
	for _, o := range m.objects {
		pool := objects.PublicPool
		if o.private {
			pool = objects.PrivatePool
		}
		used[pool] += o.pages
	}
	for i, p := range m.Pools() {
		if p.UsedBytes != used[i] {
			m.fatal("%s pool uses %d bytes, want %d", p.Name, p.UsedBytes, used[i])
		}
	}
	for n := range m.o.segments {
		p, want := m.segment(n)
		expect := SegmentStatus{Status: tier.StatusMiss, Reason: m.reason(want.name, nil)}
		if o := m.find(want.name, 0); o != nil && o.filling != nil {
			expect = SegmentStatus{Status: tier.StatusPending, Reason: tier.ReasonPending}
		} else if o != nil {
			expect = SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDRAM, Tokens: uint32(o.end - o.begin)}
		}
		if got := m.statusFor(want.tenant, p); got != expect {
			m.fatal("%s: status, place, reason and tokens %v, want %v", want.name, got, expect)
		}
		if got := m.statusFor(3-want.tenant, p); got.Status != tier.StatusMiss || got.Reason != tier.ReasonUnknown {
			m.fatal("%s: another tenant sees status %v, reason %v", want.name, got.Status, got.Reason)
		}
	}
	leases, fills := 0, 0
	for _, s := range m.sessions {
		leases += len(s.leases)
		fills += len(s.fills)
		if l, f := s.Holdings(); l != len(s.leases) || f != len(s.fills) {
			m.fatal("session holds %d leases and %d reservations, want %d and %d", l, f, len(s.leases), len(s.fills))
		}
	}
	if n := m.Counters(); n.Leases+n.Quarantined != uint64(leases) {
		m.fatal("%d leases live and %d in quarantine, want %d together", n.Leases, n.Quarantined, leases)
	}
}
