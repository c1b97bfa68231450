package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

func memfd(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Skipf("memfd_create: %v", err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRegionsThatClientsCouldSpoilAreFailed(t *testing.T) {
	const size = 8192
	rows := []struct {
		name  string
		seals int
		bytes int64 // what the daemon says
		ours  bool
		want  string
		text  string
	}{
		{"as it should be", arenaSeals, size, false, OK, "read-only"},
		{"nothing sealed", 0, size, false, Fail, "shrink"},
		{"sealed in size only", unix.F_SEAL_SHRINK | unix.F_SEAL_GROW, size, false, Fail, "went through"},
		{"could grow", unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SHRINK, size, false, Fail, "size could be changed"},
		{"smaller than said", arenaSeals, 2 * size, false, Fail, "the daemon says"},
		{"staging", unix.F_SEAL_SHRINK | unix.F_SEAL_GROW, size, true, OK, "writable by this client"},
		{"staging that cannot be written", arenaSeals, size, true, Fail, "cannot be mapped"},
	}
	for _, r := range rows {
		got := checkRegion("pools", memfd(t, size, r.seals), r.bytes, r.ours)
		if got.State != r.want || !strings.Contains(got.Detail, r.text) || (got.State == Fail) != (got.Remedy != "") {
			t.Errorf("%s: %+v", r.name, got)
		}
	}
}

// answering is a daemon that answers the first request with one frame.
func answering(t *testing.T, header wire.Header, body wire.Message, text string, fds ...*os.File) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.sock")
	ln, err := seqpacket.Listen(path, 0o600, 1)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, _, err := conn.Recv(make([]byte, wire.MaxFrame)); err != nil {
			return
		}
		frame := wire.AppendError(nil, &header, text)
		if body != nil {
			frame, _ = wire.AppendFrame(nil, &header, body)
		}
		raw := make([]int, len(fds))
		for i, f := range fds {
			raw[i] = int(f.Fd())
		}
		if conn.Send(frame, raw) == nil {
			_ = conn.AwaitHangup() // until the doctor has seen enough
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
	})
	return path
}

func find(checks []Check, name string) Check {
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	return Check{}
}

func TestRefusalsAndDifferencesAreTold(t *testing.T) {
	reply := wire.Header{Kind: wire.Reply, Op: wire.OpHello, Request: 1}
	denied := reply
	denied.Code = wire.Denied
	other := reply
	other.Request = 7
	good := &wire.HelloReply{Version: wire.Version, ArenaBytes: 8192, SlotBytes: 8192, StagingBytes: 8192, Server: "test"}
	region := memfd(t, 8192, arenaSeals)
	rows := []struct {
		name, socket, check, text string
	}{
		{"refused", answering(t, denied, nil, "uid 5 is not allowed"), "hello", "uid 5 is not allowed"},
		{"answers something else", answering(t, other, good, ""), "hello", "asked"},
		{"too few descriptors", answering(t, reply, good, "", region), "hello", "1 descriptors, want 3"},
		{"staging that nobody can write", answering(t, reply, good, "", region, region, region), "staging", "cannot be mapped"},
	}
	for _, r := range rows {
		got := find(Run(t.Context(), Options{Socket: r.socket}), r.check)
		if got.State != Fail || !strings.Contains(got.Detail, r.text) || got.Remedy == "" {
			t.Errorf("%s: %+v", r.name, got)
		}
	}
}

func TestRefusalsHaveTheRemedyThatFits(t *testing.T) {
	for _, r := range []struct {
		code       wire.Code
		text, want string
	}{
		{wire.Denied, `tenant "default": unknown, or another token`, "--tenant"},
		{wire.Denied, "user 5, group 5 may not connect", "allow-uids"},
		{wire.Busy, "1 connections, the maximum of this daemon", "max-connections"},
		{wire.Full, "5 bytes of connection memory", "connection-memory"},
		{wire.Unavailable, "this daemon is being drained", "drain --undo"},
		{wire.Invalid, "", "one release"},
	} {
		header := wire.Header{Kind: wire.Reply, Op: wire.OpHello, Request: 1, Code: r.code}
		got := find(Run(t.Context(), Options{Socket: answering(t, header, nil, r.text)}), "hello")
		if got.State != Fail || !strings.Contains(got.Remedy, r.want) {
			t.Errorf("%s %q: %+v", r.code, r.text, got)
		}
	}
	for err, want := range map[error]string{
		connector.ErrFull: "arena", connector.ErrQuota: "quota", connector.ErrBusy: "wait", connector.ErrDenied: "--tenant",
		connector.ErrUnavailable: "log", connector.ErrInvalid: "one release",
	} {
		if got := tripRemedy(fmt.Errorf("put: %w", err)); !strings.Contains(got, want) {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestWorstIsTheWorst(t *testing.T) {
	w, f, o := Check{State: Warn}, Check{State: Fail}, Check{State: OK}
	for _, r := range []struct {
		checks []Check
		want   string
	}{{nil, OK}, {[]Check{o, o}, OK}, {[]Check{w, o}, Warn}, {[]Check{o, f, w}, Fail}, {[]Check{w, f}, Fail}} {
		if got := Worst(r.checks); got != r.want {
			t.Errorf("%+v: %s", r.checks, got)
		}
	}
}
