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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path); !errors.Is(err, ErrBusy) {
		t.Errorf("locked: %v", err)
	}
	ln.Close()
	// One that does not know our lock file, but answers.
	foreign, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	ln, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after close: %v", err)
	}
}

func TestOtherFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "admin.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path); !errors.Is(err, ErrInvalid) {
		t.Errorf("a plain file: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file became %q, %v", b, err)
	}
	if err := os.Symlink(path, path+"2.lock"); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path + "2"); err == nil {
		t.Error("a lock file that is a link was followed")
	}
	if _, err := ListenUnix(filepath.Join(dir, strings.Repeat("x", 120))); !errors.Is(err, ErrInvalid) {
		t.Errorf("long path: %v", err)
	}
}

func TestAcceptTakesOwnPeers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	got.Close()
}
