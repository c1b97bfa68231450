package connector

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// fake is a daemon whose answers a test writes. Its sockets, descriptors and
// memory are real.
type fake struct {
	t      reporter
	path   string
	device gpuipc.Device

	epoch                 uint64
	maxInFlight           uint32
	features              atomic.Uint64 // beside those that every daemon has
	arena, slots, staging gpuipc.Region

	// answers replaces the answer to an op. Set before the client connects, or
	// under mu.
	mu struct {
		sync.Mutex
		answers  map[wire.Op]answer
		listener *seqpacket.Listener
		conns    map[*seqpacket.Conn]bool
		seen     map[wire.Op]int
	}
	seen    chan wire.Op // gets each op after it was handled, while there is room
	workers sync.WaitGroup
}

// reporter is what a fake needs of a test; in a process of its own it has none.
type reporter interface {
	Helper()
	Cleanup(func())
	TempDir() string
	Error(...any)
	Errorf(string, ...any)
	Fatal(...any)
	Fatalf(string, ...any)
}

// request is what a fake has received.
type request struct {
	f    *fake
	conn *seqpacket.Conn
	h    wire.Header
	body []byte
	fds  []int
}

// answer handles one request; a test's own usually calls reply or nothing.
type answer func(r *request)

const (
	fakeArena   = 8 << 20
	fakeSlots   = 1 << 20
	fakeStaging = 4 << 20
)

// newFake makes a fake that does not listen yet.
func newFake(t reporter) *fake {
	t.Helper()
	device, err := gpuipc.Open(gpuipc.Options{})
	must(t, err)
	f := &fake{
		t: t, path: filepath.Join(t.TempDir(), "s"), device: device,
		epoch: 100, maxInFlight: 16, seen: make(chan wire.Op, 1000),
	}
	f.mu.answers = map[wire.Op]answer{}
	f.mu.conns = map[*seqpacket.Conn]bool{}
	f.mu.seen = map[wire.Op]int{}
	f.makeRegions()
	t.Cleanup(func() {
		f.stop()
		f.closeRegions()
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// fakeProcess makes the test binary a fake daemon on the path it names, until it
// is killed.
const fakeProcess = "CONNECTOR_FAKE"

// standalone is the reporter of a fake in a process of its own.
type standalone struct{}

func (standalone) Helper()                        {}
func (standalone) Cleanup(func())                 {}
func (standalone) TempDir() string                { return "" }
func (standalone) Error(args ...any)              { panic(fmt.Sprint(args...)) }
func (standalone) Errorf(f string, args ...any)   { panic(fmt.Sprintf(f, args...)) }
func (s standalone) Fatal(args ...any)            { s.Error(args...) }
func (s standalone) Fatalf(f string, args ...any) { s.Errorf(f, args...) }

func serveFake(path string) {
	f := newFake(standalone{})
	f.path = path
	f.start()
	fmt.Println("ready")
	select {}
}

// spawnFake starts a fake in a process of its own; kill is kill -9 and returns
// when the process is gone.
func spawnFake(t *testing.T) (path string, kill func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fakeProcess+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(kill)
	if _, err := out.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	return path, kill
}

// startFake is newFake that listens, in a test that may leave nothing behind.
func startFake(t *testing.T) *fake {
	t.Helper()
	leakFree(t)
	f := newFake(t)
	f.start()
	return f
}

func (f *fake) makeRegions() {
	for _, r := range []struct {
		to     *gpuipc.Region
		bytes  int64
		access gpuipc.Access
	}{{&f.arena, fakeArena, gpuipc.ClientReads}, {&f.slots, fakeSlots, gpuipc.ClientReads}, {&f.staging, fakeStaging, gpuipc.ClientWrites}} {
		region, err := f.device.NewRegion(gpuipc.RegionSpec{Name: "fake", Bytes: r.bytes, Access: r.access, Huge: gpuipc.HugeNever})
		if err != nil {
			f.t.Fatal(err)
		}
		*r.to = region
	}
}

func (f *fake) closeRegions() {
	for _, r := range []gpuipc.Region{f.arena, f.slots, f.staging} {
		if err := r.Close(); err != nil {
			f.t.Error(err)
		}
	}
}

func (f *fake) start() {
	f.t.Helper()
	l, err := seqpacket.Listen(f.path, 0o600, 8)
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	f.mu.listener = l
	f.mu.Unlock()
	f.workers.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.mu.conns[conn] = true
			f.mu.Unlock()
			f.workers.Go(func() { f.serve(conn) })
		}
	})
}

// stop is the death of the daemon: no goodbye, all connections end.
func (f *fake) stop() {
	f.mu.Lock()
	l := f.mu.listener
	f.mu.listener = nil
	conns := f.mu.conns
	f.mu.conns = map[*seqpacket.Conn]bool{}
	f.mu.Unlock()
	if l != nil {
		l.Close()
		os.Remove(f.path)
	}
	for c := range conns {
		c.Close()
	}
	f.workers.Wait()
}

// restart comes back as another start of the daemon, with other memory.
func (f *fake) restart() {
	f.t.Helper()
	f.stop()
	f.closeRegions()
	f.makeRegions()
	f.epoch++
	f.start()
}

func (f *fake) serve(conn *seqpacket.Conn) {
	buf := make([]byte, wire.MaxFrame)
	for {
		n, fds, err := conn.Recv(buf)
		if err != nil {
			conn.Close()
			return
		}
		h, body, err := wire.ParseHeader(buf[:n])
		if err != nil {
			f.t.Errorf("the client sent %x: %v", buf[:min(n, 64)], err)
			return
		}
		f.mu.Lock()
		handle := f.mu.answers[h.Op]
		f.mu.seen[h.Op]++
		f.mu.Unlock()
		if handle == nil {
			handle = standard
		}
		handle(&request{f: f, conn: conn, h: h, body: body, fds: fds})
		seqpacket.CloseAll(fds)
		select {
		case f.seen <- h.Op:
		default:
		}
	}
}

// on sets the answer to an op; nil is the standard one.
func (f *fake) on(op wire.Op, a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.answers[op] = a
}

// count is how often an op has been received.
func (f *fake) count(op wire.Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.seen[op]
}

// await waits until an op has been handled.
func (f *fake) await(op wire.Op) {
	f.t.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case got := <-f.seen:
			if got == op {
				return
			}
		case <-limit:
			f.t.Fatalf("no %s in 10 s", op)
		}
	}
}

// hold makes the fake keep requests of an op unanswered; release answers all
// that it got in the standard way.
func (f *fake) hold(op wire.Op) (release func()) {
	var mu sync.Mutex
	var held []*request
	f.on(op, func(r *request) {
		kept := *r
		kept.body = append([]byte(nil), r.body...)
		kept.fds = nil
		mu.Lock()
		held = append(held, &kept)
		mu.Unlock()
	})
	return func() {
		f.on(op, nil)
		mu.Lock()
		defer mu.Unlock()
		for _, r := range held {
			standard(r)
		}
		held = nil
	}
}

// silence never answers.
func silence(*request) {}

// refuse answers with a code.
func refuse(code wire.Code, text string) answer {
	return func(r *request) {
		h := r.h
		h.Code = code
		r.send(wire.AppendError(nil, &h, text))
	}
}

func (r *request) reply(m wire.Message, fds ...int) {
	h := wire.Header{Kind: wire.Reply, Op: r.h.Op, Request: r.h.Request, Epoch: r.f.epoch, Tenant: r.h.Tenant}
	if h.Op == wire.OpHello {
		h.Epoch = 0
	}
	frame, err := wire.AppendFrame(nil, &h, m)
	if err != nil {
		r.f.t.Error(err)
		return
	}
	if err := r.conn.Send(frame, fds); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
		r.f.t.Error(err)
	}
}

func (r *request) send(frame []byte) {
	if err := r.conn.Send(frame, nil); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
		r.f.t.Error(err)
	}
}

func decode[T any, P interface {
	*T
	wire.Message
}](r *request) P {
	m := P(new(T))
	if err := m.Decode(r.body); err != nil {
		r.f.t.Errorf("%s: %v", r.h.Op, err)
	}
	return m
}

// standard answers as a daemon does that holds every key with 5 tokens, at the
// start of its arena.
func standard(r *request) {
	if r.h.Op != wire.OpHello && r.h.Epoch != r.f.epoch {
		refuse(wire.Stale, "other epoch")(r)
		return
	}
	switch r.h.Op {
	case wire.OpHello:
		r.hello()
	case wire.OpProfile:
		m := decode[wire.ProfileRequest](r)
		p, err := profile.Parse(m.Identity)
		if err != nil {
			r.f.t.Error(err)
			return
		}
		reply := &wire.ProfileReply{Profile: 7, Fingerprint: p.Fingerprint()}
		if len(r.fds) == 1 {
			reply.Memory = 3
		}
		r.reply(reply)
	case wire.OpMatch:
		m := decode[wire.MatchRequest](r)
		n := len(m.Keys)
		reply := &wire.MatchReply{Status: make([]uint8, n), Tier: make([]uint8, n), Reason: make([]uint8, n), Tokens: make([]uint32, n)}
		for i := range n {
			reply.Status[i], reply.Tier[i], reply.Tokens[i] = wire.StatusHit, wire.TierDRAM, heldTokens
		}
		if k := len(m.Positions); k > 0 {
			reply.PrefixTokens, reply.PrefixIndex, reply.PrefixFlags = m.Positions[k-1], uint32(k-1), wire.AcceptExact
		}
		r.reply(reply)
	case wire.OpAcquire:
		r.acquire()
	case wire.OpReserve:
		m := decode[wire.ReserveRequest](r)
		p := testProfile()
		reply := &wire.ReserveReply{}
		for i := range m.Keys {
			interior := int(m.Tokens[i] - m.Heads[i] - m.Tails[i])
			reply.Codes = append(reply.Codes, uint16(wire.OK))
			reply.Reservations = append(reply.Reservations, 500+uint64(i))
			reply.Bytes = append(reply.Bytes, uint64(p.SegmentLayout(interior).Bytes))
		}
		r.reply(reply)
	case wire.OpCommit:
		m := decode[wire.CommitRequest](r)
		n := len(m.Reservations)
		r.reply(&wire.CommitReply{Codes: make([]uint16, n), Published: make([]uint8, n), Levels: make([]uint8, n)})
	case wire.OpAbort:
		r.reply(&wire.CodesReply{Codes: make([]uint16, len(decode[wire.AbortRequest](r).Reservations))})
	case wire.OpRelease:
		r.reply(&wire.CodesReply{Codes: make([]uint16, len(decode[wire.ReleaseRequest](r).Leases))})
	case wire.OpCancel:
		r.reply(&wire.CancelReply{Outcomes: make([]uint8, len(decode[wire.CancelRequest](r).Requests))})
	case wire.OpCompose:
		r.reply(&wire.ComposeReply{Lease: 900, Off: 64, Bytes: 128})
	case wire.OpRotate, wire.OpAssemble:
		m := decode[wire.RotateRequest](r)
		if m.Dest == wire.DestMemory {
			r.reply(&wire.RotateReply{Rows: 4})
			return
		}
		r.reply(&wire.RotateReply{Lease: 901, Off: 256, Bytes: 512, Rows: 4})
	case wire.OpStats:
		r.reply(&wire.StatsReply{Names: []string{"a", "b"}, Values: []float64{1, 2}})
	default:
		refuse(wire.Miss, "")(r)
	}
}

const heldTokens = 5

func (r *request) hello() {
	m := decode[wire.HelloRequest](r)
	reply := &wire.HelloReply{
		Version: wire.Version, Connection: 1, BootEpoch: r.f.epoch, MaxFrame: wire.MaxFrame,
		Features: r.f.features.Load() & m.Features, MaxInFlight: r.f.maxInFlight, Server: "fake", ArenaBytes: fakeArena, SlotBytes: fakeSlots, StagingBytes: fakeStaging,
	}
	for i, t := range m.Tenants {
		reply.Tenants = append(reply.Tenants, wire.TenantGrant{ID: uint32(i + 1), Salt: []byte("salt of " + t.Name)})
	}
	var fds []int
	for _, region := range []gpuipc.Region{r.f.arena, r.f.slots, r.f.staging} {
		h, err := region.Export()
		if err != nil {
			r.f.t.Error(err)
			return
		}
		defer h.File.Close()
		fds = append(fds, int(h.File.Fd()))
	}
	r.reply(reply, fds...)
}

// acquire answers with one segment at offset 64 of the arena, in two extents
// that follow each other only in the object.
func (r *request) acquire() {
	m := decode[wire.AcquireRequest](r)
	layout := testProfile().SegmentLayout(heldTokens)
	reply := &wire.AcquireReply{}
	for i := range m.Keys {
		reply.Codes = append(reply.Codes, uint16(wire.OK))
		reply.Leases = append(reply.Leases, 1000+uint64(i))
		reply.Bytes = append(reply.Bytes, uint64(layout.Bytes))
		reply.Begins = append(reply.Begins, 3)
		reply.Tokens = append(reply.Tokens, heldTokens)
		reply.ExtentCount = append(reply.ExtentCount, 2)
		first := uint64(layout.Bytes / 2)
		reply.ExtentOff = append(reply.ExtentOff, 64, 1<<20)
		reply.ExtentLen = append(reply.ExtentLen, first, uint64(layout.Bytes)-first+100)
		var digests []uint64
		if m.Digests == 1 {
			digests = r.f.digests(layout, extents{{Off: 64, Len: int64(first)}, {Off: 1 << 20, Len: layout.Bytes - int64(first)}})
		}
		reply.DigestCount = append(reply.DigestCount, uint32(len(digests)))
		reply.Digest = append(reply.Digest, digests...)
	}
	r.reply(reply)
}

// digests of an object in the arena.
func (f *fake) digests(layout profile.Layout, e extents) []uint64 {
	object := make([]byte, layout.Bytes)
	if err := f.device.Load(background, object, gpuipc.Ref{Region: f.arena, Extents: e}); err != nil {
		f.t.Error(err)
	}
	var out []uint64
	for _, p := range layout.Parts {
		for b := object[p.Off : p.Off+p.Len]; len(b) > 0; {
			n := min(len(b), gpuipc.ChunkBytes)
			out = append(out, gpuipc.DigestBytes(b[:n]))
			b = b[n:]
		}
	}
	return out
}

// map_ maps a region of the fake for the test.
func (f *fake) map_(region gpuipc.Region, writable bool) []byte {
	h, err := region.Export()
	if err != nil {
		f.t.Fatal(err)
	}
	m, err := gpuipc.Map(h, writable)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { m.Close() })
	return m.Bytes()
}

// testProfile is a small hybrid: one dense linear layer, one attention layer.
func testProfile() *profile.Profile { return profiletest.New(profiletest.TwoLayers(1)) }

// leakFree fails the test if it ends with more goroutines of this package or
// more descriptors than it began with. It must be called first.
func leakFree(t *testing.T) {
	t.Helper()
	fds := descriptors(t)
	t.Cleanup(func() {
		if after := descriptors(t); after != fds {
			t.Errorf("%d descriptors before, %d after", fds, after)
		}
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		for _, g := range strings.Split(string(buf), "\n\n") {
			if strings.Contains(g, "connector.(*") && !strings.Contains(g, "leakFree") {
				t.Errorf("left running:\n%s", g)
			}
		}
	})
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(entries)
}

// open makes a client of the fake with short bounds.
func open(t *testing.T, f *fake, change ...func(*Options)) *Client {
	t.Helper()
	o := Options{Socket: f.path, Name: "test", Timeouts: Timeouts{Lookup: time.Second, Transfer: 2 * time.Second, Attach: 2 * time.Second}}
	for _, c := range change {
		c(&o)
	}
	c, err := Open(o)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// opened starts a fake and a client of it with a model.
func opened(t *testing.T, change ...func(*Options)) (*fake, *Client, *Model) {
	t.Helper()
	f := startFake(t)
	c := open(t, f, change...)
	return f, c, register(t, c, Binding{})
}

// register makes a model of testProfile.
func register(t *testing.T, c *Client, b Binding) *Model {
	t.Helper()
	m, err := c.Register(testProfile(), b)
	must(t, err)
	return m
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t reporter, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
