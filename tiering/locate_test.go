package tiering

import (
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestLocateTellsWhereThingsLieAndLeavesNoTrace(t *testing.T) {
	x := newTwoTiers(t, hybrid(1), writeBehind, readAhead)
	below, above, nowhere, another := x.mid(1, 64, 8), x.mid(2, 64, 8), x.mid(3, 64, 8), x.pieceOf(tenantB, 4, x.mid(4, 64, 8).spec)
	x.save(x.c, x.saveQuery(1, 100, 0, tier.Exact), 0)
	x.sink(below)
	x.save(x.c, x.saveQuery(1, 200, 0, tier.Spliced), 0)
	x.publish(x.c, above)
	x.publishFor(x.c, tenantB, another)
	before := x.Counters()

	q := &MatchQuery{Profile: x.id, Tenant: tenantA, Accept: tier.Exact | tier.Spliced, Positions: []uint32{50, 100, 200, 300}}
	for _, n := range q.Positions {
		q.Prefixes = append(q.Prefixes, hashOf(1, int(n)))
	}
	for _, p := range []piece{below, above, nowhere, another} {
		q.Keys = append(q.Keys, p.key)
	}
	var got Located
	x.must(x.Locate(q, &got))
	want := []SegmentStatus{
		{Status: tier.StatusHit, Place: tier.PlaceDisk, Tokens: 48}, {Status: tier.StatusHit, Place: tier.PlaceDRAM, Tokens: 48},
		{Status: tier.StatusMiss}, {Status: tier.StatusMiss},
	}
	if !slices.Equal(got.Segments, want) {
		t.Errorf("segments: %v, want %v", got.Segments, want)
	}
	if got.Prefix != 2 || got.PrefixPlace != tier.PlaceDRAM {
		t.Errorf("prefix %d in %d, want the one of 200 tokens in memory", got.Prefix, got.PrefixPlace)
	}
	q.Accept = tier.Exact
	x.must(x.Locate(q, &got))
	if got.Prefix != 1 || got.PrefixPlace != tier.PlaceDisk {
		t.Errorf("prefix %d in %d, want the exact one", got.Prefix, got.PrefixPlace)
	}
	q.Accept = 0
	x.must(x.Locate(q, &got))
	if got.Prefix != -1 {
		t.Errorf("prefix %d, none is accepted", got.Prefix)
	}
	if after := x.Counters(); after != before {
		t.Errorf("it is counted: %+v, was %+v", after, before)
	}
	if n := x.carry(); n > 0 {
		t.Errorf("%d objects were read ahead", n)
	}
}

func TestLocateRefusesNonsense(t *testing.T) {
	b := newBench(t, hybrid(1))
	var r Located
	b.wantErr(b.Locate(&MatchQuery{Profile: 9, Tenant: tenantA}, &r), tier.ErrInvalid)
	b.wantErr(b.Locate(&MatchQuery{Profile: b.id, Tenant: 9}, &r), tier.ErrInvalid)
	b.wantErr(b.Locate(&MatchQuery{Profile: b.id, Tenant: tenantA, Positions: []uint32{1}}, &r), tier.ErrInvalid)
	if _, err := b.Learned(9); err == nil {
		t.Error("costs of no profile")
	}
}
