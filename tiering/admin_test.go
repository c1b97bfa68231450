package tiering

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/internal/index"
	"github.com/spliced-kv/spliced/tiering/stats"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestListingPagesInOrderOfKeys(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("writer")
	want := map[profile.SegmentKey]piece{}
	for i := range 30 {
		p := b.mid(i, 64, 8)
		b.publish(c, p)
		want[p.key] = p
	}
	pending := b.mid(99, 64, 8)
	_, err := c.Reserve(b.reserveQuery(pending, 0))
	b.must(err)
	foreign := b.pieceOf(tenantB, 5, pending.spec)
	b.publishFor(c, tenantB, foreign)

	for _, limit := range []int{1, 7, 100} {
		var all []SegmentInfo
		var after *profile.SegmentKey
		for {
			page := b.Segments(SegmentFilter{}, after, limit)
			if len(page) > limit {
				t.Fatalf("%d rows on a page of %d", len(page), limit)
			}
			if len(page) == 0 {
				break
			}
			all = append(all, page...)
			after = &page[len(page)-1].Key
		}
		if len(all) != 32 || !slices.IsSortedFunc(all, func(x, y SegmentInfo) int { return bytes.Compare(x.Key[:], y.Key[:]) }) {
			t.Fatalf("limit %d: %d segments, or out of order", limit, len(all))
		}
		for _, info := range all {
			if p, ok := want[info.Key]; ok && (info.Interior != 48 || info.Bytes != p.layout.Bytes || !info.Published || info.Publisher != "writer" || info.Place != tier.PlaceDRAM) {
				t.Fatalf("ok %v, want false; Interior %v, want 48; Bytes %v, want %v; Published %v, want true; Publisher %v, want %v; Place %v, want %v", ok, info.Interior, info.Bytes, p.layout.Bytes, info.Published, info.Publisher, "writer", info.Place, tier.PlaceDRAM)
			}
			if info.Published == (info.Key == pending.key) {
				t.Fatalf("Published %v, want other than %v", info.Published, (info.Key == pending.key))
			}
		}
	}
	tenant := tenantB
	for name, f := range map[string]SegmentFilter{
		"tenant":       {Tenant: &tenant},
		"prefix":       {Prefix: fmt.Sprintf("%x", foreign.key[:3])},
		"odd prefix":   {Prefix: fmt.Sprintf("%x", foreign.key)[:7]},
		"whole key":    {Prefix: fmt.Sprintf("%x", foreign.key)},
		"all together": {Tenant: &tenant, Profile: b.id, Prefix: fmt.Sprintf("%x", foreign.key[:1])},
	} {
		if got := b.Segments(f, nil, 10); len(got) != 1 || got[0].Key != foreign.key || got[0].Tenant != tenantB {
			t.Errorf("by %s: %d segments", name, len(got))
		}
	}
	for name, f := range map[string]SegmentFilter{
		"profile": {Profile: b.id + 1}, "long prefix": {Prefix: fmt.Sprintf("%x0", foreign.key)}, "no digits": {Prefix: "zz"},
	} {
		if got := b.Segments(f, nil, 10); len(got) != 0 {
			t.Errorf("by %s: %d segments", name, len(got))
		}
	}
}

// A prefix is looked for in no more shards than may have keys that begin with it.
func TestPrefixesNameShards(t *testing.T) {
	for i := range 1000 {
		key := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		for n := range 6 {
			first, last := shards(fmt.Sprintf("%x", key)[:n], nil)
			if at := index.Shard(&key); at < first || at > last || last-first+1 != index.Shards>>min(4*n, 12) {
				t.Fatalf("%x lies in shard %d, its first %d digits say %d to %d", key[:3], at, n, first, last)
			}
			if f, l := shards(fmt.Sprintf("%x", key)[:n], &key); f != index.Shard(&key) || l != last {
				t.Fatalf("behind %x, of its first %d digits: %d to %d", key[:3], n, f, l)
			}
		}
	}
}

func TestSegmentDetail(t *testing.T) {
	b := newBench(t, hybrid(2))
	c := b.NewSession("writer")
	p := b.mid(1, 64, 8)
	if _, ok := b.Segment(p.key); ok {
		t.Fatal("a segment that is not held has details")
	}
	b.publish(c, p)
	id := b.lease(c, p)
	d, ok := b.Segment(p.key)
	if !ok || d.Ranks != 2 || d.Leases != 1 || d.Hits != 1 || len(d.Layout.Parts) != len(p.layout.Parts) || !slices.Equal(d.Tokens, p.tokens) {
		t.Fatalf("ok %v, want true; Ranks %v, want 2; Leases %v, want 1; Hits %v, want 1; len(d.Layout.Parts) %v, want %v; Tokens as wanted: %v", ok, d.Ranks, d.Leases, d.Hits, len(d.Layout.Parts), len(p.layout.Parts), slices.Equal(d.Tokens, p.tokens))
	}
	for rank, extents := range d.Extents {
		ref := gpuipc.Ref{Region: b.Arena(), Extents: extents}
		if ref.Len() != p.layout.Bytes {
			t.Fatalf("rank %d: %d bytes, want %d", rank, ref.Len(), p.layout.Bytes)
		}
	}
	b.must(c.Release(id))
}

func TestCheckpointListingKeepsSiblingsTogether(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("writer")
	b.save(c, b.saveQuery(1, 16, 0, tier.Exact), 0)
	b.save(c, b.saveQuery(1, 16, 0, tier.Spliced), 0)
	b.save(c, b.saveQuery(2, 32, 0, tier.Exact), 0)
	page := b.Checkpoints(CheckpointFilter{}, nil, 1)
	if len(page) != 2 || page[0].Hash != hashOf(1, 16) || page[1].Hash != hashOf(1, 16) || page[0].Kind == page[1].Kind {
		t.Fatalf("%v, want len(page) == 2, page[0].Hash == hashOf(1, 16), page[1].Hash == hashOf(1, 16), page[0].Kind != page[1].Kind", page)
	}
	rest := b.Checkpoints(CheckpointFilter{Profile: b.id}, &page[1].Hash, 10)
	if len(rest) != 1 || rest[0].Hash != hashOf(2, 32) || rest[0].Tokens != 32 || rest[0].Begin != 0 || !rest[0].Published {
		t.Fatalf("%v, want len(rest) == 1, rest[0].Hash == hashOf(2, 32), rest[0].Tokens == 32, rest[0].Begin == 0, rest[0].Published", rest)
	}
	tenant := tenantB
	if got := b.Checkpoints(CheckpointFilter{Tenant: &tenant}, nil, 10); len(got) != 0 {
		t.Fatalf("another tenant's listing: len(got) %v, want 0", len(got))
	}
}

func TestEveryCounterHasAName(t *testing.T) {
	var c stats.Counters
	fields := uint64(0)
	number := func(v reflect.Value) {
		fields++
		v.SetUint(fields)
	}
	var all func(v reflect.Value)
	all = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				all(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				number(v.Index(i))
			}
		default:
			number(v)
		}
	}
	all(reflect.ValueOf(&c).Elem())
	names, values := map[string]bool{}, map[uint64]string{}
	c.Each(func(name string, value uint64) {
		if names[name] || values[value] != "" {
			t.Errorf("%s comes twice, or what %s tells", name, values[value])
		}
		names[name], values[value] = true, name
	})
	// Nameless: no reason and "flag only" for segments, keys and tokens; no reason
	// for prefixes; the default as a level that was reached; outcomes that a
	// promotion into memory (two), a fetch (two), a search (four), or a promotion into
	// HBM (one) does not have.
	if want := int(fields) - 2*2 - 1 - 1 - 9; len(names) != want {
		t.Errorf("%d names, want %d", len(names), want)
	}
}

// The numbers of profile and of the kernels are converted by a cast.
func TestTypesAreNumberedAlike(t *testing.T) {
	for p, g := range map[profile.DType]gpuipc.DType{profile.F32: 1, profile.F16: 2, profile.BF16: 3} {
		if gpuipc.DType(p) != g || gpuipc.DType(p).Size() != p.Size() {
			t.Errorf("type %d", p)
		}
	}
	for p, g := range map[profile.Transition]gpuipc.Transition{profile.Scalar: 1, profile.Diagonal: 2, profile.Dense: 3} {
		if gpuipc.Transition(p) != g {
			t.Errorf("transition %d", p)
		}
	}
}
