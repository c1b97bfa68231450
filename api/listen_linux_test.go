package api

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAdminSocketIsPrivateFromItsFirstMoment(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	root := t.TempDir()
	path := SocketBeside(filepath.Join(root, "s"))
	ln, err := ListenUnix(path)
	must(t, err)
	defer ln.Close()
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want mode 0600 under umask 0", info.Mode(), err)
	}
	if info, err = os.Lstat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its directory: %v, %v; want mode 0700 under umask 0", info.Mode(), err)
	}
	if ln, err := ListenUnix(filepath.Join(root, "admin.sock")); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "others could replace") {
		t.Errorf("in a directory that anybody can write: %v, %v", ln, err)
	}
}

func TestLiveSocketIsNotTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := ListenUnix(path)
	must(t, err)
	if _, err := ListenUnix(path); !errors.Is(err, ErrBusy) {
		t.Errorf("locked: %v", err)
	}
	ln.Close()
	// One that does not know our lock file, but answers.
	foreign, err := net.Listen("unix", path)
	must(t, err)
	defer foreign.Close()
	if _, err := ListenUnix(path); !errors.Is(err, ErrBusy) {
		t.Errorf("answering: %v", err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the foreign socket is gone: %v", err)
	} else {
		conn.Close()
	}
}

func TestDeadSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	dead, err := net.Listen("unix", path)
	must(t, err)
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	ln, err := ListenUnix(path)
	must(t, err)
	ln.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after close: %v", err)
	}
}

func TestOtherFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "admin.sock")
	must(t, os.WriteFile(path, []byte("precious"), 0o600))
	if _, err := ListenUnix(path); !errors.Is(err, ErrInvalid) {
		t.Errorf("a plain file: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file became %q, %v", b, err)
	}
	must(t, os.Symlink(path, path+"2.lock"))
	if _, err := ListenUnix(path + "2"); err == nil {
		t.Error("a lock file that is a link was followed")
	}
	if _, err := ListenUnix(filepath.Join(dir, strings.Repeat("x", 120))); !errors.Is(err, ErrInvalid) {
		t.Errorf("long path: %v", err)
	}
}

// Whatever became of its path, the listener has it again, and Accept goes on.
func TestAdminSocketIsTakenBack(t *testing.T) {
	root := t.TempDir()
	path := SocketBeside(filepath.Join(root, "s"))
	ln, err := ListenUnix(path)
	must(t, err)
	accepted := make(chan error)
	go func() {
		for {
			conn, err := ln.Accept()
			if err == nil {
				conn.Close()
			}
			accepted <- err
			if err != nil {
				return
			}
		}
	}()
	connect := func(what string) {
		t.Helper()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		conn.Close()
		if err := <-accepted; err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	if found, err := ln.TakeBack(); found != "" || err != nil {
		t.Errorf("untouched: found %q, %v", found, err)
	}
	connect("untouched")
	for what, attack := range map[string]func() error{
		"removed":           func() error { return os.Remove(path) },
		"removed with lock": func() error { return errors.Join(os.Remove(path), os.Remove(path+".lock")) },
		"moved away":        func() error { return os.Rename(filepath.Dir(path), filepath.Join(root, "elsewhere")) },
	} {
		must(t, attack())
		if found, err := ln.TakeBack(); found != "nothing" || err != nil {
			t.Fatalf("%s: found %q, %v", what, found, err)
		}
		connect(what)
		if other, err := ListenUnix(path); !errors.Is(err, ErrBusy) {
			t.Fatalf("%s: another has it: %v, %v", what, other, err)
		}
	}
	// What is somebody else's is left to him, and is not removed at the end.
	must(t, os.Remove(path))
	foreign, err := net.Listen("unix", path)
	must(t, err)
	defer foreign.Close()
	if found, err := ln.TakeBack(); !strings.HasPrefix(found, "S") || !errors.Is(err, ErrBusy) {
		t.Errorf("a foreign socket: found %q, %v", found, err)
	}
	must(t, ln.Close())
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the foreign socket is gone: %v", err)
	}
}
