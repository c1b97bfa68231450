package tiering

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/decision"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Objects in memory: what clients reserve, commit, lease and release, and what has to leave.

const leaseTTL, fillTTL = 20 * time.Second, 30 * time.Second

// modelObject is a segment or checkpoint of the model.
type modelObject struct {
	tier.Name
	number   int
	tenant   tier.TenantID
	private  bool
	spec     profile.SegmentSpec
	tokens   []uint32
	end      int
	begin    int
	base     tier.Name // what it extends
	parent   *modelObject
	depth    int
	pages    int64
	record   int64
	states   [2]int64 // what stripping frees: bytes, bytes of pages
	stripped bool
	layout   profile.Layout
	run      int                // of the engine that computed it
	filling  map[int]*modelFill // by rank, while it is not published
	level    tier.Level         // highest one that a commit asked for
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

// modelLease is a lease of an object, or of a copy in HBM.
type modelLease struct {
	object *modelObject
	copy   *modelCopy
	id     tier.LeaseID
}

type modelSession struct {
	*Session
	leases []*modelLease
	fills  []*modelFill
}

// shareOf names the bytes that a rank publishes.
type shareOf struct {
	tier.Name
	rank, run int
}

// treeHash names checkpoint n of a binary tree, in which n extends n/2.
func treeHash(n int) profile.PrefixHash { return profile.PrefixHash{byte(n * 41), byte(n), 9} }

// segment describes segment number n.
func (m *model) segment(n int) *modelObject {
	tenant := tier.TenantID(1 + n%m.o.tenants)
	spec, _ := m.profile.MidSpec(24+3*n, 4)
	if n%3 == 0 {
		spec.Primer = profile.PrimerID{1}
	}
	p := m.pieceOf(tenant, n, spec)
	begin, count := spec.Interior()
	return m.sized(&modelObject{
		Name: tier.Name{Key: p.key}, number: n, tenant: tenant, spec: spec, tokens: p.tokens, begin: begin, end: begin + count, layout: p.layout, depth: 1,
	})
}

// checkpoint describes checkpoint number n. It extends number n/2 unless it is a root. Kinds
// alternate.
func (m *model) checkpoint(n int) *modelObject {
	o := &modelObject{Name: m.checkpointName(n), number: n, private: true, tenant: tenantA, end: 10 + 4*n, depth: 1}
	if n%4 != 0 {
		o.base, o.begin = m.checkpointName(n/2), 10+4*(n/2)
	}
	o.layout = checkpointLayout(m.profile, o.Kind, o.end-o.begin)
	return m.sized(o)
}

func (m *model) checkpointName(n int) tier.Name {
	kind := tier.Exact
	switch {
	case n%3 == 2:
		kind = tier.Spliced
	case n%8 == 3 && m.kind == lower && m.profile.KeepsRows():
		kind = tier.Rows
	}
	return tier.Name{Kind: kind, Key: treeHash(n)}
}

// names describes all objects that clients name, parents before their children.
func (m *model) names() []*modelObject {
	if m.universe == nil {
		for n := range m.o.segments {
			m.universe = append(m.universe, m.segment(n))
		}
		for n := range m.o.checkpoints {
			m.universe = append(m.universe, m.checkpoint(n))
		}
	}
	return m.universe
}

// described is a fresh description of a segment or checkpoint, without memory.
func (m *model) described(private bool, n int) *modelObject {
	if private {
		n += m.o.segments
	}
	o := *m.names()[n]
	return &o
}

func (o *modelObject) String() string {
	if o.private {
		return fmt.Sprintf("checkpoint %d", o.number)
	}
	return fmt.Sprintf("segment %d", o.number)
}

func (m *model) sized(o *modelObject) *modelObject {
	page, ranks := int64(m.o.page), int64(m.o.ranks)
	o.record = recordOf(m.o.ranks, o.layout)
	o.pages = (o.layout.Bytes+page-1)/page*page*ranks + 4*int64(len(o.tokens))
	if !o.private {
		return o
	}
	for at := int64(0); at < o.layout.Bytes; at += page {
		end := min(at+page, o.layout.Bytes)
		if !slices.ContainsFunc(o.layout.Parts, func(part profile.Part) bool {
			return plan.IsRows(part.Kind) && part.Off < end && at < part.Off+part.Len
		}) {
			o.states[0] += (end - at) * ranks
			o.states[1] += page * ranks
		}
	}
	return o
}

// hasRows reports whether another checkpoint can extend it.
func (o *modelObject) hasRows() bool { return o.filling == nil || o.stripped }

// hit reports whether lookups find it in memory.
func (o *modelObject) hit() bool { return o != nil && o.filling == nil && !o.stripped }

// find returns the object that lookups see, also one that is being filled; nil = none.
func (m *model) find(n tier.Name) *modelObject {
	for _, o := range m.objects {
		if o.linked && o.Name == n {
			return o
		}
	}
	return nil
}

// some does something with one of n objects, for a session and a rank.
func (m *model) some(do func(i, n, rank int), of int) {
	if of > 0 {
		do(m.rng.IntN(len(m.sessions)), m.rng.IntN(of), m.rng.IntN(m.o.ranks))
	}
}

// fill begins something and then completes the object that has been filled for longest.
func (m *model) fill(begin func(i, n, rank int), of int) {
	m.some(begin, of)
	at := slices.IndexFunc(m.objects, func(o *modelObject) bool { return o.filling != nil })
	if at < 0 {
		return
	}
	o := m.objects[at]
	join := m.reserve
	if o.private {
		join = m.save
	}
	for rank := 0; rank < m.o.ranks && o.filling != nil; rank++ {
		if o.filling[rank] == nil {
			join(m.rng.IntN(len(m.sessions)), o.number, rank)
		}
		f := o.filling[rank]
		if f == nil {
			return // the session may not hold more
		}
		for o.filling != nil && len(f.parts) < len(o.layout.Parts) {
			m.commit(f)
		}
	}
}

func (m *model) reserve(i, n, rank int) {
	want := m.described(false, n)
	r, err := m.sessions[i].Reserve(&ReserveQuery{Profile: m.id, Tenant: want.tenant, Rank: rank, Key: want.Key, Spec: want.spec, Tokens: want.tokens})
	m.placed(i, rank, want, r, err)
}

func (m *model) save(i, n, rank int) {
	want := m.described(true, n)
	r, got := m.sessions[i].Save(&SaveQuery{
		Profile: m.id, Tenant: tenantA, Rank: rank, Kind: want.Kind, Hash: want.Key, Tokens: want.end, Parent: want.base.Key,
	})
	if want.base == (tier.Name{}) {
		m.placed(i, rank, want, r, got)
		return
	}
	want.parent = m.find(want.base)
	var err error
	switch up := want.parent; {
	case up == nil || !up.hasRows():
		err = tier.ErrGone // or a promotion of it has begun
	case want.Kind == tier.Exact && up.Kind == tier.Spliced || up.depth >= m.o.chain:
		err = tier.ErrInvalid
	default:
		want.depth = up.depth + 1
		m.placed(i, rank, want, r, got)
		return
	}
	if !errors.Is(got, err) && (m.exact() || !errors.Is(got, tier.ErrBusy) && !errors.Is(got, tier.ErrExists)) {
		m.fatal("save %v: %v, want %v", want, got, err)
	}
}

// placed checks the answer to a request for a reservation, and books it.
func (m *model) placed(i, rank int, want *modelObject, r Reservation, got error) {
	m.Helper()
	o, err := m.place(i, want, rank, got)
	if !errors.Is(got, err) || (got == nil) != (err == nil) {
		m.fatal("%v rank %d: %v, want %v", want, rank, got, err)
	}
	if err != nil {
		return
	}
	if r.Bytes != o.layout.Bytes {
		m.fatal("%v: %d bytes, want %d", want, r.Bytes, o.layout.Bytes)
	}
	f := &modelFill{object: o, rank: rank, session: i, id: r.ID, parts: map[int]bool{}}
	o.filling[rank] = f
	m.sessions[i].fills = append(m.sessions[i].fills, f)
}

// place returns what a request for a reservation has to answer, and the object that is filled
// for it. Over other tiers there may be other reasons to refuse one.
func (m *model) place(i int, want *modelObject, rank int, got error) (*modelObject, error) {
	if got != nil && !m.exact() {
		for _, kind := range []error{tier.ErrExists, tier.ErrFull, tier.ErrQuota, tier.ErrBusy, tier.ErrGone} {
			if errors.Is(got, kind) {
				return nil, kind
			}
		}
		return nil, nil
	}
	if want.layout.Bytes > m.budget(want)/int64(m.o.ranks) {
		m.why[want.Name] = tier.ReasonRefused
		return nil, tier.ErrFull // even alone in an empty pool
	}
	if len(m.sessions[i].fills) >= m.o.reservations {
		return nil, tier.ErrBusy
	}
	o := m.find(want.Name)
	switch {
	case o == nil:
		if err := m.makeRoom(want, want.parent); err != nil {
			m.why[want.Name] = tier.ReasonRefused
			return nil, err
		}
		o = want
		o.linked = true
		m.objects = append(m.objects, o)
	case o.filling != nil && o.filling[rank] == nil:
		return o, nil
	case o.filling != nil || !o.stripped:
		return nil, tier.ErrExists
	default:
		if err := m.makeRoom(&modelObject{tenant: o.tenant, private: true, pages: o.states[1]}, o); err != nil {
			return nil, err
		}
		o.pages += o.states[1]
	}
	if m.kind == above && o.private {
		m.runs++ // another run reaches other states
		o.run = m.runs
	}
	o.filling, o.until, o.complete, o.level = map[int]*modelFill{}, m.clock.now.Add(fillTTL), 0, 0
	return o, nil
}

// makeRoom finds room for what has the size of want while something is in use.
func (m *model) makeRoom(want, inUse *modelObject) error {
	if !m.exact() {
		return nil // the store has
	}
	inTenant := func(o *modelObject) bool { return o.tenant == want.tenant }
	inPool := func(o *modelObject) bool { return o.private == want.private }
	charge := func(o *modelObject) int64 { return o.pages + o.record }
	pages := func(o *modelObject) int64 { return o.pages }
	over := func(of func(*modelObject) bool, size func(*modelObject) int64, limit int64) (over, reclaimable int64) {
		over = size(want) - limit
		for _, o := range m.objects {
			if !of(o) {
				continue
			}
			over += size(o)
			if m.reclaimable(o, inUse) {
				reclaimable += size(o)
			}
		}
		return over, reclaimable
	}
	quota, budget := m.o.quota, m.budget(want)
	if want.tenant != tenantA || quota == 0 {
		quota = 1 << 60
	}
	if over, can := over(inTenant, charge, quota); over > max(0, can) {
		return tier.ErrQuota
	}
	if over, can := over(inPool, pages, budget); over > max(0, can) {
		return tier.ErrFull
	}
	for n := int64(1); n > 0; {
		if n, _ = over(inTenant, charge, quota); n > 0 {
			m.evictOldest(inTenant, inUse)
		}
	}
	for n := int64(1); n > 0; {
		if n, _ = over(inPool, pages, budget); n > 0 {
			m.evictOldest(inPool, inUse)
		}
	}
	return nil
}

// budget returns that of an object's pool, in whole pages.
func (m *model) budget(o *modelObject) int64 {
	page, budget := int64(m.o.page), m.o.public
	if o.private {
		budget = m.o.private
	}
	return budget / page * page
}

// reclaimable reports whether eviction could free an object, after those that extend it.
func (m *model) reclaimable(o, inUse *modelObject) bool {
	if o.filling != nil || o.holds > 0 || !o.linked || o == inUse {
		return false
	}
	return !slices.ContainsFunc(m.objects, func(child *modelObject) bool { return child.parent == o && !m.reclaimable(child, inUse) })
}

// strippable reports whether the states of an object may leave: one other extends it, and there
// is no tier that lacks it.
func (m *model) strippable(o *modelObject) bool {
	return m.children(o) == 1 && o.states[1] > 0 && !m.o.refuses
}

// evictOldest evicts or strips what was used longest ago.
func (m *model) evictOldest(of func(*modelObject) bool, inUse *modelObject) {
	var oldest *modelObject
	for _, o := range m.objects {
		if of(o) && !o.stripped && (oldest == nil || o.stamp < oldest.stamp) && m.reclaimable(o, inUse) && (m.children(o) == 0 || m.strippable(o)) {
			oldest = o
		}
	}
	if m.children(oldest) == 1 {
		m.strip(oldest)
		return
	}
	m.leave(oldest, tier.ReasonEvicted)
	m.dropShells(oldest.parent, inUse)
}

func (m *model) strip(o *modelObject) {
	o.stripped = true
	o.pages -= o.states[1]
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
		m.leave(o, tier.ReasonEvicted)
	}
}

// leave hides an object from lookups.
func (m *model) leave(o *modelObject, why tier.Reason) {
	o.linked = false
	m.why[o.Name] = why
	m.free(o)
}

// free frees what nothing needs.
func (m *model) free(o *modelObject) {
	if !o.linked && o.holds == 0 {
		m.objects = slices.DeleteFunc(m.objects, func(other *modelObject) bool { return other == o })
	}
}

// kill ends the reservations of an object before it is complete.
func (m *model) kill(o *modelObject) {
	m.endFills(o)
	if o.stripped {
		o.pages -= o.states[1]
		m.dropShells(o, nil)
		return
	}
	m.leave(o, tier.ReasonAborted)
	m.dropShells(o.parent, nil)
}

func (m *model) endFills(o *modelObject) {
	for _, f := range o.filling {
		s := m.sessions[f.session]
		s.fills = slices.DeleteFunc(s.fills, func(other *modelFill) bool { return other == f })
	}
	o.filling = nil
}

// bytesOf returns what a rank publishes.
func (m *model) bytesOf(o *modelObject, rank int) []byte {
	s := shareOf{o.Name, rank, o.run}
	if m.made[s] == nil {
		m.made[s] = content(&o.layout, uint64(o.run)<<40|uint64(o.Key[0])<<16|uint64(o.Key[1])<<8|uint64(o.Kind)<<4|uint64(rank))
	}
	return m.made[s]
}

// anyFill returns one of a session's reservations; nil = it has none.
func (m *model) anyFill() *modelFill {
	s := m.sessions[m.rng.IntN(len(m.sessions))]
	if len(s.fills) == 0 {
		return nil
	}
	return s.fills[m.rng.IntN(len(s.fills))]
}

func (m *model) commitOne() {
	if f := m.anyFill(); f != nil {
		m.commit(f)
	}
}

func (m *model) abortOne() {
	if f := m.anyFill(); f != nil {
		m.must(m.sessions[f.session].Abort(f.id))
		m.kill(f.object)
	}
}

// commit commits one part: usually a missing one, sometimes one that was committed before,
// rarely one with a wrong digest.
func (m *model) commit(f *modelFill) {
	o, s := f.object, m.sessions[f.session]
	part := m.rng.IntN(len(o.layout.Parts))
	for f.parts[part] && m.rng.IntN(4) > 0 {
		part = (part + 1) % len(o.layout.Parts)
	}
	at := o.layout.Parts[part]
	item := m.item(f.id, part, 0, m.bytesOf(o, f.rank)[at.Off:at.Off+at.Len])
	if m.kind == lower {
		item.Level = tier.Level(m.rng.IntN(4))
	}
	wrong := m.rng.IntN(200) == 0
	if wrong {
		item.Digests[0]++
	}
	got, err := s.Commit(m.ctx, item)
	switch {
	case f.parts[part]:
		if !errors.Is(err, tier.ErrInvalid) {
			m.fatal("part %d of %v twice: %v", part, o, err)
		}
		return
	case wrong && o.stripped && plan.IsRows(at.Kind):
		m.must(err) // they are not read
	case wrong:
		if !errors.Is(err, tier.ErrCorrupt) {
			m.fatal("wrong digest: %v", err)
		}
		m.kill(o)
		return
	case err != nil:
		m.fatal("commit of %v: %v", o, err)
	}
	f.parts[part], o.level = true, max(o.level, item.Level)
	if len(f.parts) == len(o.layout.Parts) {
		o.complete++
	}
	if got.Published != (o.complete == m.o.ranks) {
		m.fatal("%v: published %v with %d ranks of %d", o, got.Published, o.complete, m.o.ranks)
	}
	if !got.Published {
		return
	}
	m.endFills(o)
	o.stripped = false
	m.use(o)
	m.live[o.Name] = true
	if (got.Durable != nil) != (o.level > tier.LevelMemory) {
		m.fatal("%v at level %v: something to wait for %v", o, o.level, got.Durable != nil)
	}
	if got.Durable != nil {
		m.waits[got.Durable] = o.Name
	}
}

// use marks the object that was asked for as used, not those that it extends.
func (m *model) use(o *modelObject) {
	m.stamps++
	o.stamp = m.stamps
}

func (m *model) acquire(i, n, rank int) {
	want := m.described(false, n)
	q := &AcquireQuery{Profile: m.id, Tenant: want.tenant, Rank: rank, Digests: true, Keys: [][32]byte{want.Key}}
	farther := m.farther(want)
	var rows []Acquired
	var err error
	if m.kind == lower && m.rng.IntN(2) == 0 { // waits, but not long enough
		rows, err = m.sessions[i].AwaitAcquire(m.ended(), q, nil)
	} else {
		rows, err = m.sessions[i].Acquire(q, nil)
	}
	m.must(err)
	row := rows[0]
	o := m.find(want.Name)
	if !o.hit() {
		m.missed(want, o, row.Hit, row.Promoting && !farther, row.Reason, row.Err)
		return
	}
	if !m.leased(i, o, row.Lease, row.Hit, row.Err) {
		return
	}
	if row.Begin != o.begin || row.Tokens != o.end-o.begin {
		m.fatal("acquire %v: %d tokens from %d, want %d from %d", o, row.Tokens, row.Begin, o.end-o.begin, o.begin)
	}
	m.sameBytes(o, rank, row.Extents, row.Digests)
}

// missed checks the answer about an object that is no hit in memory, where it may be o.
func (m *model) missed(want, o *modelObject, hit, promoting bool, why tier.Reason, err error) {
	m.Helper()
	reason := m.reason(want.Name, o)
	if hit || promoting || err != nil || m.exact() && why != reason {
		m.fatal("%v: hit %v, promoting from nowhere %v, reason %v, error %v, want a miss for %v", want, hit, promoting, why, err, reason)
	}
}

// reason returns why an object is a miss, where o is what memory has of it.
func (m *model) reason(n tier.Name, o *modelObject) tier.Reason {
	why, known := m.why[n]
	switch {
	case o == nil && !known:
		return tier.ReasonUnknown
	case o == nil:
		return why
	case o.filling != nil:
		return tier.ReasonPending
	case o.stripped:
		return tier.ReasonEvicted
	}
	return tier.ReasonFlagOnly // it is of a kind that was not asked for
}

// leased books a lease, or checks the refusal of one too many.
func (m *model) leased(i int, o *modelObject, id tier.LeaseID, hit bool, err error) bool {
	s := m.sessions[i]
	if len(s.leases) >= m.o.leases {
		if hit || !errors.Is(err, tier.ErrBusy) {
			m.fatal("lease %d of %d: %v", len(s.leases)+1, m.o.leases, err)
		}
		return false
	}
	if !hit || err != nil {
		m.fatal("lease of %v: hit %v, %v", o, hit, err)
	}
	if !m.live[o.Name] {
		m.fatal("lease of %v, which nobody has published, or an operator has removed", o)
	}
	s.leases = append(s.leases, &modelLease{object: o, id: id})
	o.holds++
	m.use(o)
	return true
}

// sameBytes reads what a lease names. What lies between the parts may be anything.
func (m *model) sameBytes(o *modelObject, rank int, extents []gpuipc.Extent, digests []uint64) {
	got, want := m.loadShare(extents), m.bytesOf(o, rank)
	holes := int64(0)
	if o.stripped && o.filling == nil {
		holes = o.states[0] / int64(m.o.ranks)
	}
	if n := holesOf(extents); n != holes {
		m.fatal("%v rank %d: holes of %d bytes, want %d", o, rank, n, holes)
	}
	for i, part := range o.layout.Parts {
		if o.stripped && !plan.IsRows(part.Kind) {
			continue
		}
		if string(got[part.Off:part.Off+part.Len]) != string(want[part.Off:part.Off+part.Len]) {
			m.fatal("%v rank %d: part %d has other bytes", o, rank, i)
		}
		if digests[i] != gpuipc.DigestBytes(want[part.Off:part.Off+part.Len]) {
			m.fatal("%v rank %d: part %d has another digest", o, rank, i)
		}
	}
}

func (m *model) load(i, n, rank int) {
	want := m.described(true, n)
	accept := tier.CheckpointKind(1 + m.rng.IntN(3))
	if m.kind != alone && m.rng.IntN(4) > 0 {
		accept = tier.AnyKind
	}
	farther := m.farther(want)
	l, err := m.sessions[i].Load(&LoadQuery{Profile: m.id, Tenant: tenantA, Rank: rank, Accept: accept, Digests: true, Hash: want.Key})
	o := m.find(want.Name)
	if !o.hit() || o.Kind&accept == 0 {
		m.missed(want, o, l.Hit, l.Promoting && !farther, l.Reason, err)
		return
	}
	if !m.leased(i, o, l.Lease, l.Hit, err) {
		return
	}
	if l.Kind != o.Kind || l.Tokens != o.end || len(l.Nodes) != o.depth {
		m.fatal("load %v: kind %v, %d tokens, %d nodes, want %v, %d, %d", o, l.Kind, l.Tokens, len(l.Nodes), o.Kind, o.end, o.depth)
	}
	for k := len(l.Nodes) - 1; k >= 0; k, o = k-1, o.parent {
		if l.Nodes[k].Begin != o.begin || l.Nodes[k].End != o.end {
			m.fatal("load %v: node %d is [%d, %d), want [%d, %d)", o, k, l.Nodes[k].Begin, l.Nodes[k].End, o.begin, o.end)
		}
		m.sameBytes(o, rank, l.Nodes[k].Extents, l.Nodes[k].Digests)
	}
}

func (m *model) releaseOne() {
	s := m.sessions[m.rng.IntN(len(m.sessions))]
	if len(s.leases) == 0 {
		if err := s.Release(tier.LeaseID(1 << 40)); !errors.Is(err, tier.ErrGone) {
			m.fatal("release of nothing: %v", err)
		}
		return
	}
	l := s.leases[m.rng.IntN(len(s.leases))]
	if c := l.copy; c != nil {
		m.sameCopy(c, partDigests(&c.layout, c.content))
	}
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
	if l.copy != nil {
		l.copy.leases--
		m.forgetCopies()
		return
	}
	l.object.holds--
	m.free(l.object)
}

func (m *model) closeSession(i int) {
	s := m.sessions[i]
	s.Close()
	for len(s.fills) > 0 { // both are in order of ids
		m.kill(s.fills[0].object)
	}
	for len(s.leases) > 0 {
		m.drop(s, s.leases[0])
	}
	m.sessions[i] = &modelSession{Session: m.NewSession("client")}
}

// wait lets time pass, so that leases and reservations expire.
func (m *model) wait() {
	m.clock.advance(time.Duration(m.rng.IntN(16)) * time.Second)
	m.Sweep()
	due := slices.DeleteFunc(slices.Clone(m.objects), func(o *modelObject) bool {
		return o.filling == nil || m.clock.now.Before(o.until)
	})
	slices.SortStableFunc(due, func(a, b *modelObject) int { return a.until.Compare(b.until) }) // then by age
	for _, o := range due {
		m.kill(o)
	}
}

// removeOne has an operator remove a segment.
func (m *model) removeOne() {
	if m.o.segments == 0 {
		return
	}
	want := m.described(false, m.rng.IntN(m.o.segments))
	o, held := m.find(want.Name), m.held(want)
	err := m.Evict(want.Key)
	switch {
	case o != nil && o.filling != nil:
		m.wantErr(err, tier.ErrBusy)
		return
	case o == nil && !held:
		if !m.apart[want.Name] {
			m.wantErr(err, tier.ErrGone)
		}
		return
	}
	m.must(err)
	if o != nil {
		m.leave(o, tier.ReasonRemoved)
	}
	m.removed(want.Name)
}

// stripOne strips a checkpoint, as evictions do.
func (m *model) stripOne() {
	if m.o.checkpoints == 0 {
		return
	}
	want := m.described(true, m.rng.IntN(m.o.checkpoints))
	m.cat.Mu.Lock()
	have := m.object(want)
	may := have != nil && have.Ranked == objects.Candidate && have.Children == 1 && m.cat.Objects.Policies.MayStrip(have)
	if may {
		m.cat.Objects.Strip(have, decision.ForRoom, nil)
	}
	m.cat.Mu.Unlock()
	o := m.find(want.Name)
	if m.exact() && may != (o.hit() && m.reclaimable(o, nil) && m.strippable(o)) {
		m.fatal("%v may be stripped: %v", want, may)
	}
	if may {
		m.strip(o)
	}
}
