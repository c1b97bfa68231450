package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

func TestASlotHasOneWriterOrReaders(t *testing.T) {
	leakCheck(t)
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	r, c, p := startClient(t, testConfig(t), device)
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
	stall.Await()
	c.refused(wire.OpCompose, read, wire.Busy, "being written")
	stall.Release()
	if code, _, _ := c.await(writing); code != wire.OK {
		t.Fatal(code)
	}
	stall = device.Stall(t, gpuipc.OpCompose, 1)
	reading := c.send(wire.OpCompose, read)
	stall.Await()
	c.refused(wire.OpCompose, write, wire.Busy, "being read")
	stall.Release()
	if code, _, _ := c.await(reading); code != wire.OK {
		t.Fatal(code)
	}

	// A write that was stopped leaves nothing that could be read as a state.
	stall = device.Stall(t, gpuipc.OpCompose, 1)
	writing = c.send(wire.OpCompose, write)
	stall.Await()
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
	_, c, p := startClient(t, testConfig(t), device)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	id, _ := c.reserve(d, 0)
	m := c.commitRequest(id, d.layout, d.bytes)
	stall := device.Stall(t, gpuipc.OpCopyDigests, 3)
	h := c.header(wire.OpCommit)
	h.Deadline = 2_000_000 // rows 0 and 1 are done by then on a busy machine, too
	c.sendHeader(&h, m)
	stall.Await()
	<-stall.Context().Done() // the deadline is over while row 2 runs
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
	config.Workers, config.MaxRequestTimeout, config.RequestTimeout = 1, 3*time.Second, 2*time.Second
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
	config := testConfig(t)
	config.ConnectionMemory, config.StagingMax, config.SlotsMax = 64*settings.MiB, settings.GiB, settings.GiB
	r := startDaemon(t, config, nil)
	greedy := func() *wire.HelloReply {
		c := dialRaw(t, r.Socket())
		seqpacket.CloseAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, StagingBytes: 1 << 50, SlotBytes: 1 << 50}))
		return &c.hello
	}
	first := greedy() // half of the three quarters that one user may have
	if total := settings.Bytes(first.StagingBytes + first.SlotBytes); total > 24*settings.MiB || total < 23*settings.MiB || first.StagingBytes != first.SlotBytes {
		t.Errorf("the first got %v and %v of 64MiB", settings.Bytes(first.StagingBytes), settings.Bytes(first.SlotBytes))
	}
	if second := greedy(); second.StagingBytes > first.StagingBytes/2 || second.StagingBytes == 0 {
		t.Errorf("the second got %v", settings.Bytes(second.StagingBytes))
	}
	attach(t, r.Socket()) // one that asks for nothing gets the default
}

// Clients refuse regions of another size than they are told.
func TestGrantsAreWholePages(t *testing.T) {
	for _, budget := range []settings.Bytes{1_000_000, 3_000_000, 10_000_001, 64 * settings.MiB} {
		config := testConfig(t)
		config.ConnectionMemory, config.Staging, config.Slots = budget, 100_001, 200_003
		r := startDaemon(t, config, nil)
		for _, wish := range []uint64{0, 1, 100_001, 1 << 40} {
			c := dialRaw(t, r.Socket())
			fds := c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, StagingBytes: wish, SlotBytes: wish})
			for i, told := range []uint64{c.hello.SlotBytes, c.hello.StagingBytes} { // after the arena
				var is unix.Stat_t
				must(t, unix.Fstat(fds[1+i], &is))
				if uint64(is.Size) != told || told == 0 {
					t.Errorf("%d bytes of %v: region %d has %d bytes, the reply says %d", wish, budget, 1+i, is.Size, told)
				}
			}
			seqpacket.CloseAll(fds)
			c.close()
			eventually(t, "the memory is back", func() bool { return len(r.server.Connections()) == 0 })
		}
		r.stop()
	}
}

func TestASlotRegionHasRoomForAPage(t *testing.T) {
	config := testConfig(t)
	config.PageBytes, config.Slots = settings.MiB, 2*settings.MiB
	r := startDaemon(t, config, nil)
	c := dialRaw(t, r.Socket())
	seqpacket.CloseAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, SlotBytes: 1}))
	if c.hello.SlotBytes != uint64(settings.MiB) {
		t.Errorf("%d bytes of slots for pages of 1MiB", c.hello.SlotBytes)
	}
}

func TestProfilesAreForgottenForOthers(t *testing.T) {
	config := testConfig(t)
	config.MaxProfiles = 2
	r := startDaemon(t, config, nil)
	model := func(i int) *profile.Profile {
		id := profiletest.TwoLayers(1)
		id.Model = fmt.Sprintf("model %d", i)
		return profiletest.New(id)
	}
	// One is used by a connection, one has a segment that is leased: nothing to forget.
	stays := attach(t, r.Socket())
	stays.register(model(0))
	writer := attach(t, r.Socket())
	writer.register(model(1))
	d := newDocument(model(1), nil, 1, 64, profile.RoleFirst)
	writer.publish(d)
	reader := attach(t, r.Socket())
	reader.register(model(1))
	reader.lease(d)
	writer.close()
	eventually(t, "it is gone", func() bool { return len(r.server.Connections()) == 2 })
	c := attach(t, r.Socket())
	c.refused(wire.OpProfile, profileRequest(model(2)), wire.Busy, "registered and in use")
	full := func(c api.Check) bool { return c.Name == "profiles" && c.State == api.CheckDegraded }
	if got := r.view.Checks(); !slices.ContainsFunc(got, full) {
		t.Errorf("no check says that there are as many profiles as may be: %v", got)
	}
	// Nobody uses it any more: what is held of it makes room.
	reader.close()
	eventually(t, "the reader is gone", func() bool { return len(r.server.Connections()) == 2 })
	c.register(model(2))
	if _, held := r.store.Segment(profile.SegmentKey(d.key)); held {
		t.Error("a segment of a profile that was forgotten is held")
	}
	if c.profile == 2 {
		t.Error("an id was given twice")
	}
	c.refused(wire.OpProfile, profileRequest(model(3)), wire.Busy, "registered and in use")
	// Registering the same again takes no room, at the bound either.
	for range 64 + 5 {
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
	config.Staging, config.StagingMax, config.ConnectionMemory = 128*settings.MiB, 128*settings.MiB, 256*settings.MiB
	_, c, p := startClient(t, config, nil)
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
	if took := settings.Bytes(after.TotalAlloc - before.TotalAlloc); took > 2*settings.MiB {
		t.Errorf("a refused row took %v", took)
	}
}

// A client that the daemon drops may not know it yet and read on.
func TestLeasesOfADroppedClientStayUntilItLetsGo(t *testing.T) {
	for name, letsGo := range map[string]func(c *rawClient){
		"it closes its end":   func(c *rawClient) { c.conn.Close() },
		"it stops sending":    func(c *rawClient) { unix.Shutdown(c.conn.Fd(), unix.SHUT_WR) },
		"its time is over":    nil,
		"the daemon stops":    nil,
		"it sends rubbish on": func(c *rawClient) { c.conn.Send([]byte("rubbish"), nil); c.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			config := testConfig(t)
			config.Arena = 256 * settings.KiB
			if name == "its time is over" {
				config.LeaseTTL, config.MaxLeaseTTL = time.Second, time.Second
			}
			r := startDaemon(t, config, nil)
			p := testProfile(1)
			c := attach(t, r.Socket())
			c.register(p)
			d := newDocument(p, nil, 1, 64, profile.RoleFirst)
			c.publish(d)
			got := c.acquire(0, d.key)
			if _, code := c.reserve(newDocument(p, nil, 2, 64, profile.RoleFirst), 0); code != wire.OK {
				t.Fatal(code)
			}
			c.rubbish()
			// It is told, and gets no more answers.
			if _, _, _, err := c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
				t.Fatalf("after the drop: %v", err)
			}
			if name == "its time is over" {
				r.atRest()
				return
			}
			// Others fill the pool over and over; they find room, for what was
			// reserved is free, but not those pages.
			other := attach(t, r.Socket())
			other.register(p)
			for i := range 40 {
				other.publish(newDocument(p, nil, uint64(100+i), 64, profile.RoleFirst))
			}
			for i := range got.ExtentOff {
				held := c.arena.Bytes()[got.ExtentOff[i]:][:got.ExtentLen[i]]
				if !bytes.Equal(held[:64], d.bytes[:64]) {
					t.Fatal("leased pages were used again")
				}
			}
			if pool := r.store.Pools()[0]; pool.QuarantinedBytes == 0 || pool.PendingBytes != 0 {
				t.Errorf("%d bytes are quarantined, %d pending", pool.QuarantinedBytes, pool.PendingBytes)
			}
			other.close()
			if name == "the daemon stops" {
				r.stop()
				return
			}
			letsGo(c)
			r.atRest()
		})
	}
}

func TestRefusalsAreCounted(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	p := testProfile(2)
	c := attach(t, r.Socket())
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	var reserved wire.ReserveReply
	var committed wire.CommitReply
	for _, test := range []struct {
		name    string
		counter string
		do      func()
	}{
		{"stale epoch", "requests_match_stale", func() {
			h := c.header(wire.OpMatch)
			h.Epoch++
			c.sendHeader(&h, &wire.MatchRequest{})
			c.await(h.Request)
		}},
		{"another tenant", "requests_match_denied", func() {
			h := c.header(wire.OpMatch)
			h.Tenant = 99
			c.sendHeader(&h, &wire.MatchRequest{})
			c.await(h.Request)
		}},
		{"malformed", "requests_match_invalid", func() { c.exchange(wire.OpMatch, &wire.CodesReply{Codes: []uint16{1}}, nil) }},
		{"unknown op", "requests_unknown_unsupported", func() { c.exchange(99, nil, nil) }},
		{"wrong rank", "requests_acquire_invalid", func() {
			c.exchange(wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, Rank: 2, Keys: [][32]byte{d.key}}, nil)
		}},
		{"wrong layout", "requests_profile_invalid", func() {
			m := profileRequest(p)
			m.SegmentBytes++
			c.exchange(wire.OpProfile, m, nil)
		}},
		{"wrong key", "rows_reserve_invalid", func() {
			m := c.reserveRequest(d, 0)
			m.Keys[0][0] ^= 1
			c.call(wire.OpReserve, m, &reserved)
		}},
		{"miss", "rows_acquire_miss", func() { c.acquire(0, d.key) }},
		{"no such reservation", "rows_commit_gone", func() { c.call(wire.OpCommit, c.commitRequest(999, d.layout, d.bytes), &committed) }},
		{"short part", "rows_commit_invalid", func() {
			id, _ := c.reserve(d, 0)
			m := c.commitRequest(id, d.layout, d.bytes)
			m.Digest, m.ChunkCount[0] = m.Digest[1:], 0
			c.call(wire.OpCommit, m, &committed)
		}},
		{"wrong checksum", "rows_commit_corrupt", func() {
			id, _ := c.reserve(d, 1)
			m := c.commitRequest(id, d.layout, d.bytes)
			m.Digest[0] ^= 1
			c.call(wire.OpCommit, m, &committed)
		}},
		{"foreign lease", "rows_release_gone", func() { c.release(12345) }},
	} {
		before := r.counter(test.counter)
		test.do()
		if r.counter(test.counter) <= before {
			t.Errorf("%s: %s did not move", test.name, test.counter)
		}
	}
	if n := r.counter("aborted_corrupt"); n != 1 {
		t.Errorf("aborted_corrupt: %v", n)
	}
	c.close()
	r.atRest()
}
