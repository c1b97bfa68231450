package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// runOnce runs a daemon that is expected to fail at the start.
func runOnce(t *testing.T, c Config) error {
	t.Helper()
	d, err := New(c, Parts{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-d.Ready():
		cancel()
		<-done
		t.Fatal("the daemon started")
		return nil
	}
}

func TestASecondDaemonOnAPathIsRefusedAndTheFirstGoesOn(t *testing.T) {
	leakCheck(t)
	c := testConfig(t)
	r := startDaemon(t, c, nil)
	err := runOnce(t, c)
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "locked by a running daemon") {
		t.Errorf("second daemon: %v", err)
	}
	attach(t, r.Socket())
}

func TestASocketThatNobodyServesIsReplaced(t *testing.T) {
	leakCheck(t)
	c := testConfig(t)
	left, err := seqpacket.Listen(c.Socket, 0o600, 1)
	if err != nil {
		t.Fatal(err)
	}
	left.Close() // and the path stays
	r := startDaemon(t, c, nil)
	attach(t, r.Socket())
	info, err := os.Stat(c.Socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	r.stop()
	if _, err := os.Lstat(c.Socket); !os.IsNotExist(err) {
		t.Errorf("the path after the end: %v", err)
	}
	startDaemon(t, c, nil) // the lock is free again
}

func TestWhatSomebodyElseServesIsLeftAlone(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, path string){
		"a seqpacket socket": func(t *testing.T, path string) {
			l, err := seqpacket.Listen(path, 0o600, 1)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		},
		"a stream socket": func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		},
		"a file": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("notes"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			open(t, c.Socket)
			var before, after unix.Stat_t
			if err := unix.Lstat(c.Socket, &before); err != nil {
				t.Fatal(err)
			}
			if err := runOnce(t, c); err == nil || !strings.Contains(err.Error(), c.Socket) {
				t.Errorf("the daemon: %v", err)
			}
			if err := unix.Lstat(c.Socket, &after); err != nil || before.Ino != after.Ino {
				t.Errorf("the path changed: %v", err)
			}
		})
	}
}

func TestASocketThatReplacedOursIsNotRemoved(t *testing.T) {
	c := testConfig(t)
	r := startDaemon(t, c, nil)
	if err := os.Rename(c.Socket, c.Socket+".old"); err != nil {
		t.Fatal(err)
	}
	theirs, err := seqpacket.Listen(c.Socket, 0o600, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	r.stop()
	if _, err := os.Lstat(c.Socket); err != nil {
		t.Errorf("their socket: %v", err)
	}
}

func TestDirectoriesAreMadeAndChecked(t *testing.T) {
	root := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{root}, names...)...) }
	made := place{path: at("made", "s"), dirMode: 0o2770}
	if err := prepareDir(made); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(at("made"))
	if err != nil || info.Mode()&os.ModeSetgid == 0 || info.Mode().Perm() != 0o770 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	if err := prepareDir(made); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := os.Mkdir(at("open"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at("open"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := prepareDir(place{path: at("open", "s")}); err == nil {
		t.Error("a directory that anybody can write passed")
	}
	if err := os.Symlink(at("made"), at("link")); err != nil {
		t.Fatal(err)
	}
	if err := prepareDir(place{path: at("link", "s"), private: true}); err == nil {
		t.Error("a link in place of our own directory passed")
	}
	if err := prepareDir(place{path: at("made", "s"), private: true}); err == nil {
		t.Error("a directory open to a group passed as private")
	}
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list := []place{{path: at("no", "such", "s")}, {path: at("file", "s")}, {path: at("own", "s"), dirMode: 0o700, private: true}}
	if got, err := choosePlace(list); err != nil || got.path != at("own", "s") {
		t.Errorf("chose %v, %v", got, err)
	}
	if _, err := choosePlace(list[:2]); err == nil || !strings.Contains(err.Error(), at("file")) {
		t.Errorf("without a good one: %v", err)
	}
}

func TestPlacesAreTriedInOrder(t *testing.T) {
	m := Machine{UID: 7, RuntimeDir: "/run/user/7"}
	var got []string
	for _, p := range places(&Config{}, m) {
		got = append(got, p.path)
	}
	want := []string{"/run/spliced/spliced.sock", "/run/user/7/spliced/spliced.sock", filepath.Join(os.TempDir(), "spliced-7/spliced.sock")}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("places %v, want %v", got, want)
	}
	if p := places(&Config{Socket: "/x/y"}, m); len(p) != 1 || p[0].path != "/x/y" {
		t.Errorf("a set path: %v", p)
	}
}

func TestWhoMayConnect(t *testing.T) {
	for _, test := range []struct {
		name  string
		allow allowList
		peer  peer
		want  bool
	}{
		{"root", allowList{self: 5}, peer{uid: 0}, true},
		{"ourselves", allowList{self: 5}, peer{uid: 5}, true},
		{"a stranger", allowList{self: 5, uids: []uint32{6}, gids: []uint32{60}}, peer{uid: 7, gid: 70, groups: []uint32{71}}, false},
		{"a user of the list", allowList{self: 5, uids: []uint32{6, 7}}, peer{uid: 7}, true},
		{"a member by primary group", allowList{self: 5, gids: []uint32{70}}, peer{uid: 7, gid: 70}, true},
		{"a member by supplementary group", allowList{self: 5, gids: []uint32{71}}, peer{uid: 7, gid: 70, groups: []uint32{72, 71}}, true},
	} {
		if got := test.allow.allows(&test.peer); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	if a := newAllowList(&Config{}, 33); len(a.gids) != 1 || a.gids[0] != 33 {
		t.Errorf("default groups %v", a.gids)
	}
	if a := newAllowList(&Config{AllowUIDs: idList{9}}, 33); len(a.gids) != 0 {
		t.Errorf("with users set the directory's group is allowed too: %v", a.gids)
	}
}

func TestPeerCredentialsAreTheKernels(t *testing.T) {
	leakCheck(t)
	a, b, err := seqpacket.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	p, err := readPeer(a.Fd())
	if err != nil {
		t.Fatal(err)
	}
	if p.pidfd >= 0 {
		defer unix.Close(p.pidfd)
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if int(p.uid) != os.Geteuid() || int(p.gid) != os.Getegid() || len(p.groups) != len(groups) {
		t.Errorf("peer %+v, we have groups %v", p, groups)
	}
}

func TestARefusedPeerIsToldSo(t *testing.T) {
	leakCheck(t)
	r := startDaemon(t, testConfig(t), nil)
	a, b, err := seqpacket.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	// Root is always allowed and may be who runs this test: judge another peer.
	stranger := allowList{self: 1 << 31}
	if os.Geteuid() != 0 {
		r.server.admit(a, &stranger)
	} else {
		turnAway(a, refuse(wire.Denied, "user %d, group %d may not connect", 1, 1))
		a.Close()
	}
	buf := make([]byte, wire.MaxFrame)
	n, _, err := b.Recv(buf)
	if err != nil {
		t.Fatal(err)
	}
	h, body, err := wire.ParseHeader(buf[:n])
	if err != nil || h.Code != wire.Denied || h.Op != wire.OpHello || !strings.Contains(wire.ErrorText(body), "may not connect") {
		t.Errorf("%+v %q %v", h, body, err)
	}
	if _, _, err := b.Recv(buf); !errors.Is(err, seqpacket.ErrClosed) {
		t.Errorf("then %v", err)
	}
}
