package daemon

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// A descriptor's number is used again as soon as it is closed.
func TestALateCallOfTheWatcherTouchesNobodyElse(t *testing.T) {
	leakCheck(t)
	r := startDaemon(t, testConfig(t), nil)
	former := map[int]*conn{}
	for range 50 {
		c := attach(t, r.Socket())
		now := r.server.list()[0]
		if old := former[now.sock.Fd()]; old != nil {
			old.peerGone()
			old.drop(errPeerLeft)
			c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
			return
		}
		former[now.sock.Fd()] = now
		c.close()
		r.atRest()
	}
	t.Skip("no descriptor was used again")
}

// All clients send hello before they hear anything.
func TestRefusalsReachClientsThatSpokeFirst(t *testing.T) {
	leakCheck(t)
	config := testConfig(t)
	config.MaxConnections = 1
	r := startDaemon(t, config, nil)
	attach(t, r.Socket())
	for i := range 20 {
		refused := r.server.counts.refusal[refusedBound].Load()
		c := dialRaw(t, r.Socket())
		h := c.header(wire.OpHello)
		frame, err := wire.AppendFrame(nil, &h, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.conn.Send(frame, nil); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
			t.Fatal(err)
		}
		eventually(t, "it is refused", func() bool { return r.server.counts.refusal[refusedBound].Load() > refused })
		got, _, _, err := c.receive()
		if err != nil || got.Code != wire.Busy {
			t.Fatalf("client %d: %v, %+v", i, err, got)
		}
		c.close()
	}
}

func TestASlotHasOneWriterOrReaders(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	r := startDaemon(t, testConfig(t), device)
	c := attach(t, r.Socket())
	p := testProfile(t, 1)
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(d)
	lease := c.lease(d)
	write := &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: onePlan(lease, d, 1)}
	var slot wire.ComposeReply
	c.call(wire.OpCompose, write, &slot)
	write.Into = slot.Lease
	read := &wire.ComposeRequest{Profile: c.profile, Layer: 0, From: wire.FromSlot, FromLease: slot.Lease, FromOff: slot.Off, Plan: wire.Plan{
		Begin: 65, End: 66, Kinds: []uint8{wire.SpanRecompute}, Leases: []uint64{0}, Starts: []uint32{65}, Counts: []uint32{1}, Inputs: []uint64{wire.None}}}

	stall := device.Stall(t, gpuipc.OpCompose, 1)
	writing := c.send(wire.OpCompose, write)
	<-stall.Reached()
	c.refused(wire.OpCompose, read, wire.Busy, "being written")
	stall.Release()
	if code, _, _ := c.await(writing); code != wire.OK {
		t.Fatal(code)
	}
	stall = device.Stall(t, gpuipc.OpCompose, 1)
	reading := c.send(wire.OpCompose, read)
	<-stall.Reached()
	c.refused(wire.OpCompose, write, wire.Busy, "being read")
	stall.Release()
	if code, _, _ := c.await(reading); code != wire.OK {
		t.Fatal(code)
	}

	// A write that was stopped leaves nothing that could be read as a state.
	stall = device.Stall(t, gpuipc.OpCompose, 1)
	writing = c.send(wire.OpCompose, write)
	<-stall.Reached()
	cancel := c.send(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{writing}})
	c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{}) // the cancel was heard
	stall.Release()
	if code, _, _ := c.await(cancel); code != wire.OK {
		t.Fatal(code)
	}
	if code, _, _ := c.await(writing); code != wire.Canceled {
		t.Fatal(code)
	}
	c.refused(wire.OpCompose, read, wire.Gone, "failed")
	c.call(wire.OpCompose, write, &slot)
	c.call(wire.OpCompose, read, &wire.ComposeReply{})
	c.close()
	r.atRest()
}

func TestRowsBeforeADeadlineKeepTheirCodes(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	r := startDaemon(t, testConfig(t), device)
	c := attach(t, r.Socket())
	p := testProfile(t, 1)
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	id, _ := c.reserve(d, 0)
	m := c.commitRequest(id, d.layout, d.bytes)
	stall := device.Stall(t, gpuipc.OpCopyDigests, 3)
	h := c.header(wire.OpCommit)
	h.Deadline = 20_000
	c.sendHeader(&h, m)
	<-stall.Reached()
	<-time.After(25 * time.Millisecond) // the deadline is over while row 2 runs
	stall.Release()
	code, body, _ := c.await(h.Request)
	var reply wire.CommitReply
	if code != wire.OK || reply.Decode(body) != nil {
		t.Fatalf("commit: %v %s", code, wire.ErrorText(body))
	}
	for i, code := range reply.Codes {
		want := wire.OK
		if i >= 2 {
			want = wire.Late
		}
		if wire.Code(code) != want {
			t.Errorf("row %d: %v, want %v", i, wire.Code(code), want)
		}
	}
	// Exactly what was late is sent again.
	rest := &wire.CommitRequest{
		Reservations: m.Reservations[2:], Parts: m.Parts[2:], ChunkFirst: m.ChunkFirst[2:], ChunkCount: m.ChunkCount[2:],
		StagingOff: m.StagingOff[2:], Digest: m.Digest[2:],
	}
	c.call(wire.OpCommit, rest, &reply)
	if reply.Published[len(reply.Published)-1] != 1 {
		t.Errorf("the rest: %v", reply)
	}
	c.lease(d)
}

func TestQueuedWorkIsLateWhenItsTimeIsOver(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	config := testConfig(t)
	config.Workers, config.MaxRequestTimeout, config.RequestTimeout = 1, 30*time.Millisecond, 20*time.Millisecond
	r, c, stall, running := stalledCommit(t, device, config)
	// No worker is free and none gets free: the answer comes all the same, for a
	// deadline cut to what the daemon allows.
	h := c.header(wire.OpCompose)
	h.Deadline = 1 << 31
	c.sendHeader(&h, &wire.ComposeRequest{Profile: c.profile})
	if code, body, _ := c.await(h.Request); code != wire.Late {
		t.Errorf("queued: %v %s", code, wire.ErrorText(body))
	}
	stall.Release()
	if code, _, _ := c.await(running); code != wire.Late {
		t.Errorf("running: %v", code)
	}
	c.close()
	r.atRest()
}

func TestConnectionMemoryIsShared(t *testing.T) {
	leakCheck(t)
	config := testConfig(t)
	config.ConnectionMemory, config.StagingMax, config.SlotsMax = 64*MiB, GiB, GiB
	r := startDaemon(t, config, nil)
	greedy := func() *wire.HelloReply {
		c := dialRaw(t, r.Socket())
		seqpacket.CloseAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, StagingBytes: 1 << 50, SlotBytes: 1 << 50}))
		return &c.hello
	}
	first := greedy()
	if total := Bytes(first.StagingBytes + first.SlotBytes); total > 32*MiB || total < 31*MiB || first.StagingBytes != first.SlotBytes {
		t.Errorf("the first got %v and %v of 64MiB", Bytes(first.StagingBytes), Bytes(first.SlotBytes))
	}
	if second := greedy(); second.StagingBytes > first.StagingBytes/2 || second.StagingBytes == 0 {
		t.Errorf("the second got %v", Bytes(second.StagingBytes))
	}
	attach(t, r.Socket()) // one that asks for nothing gets the default
}

func TestASlotRegionHasRoomForAPage(t *testing.T) {
	config := testConfig(t)
	config.PageBytes, config.Slots = MiB, 2*MiB
	r := startDaemon(t, config, nil)
	c := dialRaw(t, r.Socket())
	seqpacket.CloseAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, SlotBytes: 1}))
	if c.hello.SlotBytes != uint64(MiB) {
		t.Errorf("%d bytes of slots for pages of 1MiB", c.hello.SlotBytes)
	}
}

func TestProfilesAreForgottenForOthers(t *testing.T) {
	leakCheck(t)
	config := testConfig(t)
	config.MaxProfiles = 2
	r := startDaemon(t, config, nil)
	model := func(i int) *profile.Profile {
		id := testProfile(t, 1).Identity()
		id.Model = fmt.Sprintf("model %d", i)
		p, err := profile.New(id)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// One is used by a connection, one has a segment: nothing to forget.
	stays := attach(t, r.Socket())
	stays.register(model(0))
	writer := attach(t, r.Socket())
	writer.register(model(1))
	d := newDocument(model(1), nil, 1, 64, profile.RoleFirst)
	writer.publish(d)
	writer.close()
	eventually(t, "it is gone", func() bool { return len(r.server.list()) == 1 })
	c := attach(t, r.Socket())
	c.refused(wire.OpProfile, profileRequest(model(2)), wire.Busy, "registered and in use")
	if got := r.checks(); got[2].Name != "profiles" || got[2].State == "ok" {
		t.Errorf("checks %+v", got)
	}
	if err := r.store.Evict(d.key); err != nil {
		t.Fatal(err)
	}
	c.register(model(2))
	if c.profile == 2 {
		t.Error("an id was given twice")
	}
	c.refused(wire.OpProfile, profileRequest(model(3)), wire.Busy, "registered and in use")
	// Registering the same again takes no room, at the bound either.
	for range maxBindings + 5 {
		c.register(model(2))
	}
	c.close()
	stays.close()
	r.atRest()
	for i := range 10 {
		c := attach(t, r.Socket())
		c.register(model(10 + i))
		c.close()
		r.atRest()
	}
}

func TestTokenIDsAreBoundedByTheGeometry(t *testing.T) {
	config := testConfig(t)
	config.Staging, config.StagingMax, config.ConnectionMemory = 128*MiB, 128*MiB, 256*MiB
	r := startDaemon(t, config, nil)
	c := attach(t, r.Socket())
	p := testProfile(t, 1)
	c.register(p)
	m := c.reserveRequest(newDocument(p, nil, 1, 64, profile.RoleFirst), 0)
	m.Tokens[0] = 32<<20 - 1
	m.TokenOff[0] = 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var reply wire.ReserveReply
	c.call(wire.OpReserve, m, &reply)
	runtime.ReadMemStats(&after)
	if wire.Code(reply.Codes[0]) != wire.Invalid {
		t.Errorf("reserve: %v", wire.Code(reply.Codes[0]))
	}
	if took := Bytes(after.TotalAlloc - before.TotalAlloc); took > 2*MiB {
		t.Errorf("a refused row took %v", took)
	}
}
