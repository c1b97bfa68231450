package daemon

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/policy/profile"
)

// sendFrame sends bytes as they are and returns the answer.
func (c *rawClient) sendFrame(frame []byte, fds ...int) (wire.Header, string) {
	c.t.Helper()
	if err := c.conn.Send(frame, fds); err != nil {
		c.t.Fatal(err)
	}
	h, body, _, err := c.receive()
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	return h, wire.ErrorText(body)
}

func TestEveryMalformedFrameHasItsAnswer(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	pipe, err := unix.MemfdCreate("stray", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(pipe)
	for _, test := range []struct {
		name string
		bend func(frame []byte) []byte
		fds  []int
		code wire.Code
		text string
	}{
		{"another version", func(f []byte) []byte { f[4] = 9; return f }, nil, wire.Unsupported, "version 9"},
		{"a reply", func(f []byte) []byte { f[5] = 1; clear(f[28:32]); return f }, nil, wire.Invalid, "kind"},
		{"kind 7", func(f []byte) []byte { f[5] = 7; return f }, nil, wire.Invalid, "kind"},
		{"reserved bytes", func(f []byte) []byte { f[36] = 1; return f }, nil, wire.Invalid, "reserved"},
		{"too short a length", func(f []byte) []byte { f[32]--; return f }, nil, wire.Invalid, "length"},
		{"more than its length", func(f []byte) []byte { return append(f, 0) }, nil, wire.Invalid, "length"},
		{"too long a frame", func(f []byte) []byte { return append(f, make([]byte, wire.MaxFrame)...) }, nil, wire.Invalid, "bytes"},
		{"unknown op", func(f []byte) []byte { f[6], f[7] = 0xff, 0x7f; return f }, nil, wire.Unsupported, "op"},
		{"op 0", func(f []byte) []byte { f[6] = 0; return f }, nil, wire.Unsupported, "op"},
		{"request 0", func(f []byte) []byte { clear(f[8:16]); return f }, nil, wire.Invalid, "request id 0"},
		{"another epoch", func(f []byte) []byte { f[16] ^= 1; return f }, nil, wire.Stale, "epoch"},
		{"epoch 0", func(f []byte) []byte { clear(f[16:24]); return f }, nil, wire.Stale, "epoch"},
		{"another tenant", func(f []byte) []byte { f[24] = 77; return f }, nil, wire.Denied, "tenant 77"},
		{"no tenant", func(f []byte) []byte { clear(f[24:28]); return f }, nil, wire.Denied, "tenant 0"},
		{"a stray descriptor", func(f []byte) []byte { return f }, []int{pipe}, wire.Invalid, "descriptors"},
		{"too many descriptors", func(f []byte) []byte { return f }, []int{pipe, pipe, pipe, pipe, pipe, pipe, pipe, pipe}, wire.Invalid, "descriptors"},
		{"a body cut short", func(f []byte) []byte {
			f = f[:len(f)-8]
			binary.LittleEndian.PutUint32(f[32:], uint32(len(f)-wire.HeaderBytes))
			return f
		}, nil, wire.Invalid, "match request"},
		{"a count over the body", func(f []byte) []byte { f[wire.HeaderBytes+8] = 200; return f }, nil, wire.Invalid, "match request"},
		{"an unregistered profile", func(f []byte) []byte { return f }, nil, wire.Invalid, "profile 3"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := c.header(wire.OpMatch)
			frame, err := wire.AppendFrame(nil, &h, &wire.MatchRequest{Profile: 3, Keys: [][32]byte{{1}}})
			must(t, err)
			frame = test.bend(frame)
			request := binary.LittleEndian.Uint64(frame[8:])
			got, text := c.sendFrame(frame, test.fds...)
			if got.Code != test.code || !strings.Contains(text, test.text) {
				t.Errorf("%v %q, want %v and a text with %q", got.Code, text, test.code, test.text)
			}
			if got.Kind != wire.Reply || got.Request != request {
				t.Errorf("answer of kind %d to request %d, want a reply to %d", got.Kind, got.Request, request)
			}
		})
	}
	var s wire.StatsReply
	c.call(wire.OpStats, &wire.StatsRequest{}, &s) // the connection went on
}

func TestAPeerThatSpeaksSomethingElseIsAnsweredAndClosed(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	for name, frame := range map[string][]byte{
		"short":         []byte("GET / HTTP/1.1\r\n"),
		"another magic": append([]byte("NOPE"), make([]byte, 60)...),
	} {
		t.Run(name, func(t *testing.T) {
			c := dialRaw(t, r.Socket())
			h, _ := c.sendFrame(frame)
			if h.Code != wire.Invalid || h.Request != 0 || h.Op != 0 {
				t.Errorf("%v is answered %v, kind %d", h.Op, h.Code, h.Kind)
			}
			if _, _, _, err := c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
				t.Errorf("then %v, want the end", err)
			}
		})
	}
}

func TestHelloIsTheFirstRequestAndOnlyThat(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := dialRaw(t, r.Socket())
	c.refused(wire.OpStats, &wire.StatsRequest{}, wire.Invalid, "hello")
	c.refused(wire.OpHello, &wire.HelloRequest{MinVersion: 2, MaxVersion: 9}, wire.Unsupported, "1 to 1")
	c.refused(wire.OpHello, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Tenants: []wire.TenantName{{}, {Name: "nobody"}}}, wire.Denied, "nobody")
	c.refused(wire.OpHello, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Tenants: []wire.TenantName{{Name: "guarded", Token: "please"}}}, wire.Denied, "guarded")
	fds := c.mustHello(&wire.HelloRequest{MinVersion: 0, MaxVersion: 7, SlotBytes: 1,
		Tenants: []wire.TenantName{{Name: "guarded", Token: "open sesame"}, {}}})
	seqpacket.CloseAll(fds)
	if c.hello.Version != 1 || c.hello.BootEpoch == 0 || c.hello.Server != "spliced test" {
		t.Errorf("hello answers version %d, features %#x, %d bytes of arena", c.hello.Version, c.hello.Features, c.hello.ArenaBytes)
	}
	if len(c.hello.Tenants) != 2 || string(c.hello.Tenants[0].Salt) != "pepper" || c.hello.Tenants[0].ID == c.hello.Tenants[1].ID {
		t.Errorf("tenants: %+v", c.hello.Tenants)
	}
	c.refused(wire.OpHello, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1}, wire.Invalid, "hello")
	c.close()
	r.atRest()
}

// A client of an earlier release asks for no feature and sends no section; one of
// this release sends the prompt once the daemon has agreed to it.
func TestPromptsComeFromClientsThatAgreedOnThem(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	const both = wire.FeaturePrompt | wire.FeatureEstimates
	for _, row := range []struct {
		name     string
		features uint64
	}{{"a client that knows no section", 0}, {"a client that knows both", both}} {
		t.Run(row.name, func(t *testing.T) {
			c := dialRaw(t, r.Socket())
			seqpacket.CloseAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, Features: row.features, Tenants: []wire.TenantName{{}}}))
			if got := c.hello.Features; got != row.features {
				t.Fatalf("the daemon agreed to features %#x, asked for %#x", got, row.features)
			}
			c.tenant = c.hello.Tenants[0].ID
			c.register(testProfile(1))
			m := wire.MatchRequest{Profile: c.profile, Keys: [][32]byte{{1}, {2}}}
			if row.features != 0 {
				// The offset is in no staging: the daemon must not look there.
				m.Prompt = wire.MatchPrompt{Present: true, Tokens: 8192, TokenOff: 1 << 62}
			}
			var reply wire.MatchReply
			c.call(wire.OpMatch, &m, &reply)
			if len(reply.Status) != 2 || reply.Estimates.Present {
				t.Errorf("%d rows, want 2; estimates present: %v", len(reply.Status), reply.Estimates.Present)
			}
			c.close()
		})
	}
	r.atRest()
}

// Requests that the daemon does as they arrive are answered with what they did,
// whatever their deadline.
func TestDeadlinesDoNotCountForShortRequests(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	c.register(testProfile(1))
	const microsecond = 1
	for _, row := range []struct {
		op wire.Op
		m  wire.Message
	}{
		{wire.OpMatch, &wire.MatchRequest{Profile: c.profile, Keys: [][32]byte{{1}}}},
		{wire.OpAcquire, &wire.AcquireRequest{Profile: c.profile, Keys: [][32]byte{{1}}}},
		{wire.OpRelease, &wire.ReleaseRequest{Leases: []uint64{1}}},
		{wire.OpStats, &wire.StatsRequest{}},
	} {
		h := c.header(row.op)
		h.Deadline = microsecond
		c.sendHeader(&h, row.m)
		if code, body, _ := c.await(h.Request); code != wire.OK {
			t.Errorf("%v with a deadline of 1 µs: %v %s", row.op, code, wire.ErrorText(body))
		}
	}
	c.close()
	r.atRest()
}

func TestAConnectionWithoutTenantsCanOnlyAsk(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := dialRaw(t, r.Socket())
	seqpacket.CloseAll(c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1}))
	c.refused(wire.OpMatch, &wire.MatchRequest{}, wire.Denied, "tenant 0")
	c.call(wire.OpStats, &wire.StatsRequest{}, &wire.StatsReply{})
}

func TestConnectionMemoryIsBounded(t *testing.T) {
	config := testConfig(t)
	config.ConnectionMemory = config.Staging + config.Slots
	config.StagingMax = config.Staging
	r := startDaemon(t, config, nil)
	a := attach(t, r.Socket())
	b := dialRaw(t, r.Socket())
	b.refused(wire.OpHello, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1}, wire.Full, "taken")
	a.close()
	eventually(t, "the memory is back", func() bool { return len(r.server.Connections()) == 1 })
	fds := b.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1, StagingBytes: 1 << 40})
	seqpacket.CloseAll(fds)
	if b.hello.StagingBytes != uint64(config.StagingMax) {
		t.Errorf("staging of %d bytes", b.hello.StagingBytes)
	}
}

func TestOneConnectionTooManyIsToldSo(t *testing.T) {
	config := testConfig(t)
	config.MaxConnections = 2
	r := startDaemon(t, config, nil)
	attach(t, r.Socket())
	second := attach(t, r.Socket())
	third := dialRaw(t, r.Socket())
	h, body, _, err := third.receive()
	if err != nil || h.Code != wire.Busy || h.Op != wire.OpHello {
		t.Errorf("third: %v, %v %v: %s", err, h.Op, h.Code, body)
	}
	if _, _, _, err := third.receive(); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("then %v", err)
	}
	for i := range 20 { // most clients say hello before they hear anything
		refused := r.counter("connections_refused_bound")
		c := dialRaw(t, r.Socket())
		h := c.header(wire.OpHello)
		frame, err := wire.AppendFrame(nil, &h, &wire.HelloRequest{MinVersion: 1, MaxVersion: 1})
		must(t, err)
		if err := c.conn.Send(frame, nil); err != nil && !errors.Is(err, seqpacket.ErrClosed) {
			t.Fatal(err)
		}
		eventually(t, "it is refused", func() bool { return r.counter("connections_refused_bound") > refused })
		got, _, _, err := c.receive()
		if err != nil || got.Code != wire.Busy {
			t.Fatalf("client %d: %v, answered %v", i, err, got.Code)
		}
		c.close()
	}
	second.close()
	eventually(t, "room for another", func() bool { return len(r.server.Connections()) == 1 })
	attach(t, r.Socket())
}

func TestAClientThatNeverSaysHelloIsDropped(t *testing.T) {
	config := testConfig(t)
	config.HelloTimeout = 30 * time.Millisecond
	r := startDaemon(t, config, nil)
	c := dialRaw(t, r.Socket())
	if _, _, _, err := c.receive(); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("received %v", err)
	}
	if n := r.counter("connections_dropped_no_hello"); n != 1 {
		t.Errorf("%v dropped", n)
	}
}

func TestSizesThatDisagreeAreRefusedWithBothNumbers(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	p := testProfile(1)
	m := profileRequest(p)
	m.SegmentBytes++
	c.refused(wire.OpProfile, m, wire.Invalid, "the engine has")
	m = profileRequest(p)
	m.CheckpointBytes = 0
	c.refused(wire.OpProfile, m, wire.Invalid, "the engine has 0 bytes, the daemon")
	m = profileRequest(p)
	m.Identity = m.Identity[:len(m.Identity)-1]
	c.refused(wire.OpProfile, m, wire.Invalid, "")
	m = profileRequest(p)
	m.MemoryBytes = 4096
	c.refused(wire.OpProfile, m, wire.Invalid, "descriptors")
	m = profileRequest(p)
	m.ProbeTokens = 1 << 31
	c.refused(wire.OpProfile, m, wire.Invalid, "tokens")
}

func TestMemoryThatItsOwnerCouldShrinkIsRefused(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	fd, err := unix.MemfdCreate("engine", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	must(t, err)
	file := os.NewFile(uintptr(fd), "engine")
	defer file.Close()
	must(t, file.Truncate(1<<16))
	m := profileRequest(testProfile(1))
	m.MemoryBytes = 1 << 16
	code, body, _ := c.await(c.send(wire.OpProfile, m, fd))
	if code != wire.Invalid {
		t.Errorf("%v: %s", code, wire.ErrorText(body))
	}
}

// Whatever arrives, the daemon lives, and every frame that has a header gets an
// answer.
func FuzzFrames(f *testing.F) {
	p := testProfile(1)
	for op := range wire.Op(wire.OpCount) {
		if m, ok := wire.New(op, wire.Request); ok {
			f.Add(uint16(op), m.Append(nil))
		}
	}
	f.Add(uint16(wire.OpMatch), (&wire.MatchRequest{Profile: 1, Prompt: wire.MatchPrompt{Present: true, Tokens: 9, TokenOff: wire.None}}).Append(nil))
	f.Add(uint16(wire.OpProfile), profileRequest(p).Append(nil))
	f.Add(uint16(wire.OpCompose), (&wire.ComposeRequest{Profile: 1, Layer: -1, Into: 1, Plan: onePlan(1, newDocument(p, nil, 1, 64, profile.RoleFirst), 5)}).Append(nil))
	r := startDaemon(f, testConfig(f), nil)
	c := attach(f, r.Socket())
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(d)
	lease := c.lease(d)
	f.Add(uint16(wire.OpRotate), (&wire.RotateRequest{Profile: 1, Layer: -1, Dest: 1, Plan: onePlan(lease, d, 5)}).Append(nil))
	f.Fuzz(func(t *testing.T, op uint16, body []byte) {
		if len(body) > wire.MaxBody {
			return
		}
		c.t = t
		h := c.header(wire.Op(op))
		h.Epoch, h.Tenant = c.hello.BootEpoch, c.tenant
		h.Length = uint32(len(body))
		if err := c.conn.Send(append(wire.AppendHeader(nil, &h), body...), nil); err != nil {
			t.Fatalf("send: %v", err)
		}
		c.await(h.Request)
	})
}

// The same with bytes that no encoder wrote, as many as a test has time for.
func TestRandomFramesAreAllAnswered(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := attach(t, r.Socket())
	c.register(testProfile(1))
	const seed = 20260101
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 3000 {
		h := c.header(wire.Op(rng.IntN(18)))
		if rng.IntN(8) == 0 {
			h.Epoch = rng.Uint64()
		}
		h.Deadline = rng.Uint32N(2000)
		body := make([]byte, rng.IntN(40)*8)
		for j := range body {
			if rng.IntN(3) == 0 {
				body[j] = byte(rng.IntN(4))
			}
		}
		h.Length = uint32(len(body))
		if err := c.conn.Send(append(wire.AppendHeader(nil, &h), body...), nil); err != nil {
			t.Fatalf("seed %d frame %d: %v", seed, i, err)
		}
		c.await(h.Request)
	}
	c.close()
	r.atRest()
}
