package daemon

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// decodedRows is the rows of ten tokens of testProfile.
const decodedRows = 10

func rowsOf(p *profile.Profile) (profile.Layout, []byte) {
	l := p.BufferLayout(decodedRows)
	return l, fill(l, rand.New(rand.NewPCG(5, 5)))
}

// stageRows puts rows [from, from+n) to the start of staging.
func (c *rawClient) stageRows(p *profile.Profile, from, n int) {
	all, data := rowsOf(p)
	for i, part := range p.BufferLayout(n).Parts {
		row := int64(part.Shape[1]*part.Shape[2]) * int64(part.DType.Size())
		c.stage(int(part.Off), data[all.Parts[i].Off+int64(from)*row:][:int64(n)*row])
	}
}

// appendRows adds rows that are those of tokens [from, from+n) of a buffer at begin.
func (c *rawClient) appendRows(p *profile.Profile, buffer uint64, begin, from, n int) wire.AppendReply {
	c.t.Helper()
	c.stageRows(p, from, n)
	var r wire.AppendReply
	c.call(wire.OpAppend, &wire.AppendRequest{Profile: c.profile, Buffer: buffer, Begin: uint32(begin), Rows: uint32(n)}, &r)
	return r
}

func (c *rawClient) openBuffer(base uint64, begin, capacity int) uint64 {
	c.t.Helper()
	var r wire.AppendReply
	c.call(wire.OpAppend, &wire.AppendRequest{Profile: c.profile, Base: base, Begin: uint32(begin), Capacity: uint32(capacity)}, &r)
	if r.Buffer == 0 || r.Begin != uint32(begin) || r.Accepted != r.Begin || r.End != r.Begin {
		c.t.Fatalf("opened %+v", r)
	}
	return r.Buffer
}

func (c *rawClient) accept(buffer uint64, n int) (r wire.AppendReply) {
	c.t.Helper()
	c.call(wire.OpAccept, &wire.AcceptRequest{Profile: c.profile, Buffer: buffer, Tokens: uint32(n)}, &r)
	return r
}

// replay is the states behind a token, and the slot that they lie in.
func (c *rawClient) replay(p *profile.Profile, buffer uint64, token int, flush uint8) ([]byte, uint64) {
	c.t.Helper()
	var r wire.ComposeReply
	c.call(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: buffer, Token: uint32(token), Flush: flush}, &r)
	if r.Bytes != uint64(p.CheckpointLayout(0).Bytes) {
		c.t.Fatalf("replay of %d bytes", r.Bytes)
	}
	return bytes.Clone(c.slots.Bytes()[r.Off:][:r.Bytes]), r.Lease
}

// filled is a client with a buffer of zero states, eight accepted rows and two
// drafts.
func filled(t *testing.T, device gpuipc.Device) (*running, *rawClient, *profile.Profile, uint64) {
	r, c, p := startClient(t, testConfig(t), device)
	b := c.openBuffer(0, 0, 12)
	c.appendRows(p, b, 0, 0, 8)
	c.accept(b, 8)
	if got := c.appendRows(p, b, 8, 8, 2); got.Begin != 0 || got.Accepted != 8 || got.End != 10 {
		t.Fatalf("buffer %+v", got)
	}
	return r, c, p, b
}

// However the rows up to a token reach a buffer, over whatever base, its states are
// the same.
func TestBuffersOverAnyBaseGiveTheSameStates(t *testing.T) {
	leakCheck(t)
	r, c, p, whole := filled(t, nil)
	want, _ := c.replay(p, whole, 8, 0)
	middle, slot := c.replay(p, whole, 3, 0)
	if bytes.Equal(middle, want) || len(bytes.Trim(want, "\x00")) == 0 {
		t.Fatal("rows change nothing")
	}
	// Over a slot, which may go at once.
	over := c.openBuffer(slot, 3, 5)
	c.release(slot)
	c.appendRows(p, over, 3, 3, 5)
	c.accept(over, 5)
	if got, _ := c.replay(p, over, 8, 0); !bytes.Equal(got, want) {
		t.Error("over a slot: other states")
	}
	// Flushed on the way, around the end of a short buffer.
	short := c.openBuffer(0, 0, 3)
	for from := 0; from < 8; from += 2 {
		c.appendRows(p, short, from, from, 2)
		c.accept(short, 2)
		c.replay(p, short, from+1, 1)
	}
	if got, _ := c.replay(p, short, 8, 0); !bytes.Equal(got, want) {
		t.Error("flushed on the way: other states")
	}
	for _, code := range c.release(whole, over, short) {
		if wire.Code(code) != wire.OK {
			t.Errorf("release: %v", wire.Code(code))
		}
	}
	if used := r.store.Pools()[1].UsedBytes; used != 0 {
		t.Errorf("%d bytes of the private pool", used)
	}
	c.refused(wire.OpAccept, &wire.AcceptRequest{Profile: c.profile, Buffer: short}, wire.Gone, "buffer")
	c.close()
	r.atRest()
}

func TestBadBufferRequestsLoseNothing(t *testing.T) {
	leakCheck(t)
	r, c, p, b := filled(t, nil)
	want, taken := c.replay(p, b, 8, 0)
	other := attach(t, r.Socket())
	other.register(p)
	q := wire.AppendRequest{Profile: c.profile, Buffer: b, Begin: 10, Rows: 1}
	for name, tc := range map[string]struct {
		code  wire.Code
		part  string
		spoil func(*wire.AppendRequest)
	}{
		"many rows":                       {wire.Invalid, "rows", func(q *wire.AppendRequest) { q.Rows = 1 << 31 }},
		"outside staging":                 {wire.Invalid, "staging", func(q *wire.AppendRequest) { q.StagingOff = c.hello.StagingBytes - 64 }},
		"far outside staging":             {wire.Invalid, "staging", func(q *wire.AppendRequest) { q.StagingOff = 1 << 63 }},
		"odd staging":                     {wire.Invalid, "", func(q *wire.AppendRequest) { q.StagingOff = 1 }},
		"no such rank":                    {wire.Invalid, "rank", func(q *wire.AppendRequest) { q.Rank = 1 }},
		"no such profile":                 {wire.Invalid, "profile", func(q *wire.AppendRequest) { q.Profile = 99 }},
		"opened for more than any buffer": {wire.Invalid, "buffer", func(q *wire.AppendRequest) { q.Buffer, q.Capacity, q.Begin = 0, 1<<31, 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			bad := q
			tc.spoil(&bad)
			c.refused(wire.OpAppend, &bad, tc.code, tc.part)
		})
	}
	c.refused(wire.OpAccept, &wire.AcceptRequest{Profile: c.profile, Buffer: b, Tokens: 3}, wire.Invalid, "3 of 2")
	c.refused(wire.OpAccept, &wire.AcceptRequest{Profile: c.profile, Rank: 1, Buffer: b}, wire.Invalid, "rank")
	for _, token := range []uint32{9, 1 << 31} {
		c.refused(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: b, Token: token}, wire.Invalid, "states of tokens 0 to 8")
	}
	c.refused(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: b, Flush: 2}, wire.Invalid, "flush")
	c.refused(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: b, Into: 1 << 40}, wire.Gone, "slot")
	// Another connection's buffers and slots name nothing.
	other.refused(wire.OpAppend, &wire.AppendRequest{Profile: other.profile, Buffer: b, Begin: 10, Rows: 1}, wire.Gone, "buffer")
	other.refused(wire.OpAccept, &wire.AcceptRequest{Profile: other.profile, Buffer: b}, wire.Gone, "buffer")
	other.refused(wire.OpReplay, &wire.ReplayRequest{Profile: other.profile, Buffer: b, Token: 8, Flush: 1}, wire.Gone, "lease")
	other.refused(wire.OpAppend, &wire.AppendRequest{Profile: other.profile, Base: taken, Begin: 8, Capacity: 2}, wire.Gone, "lease")

	if got := c.accept(b, 0); got.Accepted != 8 || got.End != 8 {
		t.Errorf("buffer %+v", got)
	}
	if got, _ := c.replay(p, b, 8, 1); !bytes.Equal(got, want) {
		t.Error("other states than before the bad requests")
	}
	c.close()
	other.close()
	r.atRest()
	if used, n := r.store.Pools()[1].UsedBytes, r.store.Counters().Buffers; used != 0 || n != 0 {
		t.Errorf("after their connection there are %d buffers, and %d bytes in the private pool", n, used)
	}
}

// Cancelled in its middle, a flush has changed nothing.
func TestACancelledFlushLosesNothing(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	r, c, p, b := filled(t, device)
	want, _ := c.replay(p, b, 8, 0)
	stall := device.StallInside(t, gpuipc.OpReplay, 1)
	request := c.send(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: b, Token: 8, Flush: 1})
	stall.Await()
	cancel := c.send(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{request}})
	c.refused(wire.OpAccept, &wire.AcceptRequest{Profile: c.profile, Buffer: b}, wire.Busy, "buffer")
	stall.Release()
	if code, _, _ := c.await(cancel); code != wire.OK {
		t.Fatalf("cancel: %v", code)
	}
	if code, _, _ := c.await(request); code != wire.Canceled {
		t.Fatalf("replay: %v", code)
	}
	if got, _ := c.replay(p, b, 8, 1); !bytes.Equal(got, want) {
		t.Error("other states than before")
	}
	c.close()
	r.atRest()
}

// withRows is attach for a client that has a use for what is kept as rows.
func withRows(t *testing.T, r *running, p *profile.Profile) *rawClient {
	c := attachWith(t, r.Socket(), wire.FeatureRows)
	if c.hello.Features != wire.FeatureRows {
		t.Fatalf("features %#x", c.hello.Features)
	}
	c.register(p)
	return c
}

// saveNode keeps the bytes of one node.
func (c *rawClient) saveNode(kind uint8, hash, parent [32]byte, tokens uint32, l profile.Layout, data []byte) {
	c.t.Helper()
	var out wire.ReserveReply
	c.call(wire.OpSave, &wire.SaveRequest{
		Profile: c.profile, Kind: kind, Hashes: [][32]byte{hash}, Tokens: []uint32{tokens}, Parents: [][32]byte{parent},
	}, &out)
	if wire.Code(out.Codes[0]) != wire.OK || !c.commit(out.Reservations[0], l, data) {
		c.t.Fatalf("save of kind %d: %v", kind, wire.Code(out.Codes[0]))
	}
}

// Rows are kept out of a buffer by clients that agreed on it.
func TestRowsAreKeptOutOfABuffer(t *testing.T) {
	leakCheck(t)
	r, writer, p, b := filled(t, nil)
	want, _ := writer.replay(p, b, 8, 0)
	edge, hash := p.EdgeLayout(8), [32]byte{7, 7}
	save := func(c *rawClient, kind uint8, buffer uint64) *wire.SaveRequest {
		return &wire.SaveRequest{
			Profile: c.profile, Kind: kind, Hashes: [][32]byte{hash}, Tokens: []uint32{8}, Parents: [][32]byte{{}},
			Buffered: wire.SaveBuffered{Present: true, Buffer: buffer},
		}
	}
	older := withRows(t, r, p)
	older.refused(wire.OpSave, save(older, wire.AcceptRows, b), wire.Invalid, "feature")
	older.close()

	c := attachWith(t, r.Socket(), wire.FeatureRows|wire.FeatureBuffered)
	c.register(p)
	mine := c.openBuffer(0, 0, 8)
	c.appendRows(p, mine, 0, 0, 8)
	c.accept(mine, 8)
	var out wire.ReserveReply
	for what, q := range map[string]struct {
		m    *wire.SaveRequest
		code wire.Code
	}{
		"states":             {save(c, wire.AcceptExact, mine), wire.Invalid},
		"another's buffer":   {save(c, wire.AcceptRows, b), wire.Gone},
		"an unheard of name": {save(c, wire.AcceptRows, 1<<50), wire.Gone},
	} {
		if c.call(wire.OpSave, q.m, &out); wire.Code(out.Codes[0]) != q.code {
			t.Errorf("%s: %v, want %v", what, wire.Code(out.Codes[0]), q.code)
		}
	}
	c.call(wire.OpSave, save(c, wire.AcceptRows, mine), &out)
	if wire.Code(out.Codes[0]) != wire.OK {
		t.Fatalf("save: %v", wire.Code(out.Codes[0]))
	}
	linear := p.LinearLayers()
	rest := wire.CommitRequest{}
	for i, part := range edge.Parts { // keys and values
		if slices.Contains(linear, part.Layer) {
			continue
		}
		zeros := make([]byte, part.Len)
		c.stage(int(part.Off), zeros)
		rest.Reservations = append(rest.Reservations, out.Reservations[0])
		rest.Parts, rest.ChunkFirst = append(rest.Parts, uint32(i)), append(rest.ChunkFirst, 0)
		rest.ChunkCount = append(rest.ChunkCount, uint32(gpuipc.Chunks(part.Len)))
		rest.StagingOff = append(rest.StagingOff, uint64(part.Off))
		rest.Digest = gpuipc.AppendDigests(rest.Digest, zeros)
	}
	var done wire.CommitReply
	if c.call(wire.OpCommit, &rest, &done); done.Published[len(done.Published)-1] != 1 {
		t.Fatalf("not published: %+v", done)
	}
	var l wire.LoadReply
	c.call(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptRows, Hash: hash}, &l)
	if got, _ := c.replay(p, l.Lease, 8, 0); !bytes.Equal(got, want) {
		t.Error("rows that were kept give other states than the buffer")
	}
	c.close()
	writer.close()
	r.atRest()
}

// Of a model without attention a save publishes all there is, and is answered like a commit.
func TestASaveOfAllRowsIsAsSafeAsTheDaemonIsTold(t *testing.T) {
	config := withDisk(t)
	config.AckLevel = "synced"
	r := startDaemon(t, config, nil)
	id := profiletest.TwoLayers(1)
	id.Layers = slices.DeleteFunc(id.Layers, func(l profile.Layer) bool { return l.Kind != profile.KindLinear })
	p := profiletest.New(id)
	c := attachWith(t, r.Socket(), wire.FeatureRows|wire.FeatureBuffered)
	c.register(p)
	mine := c.openBuffer(0, 0, 8)
	c.appendRows(p, mine, 0, 0, 8)
	c.accept(mine, 8)
	var out wire.ReserveReply
	c.call(wire.OpSave, &wire.SaveRequest{
		Profile: c.profile, Kind: wire.AcceptRows, Hashes: [][32]byte{{7, 7}}, Tokens: []uint32{8}, Parents: [][32]byte{{}},
		Buffered: wire.SaveBuffered{Present: true, Buffer: mine},
	}, &out)
	if n := r.store.Counters().Acknowledged[tier.LevelSynced]; wire.Code(out.Codes[0]) != wire.OK || n != 1 {
		t.Errorf("%v, %d objects acknowledged as synced", wire.Code(out.Codes[0]), n)
	}
	c.close()
	r.atRest()
}

// What is kept as rows outlives its connection; who does not know such checkpoints is
// told of none, and of none behind them.
func TestRowsAreKeptForClientsThatKnowThem(t *testing.T) {
	leakCheck(t)
	r, writer, p, b := filled(t, nil)
	want, _ := writer.replay(p, b, 8, 0)
	c := withRows(t, r, p)
	all, data := rowsOf(p)
	edge := p.EdgeLayout(8)
	bytesOf := fill(edge, rand.New(rand.NewPCG(6, 6)))
	for _, part := range edge.Parts {
		if i := all.Find(part.Layer, part.Kind); i >= 0 {
			copy(bytesOf[part.Off:][:part.Len], data[all.Parts[i].Off:])
		}
	}
	rows, child := [32]byte{7, 7}, [32]byte{8, 8}
	c.saveNode(wire.AcceptRows, rows, [32]byte{}, 8, edge, bytesOf)
	behind := p.CheckpointLayout(2)
	c.saveNode(wire.AcceptExact, child, rows, 10, behind, fill(behind, rand.New(rand.NewPCG(7, 7))))
	c.close()

	c = withRows(t, r, p)
	var m wire.MatchReply
	c.call(wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Accept: wire.AcceptRows, Positions: []uint32{8}, Prefixes: [][32]byte{rows}}, &m)
	if m.PrefixTokens != 8 || m.PrefixFlags != wire.AcceptRows || !m.Rows.Present || m.Rows.PrefixStates != 0 {
		t.Fatalf("match %+v", m)
	}
	var l wire.LoadReply
	c.call(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptRows, Hash: rows}, &l)
	if l.Kind != wire.AcceptRows || !bytes.Equal(l.Rows.Kinds, []byte{wire.AcceptRows}) {
		t.Fatalf("load %+v", l)
	}
	if got, _ := c.replay(p, l.Lease, 8, 0); !bytes.Equal(got, want) {
		t.Error("rows that were kept give other states than the buffer")
	}
	c.refused(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: l.Lease, Token: 9}, wire.Invalid, "rows")
	c.refused(wire.OpReplay, &wire.ReplayRequest{Profile: c.profile, Buffer: l.Lease, Token: 8, Flush: 1}, wire.Invalid, "rows")
	c.refused(wire.OpAppend, &wire.AppendRequest{Profile: c.profile, Base: l.Lease, Begin: 8, Capacity: 2}, wire.Invalid, "rows")
	c.call(wire.OpLoad, &wire.LoadRequest{Profile: c.profile, Accept: wire.AcceptExact, Hash: child}, &l)
	if !bytes.Equal(l.Rows.Kinds, []byte{wire.AcceptRows, wire.AcceptExact}) {
		t.Errorf("load %+v", l)
	}

	writer.refused(wire.OpMatch, &wire.MatchRequest{Profile: writer.profile, Accept: wire.AcceptRows}, wire.Invalid, "feature")
	writer.refused(wire.OpLoad, &wire.LoadRequest{Profile: writer.profile, Accept: wire.AcceptRows, Hash: rows}, wire.Invalid, "feature")
	writer.refused(wire.OpLoad, &wire.LoadRequest{Profile: writer.profile, Accept: wire.AcceptExact, Hash: child}, wire.Miss, "rows")
	writer.refused(wire.OpSave, &wire.SaveRequest{Profile: writer.profile, Kind: wire.AcceptRows, Hashes: [][32]byte{{9}}, Tokens: []uint32{3}, Parents: [][32]byte{{}}}, wire.Invalid, "feature")
	c.close()
	writer.close()
	r.atRest()
}
