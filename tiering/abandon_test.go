package tiering

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestAbandonedLeasesKeepTheirPagesUntilClose(t *testing.T) {
	b := newBench(t, hybrid(1))
	c, other := b.NewSession("client"), b.NewSession("other")
	p, pending := b.mid(1, 40, 4), b.mid(2, 40, 4)
	b.publish(c, p)
	rows, err := c.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil)
	b.must(err)
	b.must(rows[0].Err)
	r, err := c.Reserve(b.reserveQuery(pending, 0))
	b.must(err)
	c.Abandon()
	c.Abandon()
	pool := b.Pools()[0]
	if pool.PendingBytes != 0 || pool.QuarantinedBytes == 0 {
		t.Errorf("pending %d, quarantined %d", pool.PendingBytes, pool.QuarantinedBytes)
	}
	// The object is held as before, for others too; the session does nothing new.
	if got, err := other.Acquire(&AcquireQuery{Profile: b.id, Tenant: tenantA, Keys: [][32]byte{p.key}}, nil); err != nil || !got[0].Hit {
		t.Errorf("another session: %v, %v, want err == nil, got[0].Hit", err, got)
	}
	other.Close()
	b.must(b.Evict(p.key))
	if pool := b.Pools()[0]; pool.UsedBytes == 0 {
		t.Error("pages of an abandoned lease were freed")
	}
	if _, err := c.Reserve(b.reserveQuery(pending, 0)); err == nil {
		t.Error("an abandoned session reserves")
	}
	b.wantErr(c.Abort(r.ID), tier.ErrGone)
	c.Close()
	if pool := b.Pools()[0]; pool.UsedBytes != 0 {
		t.Errorf("%d bytes used after Close", pool.UsedBytes)
	}
}
