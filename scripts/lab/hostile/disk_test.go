package hostile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
)

// onDisk are the flags of a daemon with a small disk tier. Memory holds a part of what
// the tests write, so that reads come from the disk.
func onDisk(dir string) []string {
	return []string{"-arena=4MiB", "-disk=" + dir, "-disk-size=128MiB", "-disk-slab=4MiB", "-disk-reserve=0B"}
}

// ofDisk is what readiness says of the disk; empty while it is well.
func (v *victim) ofDisk() string {
	for _, c := range v.health().Checks {
		if c.Name == "disk" && c.State == api.CheckDegraded {
			return c.Detail
		}
	}
	return ""
}

// putSynced publishes n segments that are to be on disk before the reply, and returns
// the keys of those of which the daemon says so.
func putSynced(t testing.TB, m *connector.Model, n int) (keys []profile.SegmentKey) {
	t.Helper()
	for range n {
		q := newSegment(1000)
		q.Level = wire.LevelSynced
		var stored connector.Stored
		err := patiently(func() (err error) { stored, err = m.Put(context.Background(), q); return err })
		if err != nil {
			t.Fatal(err)
		}
		key, ok := m.SegmentKey(q.Spec, q.Tokens)
		if !ok {
			t.Fatal("the daemon has gone")
		}
		if stored.Level == wire.LevelSynced {
			keys = append(keys, key)
		}
	}
	return keys
}

// readable counts the segments that are served with the zeros that putSynced has put,
// and those served with anything else.
func readable(t testing.TB, m *connector.Model, keys []profile.SegmentKey) (right, wrong int) {
	t.Helper()
	for _, key := range keys {
		rows, err := m.Acquire(context.Background(), []profile.SegmentKey{key}, connector.AcquireOptions{Wait: patience})
		if err != nil {
			t.Fatal(err)
		}
		if errors.Is(rows[0].Err, connector.ErrMiss) {
			continue
		} else if rows[0].Err != nil {
			t.Fatal(rows[0].Err)
		}
		l := rows[0].Lease
		intact := true
		for i, p := range l.Layout().Parts {
			b := make([]byte, p.Len)
			if err := l.Read(i, b); err != nil {
				t.Fatal(err)
			}
			intact = intact && !slices.ContainsFunc(b, func(x byte) bool { return x != 0 })
		}
		l.Release()
		if intact {
			right++
		} else {
			wrong++
		}
	}
	return right, wrong
}

func writer(t testing.TB, v *victim) *connector.Model {
	t.Helper()
	return registered(t, v.client(connector.Options{Name: "engine"}), modelNamed("engine"), connector.Binding{})
}

const missingPuts = 20

// Somebody removes the directory, or puts another in its place, under a daemon that
// runs: nothing is acknowledged as synced that would not be found again.
func TestHostileNothingIsSyncedIntoAMissingDirectory(t *testing.T) {
	var tried []string
	before, after, felt := 0, 0, ""
	for name, take := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"renamed": func(dir string) error { return os.Rename(dir, dir+".aside") },
		"another in its place": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".aside"), os.Mkdir(dir, 0o700))
		},
	} {
		dir := filepath.Join(shortDir(t), "d")
		v := start(t, bounds{}, onDisk(dir)...)
		m := writer(t, v)
		n := v.neighbour()
		before += len(putSynced(t, m, 10))
		if err := take(dir); err != nil {
			t.Fatal(err)
		}
		lost := 0
		felt = n.during(func() { lost = len(putSynced(t, m, missingPuts)) })
		if lost > 0 {
			t.Errorf("%s: %d of %d acknowledged as synced", name, lost, missingPuts)
		}
		// It may be looking at what is there now.
		if said := v.ofDisk(); !strings.Contains(said, "missing") && !strings.Contains(said, "removed or renamed") {
			t.Errorf("%s: readiness says %q", name, said)
		}
		eventually(t, name+": it was looked at again", func() bool { return strings.Contains(v.ofDisk(), "holds no disk tier") })
		if _, err := os.Stat(filepath.Join(dir, "FORMAT")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a new directory was begun in its place: %v", name, err)
		}
		v.mustRun()
		after += lost
		tried = append(tried, name)
	}
	if before != 30 {
		t.Errorf("%d of 30 were synced before", before)
	}
	slices.Sort(tried)
	report(t, fmt.Sprintf("the disk directory %s under the daemon, then %d puts at synced each", strings.Join(tried, ", "), missingPuts), fmt.Sprintf("%d acknowledgements as synced, degraded: missing", after), felt)
}

// listed is everything below a directory, with sizes.
func listed(t testing.TB, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			list = append(list, fmt.Sprintf("%s %v %d", path, info.Mode(), info.Size()))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The directory of another user, one that others may write in, and one full of other
// files behind a symbolic link: served from memory, and nothing is touched.
func TestHostileForeignDirectoryIsNotUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: only root can give files to another user")
	}
	filled := filepath.Join(shortDir(t), "d")
	v := start(t, bounds{}, onDisk(filled)...)
	keys := putSynced(t, writer(t, v), 5)
	v.stop()
	for name, prepare := range map[string]func() (dir string, err error){
		"another user's": func() (string, error) {
			return filled, filepath.WalkDir(filled, func(path string, _ fs.DirEntry, err error) error {
				return errors.Join(err, os.Lchown(path, mallory, mallory))
			})
		},
		"anybody's": func() (string, error) {
			dir := filepath.Join(shortDir(t), "w")
			return dir, errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "left"), nil, 0o600), os.Chmod(dir, 0o777))
		},
		"full of other files": func() (string, error) {
			dir, link := filepath.Join(shortDir(t), "etc"), filepath.Join(shortDir(t), "l")
			return link, errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "passwd"), []byte("root"), 0o600), os.Symlink(dir, link))
		},
	} {
		dir, err := prepare()
		if err != nil {
			t.Fatal(err)
		}
		at, err := filepath.EvalSymlinks(dir)
		if err != nil {
			t.Fatal(err)
		}
		before := listed(t, at)
		v := start(t, bounds{}, onDisk(dir)...)
		if said := v.ofDisk(); !strings.Contains(said, "does not belong to the daemon") {
			t.Errorf("%s: readiness says %q", name, said)
		}
		if right, wrong := readable(t, writer(t, v), keys); right+wrong > 0 {
			t.Errorf("%s: %d segments of it are served", name, right+wrong)
		}
		v.stop()
		if after := listed(t, at); !slices.Equal(before, after) {
			t.Errorf("%s: was changed\n%q\n%q", name, before, after)
		}
	}
	report(t, "-disk on a filled directory of another user, one that anybody may write in, and a link to other files", "nothing served of it, nothing changed in it", "served from memory, degraded")
}

// Somebody changes bytes of the slabs between two runs. What was changed is a miss.
func TestHostileChangedSlabsAreNotServed(t *testing.T) {
	dir := filepath.Join(shortDir(t), "d")
	v := start(t, bounds{}, onDisk(dir)...)
	keys := putSynced(t, writer(t, v), 40)
	v.stop()
	slabs, err := filepath.Glob(filepath.Join(dir, "slabs", "*"))
	if err != nil || len(slabs) == 0 {
		t.Fatalf("%d slabs: %v", len(slabs), err)
	}
	flipped := 0
	for _, path := range slabs {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for at := 64 << 10; at < len(b)/2; at += 96 << 10 {
			b[at] ^= 1
			flipped++
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v = start(t, bounds{}, onDisk(dir)...)
	right, wrong := readable(t, writer(t, v), keys)
	if wrong > 0 {
		t.Errorf("%d of %d segments are served with other bytes", wrong, len(keys))
	}
	if right == len(keys) {
		t.Error("every segment is served: nothing was tried")
	}
	v.mustRun()
	report(t, fmt.Sprintf("%d bytes flipped in the slabs of %d segments", flipped, len(keys)), fmt.Sprintf("%d misses, 0 segments with other bytes", len(keys)-right), fmt.Sprintf("%d segments served as they were put", right))
}

// A byte of the catalogue's log flips while the daemon is down. What was synced is not
// dropped in silence: readiness and check say so, and repair brings all of it back.
func TestHostileFlipInTheLogIsNoSilentLoss(t *testing.T) {
	dir := filepath.Join(shortDir(t), "d")
	v := start(t, bounds{}, onDisk(dir)...)
	keys := putSynced(t, writer(t, v), 124)
	if err := v.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-v.ended
	logs, err := filepath.Glob(filepath.Join(dir, "index", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("%d logs: %v", len(logs), err)
	}
	slices.Sort(logs)
	last := logs[len(logs)-1]
	b, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	b[2*len(b)/5] ^= 1
	if err := os.WriteFile(last, b, 0o600); err != nil {
		t.Fatal(err)
	}

	v = start(t, bounds{}, onDisk(dir)...)
	said := v.ofDisk()
	if !strings.Contains(said, "damaged") {
		t.Errorf("readiness says %q", said)
	}
	v.stop()
	found, err := offline.Check(t.Context(), dir, offline.CheckOptions{Deep: true})
	if err != nil || found.Clean() {
		t.Errorf("check: %v, %+v", err, found)
	}
	if _, err := offline.Repair(t.Context(), dir, offline.CheckOptions{}); err != nil {
		t.Fatal(err)
	}
	v = start(t, bounds{}, onDisk(dir)...)
	right, wrong := readable(t, writer(t, v), keys)
	if right != len(keys) || wrong > 0 {
		t.Errorf("%d of %d synced segments are back, %d with other bytes", right, len(keys), wrong)
	}
	report(t, fmt.Sprintf("kill -9, and a byte flipped in the middle of the log of %d synced segments", len(keys)), "nothing lost in silence: degraded, check names it", fmt.Sprintf("from memory until repair, then %d of %d", right, len(keys)))
}
