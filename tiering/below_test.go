package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// A question for positions that a hash does not end at costs no walk of its chain:
// somebody may ask for one hash as often as a frame holds.
func TestMatchDoesNotWalkChainsInVain(t *testing.T) {
	const depth, rows = 100, 512
	x := newTwoTiers(t, hybrid(1))
	for end := 1; end <= depth; end++ {
		x.save(x.c, x.saveQuery(1, end, end-1, tier.Exact), end-1)
	}
	x.push()
	q := &MatchQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact}
	for i := range rows {
		q.Positions = append(q.Positions, uint32(1000*i))
		q.Prefixes = append(q.Prefixes, hashOf(1, depth))
	}
	x.tier.lookups = 0
	var r MatchResult
	x.must(x.Match(q, &r))
	if r.PrefixTokens != 0 || x.tier.lookups > 2*rows {
		t.Errorf("%d lookups for %d rows, %d tokens hit", x.tier.lookups, rows, r.PrefixTokens)
	}
}

func TestMatchFindsSegmentsInBothTiers(t *testing.T) {
	x := newTwoTiers(t, hybrid(2))
	disk, both, memory := x.mid(1, 64, 8), x.mid(2, 60, 8), x.mid(3, 56, 8)
	x.sink(disk)
	x.publish(x.c, both)
	x.publish(x.c, memory)
	x.wantOnDisk(disk)
	x.wantHit(both)
	x.wantHit(memory)
	x.wantMiss(x.mid(4, 64, 8), tier.ReasonUnknown)
	if got := x.statusFor(tenantB, disk); got.Status != tier.StatusMiss || got.Reason != tier.ReasonUnknown {
		t.Fatalf("another tenant sees Status %v, want %v; Reason %v, want %v", got.Status, tier.StatusMiss, got.Reason, tier.ReasonUnknown)
	}
	n := x.Counters()
	if n.HitSegments != 3 || n.HitTokens != 48+44+40 || n.HitSegmentsDisk != 1 || n.HitTokensDisk != 48 {
		t.Fatalf("HitSegments %v, want 3; HitTokens %v, want %v; HitSegmentsDisk %v, want 1; HitTokensDisk %v, want 48", n.HitSegments, n.HitTokens, 48+44+40, n.HitSegmentsDisk, n.HitTokensDisk)
	}
}

// An entry counts only for the profile that it was made by and the tenant who owns it,
// whatever its name says. A promotion checks the rest of it as well.
func TestEntriesOfOthersAndOfNonsenseAreNotPromoted(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	p := x.mid(1, 64, 8)
	x.sink(p)
	e := x.tier.entries[tier.Name{Key: p.key}]
	for name, row := range map[string]struct {
		missed bool // by a match, too
		spoil  func()
	}{
		"tenant":  {true, func() { e.Tenant = tenantB }},
		"nobody":  {true, func() { e.Tenant = 0 }},
		"profile": {true, func() { e.Fingerprint[0]++ }},
		"spec":    {false, func() { e.Spec = profile.SegmentSpec{Role: 9, Tokens: 64} }},
		"begin":   {false, func() { e.Begin++ }},
		"end":     {false, func() { e.End++ }},
		"parent":  {false, func() { e.Parent = tier.Name{Kind: tier.Exact, Key: [32]byte{1}} }},
	} {
		was := e.Entry
		row.spoil()
		if row.missed {
			if got := x.status(p); got.Status != tier.StatusMiss {
				t.Errorf("%s: Status %v, want %v", name, got.Status, tier.StatusMiss)
			}
		}
		if got := x.try(p); got.Hit || got.Promoting {
			t.Errorf("%s: Hit %v, want false; Promoting %v, want false", name, got.Hit, got.Promoting)
		}
		e.Entry = was
	}
	x.wantOnDisk(p)
}

func TestMatchFindsThePrefixWhereverItLies(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Spliced), 16)
	x.push()
	x.save(x.c, x.saveQuery(1, 8, 0, tier.Exact), 0)
	for _, row := range []struct {
		accept tier.CheckpointKind
		want   MatchResult
	}{
		{tier.Exact, MatchResult{PrefixTokens: 16, PrefixIndex: 1, PrefixKind: tier.Exact, PrefixPlace: tier.PlaceDisk}},
		{tier.Exact | tier.Spliced, MatchResult{PrefixTokens: 32, PrefixIndex: 2, PrefixKind: tier.Spliced, PrefixPlace: tier.PlaceDisk}},
		{tier.Spliced, MatchResult{PrefixTokens: 32, PrefixIndex: 2, PrefixKind: tier.Spliced, PrefixPlace: tier.PlaceDisk}},
	} {
		got := x.matchPrefix(1, row.accept, 8, 16, 32)
		if got.PrefixTokens != row.want.PrefixTokens || got.PrefixIndex != row.want.PrefixIndex ||
			got.PrefixKind != row.want.PrefixKind || got.PrefixPlace != row.want.PrefixPlace {
			t.Errorf("accept %d: PrefixTokens %v, want %v; PrefixIndex %v, want %v; PrefixKind %v, want %v; PrefixPlace %v, want %v", row.accept, got.PrefixTokens, row.want.PrefixTokens, got.PrefixIndex, row.want.PrefixIndex, got.PrefixKind, row.want.PrefixKind, got.PrefixPlace, row.want.PrefixPlace)
		}
	}
	if got := x.matchPrefix(1, tier.Exact, 8); got.PrefixPlace != tier.PlaceDRAM || got.PrefixTokens != 8 {
		t.Fatalf("PrefixPlace %v, want %v; PrefixTokens %v, want 8", got.PrefixPlace, tier.PlaceDRAM, got.PrefixTokens)
	}
	if n := x.Counters(); n.PrefixHits != 4 || n.PrefixHitsDisk != 3 || n.PrefixHitTokensDisk != 16+32+32 {
		t.Fatalf("PrefixHits %v, want 4; PrefixHitsDisk %v, want 3; PrefixHitTokensDisk %v, want %v", n.PrefixHits, n.PrefixHitsDisk, n.PrefixHitTokensDisk, 16+32+32)
	}
}

// What a checkpoint extends has to be there as well, in either tier.
func TestCheckpointWithoutItsChainIsNoHit(t *testing.T) {
	x := newTwoTiers(t, hybrid(1))
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.save(x.c, x.saveQuery(1, 32, 16, tier.Exact), 16)
	x.push()
	hit := func() uint32 { return x.matchPrefix(1, tier.Exact, 32).PrefixTokens }
	if hit() != 32 {
		t.Fatal("no hit on a chain on disk")
	}
	root := tier.Name{Kind: tier.Exact, Key: hashOf(1, 16)}
	e := x.tier.entries[root]
	delete(x.tier.entries, root)
	if hit() != 0 {
		t.Fatal("a hit without its root")
	}
	if l := x.loadPrefix(x.c, hashOf(1, 32), tier.Exact); l.Hit || l.Promoting {
		t.Fatalf("Hit %v, want false; Promoting %v, want false", l.Hit, l.Promoting)
	}
	// A root that a client fills again cannot come up, nor stand below.
	r, err := x.c.Save(x.saveQuery(1, 16, 0, tier.Exact))
	x.must(err)
	x.tier.entries[root] = e
	if hit() != 0 {
		t.Fatal("a hit behind a root that is being filled")
	}
	delete(x.tier.entries, root)
	l := x.profile.CheckpointLayout(16)
	x.commitAll(x.c, r, &l, content(&l, 1))
	if hit() != 32 {
		t.Fatal("no hit although the root is in memory")
	}
	e.End = 17 // of other lengths, the two do not meet
	x.tier.entries[root] = e
	x.dropAll()
	if hit() != 0 {
		t.Fatal("a hit behind a root of another length")
	}
	e.End = 16
}

func TestMatchOverTwoTiersDoesNotAllocate(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), readAhead)
	x.tier.alone = false // its checks are not what is measured
	q := &MatchQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact | tier.Spliced}
	for i := range 32 {
		p := x.mid(i, 64, 8)
		if i%2 == 0 {
			x.sink(p)
		}
		q.Keys = append(q.Keys, p.key)
		q.Positions = append(q.Positions, uint32(i+1))
		q.Prefixes = append(q.Prefixes, hashOf(1, i+1))
	}
	x.save(x.c, x.saveQuery(1, 16, 0, tier.Exact), 0)
	x.push()
	var r MatchResult
	if n := testing.AllocsPerRun(100, func() {
		if err := x.Match(q, &r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
	if r.PrefixPlace != tier.PlaceDisk || r.Segments[0].Place != tier.PlaceDisk {
		t.Fatalf("PrefixPlace %v, want %v; Segments[0].Place %v, want %v", r.PrefixPlace, tier.PlaceDisk, r.Segments[0].Place, tier.PlaceDisk)
	}
	if n := x.Counters(); n.ReadAheadDropped == 0 {
		t.Fatal("nobody took up what was matched, and nothing was dropped")
	}
}

// Earlier builds packed leading segments, too. What they left is missed, and not exact.
func TestPackedLeadingSegmentsAreNotPromoted(t *testing.T) {
	x := newTwoTiers(t, lenient(1, 0.02))
	other, p := x.mid(1, 64, 8), x.piece(2, profile.FirstSpec(64))
	x.publish(x.c, other)
	d, ok := x.Segment(other.key)
	if !ok || d.Packed == "" {
		t.Fatal("nothing was packed: this shows nothing")
	}
	x.sink(p)
	e := x.tier.entries[tier.Name{Key: p.key}]
	if e.Packed != "" {
		t.Fatal("a leading segment was packed")
	}
	plain := e.Packed
	e.Packed = d.Packed
	if row := x.try(p); row.Hit || row.Promoting {
		t.Errorf("packed: Hit %v, want false; Promoting %v, want false", row.Hit, row.Promoting)
	}
	e.Packed = plain
	if row := x.try(p); !row.Promoting {
		t.Error("as it was written it is not promoted either: this shows nothing")
	}
}
