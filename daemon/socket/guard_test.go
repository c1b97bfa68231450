package socket

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/settings"
)

// served is a socket that accepts until the test ends, and how its directory is called.
func served(t *testing.T) (s *Socket, dir string) {
	t.Helper()
	root, err := os.MkdirTemp("", "spl")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	must(t, unix.Chmod(root, 0o2777))
	dir = filepath.Join(root, "d")
	if s, err = open(filepath.Join(dir, "s")); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		for {
			conn, err := s.Accept()
			if err != nil {
				accepted <- err
				return
			}
			_ = conn.Send([]byte("ours"), nil)
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		if err := s.StopListening(); err != nil {
			t.Error(err)
		}
		if err := <-accepted; !errors.Is(err, seqpacket.ErrClosed) {
			t.Errorf("accept ended with %v", err)
		}
		if err := s.Unlock(); err != nil {
			t.Error(err)
		}
	})
	return s, dir
}

// open is a socket that listens.
func open(path string) (*Socket, error) {
	s, err := Reserve(path, settings.Machine{})
	if err != nil {
		return nil, err
	}
	if err := s.Listen(8); err != nil {
		return nil, errors.Join(err, s.Unlock())
	}
	return s, nil
}

// reached fails the test unless a client of the path reaches us.
func reached(t *testing.T, s *Socket) {
	t.Helper()
	conn, err := seqpacket.Dial(s.Path, dialTimeout)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	buf := make([]byte, 8)
	if n, _, err := conn.Recv(buf); err != nil || string(buf[:n]) != "ours" {
		t.Errorf("a client got %q, %v", buf[:n], err)
	}
}

// impostor listens on a path until the test ends.
func impostor(path string) error {
	l, err := seqpacket.Listen(path, 0o666, 8)
	if err != nil {
		return err
	}
	return l.Close() // what matters is the entry
}

func TestAReplacedSocketIsTakenBack(t *testing.T) {
	for name, attack := range map[string]func(path, dir string) error{
		"another socket": func(path, _ string) error { return errors.Join(os.Remove(path), impostor(path)) },
		"a renamed one":  func(path, _ string) error { return errors.Join(os.Rename(path, path+"2"), impostor(path)) },
		"nothing":        func(path, _ string) error { return os.Remove(path) },
		"a file":         func(path, _ string) error { return errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600)) },
		"a link": func(path, _ string) error {
			return errors.Join(os.Rename(path, path+"2"), impostor(path+"3"), os.Symlink(path+"3", path))
		},
		"no directory":      func(_, dir string) error { return os.RemoveAll(dir) },
		"a moved directory": func(_, dir string) error { return os.Rename(dir, dir+"2") },
		"another user's directory": func(path, dir string) error {
			return errors.Join(os.Rename(dir, dir+"2"), os.Mkdir(dir, 0o755), impostor(path), os.Chown(dir, 1001, 1001))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's directory" && os.Geteuid() != 0 {
				t.Skip("SKIP: only root can give directories away")
			}
			s, dir := served(t)
			reached(t, s)
			for n := range uint64(3) {
				if found, err := s.takeBack(); found != "" || err != nil {
					t.Fatalf("untouched, found %q, %v", found, err)
				}
				must(t, attack(s.Path, dir))
				found, err := s.takeBack()
				if found == "" || err != nil || s.Trouble() != "" || s.Replaced() != n+1 {
					t.Fatalf("found %q, %v; trouble %q, replaced %d times", found, err, s.Trouble(), s.Replaced())
				}
				reached(t, s)
				for _, left := range []string{path2(s), path2(s) + "3", dir + "2"} {
					must(t, os.RemoveAll(left))
				}
				must(t, os.RemoveAll(s.Path+"3"))
			}
		})
	}
}

func path2(s *Socket) string { return s.Path + "2" }

// Who cannot take the path back says so until he can.
func TestAPathThatCannotBeTakenBackIsTrouble(t *testing.T) {
	s, _ := served(t)
	must(t, errors.Join(os.Remove(s.Path), os.MkdirAll(filepath.Join(s.Path, "full"), 0o700)))
	for range 3 {
		if _, err := s.takeBack(); err == nil || !strings.Contains(s.Trouble(), s.Path) || s.Replaced() != 1 {
			t.Fatalf("%v; trouble %q, replaced %d times", err, s.Trouble(), s.Replaced())
		}
	}
	must(t, os.RemoveAll(s.Path))
	if _, err := s.takeBack(); err != nil || s.Trouble() != "" {
		t.Fatalf("%v; trouble %q", err, s.Trouble())
	}
	reached(t, s)
}

// A daemon that was started where the directory of ours had been removed keeps it.
func TestADaemonThatCameAfterIsLeftAlone(t *testing.T) {
	s, dir := served(t)
	must(t, os.RemoveAll(dir))
	other, err := open(s.Path)
	must(t, err)
	if _, err := s.takeBack(); !errors.Is(err, ErrInUse) || s.Trouble() == "" {
		t.Errorf("%v; trouble %q", err, s.Trouble())
	}
	if found, err := other.takeBack(); found != "" || err != nil {
		t.Errorf("the other found %q, %v", found, err)
	}
	if err := errors.Join(other.StopListening(), other.Unlock()); err != nil {
		t.Error(err)
	}
	if found, err := s.takeBack(); found == "" || err != nil {
		t.Error(fmt.Errorf("after its end: found %q, %w", found, err))
	}
	reached(t, s)
}
