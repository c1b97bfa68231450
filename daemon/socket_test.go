package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/daemon/socket"
)

// runOnce runs a daemon that is expected to fail at the start.
func runOnce(t *testing.T, c settings.Config) error {
	t.Helper()
	d, err := New(c, Parts{})
	must(t, err)
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
	c := testConfig(t)
	r := startDaemon(t, c, nil)
	err := runOnce(t, c)
	if !errors.Is(err, socket.ErrInUse) || !strings.Contains(err.Error(), "locked by a running daemon") {
		t.Errorf("second daemon: %v", err)
	}
	attach(t, r.Socket())
}

func TestASocketThatNobodyServesIsReplaced(t *testing.T) {
	leakCheck(t)
	c := testConfig(t)
	left, err := seqpacket.Listen(c.Socket, 0o600, 1)
	must(t, err)
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
			must(t, err)
			t.Cleanup(func() { l.Close() })
		},
		"a stream socket": func(t *testing.T, path string) {
			l, err := net.Listen("unix", path)
			must(t, err)
			t.Cleanup(func() { l.Close() })
		},
		"a file": func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte("notes"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig(t)
			open(t, c.Socket)
			var before, after unix.Stat_t
			must(t, unix.Lstat(c.Socket, &before))
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
	must(t, os.Rename(c.Socket, c.Socket+".old"))
	theirs, err := seqpacket.Listen(c.Socket, 0o600, 1)
	must(t, err)
	defer theirs.Close()
	r.stop()
	if _, err := os.Lstat(c.Socket); err != nil {
		t.Errorf("their socket: %v", err)
	}
}
