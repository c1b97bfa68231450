package socket

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/settings"
)

func TestDirectoriesAreMadeAndChecked(t *testing.T) {
	root := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{root}, names...)...) }
	made := candidate{path: at("made", "s")}
	must(t, prepareDir(made))
	info, err := os.Stat(at("made"))
	if err != nil || info.Mode()&os.ModeSetgid == 0 || info.Mode().Perm() != 0o750 {
		t.Errorf("made with %v, %v", info.Mode(), err)
	}
	if err := prepareDir(made); err != nil {
		t.Errorf("again: %v", err)
	}
	for name, mode := range map[string]uint32{"everybody's": 0o777, "a group's": 0o770, "an emptyDir with fsGroup": 0o2777, "a shared but sticky": 0o3770} {
		must(t, os.Mkdir(at(name), 0o700))
		must(t, unix.Chmod(at(name), mode))
		err := prepareDir(candidate{path: at(name, "s")})
		if sticky := mode&unix.S_ISVTX != 0; (err == nil) != sticky || !sticky && !strings.Contains(err.Error(), at(name, "daemon", "spliced.sock")) {
			t.Errorf("%s directory, mode %#o: %v", name, mode, err)
		}
		if err := prepareDir(candidate{path: at(name, "daemon", "s")}); err != nil {
			t.Errorf("one to be made in %s directory: %v", name, err)
		}
	}
	must(t, errors.Join(os.Mkdir(at("older"), 0o700), unix.Chmod(at("older"), 0o2770)))
	if err := prepareDir(candidate{path: at("older", "s")}); err != nil {
		t.Errorf("a directory that an older release made: %v", err)
	}
	if info, err := os.Stat(at("older")); err != nil || info.Mode()&os.ModeSetgid == 0 || info.Mode().Perm() != 0o750 {
		t.Errorf("a directory that an older release made has %v, %v", info.Mode(), err)
	}
	if os.Geteuid() == 0 {
		must(t, errors.Join(os.Mkdir(at("theirs"), 0o755), os.Chown(at("theirs"), 1001, -1)))
		if err := prepareDir(candidate{path: at("theirs", "s")}); err == nil || !strings.Contains(err.Error(), "user 1001") {
			t.Errorf("another user's directory: %v", err)
		}
	}
	must(t, os.Symlink(at("made"), at("link")))
	if err := prepareDir(candidate{path: at("link", "s"), private: true}); err == nil {
		t.Error("a link in place of our own directory passed")
	}
	if err := prepareDir(candidate{path: at("made", "s"), private: true}); err == nil {
		t.Error("a directory open to a group passed as private")
	}
	must(t, os.WriteFile(at("file"), nil, 0o600))
	list := []candidate{{path: at("no", "such", "s")}, {path: at("file", "s")}, {path: at("own", "s"), private: true}}
	if got, err := choose(list); err != nil || got.path != at("own", "s") {
		t.Errorf("chose %v, %v", got, err)
	}
	if _, err := choose(list[:2]); err == nil || !strings.Contains(err.Error(), at("file")) {
		t.Errorf("without a good one: %v", err)
	}
}

func TestPlacesAreTriedInOrder(t *testing.T) {
	m := settings.Machine{UID: 7, RuntimeDir: "/run/user/7"}
	var got []string
	for _, p := range candidates("", m) {
		got = append(got, p.path)
	}
	want := []string{"/run/spliced/spliced.sock", "/run/user/7/spliced/spliced.sock", filepath.Join(os.TempDir(), "spliced-7/spliced.sock")}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("places %v, want %v", got, want)
	}
	if p := candidates("/x/y", m); len(p) != 1 || p[0].path != "/x/y" {
		t.Errorf("a set path: %v", p)
	}
}

func TestWhoMayConnect(t *testing.T) {
	for _, test := range []struct {
		name  string
		allow AllowList
		peer  Peer
		want  bool
	}{
		{"root", AllowList{Self: 5}, Peer{UID: 0}, true},
		{"ourselves", AllowList{Self: 5}, Peer{UID: 5}, true},
		{"a stranger", AllowList{Self: 5, UIDs: []uint32{6}, GIDs: []uint32{60}}, Peer{UID: 7, GID: 70, Groups: []uint32{71}}, false},
		{"a user of the list", AllowList{Self: 5, UIDs: []uint32{6, 7}}, Peer{UID: 7}, true},
		{"a member by primary group", AllowList{Self: 5, GIDs: []uint32{70}}, Peer{UID: 7, GID: 70}, true},
		{"a member by supplementary group", AllowList{Self: 5, GIDs: []uint32{71}}, Peer{UID: 7, GID: 70, Groups: []uint32{72, 71}}, true},
	} {
		if got := test.allow.Allows(&test.peer); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	from := &Socket{dirGID: 33}
	if a := from.NewAllowList(nil, nil); len(a.GIDs) != 1 || a.GIDs[0] != 33 {
		t.Errorf("default groups %v", a.GIDs)
	}
	if a := from.NewAllowList([]uint32{9}, nil); len(a.GIDs) != 0 {
		t.Errorf("with users set the directory's group is allowed too: %v", a.GIDs)
	}
}

func TestPeerCredentialsAreTheKernels(t *testing.T) {
	a, b, err := seqpacket.Pair()
	must(t, err)
	defer a.Close()
	defer b.Close()
	p, err := ReadPeer(a.Fd())
	must(t, err)
	if p.Pidfd >= 0 {
		defer unix.Close(p.Pidfd)
	}
	groups, err := os.Getgroups()
	must(t, err)
	if int(p.UID) != os.Geteuid() || int(p.GID) != os.Getegid() || len(p.Groups) != len(groups) {
		t.Errorf("peer: user %d, group %d, %d groups; we are user %d, group %d, with %d groups", p.UID, p.GID, len(p.Groups), os.Geteuid(), os.Getegid(), len(groups))
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
