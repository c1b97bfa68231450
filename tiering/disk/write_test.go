package disk

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// faulty is a configuration in memory whose slabs fail on demand.
func faulty(cfg Config, seed uint64) (Config, *slabtest.Faults) {
	cfg = onMem(cfg, vfs.NewMem())
	f := slabtest.NewFaults(cfg.Slabs, seed)
	cfg.Slabs = f
	return cfg, f
}

// stall makes calls of an operation wait until the answer is called.
func stall(f *slabtest.Faults, op slabtest.Op) (entered <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 1000), make(chan struct{})
	f.Set(slabtest.Rule{Op: op, Kind: slabtest.FaultSlow, Last: slabtest.Forever, Entered: in, Wait: out})
	return in, func() {
		f.Set()
		close(out)
	}
}

// admit is Admit of a thing; the object is freed when the test ends.
func (s *shelf) admit(t *Tier, w thing, room int64) (tier.Write, error) {
	o := s.object(w)
	s.Cleanup(func() { s.drop(o) })
	return t.Admit(o, room)
}

// An object that is admitted several times is counted and written once, and all
// are answered at the level that each asked for.
func TestJoin(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	lower := s.openOK(cfg)
	s.mustWrite(lower.Tier, segments(9, 1)[0], tier.LevelLogged) // so that there is a slab
	before := lower.Used(tenantA)
	entered, release := stall(faults, slabtest.OpWrite)
	w := segments(1, 1)[0]
	canceled, err := s.admit(lower.Tier, w, 1<<40)
	must(t, err)
	counted := lower.Used(tenantA)
	answers := make(chan outcome, 3)
	start := func(level tier.Level) {
		k, err := s.admit(lower.Tier, w, 0) // here already: no room is asked for
		must(t, err)
		k.Start(level, func(l tier.Level, err error) { answers <- outcome{l, err} })
	}
	start(tier.LevelLogged)
	canceled.Cancel()
	<-entered
	start(tier.LevelSynced)
	n := w.name()
	if _, ok := lower.Lookup(&n); ok {
		t.Error("found while it is being written")
	}
	release()
	first, second := <-answers, <-answers
	start(tier.LevelSynced)
	third := <-answers
	if first.err != nil || second.err != nil || third != (outcome{reached: tier.LevelSynced}) ||
		max(first.reached, second.reached) != tier.LevelSynced || min(first.reached, second.reached) < tier.LevelLogged {
		t.Errorf("%+v %+v %+v", first, second, third)
	}
	if used := lower.Used(tenantA); used > counted || used <= before {
		t.Errorf("%d bytes before, %d when admitted, %d at last", before, counted, used)
	}
	if c := lower.Counters(); c.Written != 2 || c.Joined != 3 || c.QueueObjects != 0 || c.QueueBytes != 0 {
		t.Errorf("%+v", c)
	}
	s.check(lower.Tier)
}

// What is canceled leaves no trace, also when another had joined and canceled too.
func TestCancel(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	w := chain(1, 2, tenantB)
	a, err := s.admit(lower.Tier, w[0], 1<<40)
	must(t, err)
	b, err := s.admit(lower.Tier, w[0], 1<<40)
	must(t, err)
	child, err := s.admit(lower.Tier, w[1], 1<<40)
	must(t, err)
	a.Cancel()
	if lower.Used(tenantB) == 0 {
		t.Error("gone before the second one canceled")
	}
	b.Cancel() // takes the child with it
	answer := make(chan error, 1)
	child.Start(tier.LevelLogged, func(_ tier.Level, err error) { answer <- err })
	if err := <-answer; !errors.Is(err, tier.ErrGone) {
		t.Errorf("a child whose parent was given up: %v", err)
	}
	if c := lower.Counters(); lower.Used(tenantB) != 0 || c.QueueObjects != 0 || c.QueueBytes != 0 || c.Entries != 0 {
		t.Errorf("%d bytes, %+v", lower.Used(tenantB), c)
	}
	s.check(lower.Tier)
}

// The queue has a bound in bytes and in objects, and room again when they are
// written; one object may be larger than all of it.
func TestQueueBounds(t *testing.T) {
	s := newShelf(t)
	for name, set := range map[string]func(*Config){
		"bytes":   func(c *Config) { c.QueueBytes = 1 },
		"objects": func(c *Config) { c.QueueLen = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg, faults := faulty(s.config(), 1)
			set(&cfg)
			lower := s.openOK(cfg)
			_, release := stall(faults, slabtest.OpWrite)
			w := segments(1, 2)
			done, err := s.begin(lower.Tier, w[0], tier.LevelLogged)
			must(t, err)
			if err := s.write(lower.Tier, w[1], tier.LevelLogged); !errors.Is(err, tier.ErrBusy) {
				t.Errorf("beyond the bound: %v", err)
			}
			release()
			if out := <-done; out.err != nil {
				t.Error(out.err)
			}
			s.mustWrite(lower.Tier, w[1], tier.LevelLogged)
			if c := lower.Counters(); c.RefusedBusy != 1 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// Three times what fits comes in; what was used last stays, accounts stay within
// budgets, and space is never given twice.
func TestEvictionMakesRoom(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	cfg.PublicBytes, cfg.SlabBytes = 1<<20, 256<<10
	heard := map[tier.Name]bool{}
	cfg.Evicted = func(e *tier.Entry, model string, quota bool) {
		if quota || model != smallOne.Identity().Model || e.Tenant != tenantA || e.Fingerprint != smallOne.Fingerprint() || e.Bytes == 0 || heard[e.Name] {
			t.Errorf("evicted: %+v of %q, for a quota: %t", e, model, quota)
		}
		heard[e.Name] = true
	}
	lower := s.openOK(cfg)
	things := segments(1, 300)
	keep := things[0]
	for i, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
		n := keep.name()
		lower.Touch(&n)
		if u := lower.Usage().Pools[public]; u.UsedBytes > u.BudgetBytes {
			t.Fatalf("%d: %d bytes of %d", i, u.UsedBytes, u.BudgetBytes)
		}
	}
	s.mustRead(lower.Tier, keep)
	found := 0
	for i := range things {
		n := things[i].name()
		_, ok := lower.Lookup(&n)
		if ok == heard[n] {
			t.Errorf("%d: found %t, and told evicted", i, ok)
		}
		if ok {
			found++
			s.mustRead(lower.Tier, things[i])
		} else if i > len(things)-40 {
			t.Errorf("%d, one of the last, is gone", i)
		}
	}
	if c := lower.Counters(); c.EvictedRoom == 0 || int(c.EvictedRoom)+found != len(things) {
		t.Errorf("%d found, %+v", found, c)
	}
	s.check(lower.Tier)
}

// A tenant over its room pays with its own entries, to the byte; another's stay.
func TestQuota(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	heard := uint64(0)
	cfg.Evicted = func(e *tier.Entry, _ string, quota bool) {
		if heard++; !quota || e.Tenant != tenantA {
			t.Errorf("evicted: %+v, for a quota: %t", e, quota)
		}
	}
	lower := s.openOK(cfg)
	other := thing{seed: 500, profile: smallOne, tenant: tenantB, tokens: 30}
	s.mustWrite(lower.Tier, other, tier.LevelLogged)
	const room = 100 << 10
	for _, w := range segments(1, 50) {
		o := s.object(w)
		k, err := lower.Admit(o, room)
		must(t, err)
		if used := lower.Used(tenantA); used > room {
			t.Fatalf("%d bytes of %d", used, room)
		}
		answer := make(chan error, 1)
		k.Start(tier.LevelLogged, func(_ tier.Level, err error) { answer <- err })
		must(t, <-answer)
		s.drop(o)
	}
	s.mustRead(lower.Tier, other)
	if c := lower.Counters(); c.EvictedQuota == 0 || c.EvictedRoom != 0 || c.EvictedQuota != heard {
		t.Errorf("heard of %d: %+v", heard, c)
	}
	before := lower.Counters()
	if _, err := s.admit(lower.Tier, segments(100, 1)[0], 1000); !errors.Is(err, tier.ErrQuota) {
		t.Errorf("more than the whole room: %v", err)
	}
	if after := lower.Counters(); after.EvictedQuota != before.EvictedQuota {
		t.Error("entries left in vain")
	}
	used := lower.Used(tenantA)
	if freed := trim(lower.Tier, tenantA, used/2); freed < used/2 || lower.Used(tenantA) != used-freed {
		t.Errorf("trimmed %d of %d, %d left", freed, used, lower.Used(tenantA))
	}
	if freed := trim(lower.Tier, tenantA, 1<<40); lower.Used(tenantA) != 0 || freed == 0 {
		t.Errorf("%d bytes left", lower.Used(tenantA))
	}
	s.check(lower.Tier)
}

// What is about to be read is not trimmed, nor is what it extends, and one call
// forgets a bounded number of entries.
func TestTrimSparesAndIsBounded(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	nodes := chain(1, 3, tenantA)
	things := append(segments(10, 3*rowsAtOnce), nodes...)
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	oldest, leaf := things[0].name(), nodes[2].name()
	before := lower.Counters().Entries
	if freed, more := lower.Trim(tenantA, 1<<40, []tier.Name{oldest, leaf}); freed == 0 || !more || lower.Counters().Entries != before-rowsAtOnce {
		t.Errorf("one call has freed %d bytes and left %d of %d entries, more: %v", freed, lower.Counters().Entries, before, more)
	}
	trim(lower.Tier, tenantA, 1<<40, oldest, leaf)
	for _, w := range append(nodes, things[0]) {
		s.mustRead(lower.Tier, w)
	}
	if left := lower.Counters().Entries; left != 4 {
		t.Errorf("%d entries are left, 4 were spared", left)
	}
	s.check(lower.Tier)
}

// A checkpoint whose bytes are there before those of its parent is found only
// after it.
func TestChildWaitsForParent(t *testing.T) {
	s := newShelf(t)
	lower := s.openOK(onMem(s.config(), vfs.NewMem()))
	w := chain(1, 2, tenantA)
	parent, err := s.admit(lower.Tier, w[0], 1<<40)
	must(t, err)
	done, err := s.begin(lower.Tier, w[1], tier.LevelSynced)
	must(t, err)
	for lower.Counters().StoredBytes == 0 {
		select {
		case out := <-done:
			t.Fatalf("answered before its parent: %+v", out)
		default:
		}
	}
	n := w[1].name()
	if _, ok := lower.Lookup(&n); ok {
		t.Fatal("found before its parent")
	}
	parent.Start(tier.LevelLogged, func(tier.Level, error) {})
	if out := <-done; out.err != nil || out.reached != tier.LevelSynced {
		t.Fatalf("%+v", out)
	}
	up := w[0].name()
	if e, ok := lower.Lookup(&up); !ok || e.Level != tier.LevelSynced {
		t.Errorf("the parent of a synced checkpoint: %+v, %v", e, ok)
	}
	s.check(lower.Tier)
}

// Entries of tenants that are not configured are found as nobody's, leave first,
// and are their tenant's again when it is.
func TestForeignLeaveFirst(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	cfg.PublicBytes, cfg.SlabBytes = 1<<20, 256<<10
	lower := s.openOK(cfg)
	theirs := thing{seed: 900, profile: smallOne, tenant: tenantB, tokens: 30}
	s.mustWrite(lower.Tier, theirs, tier.LevelLogged)
	ours := segments(1, 5)
	for _, w := range ours {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	n := theirs.name()
	lower.Touch(&n) // used last of all
	bytes := lower.Used(tenantB)
	must(t, lower.close())
	fewer := cfg
	fewer.Tenants = cfg.Tenants[:1]
	lower = s.openOK(fewer)
	if e, ok := lower.Lookup(&n); !ok || e.Tenant != 0 || lower.Used(tenantB) != 0 {
		t.Fatalf("%+v, %v", e, ok)
	}
	must(t, lower.close())
	lower = s.openOK(cfg)
	if lower.Used(tenantB) != bytes {
		t.Errorf("%d bytes, %d before", lower.Used(tenantB), bytes)
	}
	must(t, lower.close())
	lower = s.openOK(fewer)
	for i := 0; ; i++ {
		if lower.Counters().EvictedRoom > 0 {
			break
		}
		s.mustWrite(lower.Tier, segments(100+i, 1)[0], tier.LevelLogged)
	}
	if _, ok := lower.Lookup(&n); ok {
		t.Error("another left before it")
	}
	for _, w := range ours {
		s.mustRead(lower.Tier, w)
	}
	s.check(lower.Tier)
}

// Who is answered may unmap the memory: nothing of ours is in it any more.
func TestMemoryIsLetGoBeforeTheAnswer(t *testing.T) {
	s := newShelf(t)
	for _, coded := range [][]profile.PartKind{nil, {profile.PartK}} {
		cfg := onMem(s.config(), vfs.NewMem())
		cfg.Coded = coded
		lower := s.openOK(cfg)
		for _, w := range segments(1, 40) {
			region, err := s.dev.NewRegion(gpuipc.RegionSpec{Name: "own", Bytes: 1 << 20, Access: gpuipc.ClientReads})
			must(t, err)
			o := s.object(w)
			own := gpuipc.Ref{Region: region, Extents: []gpuipc.Extent{{Len: o.Shares[0].Ref.Len()}}}
			must(t, s.dev.Store(context.Background(), own, w.content(0)))
			s.drop(o)
			o.Shares[0].Ref = own
			k, err := lower.Admit(o, 1<<40)
			must(t, err)
			closed := make(chan error, 1)
			k.Start(tier.LevelLogged, func(tier.Level, error) { closed <- region.Close() }) // panics when in use
			must(t, <-closed)
		}
		s.mustRead(lower.Tier, segments(1, 1)[0])
	}
}

// What a tenant pays with in one pool makes no room in the other.
func TestQuotaAndPoolTogether(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	cfg.PublicBytes, cfg.PrivateBytes = 3<<20, 256<<10
	lower := s.openOK(cfg)
	for _, w := range segments(1, 30) {
		s.mustWrite(lower.Tier, w, tier.LevelLogged)
	}
	node := func(seed uint64, tenant tier.TenantID) thing {
		return thing{seed: seed, profile: smallTwo, tenant: tenant, kind: tier.Exact, tokens: 40}
	}
	for i := range 30 { // the private pool is full of another's
		s.mustWrite(lower.Tier, node(uint64(500+i), tenantB), tier.LevelLogged)
	}
	for i := range 10 {
		k, err := s.admit(lower.Tier, node(uint64(100+i), tenantA), lower.Used(tenantA))
		must(t, err)
		if u := lower.Usage().Pools[private]; u.UsedBytes > u.BudgetBytes {
			t.Errorf("the private pool holds %d of %d", u.UsedBytes, u.BudgetBytes)
		}
		k.Cancel()
	}
	s.check(lower.Tier)
}
