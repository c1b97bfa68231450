package daemon

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
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
	s.end(s.c.lease(s.d))
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
	want, got := s.d.bytes[end.Off:end.Off+end.Len], s.c.slots.Bytes()[composed.Off:]
	for i := 0; i < int(end.Len); i += 4 {
		a, b := floatAt(want, i), floatAt(got, i)
		if math.Abs(float64(a-b)) > 1e-6 {
			t.Fatalf("state element %d: %g, want %g", i/4, b, a)
		}
	}
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

func TestAssembleAnswersACheckpoint(t *testing.T) {
	s, lease := published(t)
	var assembled wire.RotateReply
	s.c.call(wire.OpAssemble, &wire.AssembleRequest{RotateRequest: wire.RotateRequest{
		Profile: s.c.profile, Layer: wire.AllLayers, Dest: wire.DestSlot, Plan: onePlan(lease, s.d, 5)}}, &assembled)
	if want := uint64(s.p.CheckpointLayout(64).Bytes); assembled.Bytes != want {
		t.Errorf("assembled %d bytes, want %d", assembled.Bytes, want)
	}
	s.end(lease, assembled.Lease)
}

// Leases of the store and of slots are released alike, in one request.
func TestLeasesOfAllKindsAreReleasedTogether(t *testing.T) {
	s, lease := published(t)
	var composed wire.ComposeReply
	s.c.call(wire.OpCompose, &wire.ComposeRequest{Profile: s.c.profile, Layer: 0, Plan: onePlan(lease, s.d, 5)}, &composed)
	for i, code := range s.c.release(lease, composed.Lease, 999) {
		if want := []wire.Code{wire.OK, wire.OK, wire.Gone}[i]; wire.Code(code) != want {
			t.Errorf("release %d: %v, want %v", i, wire.Code(code), want)
		}
	}
	s.end()
}

func floatAt(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))
}

func TestCheckpointsAreSavedAndLoaded(t *testing.T) {
	r, c, p := startClient(t, testConfig(t), nil)
	d := newDocument(p, nil, 3, 48, profile.RoleFirst)
	hashes := p.PrefixHashes(nil, 16, d.tokens, []int{16, 48})

	save := func(hash, parent [32]byte, tokens uint32, rows int) {
		t.Helper()
		var rep wire.ReserveReply
		c.call(wire.OpSave, &wire.SaveRequest{Profile: c.profile, Kind: wire.AcceptExact, Hashes: [][32]byte{hash}, Tokens: []uint32{tokens}, Parents: [][32]byte{parent}}, &rep)
		if wire.Code(rep.Codes[0]) != wire.OK {
			t.Fatalf("save: %v", wire.Code(rep.Codes[0]))
		}
		l := p.CheckpointLayout(rows)
		if !c.commit(rep.Reservations[0], l, make([]byte, l.Bytes)) {
			t.Fatal("not published")
		}
	}
	save(hashes[0], [32]byte{}, 16, 16)
	save(hashes[1], hashes[0], 48, 32)

	var m wire.MatchReply
	c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Accept: wire.AcceptExact, Positions: []uint32{16, 48}, Prefixes: [][32]byte{hashes[0], hashes[1]}}, &m)
	if m.PrefixTokens != 48 || m.PrefixIndex != 1 || m.PrefixFlags != wire.AcceptExact {
		t.Errorf("match: %d tokens, position %d, kind %d", m.PrefixTokens, m.PrefixIndex, m.PrefixFlags)
	}
	var l wire.LoadReply
	c.call(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptExact, Digests: 1, Hash: hashes[1]}, &l)
	if l.Tokens != 48 || len(l.NodeBegin) != 2 || l.NodeEnd[0] != 16 || l.NodeBegin[1] != 16 || l.NodeEnd[1] != 48 {
		t.Errorf("load: %d tokens in nodes from %d to %d", l.Tokens, l.NodeBegin, l.NodeEnd)
	}
	c.refused(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptSpliced, Hash: hashes[1]}, wire.Miss, "flag_only")
	c.close()
	r.atRest()
}

func TestStatsListsCounters(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	var s wire.StatsReply
	c.call(wire.OpStats, &wire.StatsRequest{}, &s)
	found := map[string]float64{}
	for i, name := range s.Names {
		found[name] = s.Values[i]
	}
	if found["connections"] != 1 || found["requests_hello_ok"] != 1 || found["pool_public_capacity_bytes"] != float64(8*settings.MiB) {
		t.Errorf("stats: %v", found)
	}
}
