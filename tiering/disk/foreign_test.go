package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// stranger is a user that no test runs as.
const stranger = 54321

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to another user")
	}
}

// tree lists everything under a directory with its mode and owner.
func tree(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		list = append(list, strings.TrimPrefix(path, dir)+" "+os.FileMode(st.Mode).String())
		return nil
	})
	must(t, err)
	return list
}

// A directory that others have prepared, or can write, or that is something else's, is
// not used: nothing of it is served and nothing in it is changed.
func TestForeignDirectoryIsLeftAlone(t *testing.T) {
	give := func(name string) func(*testing.T, string) string {
		return func(t *testing.T, dir string) string {
			needRoot(t)
			must(t, os.Lchown(filepath.Join(dir, name), stranger, -1))
			return "belongs to user 54321"
		}
	}
	instead := func(name string, mk func(path string) error, says string) func(*testing.T, string) string {
		return func(t *testing.T, dir string) string {
			path := filepath.Join(dir, name)
			must(t, errors.Join(os.RemoveAll(path), mk(path)))
			return says
		}
	}
	link := func(path string) error { return os.Symlink("/dev/zero", path) }
	fifo := func(path string) error { return unix.Mkfifo(path, 0o600) }
	for name, spoil := range map[string]func(t *testing.T, dir string) (says string){
		"another's directory":  give(""),
		"another's slab":       give(slabDir + "/000001.slab"),
		"another's slabs":      give(slabDir),
		"another's index":      give(indexDir),
		"another's catalogue":  give(indexDir + "/LOCK"),
		"another's format":     give("FORMAT"),
		"another's lock":       give("LOCK"),
		"writable by all":      func(t *testing.T, dir string) string { return chmod(t, dir, 0o777) },
		"slabs writable":       func(t *testing.T, dir string) string { return chmod(t, dir+"/"+slabDir, 0o777) },
		"sticky like /tmp":     func(t *testing.T, dir string) string { return chmod(t, dir, 0o777|fs.ModeSticky) },
		"a link for a slab":    instead(slabDir+"/000001.slab", link, "000001.slab is a symbolic link"),
		"a FIFO for a slab":    instead(slabDir+"/000002.slab", fifo, "000002.slab is a FIFO"),
		"a folder for a slab":  instead(slabDir+"/000002.slab", func(p string) error { return os.Mkdir(p, 0o700) }, "000002.slab is a directory"),
		"a FIFO for the lock":  instead("LOCK", fifo, "LOCK is a FIFO"),
		"a link for the index": instead(indexDir, link, "index is a device"),
		"files and no format": func(t *testing.T, dir string) string {
			must(t, errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755), os.WriteFile(dir+"/passwd", nil, 0o644)))
			return `holds "passwd" and no file FORMAT`
		},
		"another's link to ours": func(t *testing.T, dir string) string {
			needRoot(t)
			must(t, errors.Join(os.Rename(dir, dir+".real"), os.Symlink(dir+".real", dir), os.Lchown(dir, stranger, -1)))
			return "belongs to user 54321"
		},
		"link into a folder of others' files": func(t *testing.T, dir string) string {
			etc := dir + ".etc"
			err := errors.Join(os.RemoveAll(dir), os.Mkdir(etc, 0o755), os.WriteFile(etc+"/shadow", nil, 0o600), os.Symlink(etc, dir))
			must(t, err)
			return `holds "shadow"`
		},
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg := s.config()
			root := t.TempDir()
			cfg.Dir = root + "/tier"
			w := segments(1, 1)[0]
			s.filled(cfg, []thing{w})
			says := spoil(t, cfg.Dir)
			before := tree(t, root)
			lower := s.open(cfg)
			if h := lower.Health(); h.State != StateForeign || !strings.Contains(h.Cause, says) {
				t.Errorf("state %v: %s", h.State, h.Cause)
			}
			if err := s.read(lower.Tier, w); err == nil {
				t.Error("it is served")
			}
			_ = lower.close()
			if found := s.offlineSays(cfg.Dir); !strings.Contains(found, says) && !strings.HasSuffix(found, "has no file FORMAT") {
				t.Errorf("check says %q", found)
			}
			if _, err := offline.Repair(t.Context(), cfg.Dir, offline.CheckOptions{}); !errors.Is(err, volume.ErrForeign) && !errors.Is(err, volume.ErrNotTier) {
				t.Errorf("repair: %v", err)
			}
			if after := tree(t, root); !slices.Equal(after, before) {
				t.Errorf("it was changed: %q, before %q", after, before)
			}
		})
	}
}

// offlineSays returns the first problem that a check finds, or why it finds none.
func (s *shelf) offlineSays(dir string) string {
	s.Helper()
	r, err := offline.Check(s.Context(), dir, offline.CheckOptions{})
	if err != nil {
		return err.Error()
	}
	if r.Clean() {
		return ""
	}
	return r.Problems[0].String()
}

// Root may check the directory of a daemon that runs as another user.
func TestRootChecksTheDirectoryOfAnotherUser(t *testing.T) {
	needRoot(t)
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir = t.TempDir() + "/tier"
	s.filled(cfg, segments(1, 1))
	must(t, filepath.WalkDir(cfg.Dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, stranger, -1))
	}))
	if says := s.offlineSays(cfg.Dir); says != "" {
		t.Error(says)
	}
	slabs := filepath.Join(cfg.Dir, slabDir)
	must(t, os.Lchown(slabs, stranger+1, -1))
	if says, want := s.offlineSays(cfg.Dir), slabs+" belongs to user 54322, the daemon is user 54321: "; !strings.HasPrefix(says, want) {
		t.Errorf("%q, not %q", says, want)
	}
}

// A path that leads to no directory of a tier is told apart from one that is damaged.
func TestOfflineSaysWhatIsNoTier(t *testing.T) {
	s := newShelf(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		dir:                          dir + " has no file FORMAT",
		file:                         file + " is not a directory",
		filepath.Join(dir, "absent"): filepath.Join(dir, "absent") + " does not exist",
	} {
		if got := s.offlineSays(path); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// A slab file that is missing is one problem, however many objects were in it.
func TestAMissingSlabIsOneProblem(t *testing.T) {
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir = t.TempDir() + "/tier"
	s.filled(cfg, segments(1, 5))
	slab := filepath.Join(cfg.Dir, slabDir, "000001.slab")
	must(t, os.Rename(slab, slab+".away"))
	r, err := offline.Check(t.Context(), cfg.Dir, offline.CheckOptions{})
	if want := "slab 1: the file is missing: put it back, or repair drops what was in it (objects in it: 5)"; err != nil || len(r.Problems) != 1 || r.Problems[0].String() != want {
		t.Fatalf("%v, %v", r, err)
	}
	must(t, os.Rename(slab+".away", slab))
	if says := s.offlineSays(cfg.Dir); says != "" {
		t.Error(says)
	}
	must(t, os.Remove(slab))
	if r, err := offline.Repair(t.Context(), cfg.Dir, offline.CheckOptions{}); err != nil || len(r.Problems) != 1 || r.Forgotten != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	if says := s.offlineSays(cfg.Dir); says != "" {
		t.Error(says)
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) string {
	t.Helper()
	must(t, os.Chmod(path, mode))
	return "writable by everybody"
}

// What a cluster does to a volume that it gives to a group, a link of our own and the
// root of a file system refuse nothing; folders are closed to the group again.
func TestDirectoryThatIsOursOpens(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, dir string) error{
		"empty": func(_ *testing.T, dir string) error { return os.Mkdir(dir, 0o755) },
		"empty and for everybody": func(_ *testing.T, dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
		},
		"root of a file system":       func(_ *testing.T, dir string) error { return os.MkdirAll(dir+"/lost+found", 0o700) },
		"an opening that was cut off": func(_ *testing.T, dir string) error { return os.MkdirAll(dir+"/index", 0o700) },
		"a link of our own": func(_ *testing.T, dir string) error {
			return errors.Join(os.Mkdir(dir+".real", 0o700), os.Symlink(dir+".real", dir))
		},
		"a volume of a group": func(t *testing.T, dir string) error {
			s := newShelf(t)
			cfg := s.config()
			cfg.Dir = dir
			s.filled(cfg, segments(1, 1))
			return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if d.IsDir() {
					return os.Chmod(path, 0o770|fs.ModeSetgid)
				}
				return os.Chmod(path, 0o660)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg := s.config()
			cfg.Dir = t.TempDir() + "/tier"
			must(t, prepare(t, cfg.Dir))
			lower := s.openOK(cfg)
			s.mustWrite(lower.Tier, segments(1, 1)[0], tier.LevelSynced)
			s.mustRead(lower.Tier, segments(1, 1)[0])
			if info, err := os.Stat(cfg.Dir); err != nil || info.Mode().Perm()&0o002 != 0 {
				t.Errorf("everybody may write in it: %v, %v", info.Mode(), err)
			}
			for _, folder := range []string{indexDir, slabDir, profileDir} {
				info, err := os.Stat(filepath.Join(cfg.Dir, folder))
				if err != nil || info.Mode().Perm() != 0o700 {
					t.Errorf("%s: %v, %v", folder, info.Mode(), err)
				}
			}
		})
	}
}

// Check and repair name what lies where a slab should, too.
func TestOfflineNamesWhatIsNoSlab(t *testing.T) {
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir = t.TempDir() + "/tier"
	s.filled(cfg, segments(1, 1))
	must(t, unix.Mkfifo(filepath.Join(cfg.Dir, slabDir, "000002.slab"), 0o600))
	if says := s.offlineSays(cfg.Dir); !strings.Contains(says, "000002.slab is a FIFO") {
		t.Errorf("%q", says)
	}
}
