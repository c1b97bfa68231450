package server

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/codes"
	"github.com/spliced-kv/spliced/daemon/parallel"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/daemon/socket"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
	"github.com/spliced-kv/spliced/tiering"
)

// newTestServer is a server on a small store; nothing runs.
func newTestServer(t testing.TB) *Server {
	t.Helper()
	config := settings.Default()
	config.Workers, config.ConnectionMemory, config.Staging, config.Slots = 1, 16*settings.MiB, settings.MiB, settings.MiB
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	tenants := []tiering.Tenant{{ID: 1, Name: settings.DefaultTenant}}
	store, err := tiering.Open(tiering.Config{Device: device, PublicBytes: 1 << 20, PrivateBytes: 1 << 20, PageBytes: 4 << 10, Tenants: tenants})
	must(t, err)
	work := parallel.New(parallel.Config{Store: store})
	s, err := New(Options{
		Work: work, Config: &config, Store: store, Device: device, Canary: canary.New(time.Now), Usage: usage.New(time.Now, nil), Tenants: tenants, Epoch: 1, Title: "test", Log: zerolog.Nop(),
	})
	must(t, err)
	t.Cleanup(func() {
		s.Close()
		work.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestARefusedPeerIsToldSo(t *testing.T) {
	s := newTestServer(t)
	a, b, err := seqpacket.Pair()
	must(t, err)
	defer b.Close()
	// Root is always allowed and may be who runs this test: judge another peer.
	stranger := socket.AllowList{Self: 1 << 31}
	if os.Geteuid() != 0 {
		s.admit(a, &stranger)
	} else {
		turnAway(a, codes.Refuse(wire.Denied, "user %d, group %d may not connect", 1, 1))
		a.Close()
	}
	buf := make([]byte, wire.MaxFrame)
	n, _, err := b.Recv(buf)
	must(t, err)
	h, body, err := wire.ParseHeader(buf[:n])
	if err != nil || h.Code != wire.Denied || h.Op != wire.OpHello || !strings.Contains(wire.ErrorText(body), "may not connect") {
		t.Errorf("%v answered %v, %q, %v", h.Op, h.Code, wire.ErrorText(body), err)
	}
	if _, _, err := b.Recv(buf); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("then %v", err)
	}
}

// A lookup allocates nothing in the daemon once it is warm.
func TestLookupsDoNotAllocate(t *testing.T) {
	s := newTestServer(t)
	c := newConn(s, 1, nil, socket.Peer{}, time.Now())
	id, err := s.store.AddProfile(profiletest.New(profiletest.TwoLayers(1)))
	must(t, err)
	a := &attachment{session: s.store.NewSession("test")}
	defer a.session.Close()
	a.mu.bindings = []binding{{profile: id}}
	c.attached.Store(a)
	h := wire.Header{Version: wire.Version, Kind: wire.Request, Op: wire.OpMatch, Epoch: s.epoch, Request: 1, Tenant: 1}
	frame, err := wire.AppendFrame(nil, &h, &wire.MatchRequest{Profile: uint32(id), Keys: make([][32]byte, 64)})
	must(t, err)
	header, body, err := wire.ParseHeader(frame)
	must(t, err)
	x := &scratch{}
	if n := testing.AllocsPerRun(200, func() {
		k := &x.task
		*k = task{conn: c, at: c.attached.Load(), header: header, body: body, ctx: c.ctx, scratch: x}
		m, err := operations[wire.OpMatch].run(k)
		if err == nil {
			x.out, err = wire.AppendFrame(x.out[:0], &header, m)
		}
		must(t, err)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
