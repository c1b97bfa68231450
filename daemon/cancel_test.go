package daemon

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// engineMemory is paged memory that the engine of these tests owns.
type engineMemory struct {
	file   *os.File
	bytes  []byte
	blocks int
}

const (
	blockTokens = 16
	// K and V of one token: 2 heads of 16 elements of 2 bytes, each.
	tokenBytes = 2 * 16 * 2
	blockBytes = 2 * blockTokens * tokenBytes
)

func newEngineMemory(t testing.TB, blocks int) *engineMemory {
	t.Helper()
	fd, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	m := &engineMemory{file: os.NewFile(uintptr(fd), "engine"), blocks: blocks}
	t.Cleanup(func() { m.file.Close() })
	if err := unix.Fallocate(fd, 0, 0, int64(blocks*blockBytes)); err != nil { // no holes
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	if m.bytes, err = unix.Mmap(fd, 0, blocks*blockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m.bytes) })
	return m
}

// registerMemory registers p with engine memory and returns the memory's id.
func (c *rawClient) registerMemory(p *profile.Profile, m *engineMemory) uint32 {
	c.t.Helper()
	q := profileRequest(p)
	q.MemoryBytes = uint64(len(m.bytes))
	q.Memory = []wire.MemoryLayer{{
		Layer: 1, KBase: 0, VBase: blockTokens * tokenBytes, BlockStride: blockBytes,
		KTokenStride: tokenBytes, KHeadStride: tokenBytes / 2, VTokenStride: tokenBytes, VHeadStride: tokenBytes / 2,
	}}
	var r wire.ProfileReply
	c.call(wire.OpProfile, q, &r, int(m.file.Fd()))
	c.profile = r.Profile
	return r.Memory
}

// scatter asks for the rows of d in engine memory, blocks in order.
func (c *rawClient) scatter(memory uint32, lease uint64, d *document) *wire.RotateRequest {
	m := &wire.RotateRequest{Profile: c.profile, Layer: wire.AllLayers, Dest: wire.DestMemory, Memory: memory, Plan: onePlan(lease, d, 1)}
	for i := range (int(m.Plan.End) + blockTokens - 1) / blockTokens {
		m.Blocks = append(m.Blocks, uint32(i))
	}
	return m
}

// stalled is a daemon whose device stands still in the middle of a scatter into
// the client's memory.
type stalled struct {
	*running
	c       *rawClient
	stall   *gpuipctest.Stall
	engine  *engineMemory
	request uint64
}

// longRows makes one scatter many chunks of work: at 64 bytes of keys and of
// values a token, 2 MiB.
const longRows = 16 << 10

func stallScatter(t *testing.T) *stalled {
	t.Helper()
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	config := testConfig(t)
	config.Staging, config.StagingMax = 8*settings.MiB, 8*settings.MiB
	s := &stalled{running: startDaemon(t, config, device), engine: newEngineMemory(t, longRows/blockTokens+1)}
	s.c = attach(t, s.Socket())
	p := testProfile(1)
	memory := s.c.registerMemory(p, s.engine)
	d := newDocument(p, nil, 1, longRows, profile.RoleFirst)
	s.c.publishLarge(d)
	r := s.c.acquire(0, d.key)
	s.stall = device.StallInside(t, gpuipc.OpRotate, 1)
	s.request = s.c.send(wire.OpRotate, s.c.scatter(memory, r.Leases[0], d))
	s.stall.Await() // in the middle: the scatter has several chunks
	return s
}

// publishLarge publishes a document whose token ids do not fit behind tokensAt.
func (c *rawClient) publishLarge(d *document) {
	c.t.Helper()
	m := c.reserveRequest(d, 0)
	var r wire.ReserveReply
	c.call(wire.OpReserve, m, &r)
	if wire.Code(r.Codes[0]) != wire.OK {
		c.t.Fatalf("reserve: %v", wire.Code(r.Codes[0]))
	}
	if !c.commit(r.Reservations[0], d.layout, d.bytes) {
		c.t.Fatal("not published")
	}
}

// takenBack checks that nothing writes the engine's memory: it is cleared, and
// stays so after the stall is over and all work has ended.
func (s *stalled) takenBack(t *testing.T) {
	t.Helper()
	clear(s.engine.bytes)
	s.c.conn.Close()
	s.atRest()
	if !bytes.Equal(s.engine.bytes, make([]byte, len(s.engine.bytes))) {
		t.Fatal("memory was written after the client had taken it back")
	}
}

func TestCancelIsAnsweredWhenNothingIsWrittenAnyMore(t *testing.T) {
	leakCheck(t)
	s := stallScatter(t)
	cancel := s.c.send(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{s.request, 12345, s.request}})
	// The daemon answers others, and not the cancel, while the device stands.
	s.c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
	if _, early := s.c.waiting[cancel]; early {
		t.Fatal("cancel was answered while the device could still write")
	}
	s.stall.Release()
	var r wire.CancelReply
	code, body, _ := s.c.await(cancel)
	if code != wire.OK || r.Decode(body) != nil {
		t.Fatalf("cancel: %v", code)
	}
	if r.Outcomes[0] != wire.CancelStopped || r.Outcomes[1] != wire.CancelUnknown || r.Outcomes[2] != wire.CancelStopped {
		t.Errorf("outcomes %v", r.Outcomes)
	}
	if _, answered := s.c.waiting[s.request]; !answered {
		t.Error("cancel was answered before the request it named")
	}
	if code, _, _ := s.c.await(s.request); code != wire.Canceled {
		t.Errorf("the request: %v", code)
	}
	s.takenBack(t)
}

func TestCancelIsLateWhileTheWorkStillRuns(t *testing.T) {
	leakCheck(t)
	s := stallScatter(t)
	h := s.c.header(wire.OpCancel)
	h.Deadline = 1000
	s.c.sendHeader(&h, &wire.CancelRequest{Requests: []uint64{s.request}})
	if code, body, _ := s.c.await(h.Request); code != wire.Late {
		t.Fatalf("cancel: %v %s", code, wire.ErrorText(body))
	}
	// Again, and now with the time to wait.
	again := s.c.send(wire.OpCancel, &wire.CancelRequest{Requests: []uint64{s.request}})
	s.stall.Release()
	if code, _, _ := s.c.await(again); code != wire.OK {
		t.Fatalf("cancel again: %v", code)
	}
	s.takenBack(t)
}

func TestEndOfFileComesAfterTheLastWrite(t *testing.T) {
	for name, end := range map[string]func(*stalled){
		"the daemon drops the client": func(s *stalled) { s.c.rubbish() },
		"the client stops sending":    func(s *stalled) { unix.Shutdown(s.c.conn.Fd(), unix.SHUT_WR) },
	} {
		t.Run(name, func(t *testing.T) {
			leakCheck(t)
			s := stallScatter(t)
			end(s)
			must(t, s.c.conn.SetRecvTimeout(50*time.Millisecond))
			buf := make([]byte, wire.MaxFrame)
			if _, _, err := s.c.conn.Recv(buf); !errors.Is(err, seqpacket.ErrTimeout) {
				t.Fatalf("while the device could still write the client read: %v", err)
			}
			s.stall.Release()
			if _, _, _, err := s.c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
				t.Fatalf("after the last write: %v", err)
			}
			s.takenBack(t)
		})
	}
}

func TestMemoryOfADeadClientStaysMappedUntilWorkHasDrained(t *testing.T) {
	leakCheck(t)
	s := stallScatter(t)
	s.c.conn.Close()
	eventually(t, "leases of the dead client are free", func() bool {
		public := s.store.Pools()[0]
		return s.store.Counters().Leases == 0 && public.PendingBytes == 0
	})
	if n := len(s.server.Connections()); n != 1 {
		t.Fatalf("%d connections: the regions went while work ran on them", n)
	}
	s.stall.Release() // with its regions unmapped this would fault
	s.atRest()
}

func TestAClientThatDoesNotReadItsRepliesIsDropped(t *testing.T) {
	config := testConfig(t)
	config.SendTimeout = 20 * time.Millisecond
	r := startDaemon(t, config, nil)
	slow, good := attach(t, r.Socket()), attach(t, r.Socket())
	must(t, slow.conn.SetSendTimeout(20*time.Millisecond))
	h := slow.header(wire.OpStats)
	frame, _ := wire.AppendFrame(nil, &h, &wire.StatsRequest{})
	eventually(t, "the slow client is dropped", func() bool {
		_ = slow.conn.Send(frame, nil)
		return r.counter("connections_dropped_slow_reader") == 1
	})
	good.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
	eventually(t, "only the good one is left", func() bool { return len(r.server.Connections()) == 1 })
}
