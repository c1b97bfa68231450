package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
			if err := take(cfg.Dir); err != nil {
				t.Fatal(err)
			}
			for _, level := range []tier.Level{tier.LevelSynced, tier.LevelLogged} {
				w := segments(10+int(level), 1)[0]
				done, err := s.begin(lower.Tier, w, level)
				if errors.Is(err, tier.ErrUnavailable) && level == tier.LevelLogged {
					break // the sync has shown it
				}
				if err != nil {
					t.Fatal(err)
				}
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

// A directory that was removed is made anew, and what is stored from then on is
// found by the next opening.
func TestRemovedDirectoryIsMadeAnew(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	cfg := quick(s.config())
	cfg.Dir = t.TempDir() + "/tier"
	lower := s.openOK(cfg)
	s.mustWrite(lower.Tier, segments(1, 1)[0], tier.LevelSynced)
	// What runs may make files while it is removed.
	await(t, "the directory is removed", func() bool { return os.RemoveAll(cfg.Dir) == nil })
	again := segments(2, 1)[0]
	await(t, "a commit into the new directory", func() bool { return s.write(lower.Tier, again, tier.LevelSynced) == nil })
	if err := lower.close(); err != nil {
		t.Fatal(err)
	}
	s.mustRead(s.openOK(cfg).Tier, again)
}
