package tiering

import (
	"bytes"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

// Two leases of a segment name the same pages, which stay until the last of them ends.
func TestAliasedPagesStayWhileOneLeaseLives(t *testing.T) {
	b := newBench(t, hybrid(1), poolOf(1))
	c, d := b.NewSession("c"), b.NewSession("d")
	p := b.mid(1, 64, 8)
	b.publish(c, p)
	one, two := b.acquire(c, 0, p), b.acquire(d, 0, p)
	if !slices.Equal(one.Extents, two.Extents) || len(one.Extents) == 0 {
		t.Fatalf("%v and %v", one.Extents, two.Extents)
	}
	b.must(c.Release(one.Lease))
	b.must(b.Evict(p.key)) // no lookup finds it any more
	got := b.load(gpuipc.Ref{Region: b.Arena(), Extents: two.Extents})
	if want := contentOf(p, 0); !bytes.Equal(got, want) {
		t.Fatal("other bytes under a lease")
	}
	if _, err := c.Reserve(b.reserveQuery(b.mid(2, 64, 8), 0)); err == nil {
		t.Fatal("pages under a lease were given away")
	}
	b.must(d.Release(two.Lease))
	b.wantUsed(0, 0)
	b.publish(c, b.mid(2, 64, 8))
}
