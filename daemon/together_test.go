package daemon

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
)

// acquireTogether leases all documents or none.
func (c *rawClient) acquireTogether(docs ...*document) *wire.AcquireReply {
	c.t.Helper()
	m := &wire.AcquireRequest{Profile: c.profile, All: 1}
	for _, d := range docs {
		m.Keys = append(m.Keys, d.key)
	}
	var r wire.AcquireReply
	c.call(wire.OpAcquire, m, &r)
	return &r
}

func wantCodes(t *testing.T, r *wire.AcquireReply, want ...wire.Code) {
	t.Helper()
	for i, code := range want {
		if wire.Code(r.Codes[i]) != code || (r.Leases[i] != 0) != (code == wire.OK) {
			t.Fatalf("row %d is %v with lease %d, want %v", i, wire.Code(r.Codes[i]), r.Leases[i], code)
		}
	}
	if len(r.Codes) != len(want) {
		t.Fatalf("%d rows, want %d", len(r.Codes), len(want))
	}
}

// What lies on disk and does not fit beside what is leased is refused together,
// without a read or an eviction, until a lease is released.
func TestAllOrNoneWaitsForRoomOutside(t *testing.T) {
	s := startSlow(t, small)
	one, two := s.onDisk(1), s.onDisk(2)
	var held []uint64
	for seed := uint64(100); ; seed++ {
		d := s.document(seed)
		id, code := s.c.reserve(d, 0)
		if code == wire.Full {
			break
		}
		if code != wire.OK || !s.c.commit(id, d.layout, d.bytes) {
			t.Fatalf("reserve: %v", code)
		}
		held = append(held, s.c.lease(d))
	}
	if len(held) < 3 {
		t.Fatalf("memory holds %d documents", len(held))
	}
	s.c.release(held[0]) // room for one
	before := s.store.Counters()
	wantCodes(t, s.c.acquireTogether(one, two), wire.Full, wire.Full)
	after := s.store.Counters()
	if after.AcquireRefused != 1 || after.EvictedRoom != before.EvictedRoom || after.Promotions != before.Promotions || after.Promoting != 0 {
		t.Fatalf("%+v after %+v", after, before)
	}
	if m := s.c.match(one.key, two.key); m.Tier[0] != wire.TierDisk || m.Tier[1] != wire.TierDisk {
		t.Fatalf("tiers %v", m.Tier)
	}
	s.c.release(held[1])
	got := s.c.acquireTogether(one, two)
	wantCodes(t, got, wire.OK, wire.OK)
	s.c.release(append(held[2:], got.Leases...)...)
	s.c.close()
	s.atRest()
}

// Older clients can ask for block tables in acquire; no daemon has them any more.
func TestBlockTablesAreUnsupported(t *testing.T) {
	_, c, _ := startClient(t, testConfig(t), nil)
	c.refused(wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, Reserved: 16}, wire.Unsupported, "block tables of 16 tokens")
}
