package daemon

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestSegmentsGoInAndStatesComeOut(t *testing.T) {
	leakCheck(t)
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	p := testProfile(t, 1)
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)

	if m := c.match(d.key); m.Status[0] != wire.StatusMiss || m.Reason[0] != wire.ReasonUnknown {
		t.Errorf("before: status %d, reason %d", m.Status[0], m.Reason[0])
	}
	id, code := c.reserve(d, 0)
	if code != wire.OK {
		t.Fatalf("reserve: %v", code)
	}
	if _, code := c.reserve(d, 0); code != wire.Exists {
		t.Errorf("reserved twice: %v", code)
	}
	if m := c.match(d.key); m.Status[0] != wire.StatusPending {
		t.Errorf("while filling: status %d", m.Status[0])
	}
	if !c.commit(id, d.layout, d.bytes) {
		t.Fatal("not published")
	}
	if m := c.match(d.key); m.Status[0] != wire.StatusHit || m.Tier[0] != wire.TierDRAM || m.Tokens[0] != 64 {
		t.Errorf("after: %+v", m)
	}
	lease := c.lease(d)
	plan := onePlan(lease, d, 5)

	// From a zero state, composing one segment gives its end-state.
	var composed wire.ComposeReply
	c.call(wire.OpCompose, &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: plan}, &composed)
	states := p.StatesLayout(0, 1)
	if composed.Bytes != uint64(states.Bytes) {
		t.Fatalf("states of %d bytes, want %d", composed.Bytes, states.Bytes)
	}
	s := d.layout.Parts[d.layout.Find(0, profile.PartS)]
	want, got := d.bytes[s.Off:s.Off+s.Len], c.slots.Bytes()[composed.Off:]
	for i := 0; i < int(s.Len); i += 4 {
		a, b := floatAt(want, i), floatAt(got, i)
		if math.Abs(float64(a-b)) > 1e-6 {
			t.Fatalf("state element %d: %g, want %g", i/4, b, a)
		}
	}

	// Rotation by position 0 copies the rows.
	var rotated wire.RotateReply
	c.call(wire.OpRotate, &wire.RotateRequest{Profile: c.profile, Layer: 1, Dest: wire.DestSlot, Plan: plan}, &rotated)
	k := d.layout.Parts[d.layout.Find(1, profile.PartK)]
	if rotated.Rows != 64 || string(c.slots.Bytes()[rotated.Off:][:k.Len]) != string(d.bytes[k.Off:k.Off+k.Len]) {
		t.Errorf("%d rows, or they differ", rotated.Rows)
	}
	var assembled wire.RotateReply
	c.call(wire.OpAssemble, &wire.AssembleRequest{RotateRequest: wire.RotateRequest{
		Profile: c.profile, Layer: wire.AllLayers, Dest: wire.DestSlot, Plan: plan}}, &assembled)
	if assembled.Bytes != uint64(p.CheckpointLayout(64).Bytes) {
		t.Errorf("assembled %d bytes, want %d", assembled.Bytes, p.CheckpointLayout(64).Bytes)
	}

	for i, code := range c.release(lease, composed.Lease, rotated.Lease, assembled.Lease, 999) {
		if want := []wire.Code{0, 0, 0, 0, wire.Gone}[i]; wire.Code(code) != want {
			t.Errorf("release %d: %v, want %v", i, wire.Code(code), want)
		}
	}
	c.close()
	r.atRest()
}

func floatAt(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))
}

func TestCheckpointsAreSavedAndLoaded(t *testing.T) {
	leakCheck(t)
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	p := testProfile(t, 1)
	c.register(p)
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
		t.Errorf("match: %+v", m)
	}
	var l wire.LoadReply
	c.call(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptExact, Digests: 1, Hash: hashes[1]}, &l)
	if l.Tokens != 48 || len(l.NodeBegin) != 2 || l.NodeEnd[0] != 16 || l.NodeBegin[1] != 16 || l.NodeEnd[1] != 48 {
		t.Errorf("load: %+v", l)
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
