package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// mounted is an ext4 file system of 32 MiB in a file, for as long as the test runs. A
// machine that does not let us mount skips the test, with the reason.
func mounted(t *testing.T) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	root := t.TempDir()
	image, dir := filepath.Join(root, "image"), filepath.Join(root, "mount")
	must(t, errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 32<<20), os.Mkdir(dir, 0o700)))
	must(t, command("mkfs.ext4", "-q", "-m", "0", image))
	if err := command("mount", "-o", "loop", image, dir); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { must(t, command("umount", "-l", dir)) })
	return dir
}

func command(name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// fill takes all that a file system has, to the last byte.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	b := make([]byte, 1<<20)
	for len(b) > 0 {
		n, err := f.Write(b)
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if n < len(b) {
			b = b[:len(b)/2]
		}
	}
	if err := f.Sync(); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// On a file system that is full to the last byte nothing is served wrong and nothing
// hangs; once there is room the tier is ok by itself, and what it acknowledged as synced
// and did not evict is there after a restart.
func TestFileSystemFullToTheLastByte(t *testing.T) {
	mount := mounted(t)
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := quick(s.config())
	cfg.Dir, cfg.PublicBytes, cfg.SlabBytes = mount+"/tier", 64<<20, 1<<20
	lower := s.openOK(cfg)
	synced := map[int]thing{}
	put := func(first, n int) (refused int) {
		for i, w := range segments(first, n) {
			if err := s.write(lower.Tier, w, tier.LevelSynced); err != nil {
				refused++
			} else {
				synced[first+i] = w
			}
		}
		return refused
	}
	if n := put(1, 60); n > 0 {
		t.Fatalf("%d of 60 refused where there is room", n)
	}
	fill(t, mount+"/filler")
	put(1000, 150)
	must(t, os.Remove(mount+"/filler"))
	lower.awaitState(t, StateOK)
	await(t, "writes", func() bool { return put(2000, 1) == 0 })
	if n := put(3000, 40); n > 0 {
		t.Errorf("%d of 40 refused where there is room again", n)
	}
	evicted := lower.Counters().EvictedRoom + lower.Counters().LostUnsynced
	s.check(lower.Tier)
	must(t, lower.close())
	again := s.openOK(cfg)
	missing := 0
	for _, w := range synced {
		if err := s.read(again.Tier, w); errors.Is(err, tier.ErrGone) {
			missing++
		} else if err != nil {
			t.Error(err)
		}
	}
	if uint64(missing) > evicted {
		t.Errorf("%d of %d synced objects are not there, %d were evicted", missing, len(synced), evicted)
	}
	must(t, again.close())
	if r, err := offline.Check(t.Context(), cfg.Dir, offline.CheckOptions{Deep: true}); err != nil || !r.Clean() {
		t.Errorf("%v: %v", r.Problems, err)
	}
}

// A file system that is read-only when the daemon starts costs the tier as long as it
// is, and nothing that lies there.
func TestReadOnlyStart(t *testing.T) {
	mount := mounted(t)
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := quick(s.config())
	cfg.Dir = mount + "/tier"
	things := segments(1, 10)
	s.filled(cfg, things)
	must(t, command("mount", "-o", "remount,ro", mount))
	lower := s.open(cfg)
	if h := lower.Health(); h.State != StateRefused || !strings.Contains(h.Cause, "read-only") {
		t.Errorf("state %v: %s", h.State, h.Cause)
	}
	must(t, command("mount", "-o", "remount,rw", mount))
	lower.awaitState(t, StateOK)
	for _, w := range things {
		s.mustRead(lower.Tier, w)
	}
}

// A file system that is taken away from under the tier, or covered by another, is
// missing, and no commit says that it reached it.
func TestFileSystemTakenAway(t *testing.T) {
	for name, take := range map[string]func(mount string) error{
		"unmounted": func(mount string) error { return command("umount", "-l", mount) },
		"covered":   func(mount string) error { return command("mount", "-t", "tmpfs", "tmpfs", mount) },
	} {
		t.Run(name, func(t *testing.T) {
			mount := mounted(t)
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg := s.config()
			cfg.Dir = mount + "/tier"
			lower := s.openOK(cfg)
			s.mustWrite(lower.Tier, segments(1, 1)[0], tier.LevelSynced)
			must(t, take(mount))
			defer func() { // of one file system there are two mounts then, or none
				if name == "covered" {
					_ = command("umount", "-l", mount)
				} else {
					_ = command("mount", "-t", "tmpfs", "tmpfs", mount)
				}
			}()
			done, err := s.begin(lower.Tier, segments(2, 1)[0], tier.LevelSynced)
			must(t, err)
			if out := <-done; out.err == nil || out.reached > tier.LevelMemory {
				t.Errorf("reached level %d: %v", out.reached, out.err)
			}
			if h := lower.Health(); h.State != StateMissing {
				t.Errorf("state %v: %s", h.State, h.Cause)
			}
			_ = lower.close()
		})
	}
}

// A file system that answers nothing holds up the end of the tier for its bound only,
// and costs nothing that was synced.
func TestFrozenFileSystemEndsInTime(t *testing.T) {
	mount := mounted(t)
	if _, err := exec.LookPath("fsfreeze"); err != nil {
		t.Skip(err)
	}
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir, cfg.DrainTime = mount+"/tier", 200*time.Millisecond
	lower := s.openOK(cfg)
	things := segments(1, 5)
	for _, w := range things {
		s.mustWrite(lower.Tier, w, tier.LevelSynced)
	}
	if err := command("fsfreeze", "-f", mount); err != nil {
		t.Skip(err)
	}
	thawed := false
	thaw := func() {
		if !thawed {
			thawed = true
			if err := command("fsfreeze", "-u", mount); err != nil {
				t.Error(err)
			}
		}
	}
	defer thaw()
	done, err := s.begin(lower.Tier, segments(100, 1)[0], tier.LevelLogged)
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- lower.Close() }()
	select {
	case err := <-ended:
		if !errors.Is(err, tier.ErrUnavailable) {
			t.Errorf("closed: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("not closed after 30 s, 150 times its bound")
	}
	thaw()
	<-done
	<-lower.ended
	lower.once.Do(func() {})                    // it is closed, but for the directory,
	if err := lower.mount.Close(); err != nil { // which the end of the process would let go of
		t.Error(err)
	}
	again := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(again.Tier, w)
	}
}
