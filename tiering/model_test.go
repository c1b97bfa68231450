package tiering

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/held"
	"github.com/spliced-kv/spliced/tiering/internal/objects"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// The model is the store once more, out of slices and maps, with every rule spelled out and no
// counter kept. Random operations go to both, and after each of them the two must agree.
//
// Over memory alone the model predicts all of it: each answer, reason, eviction and byte. With
// other tiers it asks the store which objects are in memory (observe), and predicts the rest:
//
//   - A lookup finds what memory, the lower tier or another node has, and nothing else.
//   - A lease names the bytes that were published, or that a client of another node published.
//   - Reservations and leases end as they end over memory alone.
//   - What was acknowledged is there after a restart. What an operator removed is not.
//   - A listener is told exactly once of each name that comes, and of each that goes.
//   - HBM has the copies that the model has, at the same place, and no byte more.

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

// setup is one way to set up a store, and the names that clients use.
type setup struct {
	states                bool // of several pages: nodes of chains can be stripped
	ranks                 int
	page                  int // 0 = 4096 bytes
	public, private       int64
	quota                 int64 // of the first tenant
	tenants               int   // that own segments; checkpoints are the first's
	leases, reservations  int   // of a session; 0 = 100
	chain                 int   // 0 = 16
	eviction              func() policy.Eviction
	segments, checkpoints int

	refuses       bool // a lower tier that refuses everything
	capacity      int64
	queue         int
	behind, ahead bool
	low           float64
	keeps         bool // the lower tier has room for everything: what was acknowledged must return
	sink, all     bool // copies are sent to a sink; copies of everything

	devices               int // with HBM
	copies, prefixes      int // how many of the largest segments and checkpoints a device has room for
	paid                  int // for how many of the largest segments the quota suffices, over all tiers; 0 = no quota
	promotions            int // queue of each device
	hbmPublic, hbmPrivate int64
}

// tiers is what a store has next to memory. It selects the weights of operations.
type tiers int

const (
	alone  tiers = iota // memory, perhaps over a tier that refuses everything
	lower               // a tier that stalls, fails, refuses and forgets, and perhaps a sink
	above               // HBM, over a tier that forgets
	beyond              // another node, over a small tier
)

var setups = [...][]setup{
	alone: {
		{ranks: 1, public: 64 << 10, private: 64 << 10, chain: 10, segments: 20, checkpoints: 20},
		{ranks: 2, public: 64 << 10, private: 64 << 10, leases: 8, reservations: 6, chain: 4, segments: 12, checkpoints: 12},
		{ranks: 2, page: 8192, public: 48 << 10, private: 48 << 10, quota: 40 << 10, leases: 4, reservations: 3, chain: 3, segments: 8, checkpoints: 8},
		{ranks: 4, public: 200 << 10, private: 100 << 10, quota: 150 << 10, leases: 50, reservations: 20, chain: 5, refuses: true, segments: 10, checkpoints: 10},
		{ranks: 1, page: 16384, public: 160 << 10, private: 0, quota: 60 << 10, leases: 20, reservations: 4, chain: 4, segments: 16, checkpoints: 4},
		{ranks: 1, public: 0, private: 80 << 10, leases: 20, reservations: 4, chain: 6, segments: 4, checkpoints: 30},
		{states: true, ranks: 1, public: 200 << 10, private: 400 << 10, leases: 20, reservations: 8, chain: 6, segments: 4, checkpoints: 24},
		{states: true, ranks: 2, public: 200 << 10, private: 900 << 10, quota: 400 << 10, leases: 8, reservations: 8, chain: 5, segments: 4, checkpoints: 20},
		{states: true, ranks: 1, page: 8192, public: 200 << 10, private: 400 << 10, leases: 4, reservations: 3, chain: 8, refuses: true, segments: 4, checkpoints: 16},
	},
	lower: {
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
	},
	above: {
		{ranks: 1, copies: 3, prefixes: 2, promotions: 100, public: 4 << 20, devices: 1},
		{ranks: 2, copies: 4, prefixes: 2, promotions: 3, public: 800 << 10, devices: 1},
		{ranks: 1, copies: 20, prefixes: 20, paid: 14, promotions: 100, public: 4 << 20, devices: 1},
		{ranks: 2, copies: 0, prefixes: 2, promotions: 10, public: 800 << 10, devices: 1},
		{ranks: 2, copies: 3, prefixes: 2, promotions: 100, public: 4 << 20, devices: 2},
		{ranks: 1, copies: 20, prefixes: 20, paid: 14, promotions: 3, public: 4 << 20, devices: 2},
	},
	beyond: {
		{ranks: 1, public: 40 << 10, private: 60 << 10, capacity: 40 << 10, behind: true},
		{ranks: 2, public: 60 << 10, private: 80 << 10, quota: 60 << 10, capacity: 40 << 10},
	},
}

// group is how often the setups with the same tiers run, and what they have to meet: runs that
// meet nothing prove nothing.
type group struct {
	name                  string
	tenants               int // of setups that do not say so; 0 = 1
	segments, checkpoints int
	seeds, short          uint64 // for each setup
	steps, shortSteps     int
	want                  func(o *setup, seeds uint64, seen *met) map[string]bool // for each setup
	once                  func(seen *met) map[string]uint64                       // for all of them together, not 0
}

var groups = [...]group{
	alone: {name: "memory", tenants: 2, seeds: 8, short: 1, steps: 600, shortSteps: 300, want: func(o *setup, seeds uint64, seen *met) map[string]bool {
		strips := o.states && !o.refuses
		return map[string]bool{
			"published": seen.Published >= 10*seeds, "evicted for room": seen.EvictedRoom > 0, "read": seen.Acquired+seen.Loaded >= 3*seeds,
			"corrupt": seen.Aborted[stats.CauseCorrupt] > 0, "expired": seen.LeasesExpired > 0, "evicted for a quota": o.quota == 0 || seen.EvictedQuota > 0,
			"refused below": o.refuses == (seen.DemotionsRefused > 0),
			"stripped":      strips == (seen.Stripped > 10 && seen.StrippedFilled > 0 && seen.StrippedDropped > 0),
		}
	}},
	lower: {name: "lower", segments: 14, checkpoints: 14, seeds: 4, short: 1, steps: 500, shortSteps: 400, once: func(seen *met) map[string]uint64 {
		return map[string]uint64{
			"demoted": seen.Demoted, "failed demotions": seen.DemotionsFailed, "refused demotions": seen.DemotionsRefused,
			"promoted": seen.Promotions[transfer.Done], "corrupt": seen.Promotions[transfer.Corrupt], "unavailable": seen.Promotions[transfer.Unavailable],
			"written": seen.Written, "failed writes": seen.WritesFailed, "disk hits": seen.HitSegmentsDisk, "prefixes on disk": seen.PrefixHitsDisk,
			"removed": seen.Removed, "logged": seen.Acknowledged[tier.LevelLogged], "synced": seen.Acknowledged[tier.LevelSynced], "restarts": seen.Restarts,
			"read ahead": seen.ReadAheadBegun, "trimmed": seen.TrimmedBytes, "returned": seen.Returned,
			"stripped": seen.Stripped, "stripped and filled": seen.StrippedFilled, "stripped and promoted": seen.StrippedPromoted, "stripped and dropped": seen.StrippedDropped,
			"copies sent": seen.Offload.Sent, "copies failed": seen.Offload.Failed, "copies too many": seen.Offload.NoRoom,
		}
	}},
	above: {name: "hbm", segments: 8, checkpoints: 6, seeds: 10, short: 1, steps: 400, shortSteps: 250, want: func(o *setup, seeds uint64, seen *met) map[string]bool {
		p, d := &seen.HBM.Promotions, &seen.HBM.Dropped
		return map[string]bool{
			"promoted": p[transfer.Done] >= 5*seeds, "corrupt": p[transfer.Corrupt] > 0, "gone": p[transfer.Gone] > 0, "no room": p[transfer.NoRoom] > 0,
			"loaded": seen.HBM.Loaded > 0, "acquired": o.copies == 0 || seen.HBM.Acquired > 0, "removed": o.copies == 0 || d[stats.DropRemoved] > 0,
			"gone with its object": d[stats.DropObject] > 0, "dropped for room": d[stats.DropRoom] > 0 || o.paid > 0,
			"dropped for a quota": (o.paid > 0) == (d[stats.DropQuota] > 0), "lost": d[stats.DropLost] > 0, "busy": o.promotions >= 5 || seen.HBM.PromotionsBusy > 0,
		}
	}},
	beyond: {name: "remote", segments: 12, checkpoints: 10, seeds: 15, short: 5, steps: 250, shortSteps: 250, once: func(seen *met) map[string]uint64 {
		f := &seen.Beyond.Fetches
		return map[string]uint64{
			"fetched": f[transfer.Done], "corrupt": f[transfer.Corrupt], "gone": f[transfer.Gone], "not found": seen.Beyond.FindMisses,
			"demoted": seen.Demoted, "trimmed": seen.TrimmedBytes,
		}
	}},
}

// operations are what happens to a store, with weights by tiers. Many objects are filled in one
// go: chance alone hardly ever brings all parts of all ranks together.
var operations = []struct {
	weights [4]int // alone, lower, above, beyond
	do      func(m *model)
}{
	{[4]int{38, 20, 12, 22}, func(m *model) { m.fill(m.reserve, m.o.segments) }},
	{[4]int{40, 13, 10, 11}, func(m *model) { m.fill(m.save, m.o.checkpoints) }},
	{[4]int{20, 1, 0, 1}, func(m *model) { m.some(m.reserve, m.o.segments) }},
	{[4]int{18, 1, 0, 1}, func(m *model) { m.some(m.save, m.o.checkpoints) }},
	{[4]int{22, 2, 0, 2}, (*model).commitOne},
	{[4]int{2, 1, 0, 1}, (*model).abortOne},
	{[4]int{18, 14, 0, 11}, func(m *model) { m.some(m.acquire, m.o.segments) }},
	{[4]int{10, 16, 0, 11}, func(m *model) { m.some(m.load, m.o.checkpoints) }},
	{[4]int{0, 0, 20, 0}, func(m *model) { m.some(m.acquireCopy, m.o.segments) }},
	{[4]int{0, 0, 14, 0}, func(m *model) { m.some(m.loadCopy, m.o.checkpoints) }},
	{[4]int{26, 18, 8, 22}, (*model).releaseOne},
	{[4]int{4, 2, 2, 11}, (*model).wait},
	{[4]int{1, 1, 1, 1}, func(m *model) { m.closeSession(m.rng.IntN(len(m.sessions))) }},
	{[4]int{1, 2, 2, 11}, (*model).removeOne},
	{[4]int{1, 5, 1, 0}, (*model).stripOne},
	{[4]int{0, 0, 16, 0}, (*model).promoteCopy},
	{[4]int{0, 10, 0, 0}, (*model).promoteOne},
	{[4]int{0, 0, 6, 0}, func(m *model) { m.writeOut(); m.carryOne() }}, // a promotion must not wait for room that is being written
	{[4]int{0, 0, 3, 0}, (*model).writeOut},
	{[4]int{0, 0, 0, 11}, func(m *model) { m.push() }},
	{[4]int{0, 0, 2, 11}, (*model).dropEach},
	{[4]int{0, 0, 3, 0}, (*model).loseOnDisk},
	{[4]int{0, 10, 0, 0}, (*model).endWrite},
	{[4]int{0, 3, 0, 0}, (*model).refuse},
	{[4]int{0, 2, 0, 0}, func(m *model) { _ = m.clean1() }},
	{[4]int{0, 1, 0, 0}, (*model).restart},
}

var modelSeeds = flag.Uint64("model.seeds", 0, "seeds of the model test for each setup; 0 = its own number")

func TestStoreAgreesWithModel(t *testing.T) {
	for kind, sets := range setups {
		t.Run(groups[kind].name, func(t *testing.T) { groups[kind].run(t, tiers(kind), sets) })
	}
}

// run runs some seeds of each setup, fewer and shorter ones in short tests. A seed always runs
// the same way: -run with the name of its subtest replays it.
func (g *group) run(t *testing.T, kind tiers, sets []setup) {
	seeds, steps := cmp.Or(*modelSeeds, g.seeds), g.steps
	if testing.Short() {
		seeds, steps = g.short, g.shortSteps
	}
	var all met
	whole := !testing.Short() // otherwise little may be met, as in a replay
	for i := range sets {
		var seen met
		ran := uint64(0)
		for seed := range seeds {
			t.Run(fmt.Sprintf("setup=%d/seed=%d", i, seed), func(t *testing.T) {
				ran++
				newModel(t, kind, sets[i], seed).run(t, steps, &seen)
			})
		}
		whole = whole && ran == seeds
		addUp(reflect.ValueOf(&all).Elem(), reflect.ValueOf(seen))
		if !whole || g.want == nil {
			continue
		}
		for what, ok := range g.want(&sets[i], seeds, &seen) {
			if !ok {
				t.Errorf("setup %d: %d runs did not meet as they should: %s", i, seeds, what)
			}
		}
	}
	if whole && g.once != nil {
		for what, n := range g.once(&all) {
			if n == 0 {
				t.Errorf("no run met: %s", what)
			}
		}
	}
}

// met is the sum of what runs met.
type met struct {
	stats.Counters
	Restarts, Returned uint64
}

func (m *met) add(n stats.Counters) { addUp(reflect.ValueOf(&m.Counters).Elem(), reflect.ValueOf(n)) }

func addUp(sum, n reflect.Value) {
	switch sum.Kind() {
	case reflect.Struct:
		for i := range sum.NumField() {
			addUp(sum.Field(i), n.Field(i))
		}
	case reflect.Array:
		for i := range sum.Len() {
			addUp(sum.Index(i), n.Index(i))
		}
	default:
		sum.SetUint(sum.Uint() + n.Uint())
	}
}

// model is a store and what is known of it.
type model struct {
	*twoTiers // without a tier, if there is only memory
	kind      tiers
	o         setup
	cfg       Config
	rng       *rand.Rand
	seen      *met
	step      int
	op        int
	unsettled bool // the store has yet to notice something: nothing is compared after this step

	objects  []*modelObject // whose memory is not free
	why      map[tier.Name]tier.Reason
	made     map[shareOf][]byte
	stamps   int
	runs     int // of an engine, each with other states; counted with HBM only
	sessions []*modelSession
	live     map[tier.Name]bool // published, and not removed by an operator since
	told     *feed
	universe []*modelObject // descriptions of all names
	result   MatchResult

	refusing *mapTier                 // nil = none
	acked    map[tier.Name]tier.Level // told to clients
	waits    map[*Durable]tier.Name
	out      *mapSink // nil = none

	twins   []*gpuipctest.Accelerator
	copies  []*modelCopy
	dropped uint64 // copies, by quota, as last counted

	far   *apart             // nil = none
	apart map[tier.Name]bool // published on the other node
}

// exact reports whether the model predicts what is in memory.
func (m *model) exact() bool { return m.kind == alone }

func newModel(t *testing.T, kind tiers, o setup, seed uint64) *model {
	o.page, o.leases, o.reservations, o.chain = cmp.Or(o.page, 4096), cmp.Or(o.leases, 100), cmp.Or(o.reservations, 100), cmp.Or(o.chain, 16)
	o.tenants = cmp.Or(o.tenants, groups[kind].tenants, 1)
	o.segments, o.checkpoints = cmp.Or(o.segments, groups[kind].segments), cmp.Or(o.checkpoints, groups[kind].checkpoints)
	m := &model{
		kind: kind, o: o, rng: rand.New(rand.NewPCG(seed, 11+uint64(kind))), seen: &met{}, why: map[tier.Name]tier.Reason{}, made: map[shareOf][]byte{},
		live: map[tier.Name]bool{}, acked: map[tier.Name]tier.Level{}, waits: map[*Durable]tier.Name{}, apart: map[tier.Name]bool{},
	}
	id := tiny(o.ranks)
	if o.states {
		id = stateful(o.ranks)
	}
	if kind == above {
		p, err := profile.New(stateful(o.ranks))
		if err != nil {
			t.Fatal(err)
		}
		m.sizeHBM(p)
		id = stateful(o.ranks)
	}
	switch kind {
	case alone:
		m.twoTiers = &twoTiers{bench: newBench(t, id, m.configure)}
	case lower:
		m.twoTiers = newTwoTiers(t, id, m.configure)
	case above:
		s := newSeveral(t, id, m.configure)
		m.twoTiers, m.twins = s.twoTiers, s.twins
	case beyond:
		m.far = newApart(t, id, m.configure)
		m.twoTiers = m.far.twoTiers
	}
	m.prepare()
	m.open()
	return m
}

// configure sets the store up.
func (m *model) configure(c *Config) {
	o := &m.o
	c.PageBytes, c.PublicBytes, c.PrivateBytes, c.Tenants[0].QuotaBytes = o.page, o.public, o.private, o.quota
	c.MaxLeases, c.MaxReservations, c.MaxChain = o.leases, o.reservations, o.chain
	c.LeaseTTL, c.FillTTL = leaseTTL, fillTTL
	if o.eviction != nil {
		c.Eviction = o.eviction
	}
	m.told = &feed{t: m, held: map[tier.Name]bool{}}
	c.Held = held.New(m.told)
	c.WriteBehind, c.ReadAhead, c.LowWater = o.behind, o.ahead, o.low
	if m.kind != alone {
		c.HighWater = max(0.7, o.low)
	}
	if o.refuses {
		m.refusing = newMapTier(nil, nil, 0)
		m.refusing.refuse = tier.ErrFull
		c.Lower = m.refusing
	}
	if o.sink {
		m.out = &mapSink{entries: map[tier.Name]*sinkEntry{}, most: 3, expect: tier.Hint{Latency: time.Microsecond, BytesPerSecond: farBytes}}
		c.Outlets = []Outlet{{To: m.out, All: o.all}}
	}
	c.HBM = c.HBM[:min(o.devices, len(c.HBM))]
	for i := range c.HBM {
		c.HBM[i].PublicBytes, c.HBM[i].PrivateBytes, c.HBM[i].Queue = o.hbmPublic, o.hbmPrivate, o.promotions
	}
	m.cfg = *c
}

func (m *model) open() {
	m.sessions = nil
	for range 3 {
		m.sessions = append(m.sessions, &modelSession{Session: m.NewSession("client")})
	}
}

func (m *model) run(t *testing.T, steps int, seen *met) {
	m.seen = seen
	for m.step = range steps {
		m.one()
		if !m.unsettled {
			m.compare()
		}
		if t.Failed() {
			t.Fatalf("at step %d", m.step)
		}
	}
	m.end()
	seen.add(m.Counters())
}

// one does one random operation. Then the model takes over what other tiers have moved.
func (m *model) one() {
	total := 0
	for _, op := range operations {
		total += op.weights[m.kind]
	}
	n := m.rng.IntN(total)
	i := 0
	for ; n >= operations[i].weights[m.kind]; i++ {
		n -= operations[i].weights[m.kind]
	}
	if m.far != nil {
		m.trouble()
	}
	m.unsettled = false
	before := m.sources()
	m.op = i
	operations[i].do(m)
	if m.far != nil {
		m.settle()
	}
	m.observe()
	m.follow(before)
	m.acknowledge()
}

func (m *model) fatal(format string, args ...any) {
	m.Helper()
	m.Fatalf("step %d: "+format, append([]any{m.step}, args...)...)
}

// end checks that nothing is left once all clients and devices have gone.
func (m *model) end() {
	if m.kind == lower {
		m.reopen()
		m.compare()
		return
	}
	for _, h := range m.hbm {
		m.lose(h)
		m.compare()
	}
	for i := range m.sessions {
		m.closeSession(i)
	}
	if m.tier != nil { // what is still moved keeps memory
		m.writeOut()
		m.carry()
		m.observe()
	}
	m.compare()
	if len(m.copies) > 0 {
		m.fatal("%d copies are left", len(m.copies))
	}
	for _, p := range m.Pools() {
		if n := p.PendingBytes + p.LeasedBytes + p.QuarantinedBytes + p.DemotingBytes; n != 0 {
			m.fatal("%s pool: nothing holds %d bytes, %+v", p.Name, n, p)
		}
	}
}

// compare checks every account, and what lookups find.
func (m *model) compare() {
	if m.kind == above {
		m.compareCopies()
	}
	m.audit()
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
	if m.exact() {
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
	}
	known := 0
	for _, o := range m.names() {
		if m.told.held[o.Name] {
			known++
		}
		m.compareLookup(o)
	}
	if known != len(m.told.held) {
		m.fatal("a listener knows %d names, %d of them are used", len(m.told.held), known)
	}
}

// lookup returns where a match finds an object, and whether it is pending.
func (m *model) lookup(t tier.TenantID, o *modelObject) (place tier.Place, pending bool) {
	m.Helper()
	q, r := &MatchQuery{Profile: m.id, Tenant: t, Keys: [][32]byte{o.Key}}, &m.result
	if o.private {
		q.Keys, q.Accept, q.Positions, q.Prefixes = nil, o.Kind, []uint32{uint32(o.end)}, q.Keys
	}
	m.must(m.Match(q, r))
	if !o.private {
		return r.Segments[0].Place, r.Segments[0].Status == tier.StatusPending
	}
	if (r.PrefixTokens > 0) != (r.PrefixPlace != tier.PlaceNone) {
		m.fatal("%v: a prefix of %d tokens at place %v", o, r.PrefixTokens, r.PrefixPlace)
	}
	return r.PrefixPlace, r.PrefixReason == tier.ReasonPending
}

// compareLookup checks what a match finds, and what a listener knows.
func (m *model) compareLookup(want *modelObject) {
	m.Helper()
	o, disk, told := m.find(want.Name), m.onDisk(want), m.told.held[want.Name]
	place, pending := m.lookup(want.tenant, want)
	if m.exact() && !want.private {
		expect := SegmentStatus{Status: tier.StatusMiss, Reason: m.reason(want.Name, o)}
		if o.hit() {
			expect = SegmentStatus{Status: tier.StatusHit, Place: tier.PlaceDRAM, Tokens: uint32(o.end - o.begin)}
		} else if o != nil {
			expect.Status = tier.StatusPending
		}
		if got := m.result.Segments[0]; got != expect {
			m.fatal("%v: status, place, reason and tokens %v, want %v", want, got, expect)
		}
	}
	expect := tier.PlaceNone
	switch {
	case o.hit():
		expect = tier.PlaceDRAM
	case disk && !pending:
		expect = tier.PlaceDisk
	case !disk && m.far != nil && place == tier.PlacePeer:
		expect = tier.PlacePeer
	}
	if place != expect && !(place == tier.PlaceNone && m.beingFilled(want)) {
		m.fatal("%v: place %v, want %v, pending %v, in memory %v, on disk %v", want, place, expect, pending, o.hit(), disk)
	}
	if place != tier.PlaceNone && !m.live[want.Name] {
		m.fatal("%v: a hit, though nobody has published it or an operator has removed it", want)
	}
	here := place != tier.PlaceNone && place != tier.PlacePeer
	if told != here && !(told && (pending || m.beingFilled(want))) { // on disk, and filled again
		m.fatal("%v: a match finds it %v, a listener knows it %v", want, here, told)
	}
	if o.hit() && !want.private && m.step%4 == 0 {
		if d, ok := m.Segment(want.Key); !ok || !slices.Equal(d.Tokens, want.tokens) {
			m.fatal("%v: it has other token ids", want)
		}
	}
	if m.far != nil || (m.step+want.number)%4 > 0 {
		return // hints are by name alone
	}
	if place, pending := m.lookup(3-want.tenant, want); place != tier.PlaceNone || pending || !want.private && m.result.Segments[0].Reason != tier.ReasonUnknown {
		m.fatal("%v: another tenant finds it at %v, pending %v", want, place, pending)
	}
}

// beingFilled reports whether a client fills a checkpoint or one that it extends.
func (m *model) beingFilled(want *modelObject) bool {
	for {
		if o := m.find(want.Name); o != nil && o.filling != nil {
			return true
		}
		if want.base == (tier.Name{}) {
			return false
		}
		want = m.described(true, want.number/2)
	}
}
