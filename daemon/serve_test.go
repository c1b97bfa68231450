package daemon

import (
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
)

// served is a daemon with a client and a document that it has not published yet.
type served struct {
	*running
	c *rawClient
	p *profile.Profile
	d *document
}

func serve(t *testing.T) *served {
	t.Helper()
	s := &served{running: startDaemon(t, testConfig(t), nil), p: testProfile(1)}
	s.c = attach(t, s.Socket())
	s.c.register(s.p)
	s.d = newDocument(s.p, nil, 1, 64, profile.RoleFirst)
	return s
}

// published is serve with the document published and leased.
func published(t *testing.T) (*served, uint64) {
	t.Helper()
	s := serve(t)
	s.c.publish(s.d)
	return s, s.c.lease(s.d)
}

// end releases leases, which are all that is held, and finds nothing left.
func (s *served) end(leases ...uint64) {
	s.t.Helper()
	for i, code := range s.c.release(leases...) {
		if wire.Code(code) != wire.OK {
			s.t.Errorf("release of lease %d of %d: %v", i+1, len(leases), wire.Code(code))
		}
	}
	s.c.close()
	s.atRest()
}

func TestASegmentIsFoundOnceItIsPublished(t *testing.T) {
	s := serve(t)
	if m := s.c.match(s.d.key); m.Status[0] != wire.StatusMiss || m.Reason[0] != wire.ReasonUnknown {
		t.Errorf("before: status %d, reason %d", m.Status[0], m.Reason[0])
	}
	id, code := s.c.reserve(s.d, 0)
	if code != wire.OK {
		t.Fatalf("reserve: %v", code)
	}
	if _, code := s.c.reserve(s.d, 0); code != wire.Exists {
		t.Errorf("reserved twice: %v", code)
	}
	if m := s.c.match(s.d.key); m.Status[0] != wire.StatusPending {
		t.Errorf("while filling: status %d", m.Status[0])
	}
	if !s.c.commit(id, s.d.layout, s.d.bytes) {
		t.Fatal("not published")
	}
	if m := s.c.match(s.d.key); m.Status[0] != wire.StatusHit || m.Tier[0] != wire.TierDRAM || m.Tokens[0] != 64 {
		t.Errorf("after: status %d in tier %d, %d tokens", m.Status[0], m.Tier[0], m.Tokens[0])
	}
	// Leased together, the one that is there is withheld for the one that is not.
	var r wire.AcquireReply
	s.c.call(wire.OpAcquire, &wire.AcquireRequest{Profile: s.c.profile, All: 1, Keys: [][32]byte{s.d.key, {7}}}, &r)
	if wire.Code(r.Codes[0]) != wire.Canceled || wire.Code(r.Codes[1]) != wire.Miss || r.Leases[0] != 0 || r.Leases[1] != 0 {
		t.Errorf("both or none: codes %d with leases %d", r.Codes, r.Leases)
	}
	s.end(s.c.lease(s.d))
}

// Older clients can ask for block tables in acquire; no daemon has them any more.
func TestBlockTablesAreUnsupported(t *testing.T) {
	_, c, _ := startClient(t, testConfig(t), nil)
	c.refused(wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, Reserved: 16}, wire.Unsupported, "block tables of 16 tokens")
}

// From a zero state, composing one segment gives its end-state.
func TestSegmentsGoInAndStatesComeOut(t *testing.T) {
	s, lease := published(t)
	var composed wire.ComposeReply
	s.c.call(wire.OpCompose, &wire.ComposeRequest{Profile: s.c.profile, Layer: 0, Plan: onePlan(lease, s.d, 5)}, &composed)
	if states := s.p.StatesLayout(0, 1); composed.Bytes != uint64(states.Bytes) {
		t.Fatalf("states of %d bytes, want %d", composed.Bytes, states.Bytes)
	}
	end := s.d.layout.Parts[s.d.layout.Find(0, profile.PartS)]
	sameFloats(t, s.c.slots.Bytes()[composed.Off:], s.d.bytes[end.Off:end.Off+end.Len])
	s.end(lease, composed.Lease)
}

func TestRotationByPositionZeroCopiesTheRows(t *testing.T) {
	s, lease := published(t)
	var rotated wire.RotateReply
	s.c.call(wire.OpRotate, &wire.RotateRequest{Profile: s.c.profile, Layer: 1, Dest: wire.DestSlot, Plan: onePlan(lease, s.d, 5)}, &rotated)
	k := s.d.layout.Parts[s.d.layout.Find(1, profile.PartK)]
	if rotated.Rows != 64 || string(s.c.slots.Bytes()[rotated.Off:][:k.Len]) != string(s.d.bytes[k.Off:k.Off+k.Len]) {
		t.Errorf("%d rows, or they differ", rotated.Rows)
	}
	s.end(lease, rotated.Lease)
}
