package daemon

import (
	"bytes"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// acquireBlocks leases documents with block tables.
func (c *rawClient) acquireBlocks(blockTokens uint32, all uint8, docs ...*document) *wire.AcquireReply {
	c.t.Helper()
	m := &wire.AcquireRequest{Profile: c.profile, BlockTokens: blockTokens, All: all}
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

// leases counts what the connections hold.
func (r *running) leases() uint64 { return r.store.Counters().Leases }

func TestBlocksOfAReplyAreTheRowsPublished(t *testing.T) {
	leakCheck(t)
	r, c, p := startClient(t, testConfig(t), nil)
	docs := []*document{newDocument(p, nil, 1, 100, profile.RoleMid), newDocument(p, nil, 2, 33, profile.RoleFirst)}
	for _, d := range docs {
		c.publish(d)
	}
	got := c.acquireBlocks(16, 0, docs[0], &document{key: profile.SegmentKey{9}}, docs[1])
	wantCodes(t, got, wire.OK, wire.Miss, wire.OK)
	if got.BlockCount[0] != 2*6 || got.BlockCount[1] != 0 || got.BlockCount[2] != 2*3 {
		t.Fatalf("counts %v", got.BlockCount)
	}
	table := got.Block
	for _, d := range docs {
		_, tokens := d.spec.Interior()
		for _, kind := range []profile.PartKind{profile.PartK, profile.PartV} {
			part := d.layout.Parts[d.layout.Find(1, kind)]
			row := int(part.Len) / tokens
			for first := 0; first < tokens; first += 16 {
				n := min(16, tokens-first) * row
				want := d.bytes[int(part.Off)+first*row:][:n]
				if !bytes.Equal(c.arena.Bytes()[table[0]:][:n], want) {
					t.Fatalf("kind %v from row %d on: other bytes at %d", kind, first, table[0])
				}
				table = table[1:]
			}
		}
	}
	c.release(got.Leases[0], got.Leases[2])
	if without := c.acquireBlocks(0, 1, docs...); len(without.BlockCount) != 0 || len(without.Block) != 0 {
		t.Errorf("tables that nobody asked for: %v", without.BlockCount)
	}
	c.refused(wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, BlockTokens: 1<<16 + 1, Keys: [][32]byte{docs[0].key}}, wire.Invalid, "")
	c.refused(wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, BlockTokens: 1<<32 - 1}, wire.Invalid, "")
	c.close()
	r.atRest()
}

// Tables fill a frame long before extents do: what is left over is busy, what
// fits no frame is full, and together all is full.
func TestTablesThatDoNotFitAFrame(t *testing.T) {
	leakCheck(t)
	r, c, p := startClient(t, testConfig(t), nil)
	var docs []*document
	for seed := range uint64(4) {
		docs = append(docs, newDocument(p, nil, seed, 2000, profile.RoleFirst))
		c.publish(docs[seed])
	}
	long := newDocument(p, nil, 99, wire.MaxTable/2+1, profile.RoleFirst)
	c.publish(long)
	got := c.acquireBlocks(1, 0, docs[0], long, docs[1], docs[2], docs[3])
	wantCodes(t, got, wire.OK, wire.Full, wire.OK, wire.OK, wire.Busy)
	if n := r.leases(); n != 3 {
		t.Fatalf("%d leases", n)
	}
	c.release(got.Leases[0], got.Leases[2], got.Leases[3])
	wantCodes(t, c.acquireBlocks(1, 1, docs...), wire.Full, wire.Full, wire.Full, wire.Full)
	wantCodes(t, c.acquireBlocks(1, 1, docs[0], &document{}), wire.Canceled, wire.Miss)
	if n := r.leases(); n != 0 {
		t.Fatalf("%d leases", n)
	}
	wantCodes(t, c.acquireBlocks(2, 1, docs...), wire.OK, wire.OK, wire.OK, wire.OK)
	c.close()
	r.atRest()
}

// What lies on disk and does not fit beside what is leased is refused together,
// without a read or an eviction, until somebody lets go.
func TestAllOrNoneWaitsForRoomOutside(t *testing.T) {
	leakCheck(t)
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
	wantCodes(t, s.c.acquireBlocks(16, 1, one, two), wire.Full, wire.Full)
	after := s.store.Counters()
	if after.AcquireRefused != 1 || after.EvictedRoom != before.EvictedRoom || after.Promotions != before.Promotions || after.Promoting != 0 {
		t.Fatalf("%+v after %+v", after, before)
	}
	if m := s.c.match(one.key, two.key); m.Tier[0] != wire.TierDisk || m.Tier[1] != wire.TierDisk {
		t.Fatalf("tiers %v", m.Tier)
	}
	s.c.release(held[1])
	got := s.c.acquireBlocks(16, 1, one, two)
	wantCodes(t, got, wire.OK, wire.OK)
	if got.BlockCount[0] != 2*32 || got.BlockCount[1] != 2*32 {
		t.Errorf("counts %v", got.BlockCount)
	}
	s.c.release(append(held[2:], got.Leases...)...)
	s.c.close()
	s.atRest()
}

// A wait that is cancelled leaves no lease of what was in memory already.
func TestAllOrNoneThatIsCancelledHoldsNothing(t *testing.T) {
	leakCheck(t)
	s := startSlow(t, small)
	d, held := s.onDisk(1), s.document(2)
	s.c.publish(held)
	s.disk.reads.close()
	request := s.c.send(wire.OpAcquire, &wire.AcquireRequest{Profile: s.c.profile, All: 1, Keys: [][32]byte{held.key, d.key}})
	s.disk.reads.await(t)
	var r wire.CancelReply
	s.c.call(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{request}}, &r)
	if code, _, _ := s.c.await(request); code != wire.Canceled {
		t.Errorf("the request ended as %v", code)
	}
	s.disk.reads.open()
	eventually(t, "nothing is leased", func() bool { return s.leases() == 0 })
	s.c.close()
	s.atRest()
}
