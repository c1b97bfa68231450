package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// What is synced into a directory, or a file, that its name no longer leads to is
// lost with it: no commit says more than memory, and the tier goes on with what is at
// the path then.
func TestNothingIsAcknowledgedIntoWhatIsMissing(t *testing.T) {
	aside := func(name string) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			return os.Rename(path, filepath.Join(filepath.Dir(dir), "aside"))
		}
	}
	gone := func(name string) func(string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
	}
	for name, take := range map[string]func(dir string) error{
		"directory removed":   gone(""),
		"directory renamed":   aside(""),
		"slabs removed":       gone(slabDir),
		"slabs renamed":       aside(slabDir),
		"index removed":       gone(indexDir),
		"index renamed":       aside(indexDir),
		"slab file removed":   gone(slabDir + "/000001.slab"),
		"lock file removed":   gone("LOCK"),
		"format file removed": gone("FORMAT"),
		"another in its place": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700))
		},
		"log removed": func(dir string) error {
			logs, err := filepath.Glob(filepath.Join(dir, indexDir, "*.log"))
			for _, path := range logs {
				err = errors.Join(err, os.Remove(path))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg := s.config() // that looks by itself once an hour
			cfg.Dir = t.TempDir() + "/tier"
			lower := s.openOK(cfg)
			s.mustWrite(lower.Tier, segments(1, 1)[0], tier.LevelSynced)
			must(t, take(cfg.Dir))
			for _, level := range []tier.Level{tier.LevelSynced, tier.LevelLogged} {
				w := segments(10+int(level), 1)[0]
				done, err := s.begin(lower.Tier, w, level)
				if errors.Is(err, tier.ErrUnavailable) && level == tier.LevelLogged {
					break // the sync has shown it
				}
				must(t, err)
				if out := <-done; out.err == nil || out.reached > tier.LevelMemory {
					t.Errorf("a commit that asked for level %d reached %d: %v", level, out.reached, out.err)
				}
			}
			if h := lower.Health(); h.State != StateMissing || !strings.Contains(h.Cause, slab.ErrMissing.Error()) {
				t.Errorf("state %v: %s", h.State, h.Cause)
			}
		})
	}
}

// A directory that was open is not replaced: what is stored where a disk was mounted
// would fill another one, and what was moved away would not be missed. It is missing,
// and nothing is made, until it is back or the daemon was started again.
func TestMissingDirectoryIsNotReplaced(t *testing.T) {
	tiertest.Leaks(t)
	empty := func(dir string) error { return errors.Join(os.Rename(dir, dir+".aside"), os.Mkdir(dir, 0o755)) }
	for name, test := range map[string]struct {
		take  func(dir string) error
		cause string
		left  string // below the directory, not to be made
	}{
		"moved":           {func(dir string) error { return os.Rename(dir, dir+".aside") }, "holds no disk tier", ""},
		"empty instead":   {empty, "holds no disk tier", "FORMAT"},
		"with lost+found": {func(dir string) error { return errors.Join(empty(dir), os.Mkdir(dir+"/lost+found", 0o700)) }, "holds no disk tier", "FORMAT"},
		"slabs moved":     {func(dir string) error { return os.Rename(dir+"/"+slabDir, dir+".aside") }, "no such file", slabDir},
		"another instead": {func(dir string) error {
			s := newShelf(t)
			cfg := s.config()
			cfg.Dir = dir + ".other"
			s.filled(cfg, segments(7, 1))
			return errors.Join(os.Rename(dir, dir+".aside"), os.Rename(cfg.Dir, dir))
		}, "restart the daemon to use this one", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			cfg := quick(s.config())
			cfg.Dir = t.TempDir() + "/tier"
			lower := s.openOK(cfg)
			w := segments(1, 1)[0]
			s.mustWrite(lower.Tier, w, tier.LevelSynced)
			must(t, test.take(cfg.Dir))
			await(t, "it is missing", func() bool {
				h := lower.Health()
				return h.State == StateMissing && strings.Contains(h.Cause, test.cause)
			})
			if err := s.write(lower.Tier, segments(2, 1)[0], tier.LevelLogged); !errors.Is(err, tier.ErrUnavailable) {
				t.Errorf("a write: %v", err)
			}
			if c := lower.Counters(); c.Entries != 0 || c.Opened != 0 {
				t.Errorf("%+v", c)
			}
			if test.left != "" || name == "moved" {
				if _, err := os.Stat(filepath.Join(cfg.Dir, test.left)); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s was made in its place: %v", filepath.Join(cfg.Dir, test.left), err)
				}
			}
			back := cfg.Dir
			if name == "slabs moved" {
				back += "/" + slabDir
			}
			must(t, errors.Join(os.RemoveAll(back), os.Rename(cfg.Dir+".aside", back)))
			lower.awaitState(t, StateOK)
			s.mustRead(lower.Tier, w)
			if c := lower.Counters(); c.Opened != 1 || c.Dropped != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

// Whoever starts the daemon again says what is to be in the place of a directory that has
// gone: a new one, or with Existing nothing.
func TestAbsentDirectoryAtTheStart(t *testing.T) {
	tiertest.Leaks(t)
	for name, prepare := range map[string]func(dir string) error{
		"absent":     func(string) error { return nil },
		"empty":      func(dir string) error { return os.Mkdir(dir, 0o755) },
		"lost+found": func(dir string) error { return os.MkdirAll(dir+"/lost+found", 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			cfg := quick(s.config())
			cfg.Dir, cfg.Existing = t.TempDir()+"/tier", true
			must(t, prepare(cfg.Dir))
			before := tree(t, filepath.Dir(cfg.Dir))
			lower := s.open(cfg)
			if h := lower.Health(); h.State != StateMissing || !strings.Contains(h.Cause, "holds no disk tier") {
				t.Errorf("%+v", h)
			}
			must(t, lower.close())
			if after := tree(t, filepath.Dir(cfg.Dir)); !slices.Equal(after, before) {
				t.Errorf("made %q, before %q", after, before)
			}
			cfg.Existing = false
			s.filled(cfg, segments(1, 1))
			cfg.Existing = true
			s.mustRead(s.openOK(cfg).Tier, segments(1, 1)[0])
		})
	}
}

// An error of the system is none of the directory's.
func TestRefusals(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.EACCES, unix.EPERM, unix.EIO, unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.ENOMEM} {
		for _, err := range []error{errno, fmt.Errorf("open: %w: %w", errno, catalog.ErrFailed)} {
			if got := refusal(err); got != StateRefused {
				t.Errorf("%v: %v", err, got)
			}
		}
	}
	if got := refusal(fmt.Errorf("table: %w: %w", unix.ENOENT, catalog.ErrFailed)); got != StateUnreadable {
		t.Errorf("a file of the catalogue that is not there: %v", got)
	}
}
