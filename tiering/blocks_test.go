package tiering

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/plan"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// arena copies bytes of the arena, as a client that has mapped it reads them.
func (b *bench) arena(off, n int64) []byte {
	b.Helper()
	return b.load(gpuipc.Ref{Region: b.Arena(), Extents: []gpuipc.Extent{{Off: off, Len: n}}})
}

// wantTable compares a block table with a reading of the extents byte by byte,
// and the rows it names with what was published. It answers how many blocks are
// not in one run.
func (b *bench) wantTable(p piece, row *Acquired, blockTokens int) (torn int) {
	b.Helper()
	var place []int64 // of each byte of the object
	for _, e := range row.Extents {
		for i := range e.Len {
			place = append(place, e.Off+i)
		}
	}
	table, err := b.geometry().BlockTable(row.Tokens, "", row.Extents, blockTokens, nil)
	b.must(err)
	if n, err := b.geometry().BlockEntries(row.Tokens, blockTokens); err != nil || n != len(table) {
		b.Fatalf("%d entries, %d foretold, %v", len(table), n, err)
	}
	data := contentOf(p, 0)
	for _, layer := range b.profile.AttentionLayers() {
		for _, kind := range rowKinds {
			part := p.layout.Parts[p.layout.Find(layer, kind)]
			size := part.Len / int64(row.Tokens)
			for first := 0; first < row.Tokens; first += blockTokens {
				off, n := part.Off+int64(first)*size, int64(min(blockTokens, row.Tokens-first))*size
				run := true
				for i := int64(1); i < n; i++ {
					run = run && place[off+i] == place[off]+i
				}
				got := table[0]
				table = table[1:]
				switch {
				case !run && got == plan.NoBlock:
					torn++
				case !run || got != uint64(place[off]):
					b.Fatalf("layer %d %v, rows from %d on: at %d, want %d, one run: %v", layer, kind, first, got, place[off], run)
				case !bytes.Equal(b.arena(int64(got), n), data[off:off+n]):
					b.Fatalf("layer %d %v, rows from %d on: other bytes", layer, kind, first)
				}
			}
		}
	}
	return torn
}

func TestBlockTableNamesTheArenasOwnPages(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	for i, tokens := range []int{20, 33, 64, 259} {
		p := b.mid(i, tokens, 8)
		b.publish(c, p)
		row := b.acquire(c, 0, p)
		for _, blockTokens := range []int{1, 7, 16, 64, 1 << 10} {
			if torn := b.wantTable(p, &row, blockTokens); torn != 0 {
				t.Errorf("%d tokens in blocks of %d: %d blocks torn in an empty arena", tokens, blockTokens, torn)
			}
		}
	}
}

// In an arena without long runs a segment lies in several extents. Only the
// blocks across their ends are not there: at most one for each end.
func TestBlocksAcrossExtentsAreLeftOut(t *testing.T) {
	b := newBench(t, hybrid(1), poolOf(12), func(c *Config) { c.PrivateBytes = 4096 })
	c := b.NewSession("c")
	var small []piece
	for i := range 12 {
		p := b.mid(i, 64, 8)
		b.publish(c, p)
		small = append(small, p)
	}
	for i := 0; i < len(small); i += 2 {
		b.must(b.Evict(small[i].key))
	}
	p := b.mid(99, 300, 8)
	b.publish(c, p)
	row := b.acquire(c, 0, p)
	if len(row.Extents) < 3 {
		t.Fatalf("%d extents", len(row.Extents))
	}
	torn := b.wantTable(p, &row, 16)
	if torn == 0 || torn >= len(row.Extents) {
		t.Errorf("%d torn blocks in %d extents", torn, len(row.Extents))
	}
	if torn := b.wantTable(p, &row, 1); torn >= len(row.Extents) {
		t.Errorf("%d torn rows in %d extents", torn, len(row.Extents))
	}
}

func TestBlockTableOfNonsenseIsInvalid(t *testing.T) {
	b := newBench(t, hybrid(1))
	for _, v := range [][2]int{{0, 16}, {16, 0}, {16, -1}, {16, 1<<16 + 1}, {profile.MaxTokens + 1, 16}} {
		_, err := b.geometry().BlockTable(v[0], "", nil, v[1], nil)
		b.wantErr(err, tier.ErrInvalid)
	}
	_, err := b.Store.Geometry(99)
	b.wantErr(err, tier.ErrInvalid)
}

// Two requests read the same pages at once; the pages stay for the one that is
// left, and are free after it.
func TestAliasedPagesStayWhileOneLeaseLives(t *testing.T) {
	b := newBench(t, hybrid(1), poolOf(1))
	c, d := b.NewSession("c"), b.NewSession("d")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	one, two := b.acquire(c, 0, p), b.acquire(d, 0, p)
	first, err := b.geometry().BlockTable(one.Tokens, "", one.Extents, 16, nil)
	b.must(err)
	second, err := b.geometry().BlockTable(two.Tokens, "", two.Extents, 16, nil)
	b.must(err)
	if fmt.Sprint(first) != fmt.Sprint(second) || len(first) == 0 {
		t.Fatalf("%v and %v", first, second)
	}
	b.must(c.Release(one.Lease))
	b.must(b.Evict(p.key)) // nobody finds it any more
	b.wantTable(p, &two, 16)
	if _, err := c.Reserve(b.reserveQuery(b.mid(2, 64, 8), 0)); err == nil {
		t.Fatal("pages under a lease were given away")
	}
	b.must(d.Release(two.Lease))
	b.wantUsed(0, 0)
	b.publish(c, b.mid(2, 64, 8))
}

func TestBlockTableDoesNotAllocate(t *testing.T) {
	b := newBench(t, hybrid(1))
	c := b.NewSession("c")
	p := b.mid(1, 300, 8)
	b.publish(c, p)
	row := b.acquire(c, 0, p)
	dst := make([]uint64, 0, 1<<10)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := b.geometry().BlockTable(row.Tokens, "", row.Extents, 16, dst); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%g allocations", n)
	}
}
