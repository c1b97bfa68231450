package catalog

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// edit rewrites a file.
func edit(t *testing.T, fs vfs.FS, path string, change func([]byte) []byte) {
	t.Helper()
	f, err := fs.Open(path)
	must(t, err)
	b, err := io.ReadAll(f)
	must(t, errors.Join(err, f.Close()))
	f, err = fs.Create(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = f.Write(change(b))
	must(t, errors.Join(err, f.Close()))
}

// fileOf finds the youngest file of a kind.
func fileOf(t *testing.T, fs vfs.FS, kind string) (path string, size int64) {
	t.Helper()
	list, err := fs.List(dir)
	must(t, err)
	most := uint64(0)
	for _, name := range list {
		if k, n := fileKind(name); k == kind && n >= most {
			path, most = fs.PathJoin(dir, name), n
		}
	}
	info, err := fs.Stat(path)
	must(t, err)
	return path, info.Size()
}

// killedWithSynced is what a process leaves that was killed after some rows were
// synced and others were not.
func killedWithSynced(t *testing.T, synced int) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewCrashableMem()
	c, err := smallOpen(mem)
	must(t, err)
	for i := range synced {
		must(t, c.Commit([]Change{put(i)}, i%7 == 0 || i == synced-1))
	}
	left := killed(mem)
	must(t, c.Close())
	return left
}

// One byte of what was synced, flipped anywhere in the log or the MANIFEST, or
// either cut short or gone, never opens with fewer rows: it is refused as damage.
func TestDamageOfWhatWasSyncedIsRefused(t *testing.T) {
	const rows = 210
	whole := killedWithSynced(t, rows)
	flip := func(at int64) func([]byte) []byte {
		return func(b []byte) []byte {
			b[at] ^= 0x10
			return b
		}
	}
	cut := func(at int64) func([]byte) []byte {
		return func(b []byte) []byte { return b[:at] }
	}
	try := func(kind string, at int64, change func([]byte) []byte) {
		t.Helper()
		fs := killed(whole)
		path, _ := fileOf(t, fs, kind)
		edit(t, fs, path, change)
		c, err := smallOpen(fs)
		if errors.Is(err, tier.ErrCorrupt) && strings.Contains(err.Error(), "damaged") {
			return
		}
		if err != nil {
			t.Fatalf("%s, byte %d: %v", kind, at, err)
		}
		if n := len(load(t, c)); n != rows {
			t.Errorf("%s, byte %d: opened with %d rows of %d", kind, at, n, rows)
		}
		must(t, c.Close())
	}
	for _, kind := range []string{"log", "MANIFEST"} {
		_, size := fileOf(t, whole, kind)
		for at := int64(0); at < size; at += max(size/23, 1) {
			try(kind, at, flip(at))
			try(kind, at, cut(at))
		}
		try(kind, size-1, flip(size-1))
		fs := killed(whole)
		path, _ := fileOf(t, fs, kind)
		must(t, fs.Remove(path))
		if c, err := smallOpen(fs); !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("opened without its %s: %v", kind, err)
			if err == nil {
				must(t, c.Close())
			}
		}
	}
}

// What a mark does not vouch for is judged as before: there is none in what an
// earlier release wrote, a torn one is none, and an end that was not synced may be
// cut off.
func TestMarkVouchesForWhatWasSyncedOnly(t *testing.T) {
	const rows = 50
	for name, change := range map[string]func(*testing.T, vfs.FS){
		"no mark": func(t *testing.T, fs vfs.FS) { must(t, fs.Remove(fs.PathJoin(dir, markName))) },
		"empty mark": func(t *testing.T, fs vfs.FS) {
			edit(t, fs, fs.PathJoin(dir, markName), func([]byte) []byte { return nil })
		},
		"mark of zeros": func(t *testing.T, fs vfs.FS) {
			edit(t, fs, fs.PathJoin(dir, markName), func(b []byte) []byte { return make([]byte, len(b)) })
		},
		"torn mark": func(t *testing.T, fs vfs.FS) {
			edit(t, fs, fs.PathJoin(dir, markName), func(b []byte) []byte { return b[:len(b)/2] })
		},
		"end not synced": func(t *testing.T, fs vfs.FS) {
			path, _ := fileOf(t, fs, "log")
			edit(t, fs, path, func(b []byte) []byte { return append(b, "half a record"...) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := killedWithSynced(t, rows)
			change(t, fs)
			c, err := smallOpen(fs)
			must(t, err)
			if n := len(load(t, c)); n != rows {
				t.Errorf("%d rows of %d", n, rows)
			}
			must(t, c.Commit([]Change{put(rows)}, true))
			must(t, c.Close())
			again, err := smallOpen(fs)
			must(t, err)
			if n := len(load(t, again)); n != rows+1 {
				t.Errorf("%d rows of %d", n, rows+1)
			}
			must(t, again.Close())
		})
	}
}

// FuzzMark: what is read is what would be written, and nothing else is believed.
func FuzzMark(f *testing.F) {
	mem := vfs.NewMem()
	file, err := mem.Create("mark", vfs.WriteCategoryUnspecified)
	must(f, err)
	m := &mark{fs: mem, file: file, parts: map[string]syncedPart{}}
	for _, p := range []syncedPart{{"000007.log", 12345, 6}, {"MANIFEST-000005", 789, 1 << 63}} {
		must(f, m.note(p))
	}
	f.Add(bytes.Clone(m.text))
	f.Add([]byte(markHead))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		parts, err := parseMark(text)
		if err != nil {
			if !errors.Is(err, tier.ErrCorrupt) || parts != nil {
				t.Fatalf("%v beside %d parts", err, len(parts))
			}
			return
		}
		for _, p := range parts {
			if !bytes.Contains(text, []byte(p.text())) {
				t.Fatalf("%+v was read and is not there", p)
			}
		}
	})
}

// FuzzRow: what is taken as a row is written again, to the bit.
func FuzzRow(f *testing.F) {
	for i := range 3 {
		r := row(i)
		f.Add(r.append(nil))
	}
	f.Add([]byte{rowVersion})
	f.Add([]byte{rowHashedVersion})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRow(row(1).Name, b)
		if err != nil {
			if !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatal(err)
			}
			return
		}
		if out := r.append(nil); !bytes.Equal(out, b) {
			t.Fatalf("%x was read, %x written again", b, out)
		}
	})
}

// FuzzSmallRows: rows that are no entries, and keys, are read whole or refused.
func FuzzSmallRows(f *testing.F) {
	f.Add(appendFormat(nil, storeA))
	f.Add(uint64Row(useVersion, 77))
	f.Add(tenantRow(3))
	n := row(2).Name
	f.Add(nameKey(spaceEntry, &n))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		same := func(what string, err error, again func() []byte) {
			switch {
			case err == nil && !bytes.Equal(again(), b):
				t.Fatalf("%s: %x was read, %x written again", what, b, again())
			case err != nil && !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, ErrVersion):
				t.Fatalf("%s: %v", what, err)
			}
		}
		id, err := parseFormat(b)
		same("format", err, func() []byte { return appendFormat(nil, id) })
		v, err := parseUint64Row(b, useVersion, "last use")
		same("number", err, func() []byte { return uint64Row(useVersion, v) })
		tenant, err := parseTenantRow(b)
		same("tenant", err, func() []byte { return tenantRow(tenant) })
		if name, err := parseNameKey(b); err == nil && !bytes.Equal(nameKey(b[0], &name), b) {
			t.Fatalf("key %x is not that of %v", b, name)
		}
	})
}
