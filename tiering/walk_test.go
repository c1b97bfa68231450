package tiering

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/internal/move"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// A walk does random things to a store over a tier that stalls, fails, refuses
// and forgets, and to a plain map. Whatever happened: what is leased has the bytes
// that were published, a match tells what a lease would find, what an operator
// removed is gone, what was acknowledged is there after a restart, and every
// account is exact.

type walkOptions struct {
	states          bool // of pages: nodes of chains can be stripped
	eviction        func() policy.Eviction
	ranks           int
	public, private int64
	quota           int64
	capacity        int64
	queue           int
	behind, ahead   bool
	low             float64
	keeps           bool // the tier has room for all: what was acknowledged must come back
	sink            bool // copies go to one as well
	all             bool // of everything
}

var walkOptionSets = []walkOptions{
	{ranks: 1, public: 60 << 10, private: 60 << 10, capacity: 1 << 30, queue: 3, behind: true, ahead: true, keeps: true},
	{ranks: 2, public: 60 << 10, private: 60 << 10, capacity: 1 << 30, queue: 100, low: 0.3, keeps: true},
	{ranks: 1, public: 40 << 10, private: 40 << 10, capacity: 60 << 10, queue: 4, behind: true, ahead: true},
	{ranks: 2, public: 80 << 10, private: 60 << 10, quota: 70 << 10, capacity: 1 << 30, queue: 5, behind: true, ahead: true},
	{ranks: 1, public: 60 << 10, private: 60 << 10, quota: 90 << 10, capacity: 70 << 10, queue: 2, low: 0.5, ahead: true},
	{states: true, ranks: 1, public: 60 << 10, private: 300 << 10, capacity: 1 << 30, queue: 5, behind: true, keeps: true},
	{states: true, eviction: policy.NewDefault, ranks: 2, public: 60 << 10, private: 700 << 10, capacity: 1 << 30, queue: 5, behind: true, ahead: true, keeps: true},
	{states: true, eviction: policy.NewGDSF, ranks: 1, public: 60 << 10, private: 300 << 10, quota: 900 << 10, capacity: 500 << 10, queue: 5, low: 0.5, ahead: true},
	{sink: true, ranks: 1, public: 80 << 10, private: 80 << 10, capacity: 60 << 10, queue: 4, low: 0.5, ahead: true},
	{sink: true, ranks: 2, public: 120 << 10, private: 100 << 10, quota: 110 << 10, capacity: 1 << 30, queue: 5, behind: true, ahead: true},
	{sink: true, all: true, states: true, eviction: policy.NewDefault, ranks: 1, public: 100 << 10, private: 400 << 10, capacity: 300 << 10, queue: 5, low: 0.5, ahead: true},
}

const (
	walkSegments    = 14
	walkCheckpoints = 14
)

type walk struct {
	*twoTiers
	o        walkOptions
	rng      *rand.Rand
	cfg      Config
	out      *mapSink // nil = none
	sessions []*Session
	leases   map[tier.LeaseID]*Session
	acked    map[tier.Name]tier.Level // told to the client
	waits    map[*Durable]tier.Name
	removed  map[tier.Name]bool // by an operator, and not published since
	known    map[tier.Name]bool // published at some time
	step     int
}

var walkSeeds = flag.Uint64("walk.seeds", 4, "seeds of the walk over two tiers for each set of options")

func TestTwoTiersAgreeWithAMap(t *testing.T) {
	var seen met // by all sets of options: one alone need not meet everything
	sets := 0
	run := func(t *testing.T, o walkOptions, seed uint64, steps int, _ *met) { runWalk(t, o, seed, steps, &seen) }
	runRandom(t, walkOptionSets, *walkSeeds, 1, 500, 400, run, func(walkOptions, uint64, *met) map[string]bool { sets++; return nil })
	if sets < len(walkOptionSets) {
		return
	}
	for name, n := range map[string]uint64{
		"demoted": seen.Demoted, "failed demotions": seen.DemotionsFailed, "refused demotions": seen.DemotionsRefused,
		"promoted": seen.Promotions[transfer.Done], "corrupt": seen.Promotions[transfer.Corrupt], "unavailable": seen.Promotions[transfer.Unavailable],
		"written": seen.Written, "failed writes": seen.WritesFailed, "disk hits": seen.HitSegmentsDisk, "prefixes on disk": seen.PrefixHitsDisk,
		"removed": seen.Removed, "logged": seen.Acknowledged[tier.LevelLogged], "synced": seen.Acknowledged[tier.LevelSynced], "restarts": seen.restarts,
		"read ahead": seen.ReadAheadBegun, "trimmed": seen.TrimmedBytes, "returned": seen.returned,
		"stripped": seen.Stripped, "stripped and filled": seen.StrippedFilled, "stripped and promoted": seen.StrippedPromoted, "stripped and dropped": seen.StrippedDropped,
		"copies sent": seen.Offload.Sent, "copies failed": seen.Offload.Failed, "copies too many": seen.Offload.NoRoom,
	} {
		if n == 0 {
			t.Errorf("walks met no %s", name)
		}
	}
}

func runWalk(t *testing.T, o walkOptions, seed uint64, steps int, seen *met) {
	w := &walk{
		o: o, rng: rand.New(rand.NewPCG(seed, 17)), leases: map[tier.LeaseID]*Session{}, acked: map[tier.Name]tier.Level{}, waits: map[*Durable]tier.Name{},
		removed: map[tier.Name]bool{}, known: map[tier.Name]bool{},
	}
	var cfg *Config
	id := tiny(o.ranks)
	if o.states {
		id = stateful(o.ranks)
	}
	w.twoTiers = newTwoTiers(t, id, func(c *Config) {
		cfg = c
		if o.eviction != nil {
			c.Eviction = o.eviction
		}
		c.PublicBytes, c.PrivateBytes, c.Tenants[0].QuotaBytes = o.public, o.private, o.quota
		c.WriteBehind, c.ReadAhead = o.behind, o.ahead
		c.HighWater, c.LowWater = max(0.7, o.low), o.low
		c.LeaseTTL, c.FillTTL = 20*time.Second, 30*time.Second
		if o.sink {
			w.out = &mapSink{entries: map[tier.Name]*sinkEntry{}, most: 3, expect: tier.Hint{Latency: time.Microsecond, BytesPerSecond: farBytes}}
			c.Outlets = []Outlet{{To: w.out, All: o.all}}
		}
	})
	if w.out != nil {
		w.out.b = w.bench
		t.Cleanup(func() { w.out.takeAll() })
	}
	w.cfg = *cfg
	w.tier.capacity, w.tier.queue = o.capacity, o.queue
	w.open()
	for w.step = range steps {
		w.one(seen)
		w.compare()
		if t.Failed() {
			t.Fatalf("at step %d", w.step)
		}
	}
	w.restart(seen)
	w.compare()
}

func (w *walk) open() {
	w.sessions = nil
	for range 3 {
		w.sessions = append(w.sessions, w.NewSession("client"))
	}
}

func (w *walk) fatal(format string, args ...any) {
	w.Helper()
	w.Fatalf("step %d: "+format, append([]any{w.step}, args...)...)
}

func (w *walk) session() *Session { return w.sessions[w.rng.IntN(len(w.sessions))] }

func (w *walk) one(seen *met) {
	switch n := w.rng.IntN(100); {
	case n < 22:
		w.publishOne()
	case n < 36:
		w.saveOne()
	case n < 50:
		w.acquireOne()
	case n < 58:
		w.loadOne()
	case n < 68:
		w.releaseOne()
	case n < 78:
		w.endWrite()
	case n < 88:
		w.promote()
	case n < 91:
		w.tier.refuse = []error{nil, nil, nil, tier.ErrBusy, tier.ErrFull, tier.ErrUnavailable}[w.rng.IntN(6)]
	case n < 93:
		_ = w.clean1()
	case n < 95:
		w.clock.advance(time.Duration(w.rng.IntN(10)) * time.Second)
		w.Sweep()
	case n < 97:
		w.evictOne()
	case n < 98:
		i := w.rng.IntN(len(w.sessions))
		w.forgetLeases(w.sessions[i])
		w.sessions[i].Close()
		w.sessions[i] = w.NewSession("client")
	case w.rng.IntN(4) == 0:
		w.restart(seen)
	}
	w.acknowledge()
}

func (w *walk) forgetLeases(c *Session) {
	for id, of := range w.leases {
		if of == c {
			delete(w.leases, id)
		}
	}
}

// What is asked for and what it has to be.

func (w *walk) segment(n int) piece {
	spec, _ := w.profile.MidSpec(24+3*n, 4)
	return w.pieceOf(tenantA, n, spec)
}

// checkpoint n extends n/2 unless it is a root; every third is spliced, and so is
// what extends it.
func (w *walk) checkpoint(n int) (q *SaveQuery, begin int) {
	q = &SaveQuery{Profile: w.id, Tenant: tenantA, Kind: tier.Exact, Hash: treeHash(n), Tokens: 10 + 4*n}
	for up := n; up > 0; up /= 2 {
		if up%3 == 2 {
			q.Kind = tier.Spliced
		}
		if up%4 == 0 {
			break
		}
	}
	if n%4 != 0 {
		q.Parent, begin = treeHash(n/2), 10+4*(n/2)
	}
	if q.Kind == tier.Exact && n%8 == 3 && w.profile.KeepsRows() {
		q.Kind = tier.Rows
	}
	return q, begin
}

func (w *walk) checkpointBytes(n, rank int) []byte {
	q, begin := w.checkpoint(n)
	l := checkpointLayout(w.profile, q.Kind, q.Tokens-begin)
	return content(&l, uint64(n)<<8|uint64(rank))
}

func (w *walk) level() tier.Level { return tier.Level(w.rng.IntN(4)) }

func (w *walk) publishOne() {
	p := w.segment(w.rng.IntN(walkSegments))
	level := w.level()
	for rank := range w.o.ranks {
		r, err := w.session().Reserve(w.reserveQuery(p, rank))
		if err != nil {
			w.allowed("reserve", err)
			return
		}
		w.commitAllTo(r, &p.layout, contentOf(p, rank), level, tier.Name{Key: p.key})
	}
}

func (w *walk) saveOne() {
	n := w.rng.IntN(walkCheckpoints)
	q, begin := w.checkpoint(n)
	l := checkpointLayout(w.profile, q.Kind, q.Tokens-begin)
	level := w.level()
	for q.Rank = range w.o.ranks {
		r, err := w.session().Save(q)
		if err != nil {
			w.allowed("save", err)
			return
		}
		w.commitAllTo(r, &l, w.checkpointBytes(n, q.Rank), level, tier.Name{Kind: q.Kind, Key: q.Hash})
	}
}

func (w *walk) allowed(what string, err error) {
	w.Helper()
	for _, kind := range []error{tier.ErrExists, tier.ErrFull, tier.ErrQuota, tier.ErrBusy, tier.ErrGone} {
		if errors.Is(err, kind) {
			return
		}
	}
	w.fatal("%s: %v", what, err)
}

func (w *walk) commitAllTo(r Reservation, l *profile.Layout, data []byte, level tier.Level, n tier.Name) {
	w.Helper()
	for _, s := range w.sessions {
		if _, err := s.ChunkSpan(r.ID, 0, 0, 1); errors.Is(err, tier.ErrGone) {
			continue
		}
		for i, part := range l.Parts {
			item := w.item(r.ID, i, 0, data[part.Off:part.Off+part.Len])
			item.Level = level
			got, err := s.Commit(w.ctx, item)
			w.must(err)
			if !got.Published {
				continue
			}
			w.known[n], w.removed[n] = true, false
			if got.Durable != nil {
				w.waits[got.Durable] = n
			}
			if (got.Durable != nil) != (level > tier.LevelMemory) {
				w.fatal("level %v: something to wait for %v", level, got.Durable != nil)
			}
		}
		return
	}
	w.fatal("reservation %d is nobody's", r.ID)
}

// acknowledge notes what clients were told by now.
func (w *walk) acknowledge() {
	for d, n := range w.waits {
		if level := w.reached(d); level != tier.LevelDefault {
			delete(w.waits, d)
			w.acked[n] = max(w.acked[n], level)
		}
	}
}

func (w *walk) acquireOne() {
	p, rank, c := w.segment(w.rng.IntN(walkSegments)), w.rng.IntN(w.o.ranks), w.session()
	n := tier.Name{Key: p.key}
	q := &AcquireQuery{Profile: w.id, Tenant: tenantA, Rank: rank, Digests: true, Keys: [][32]byte{p.key}}
	memory, disk := w.where(n)
	var rows []Acquired
	var err error
	if w.rng.IntN(2) == 0 {
		rows, err = c.Acquire(q, nil)
	} else { // waits, but not long enough
		rows, err = c.AwaitAcquire(w.ended(), q, nil)
	}
	w.must(err)
	row := rows[0]
	switch {
	case row.Err != nil:
		w.fatal("acquire: %v", row.Err)
	case row.Hit != memory || row.Promoting && !disk:
		w.fatal("acquire: hit %v, promoting %v, in memory %v, on disk %v", row.Hit, row.Promoting, memory, disk)
	case row.Hit:
		w.leases[row.Lease] = c
		w.sameBytes(n, &p.layout, contentOf(p, rank), row.Extents)
	}
}

func (w *walk) ended() context.Context {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	return ctx
}

// sameBytes reads what a lease names; between parts may be anything.
func (w *walk) sameBytes(n tier.Name, l *profile.Layout, want []byte, extents []gpuipc.Extent) {
	w.Helper()
	if !w.known[n] || w.removed[n] {
		w.fatal("a hit on %x, published %v, removed %v", n.Key[:4], w.known[n], w.removed[n])
	}
	got := w.loadShare(extents)
	for i, part := range l.Parts {
		if holesOf(extents) > 0 && !plan.IsRows(part.Kind) {
			continue
		}
		if string(got[part.Off:part.Off+part.Len]) != string(want[part.Off:part.Off+part.Len]) {
			w.fatal("part %d of %x has other bytes", i, n.Key[:4])
		}
	}
}

// where looks behind the scenes: which tier has a name.
func (w *walk) where(n tier.Name) (memory, disk bool) {
	w.cat.Mu.Lock()
	defer w.cat.Mu.Unlock()
	p, _ := w.Store.cat.Profile(w.id)
	o := w.cat.Objects.Names.Find(n, p, w.cat.Objects.Tenants[tenantA])
	return o != nil && o.Fill == nil && o.Phase != objects.Stripped, w.tier.holds(n)
}

func (w *walk) loadOne() {
	n, rank, c := w.rng.IntN(walkCheckpoints), w.rng.IntN(w.o.ranks), w.session()
	save, _ := w.checkpoint(n)
	name := tier.Name{Kind: save.Kind, Key: save.Hash}
	memory, disk := w.where(name)
	l, err := c.Load(&LoadQuery{Profile: w.id, Tenant: tenantA, Rank: rank, Accept: tier.Exact | tier.Rows | tier.Spliced, Digests: true, Hash: save.Hash})
	w.must(err)
	if l.Hit != memory || l.Promoting && !disk {
		w.fatal("load %d: hit %v, promoting %v, in memory %v, on disk %v", n, l.Hit, l.Promoting, memory, disk)
	}
	if !l.Hit {
		return
	}
	w.leases[l.Lease] = c
	whole := false
	for i := len(l.Nodes) - 1; i >= 0; i, n = i-1, n/2 {
		q, begin := w.checkpoint(n)
		if l.Nodes[i].Begin != begin || l.Nodes[i].End != q.Tokens {
			w.fatal("node %d is [%d, %d)", n, l.Nodes[i].Begin, l.Nodes[i].End)
		}
		whole = whole || i == len(l.Nodes)-1
		if whole && holesOf(l.Nodes[i].Extents) > 0 {
			w.fatal("checkpoint %d is leased without its states", n)
		}
		whole = whole && l.Nodes[i].Kind == tier.Rows // whose states are those of the one before
		layout := checkpointLayout(w.profile, q.Kind, q.Tokens-begin)
		w.sameBytes(tier.Name{Kind: q.Kind, Key: q.Hash}, &layout, w.checkpointBytes(n, rank), l.Nodes[i].Extents)
	}
}

func (w *walk) releaseOne() {
	ids := make([]tier.LeaseID, 0, len(w.leases))
	for id := range w.leases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids[:min(len(ids), 1+w.rng.IntN(4))] {
		w.must(w.leases[id].Release(id))
		delete(w.leases, id)
	}
}

// endWrite ends one of the writes that wait, rarely with an error.
func (w *walk) endWrite() {
	w.endCopy()
	if n := w.tier.waiting(); n > 0 {
		var err error
		if w.rng.IntN(8) == 0 {
			err = fmt.Errorf("EIO: %w", tier.ErrUnavailable)
		}
		w.tier.finish(w.rng.IntN(n), err)
	}
}

// endCopy ends a copy, and may have some begin.
func (w *walk) endCopy() {
	if w.out == nil {
		return
	}
	w.out.mu.Lock()
	w.out.refuse = []error{nil, nil, nil, tier.ErrBusy, tier.ErrFull, tier.ErrUnavailable}[w.rng.IntN(6)]
	w.out.spoil = nil
	if w.rng.IntN(6) == 0 {
		w.out.spoil = fmt.Errorf("reset: %w", tier.ErrUnavailable)
	}
	if w.rng.IntN(10) == 0 { // others delete what is there
		clear(w.out.entries)
	}
	w.out.mu.Unlock()
	w.out.take()
	w.cat.Mu.Lock()
	w.move.Offloads.SendSomeLocked()
	w.cat.Mu.Unlock()
	w.cat.Launch()
}

// promote carries out one promotion, mostly well, while somebody waits for it or
// not. Writes that it waits for end meanwhile.
func (w *walk) promote() {
	w.tier.unread = []error{nil, nil, nil, nil, nil, nil, tier.ErrCorrupt, tier.ErrUnavailable}[w.rng.IntN(8)]
	corrupt := errors.Is(w.tier.unread, tier.ErrCorrupt)
	w.carryOne()
	w.cat.Launch()
	for w.move.Promotions.Engine.Parked() > 0 {
		if w.out != nil {
			w.out.takeAll()
		}
		if w.tier.waiting() > 0 {
			w.tier.finish(0, nil)
		} else { // for a tier that is busy for no reason
			w.tier.mu.Lock()
			w.tier.refuse = nil
			w.tier.mu.Unlock()
			w.Sweep()
		}
		w.carryOne()
		w.cat.Launch()
	}
	w.tier.unread = nil
	for n := range w.acked { // what was found corrupt is forgotten, and may be
		if corrupt && !w.tier.holds(n) {
			delete(w.acked, n)
		}
	}
}

func (w *walk) evictOne() {
	p := w.segment(w.rng.IntN(walkSegments))
	n := tier.Name{Key: p.key}
	memory, disk := w.where(n)
	w.cat.Mu.Lock()
	coming := slices.ContainsFunc(w.move.Writes.ByName[n], func(o *objects.Object) bool { return !move.WriteOf(o).Removed })
	filled := w.cat.Objects.Names.Filled(n, func() *objects.Profile { p, _ := w.Store.cat.Profile(w.id); return p }(), w.cat.Objects.Tenants[tenantA])
	w.cat.Mu.Unlock()
	switch err := w.Evict(p.key); {
	case filled:
		w.wantErr(err, tier.ErrBusy)
	case memory || disk || coming:
		w.must(err)
		w.removed[n] = true
		delete(w.acked, n)
		maps.DeleteFunc(w.waits, func(_ *Durable, of tier.Name) bool { return of == n }) // of what is removed
	default:
		w.wantErr(err, tier.ErrGone)
	}
}

// lost tells whether a stripped node has no whole copy any more, since the tier has
// found that wrong: what extends it cannot be written.
func (w *walk) lost() bool {
	w.cat.Mu.Lock()
	defer w.cat.Mu.Unlock()
	return slices.ContainsFunc(w.cat.Objects.Table.Places(), func(o *objects.Object) bool {
		return o != nil && o.Phase == objects.Stripped && !w.tier.holds(o.Label())
	})
}

// restart closes the store, kindly or not, and opens another one over what the
// tier still has: after a kill what is logged, after a power failure what is
// synced.
func (w *walk) restart(seen *met) {
	if w.rng.IntN(3) == 0 {
		w.tier.refuse, w.tier.alone = nil, false
		done := later(func() error { _, err := w.Flush(w.ctx); return err })
		for ended := false; !ended; {
			w.tier.finishAll()
			if w.out != nil {
				w.out.takeAll()
			}
			select {
			case err := <-done:
				if err != nil && (w.o.keeps && !w.lost() || !errors.Is(err, tier.ErrUnavailable)) {
					w.fatal("flush: %v", err)
				}
				ended = true
			default:
			}
		}
		w.tier.alone = true
	}
	closed := later(w.Store.Close)
	for ended := false; !ended; {
		if w.tier.waiting() > 0 {
			w.endWrite()
		}
		if w.out != nil {
			w.out.takeAll()
		}
		select {
		case err := <-closed:
			w.must(err)
			ended = true
		default:
		}
	}
	w.acknowledge()
	if len(w.waits) > 0 || len(w.tier.on) > 0 {
		w.fatal("%d publications and %d writes outlive the store", len(w.waits), len(w.tier.on))
	}
	seen.add(w.Counters())
	seen.restarts++
	survives := tier.LevelLogged
	if w.rng.IntN(2) == 0 {
		survives = tier.LevelSynced
	}
	for _, e := range w.tier.entries {
		if e.Level < survives && w.tier.entries[e.Name] == e {
			w.tier.forget(e)
		}
	}
	w.cfg.Held = held.New() // of a new process, which the tier tells what it has
	w.tier.names = w.cfg.Held
	for _, e := range w.tier.entries {
		w.tier.names.Add(e.want())
	}
	w.reopen(survives, seen)
}

func (w *walk) reopen(survives tier.Level, seen *met) {
	store, err := Open(w.cfg)
	w.must(err)
	w.Store, w.tier.store = store, store
	w.leases = map[tier.LeaseID]*Session{}
	w.id, err = w.AddProfile(w.profile)
	w.must(err)
	w.open()
	for n, level := range w.acked {
		if _, disk := w.where(n); disk {
			seen.returned++
		} else if w.o.keeps && level >= survives {
			w.fatal("%x was acknowledged as %v and did not return", n.Key[:4], level)
		}
	}
	w.acked = map[tier.Name]tier.Level{}
}

// compare checks that a match tells what is there, and every account.
func (w *walk) compare() {
	w.audit()
	var r MatchResult
	for n := range walkSegments {
		p := w.segment(n)
		name := tier.Name{Key: p.key}
		w.must(w.Match(&MatchQuery{Profile: w.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, &r))
		memory, disk := w.where(name)
		got := r.Segments[0]
		switch {
		case memory && got.Place == tier.PlaceDRAM:
		case !memory && disk && got.Place == tier.PlaceDisk:
		case !memory && got.Status != tier.StatusHit && (!disk || got.Status == tier.StatusPending):
		default:
			w.fatal("segment %d: status %v, place %v, in memory %v, on disk %v", n, got.Status, got.Place, memory, disk)
		}
		if got.Status == tier.StatusHit && (!w.known[name] || w.removed[name]) {
			w.fatal("segment %d: a hit, published %v, removed %v", n, w.known[name], w.removed[name])
		}
		if w.statusFor(tenantB, p).Status != tier.StatusMiss {
			w.fatal("segment %d: another tenant has a hit", n)
		}
	}
	for n := range walkCheckpoints {
		q, _ := w.checkpoint(n)
		w.must(w.Match(&MatchQuery{
			Profile: w.id, Tenant: tenantA, Accept: q.Kind, Positions: []uint32{uint32(q.Tokens)}, Prefixes: [][32]byte{q.Hash},
		}, &r))
		memory, disk := w.where(tier.Name{Kind: q.Kind, Key: q.Hash})
		want := tier.PlaceNone
		if memory {
			want = tier.PlaceDRAM
		} else if disk && r.PrefixReason != tier.ReasonPending {
			want = tier.PlaceDisk
		}
		if r.PrefixPlace != want && !(w.beingFilled(n) && r.PrefixPlace == tier.PlaceNone) {
			w.fatal("checkpoint %d: place %v, want %v, reason %v, in memory %v, on disk %v", n, r.PrefixPlace, want, r.PrefixReason, memory, disk)
		}
	}
}

// beingFilled tells whether a client fills a checkpoint or one that it extends.
func (w *walk) beingFilled(n int) bool {
	w.cat.Mu.Lock()
	defer w.cat.Mu.Unlock()
	p, _ := w.Store.cat.Profile(w.id)
	for {
		q, begin := w.checkpoint(n)
		if w.cat.Objects.Names.Filled(tier.Name{Kind: q.Kind, Key: q.Hash}, p, w.cat.Objects.Tenants[tenantA]) {
			return true
		}
		if begin == 0 {
			return false
		}
		n /= 2
	}
}
