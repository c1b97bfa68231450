package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// script writes a stand-in for spliced.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "spliced")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDaemonThatEndsWhileStartingSaysWhy(t *testing.T) {
	_, err := Start(t.Context(), Options{Binary: script(t, "echo bad flag >&2; exit 3\n")})
	if err == nil || !strings.Contains(err.Error(), "bad flag") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%v", err)
	}
}

func TestDaemonThatIsNeverReadyIsKilled(t *testing.T) {
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	binary := script(t, fmt.Sprintf("echo $$ > %s.new; mv %s.new %s; exec sleep 600\n", pidFile, pidFile, pidFile))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Start(ctx, Options{Binary: binary, Dir: dir})
		done <- err
	}()
	var pid []byte
	for deadline := time.Now().Add(10 * time.Second); len(pid) == 0; {
		if pid, _ = os.ReadFile(pidFile); time.Now().After(deadline) {
			t.Fatal("the stand-in never ran")
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat("/proc/" + string(bytes.TrimSpace(pid))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("process %s: %v, want it gone", pid, err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a directory that was given: %v", err)
	}
}

func TestSocketsFindAPlaceWithoutATemporaryDirectory(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "absent"))
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("no /dev/shm here")
	}
	dir, err := temporaryDir()
	if err != nil || !strings.HasPrefix(dir, "/dev/shm/") {
		t.Fatalf("%q, %v", dir, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
}

func TestTailKeepsTheLastBytes(t *testing.T) {
	var b tailBuffer
	for i := range 1000 {
		fmt.Fprintf(&b, "line %04d\n", i)
	}
	if got := b.text(); len(got) > tailBytes+2 || !strings.HasSuffix(got, "line 0999") {
		t.Errorf("%d bytes, ends %q", len(got), got[len(got)-20:])
	}
}
