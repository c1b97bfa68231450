package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/transfer"
)

// askFor is one match over segments.
func (x *twoTiers) askFor(ps ...piece) {
	x.Helper()
	q := &MatchQuery{Profile: x.id, Tenant: tenantA}
	for _, p := range ps {
		q.Keys = append(q.Keys, p.key)
	}
	var r MatchResult
	x.must(x.Match(q, &r))
}

func TestMatchReadsAhead(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead, poolOf(40))
	disk, memory := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sink(disk)
	x.publish(x.c, memory)
	for range 3 {
		x.askFor(disk, memory, x.mid(3, 64, 8))
	}
	if n := x.carry(); n != 1 || x.tier.reads != 1 {
		t.Fatalf("%d promotions, %d reads", n, x.tier.reads)
	}
	x.wantHit(disk)
	x.audit()
	if got := x.Pools()[0].ReadAheadBytes; got != x.cost(disk) {
		t.Fatalf("%d bytes read ahead", got)
	}
	x.must(x.c.Release(x.lease(x.c, disk)))
	if n := x.Counters(); n.ReadAheadBegun != 1 || n.ReadAheadUsed != 1 || x.Pools()[0].ReadAheadBytes != 0 {
		t.Fatalf("ReadAheadBegun %v, want 1; ReadAheadUsed %v, want 1", n.ReadAheadBegun, n.ReadAheadUsed)
	}
}

func TestMatchWithoutReadAheadReadsNothing(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	x.askFor(p)
	if n := x.carry(); n != 0 {
		t.Fatalf("%d promotions", n)
	}
}

func TestPrefixesAreReadAheadToo(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead)
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.push()
	x.matchPrefix(1, tier.Exact, 16, 32)
	if n := x.carry(); n != 2 {
		t.Fatalf("%d promotions", n)
	}
	if l := x.loadPrefix(x.c, hashOf(1, 32), tier.Exact); !l.Hit {
		t.Fatalf("Hit %v, want true", l.Hit)
	}
	x.audit()
	x.dropAll()
	if n := x.Counters(); n.ReadAheadUsed != 1 || n.ReadAheadWasted != 0 { // the root is held by the leaf
		t.Fatalf("ReadAheadUsed %v, want 1; ReadAheadWasted %v, want 0", n.ReadAheadUsed, n.ReadAheadWasted)
	}
}

// Guesses take an eighth of a pool at most, and no more until they are used.
func TestReadAheadIsBounded(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead, poolOf(16))
	var below, above []piece
	for i := range 6 {
		below = append(below, x.mid(i, 64, 8))
		x.sink(below[i])
	}
	for i := range 16 {
		above = append(above, x.mid(100+i, 64, 8))
		x.publish(x.c, above[i])
	}
	x.push2(above)
	x.askFor(below...)
	x.carry()
	x.audit()
	hits := 0
	for _, p := range above {
		if x.status(p).Place == tier.PlaceDRAM {
			hits++
		}
	}
	n := x.Counters()
	if hits != 14 || n.ReadAheadBegun != 2 || n.ReadAheadDropped != 4 {
		t.Fatalf("%d of 16 are left, hits %v, want 14; ReadAheadBegun %v, want 2; ReadAheadDropped %v, want 4", hits, hits, n.ReadAheadBegun, n.ReadAheadDropped)
	}
	x.must(x.c.Release(x.lease(x.c, below[0])))
	x.askFor(below[5])
	if x.carry() != 1 {
		t.Fatal("what was used still counts")
	}
}

// push2 has segments written without dropping them.
func (x *twoTiers) push2(ps []piece) {
	x.Helper()
	x.cat.Mu.Lock()
	for _, p := range ps {
		_ = x.move.Writes.WantLocked(x.cat.Objects.Names.Segments.Find((*[32]byte)(&p.key)), tier.LevelLogged, true)
	}
	x.cat.Mu.Unlock()
	x.cat.Launch()
	x.tier.finishAll()
}

func TestReadAheadNeverPaysWithATenantsEntries(t *testing.T) {
	mem, disk := takes(t)
	x := newTwoTiers(t, hybrid(1), readAhead, quota(2*disk+mem-1))
	one, two := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.sinkBelowQuota(one)
	x.sinkBelowQuota(two)
	x.askFor(one)
	x.carry()
	x.wantOnDisk(one)
	x.wantOnDisk(two)
	if n := x.Counters(); n.ReadAheadBegun != 0 || n.ReadAheadDropped != 1 || n.Promotions[transfer.NoRoom] != 0 {
		t.Fatalf("%d read ahead, %d dropped, %d found no room", n.ReadAheadBegun, n.ReadAheadDropped, n.Promotions[transfer.NoRoom])
	}
}

func TestUnusedReadAheadIsCounted(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead, poolOf(16))
	p := x.mid(1, 64, 8)
	x.sink(p)
	x.askFor(p)
	x.carry()
	x.dropAll()
	if n := x.Counters(); n.ReadAheadWasted != 1 || x.Pools()[0].ReadAheadBytes != 0 {
		t.Fatalf("%v, want n.ReadAheadWasted == 1, x.Pools()[0].ReadAheadBytes == 0", n)
	}
}

// Who waits comes before guesses, also when it is one of them.
func TestDemandComesBeforeReadAhead(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead, poolOf(40))
	var ps []piece
	for i := range 4 {
		ps = append(ps, x.mid(i, 64, 8))
		x.publish(x.c, ps[i])
	}
	x.push()
	x.askFor(ps[0], ps[1])
	x.carryOne() // takes up the first guess, and the second is next in its line
	x.try(ps[2])
	x.carryOne()
	x.wantHit(ps[2])
	x.wantOnDisk(ps[1])
	x.askFor(ps[3])
	x.carryOne()
	x.wantHit(ps[1])
	x.try(ps[3])
	x.carry()
	x.wantHit(ps[3])
	if n := x.Counters(); n.ReadAheadBegun != 2 {
		t.Fatalf("ReadAheadBegun %v, want 2", n.ReadAheadBegun)
	}
}

func TestHitsThatNobodyTakesUpAreDropped(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead)
	p := x.mid(1, 64, 8)
	x.sink(p)
	for range transfer.HintsMax + 3 { // nobody carries anything out
		x.askFor(p)
	}
	if n := x.Counters(); n.ReadAheadDropped != 3 {
		t.Fatalf("ReadAheadDropped %v, want 3", n.ReadAheadDropped)
	}
	if n := x.carry(); n != 1 {
		t.Fatalf("%d promotions", n)
	}
	if x.move.Promotions.Hints.Len() != 0 {
		t.Fatalf("%d hits wait for ever", x.move.Promotions.Hints.Len())
	}
}

func TestReadAheadThatIsAskedForIsUsed(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead, poolOf(40))
	one, two := x.mid(1, 64, 8), x.mid(2, 64, 8)
	x.publish(x.c, one)
	x.publish(x.c, two)
	x.push()
	x.askFor(one, two)
	x.cat.Mu.Lock()
	x.move.Promotions.ReadAheadLocked() // the first waits in the line
	x.cat.Mu.Unlock()
	x.try(one)
	x.audit()
	x.carry()
	if n := x.Counters(); n.ReadAheadBegun != 2 || n.ReadAheadUsed != 1 || n.Promotions[transfer.Done] != 2 {
		t.Fatalf("ReadAheadBegun %v, want 2; ReadAheadUsed %v, want 1; Promotions[transfer.Done] %v, want 2", n.ReadAheadBegun, n.ReadAheadUsed, n.Promotions[transfer.Done])
	}
	x.audit()
}
