package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// rewrite writes an extent and its row again as somebody does who may write all of a
// directory but has not read its key: with every length and checksum right.
func (s *shelf) rewrite(cfg Config, w thing, change func(h *extent.Header, m *extent.Manifest, body []byte)) {
	s.Helper()
	v := s.existing(cfg)
	defer func() {
		if err := v.Close(); err != nil {
			s.Error(err)
		}
	}()
	must(s, v.OpenCatalog())
	row, ok, err := v.Catalog.Entry(extent.Name{Kind: uint8(w.kind), Key: w.key()})
	if err != nil || !ok {
		s.Fatalf("no row: %v", err)
	}
	x, err := payload.ReadExtent(v, row.Runs)
	must(s, err)
	body := slab.AlignedBuffer(int(x.PayloadBytes))
	must(s, v.Read(x.Runs, int64(x.HeaderBytes), [][]byte{body}))
	change(&x.Header, x.Manifest, body)
	stored, err := x.Manifest.Encode(nil)
	must(s, err)
	header, err := x.Append(slab.AlignedBuffer(extent.HeaderBytes(len(stored)))[:0], stored)
	must(s, err)
	if x.HeaderBytes != row.HeaderBytes {
		s.Fatalf("a header of %d bytes, not %d: the test does not move payloads", x.HeaderBytes, row.HeaderBytes)
	}
	row.ManifestSum, row.Generation = x.ManifestSum, x.Generation
	err = errors.Join(v.Write(x.Runs, [][]byte{header, body}), v.Catalog.Commit([]catalog.Change{{Row: &row, Manifest: stored}}, true))
	must(s, err)
}

// right makes the digests of a manifest those of a payload of one rank.
func right(w thing, m *extent.Manifest, body []byte) {
	l := w.layout()
	m.Digests[0] = m.Digests[0][:0]
	for _, p := range l.Parts {
		for at := int64(0); at < p.Len; at += extent.ChunkBytes {
			m.Digests[0] = append(m.Digests[0], gpuipc.DigestBytes(body[p.Off+at:p.Off+min(at+extent.ChunkBytes, p.Len)]))
		}
	}
}

// Bytes that were made up by somebody without the key are never served, whatever else of
// them is right; neither check nor repair takes them for ours.
func TestForgedExtentsAreNotServed(t *testing.T) {
	for name, forge := range map[string]func(w thing) func(*extent.Header, *extent.Manifest, []byte){
		"payload": func(w thing) func(*extent.Header, *extent.Manifest, []byte) {
			return func(_ *extent.Header, m *extent.Manifest, body []byte) {
				body[0] ^= 1
				right(w, m, body)
			}
		},
		"payload without a seal": func(w thing) func(*extent.Header, *extent.Manifest, []byte) {
			return func(h *extent.Header, m *extent.Manifest, body []byte) {
				body[0] ^= 1
				right(w, m, body)
				h.Sealed, h.Seal = false, [extent.SealBytes]byte{}
			}
		},
		"payload of another key": func(w thing) func(*extent.Header, *extent.Manifest, []byte) {
			return func(h *extent.Header, m *extent.Manifest, body []byte) {
				body[0] ^= 1
				right(w, m, body)
				key := extent.NewKey([32]byte{1, 2, 3}, 1)
				var tags []byte
				for _, p := range w.layout().Parts {
					if p.Len > 0 {
						tags = key.Tag(tags, [][]byte{body[p.Off : p.Off+p.Len]})
					}
				}
				stored, _ := m.Encode(nil)
				h.Sign(key, stored, tags)
			}
		},
		"tokens": func(thing) func(*extent.Header, *extent.Manifest, []byte) {
			return func(_ *extent.Header, m *extent.Manifest, _ []byte) { m.Tokens[0]++ }
		},
		"tenant": func(thing) func(*extent.Header, *extent.Manifest, []byte) {
			return func(_ *extent.Header, m *extent.Manifest, _ []byte) { m.Tenant = "b" }
		},
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			cfg := onMem(s.config(), vfs.NewMem())
			things := segments(1, 3)
			s.filled(cfg, things)
			s.rewrite(cfg, things[1], forge(things[1]))
			if r := s.mustCheck(cfg, true); len(r.Problems) != 1 {
				t.Errorf("check: %v", r.Problems)
			}
			lower := s.openOK(cfg)
			for i, w := range things {
				err := s.read(lower.Tier, w)
				if (err == nil) == (i == 1) || errors.Is(err, errWrong) || i == 1 && name == "payload" && !errors.Is(err, tier.ErrCorrupt) {
					t.Errorf("extent %d: %v", i, err)
				}
			}
			if n := lower.Counters().Corrupt; n != 1 {
				t.Errorf("%d counted as corrupt", n)
			}
		})
	}
}

// asVersionOne makes of a directory what an earlier release would have left.
func (s *shelf) asVersionOne(cfg Config, mem vfs.FS, things []thing) {
	s.Helper()
	for _, w := range things {
		s.rewrite(cfg, w, func(h *extent.Header, _ *extent.Manifest, _ []byte) {
			h.Sealed, h.Seal = false, [extent.SealBytes]byte{}
		})
	}
	path := mem.PathJoin(cfg.Dir, "FORMAT")
	setFile(s, mem, path, bytes.Replace(getFile(s, mem, path), []byte("version 2"), []byte("version 1"), 1))
	must(s, mem.Remove(mem.PathJoin(cfg.Dir, "KEY")))
}

// A directory of version 1 opens with all that is in it, and is of version 2 from then
// on: what is written is sealed, what was written is served as it is, and offline
// functions know both.
func TestVersionOneIsTakenUp(t *testing.T) {
	for _, coded := range [][]profile.PartKind{nil, {profile.PartK, profile.PartV}} {
		tiertest.Leaks(t)
		s := newShelf(t)
		mem := vfs.NewMem()
		cfg := onMem(s.config(), mem)
		cfg.Coded = coded
		old := append(segments(1, 5), chain(50, 3, tenantB)...)
		s.filled(cfg, old)
		s.asVersionOne(cfg, mem, old)
		if r := s.mustCheck(cfg, true); !r.Clean() || r.Version != 1 || r.Segments != 5 || r.Checkpoints != 3 {
			t.Errorf("before: version %d, %d and %d entries, %v", r.Version, r.Segments, r.Checkpoints, r.Problems)
		}
		fresh := segments(100, 3)
		s.filled(cfg, fresh)
		for range 2 {
			lower := s.openOK(cfg)
			for _, w := range append(old, fresh...) {
				s.mustRead(lower.Tier, w)
			}
			s.check(lower.Tier)
			must(t, lower.close())
			if r := s.mustCheck(cfg, true); !r.Clean() || r.Version != 2 || r.Segments != 8 || r.Checkpoints != 3 {
				t.Errorf("version %d, %d and %d entries, %v", r.Version, r.Segments, r.Checkpoints, r.Problems)
			}
			s.lose(mem, mem.PathJoin(cfg.Dir, indexDir), "gone") // the second time from what was rebuilt
			if r := s.mustRepair(cfg); !r.Rebuilt || r.Forgotten != 0 {
				t.Errorf("rebuilt %v, forgotten %d: %v", r.Rebuilt, r.Forgotten, r.Problems)
			}
		}
		s.rewrite(cfg, fresh[0], func(h *extent.Header, _ *extent.Manifest, _ []byte) {
			h.Sealed, h.Seal = false, [extent.SealBytes]byte{}
		})
		lower := s.openOK(cfg)
		if err := s.read(lower.Tier, fresh[0]); !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("served without a seal: %v", err)
		}
		if err := lower.close(); err != nil { // before what runs is counted again
			t.Fatal(err)
		}
	}
}

// The key is for the daemon's user alone. Lost or damaged it costs the tier, and the
// text says what to do.
func TestKeyFile(t *testing.T) {
	s := newShelf(t)
	cfg := s.config()
	cfg.Dir = t.TempDir() + "/tier"
	w := segments(1, 1)[0]
	s.filled(cfg, []thing{w})
	path := filepath.Join(cfg.Dir, "KEY")
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v: %v", info.Mode(), err)
	}
	good, err := os.ReadFile(path)
	must(t, err)
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	for what, spoil := range map[string]func() error{
		"lost":    func() error { return os.Remove(path) },
		"damaged": func() error { return os.WriteFile(path, flipped, 0o600) },
	} {
		must(t, spoil())
		lower := s.open(cfg)
		if h := lower.Health(); h.State != StateUnreadable || !strings.Contains(h.Cause, "KEY is "+what) {
			t.Errorf("%s: state %v: %s", what, h.State, h.Cause)
		}
		_ = lower.close()
		if r, err := offline.Repair(context.Background(), cfg.Dir, offline.CheckOptions{}); err != nil || r.Clean() || !strings.Contains(r.Problems[0].What, "entries are all lost") {
			t.Errorf("repaired: %+v, %v", r, err)
		}
	}
	must(t, os.WriteFile(path, good, 0o666))
	if err := os.Chmod(path, 0o640); err != nil { // as a cluster does
		t.Fatal(err)
	}
	lower := s.openOK(cfg)
	s.mustRead(lower.Tier, w)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v: %v", info.Mode(), err)
	}
	if err := lower.close(); err != nil {
		t.Error(err)
	}
	// FORMAT is another file once it says which KEY is the store's: that is no missing one.
	path = filepath.Join(cfg.Dir, "FORMAT")
	whole, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, whole[:bytes.Index(whole, []byte("key "))], 0o600))
	lower = s.openOK(cfg)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("FORMAT is %q, it was %q: %v", got, whole, err)
	}
	must(t, lower.mount.Present())
	if v := volume.Version; v != 2 {
		t.Errorf("version %d", v)
	}
}

// withoutBinding makes FORMAT what releases before the line "key" wrote.
func (s *shelf) withoutBinding(cfg Config, mem vfs.FS) {
	s.Helper()
	path := mem.PathJoin(cfg.Dir, "FORMAT")
	old, _, ok := bytes.Cut(getFile(s.TB, mem, path), []byte("key "))
	if !ok {
		s.Fatal("FORMAT has no binding")
	}
	setFile(s.TB, mem, path, old)
}

// strangeKey returns the KEY of another store, whose first sealed generation is from.
func (s *shelf) strangeKey(from int) []byte {
	s.Helper()
	mem := vfs.NewMem()
	cfg := onMem(s.config(), mem)
	must(s, s.openOK(cfg).close())
	text, _, _ := bytes.Cut(getFile(s.TB, mem, mem.PathJoin(cfg.Dir, "KEY")), []byte("sum "))
	text = bytes.Replace(text, []byte("from 1\n"), fmt.Appendf(nil, "from %d\n", from), 1)
	return fmt.Appendf(text, "sum %016x\n", xxh3.Hash(text))
}

// contents returns what the files below a directory have, but for the catalogue, which every
// opening writes.
func (s *shelf) contents(mem *vfs.MemFS, dir string) map[string]string {
	s.Helper()
	all := map[string]string{}
	names, err := mem.List(dir)
	must(s, err)
	for _, name := range names {
		path := mem.PathJoin(dir, name)
		info, err := mem.Stat(path)
		must(s, err)
		switch {
		case name == indexDir || name == "LOCK":
		case info.IsDir():
			maps.Copy(all, s.contents(mem, path))
		default:
			all[path] = string(getFile(s.TB, mem, path))
		}
	}
	return all
}

// A KEY of another store costs nothing: check reports it, and neither repair nor a daemon
// changes anything, until the own KEY is back. That holds also if FORMAT does not say yet
// which KEY belongs to the store.
func TestKeyOfAnotherStoreCostsNothing(t *testing.T) {
	lose := func(name string) func(*shelf, *vfs.MemFS, Config) {
		return func(s *shelf, mem *vfs.MemFS, cfg Config) {
			s.withoutBinding(cfg, mem)
			must(s, mem.RemoveAll(mem.PathJoin(cfg.Dir, name)))
		}
	}
	for name, test := range map[string]struct {
		from  int
		spoil func(s *shelf, mem *vfs.MemFS, cfg Config)
		check string // the problem that check reports
	}{
		"bound":          {1, func(*shelf, *vfs.MemFS, Config) {}, volume.ErrKey.Error()},
		"bound, younger": {1 << 40, func(*shelf, *vfs.MemFS, Config) {}, volume.ErrKey.Error()},
		"old":            {1, func(s *shelf, mem *vfs.MemFS, cfg Config) { s.withoutBinding(cfg, mem) }, volume.ErrKey.Error()},
		"old, younger":   {1 << 40, func(s *shelf, mem *vfs.MemFS, cfg Config) { s.withoutBinding(cfg, mem) }, volume.ErrKey.Error()},
		"old, one wrong byte": {1, func(s *shelf, mem *vfs.MemFS, cfg Config) {
			s.withoutBinding(cfg, mem)
			at := s.whereIs(cfg, segments(1, 1)[0])
			must(s, slabtest.NewFaults(cfg.Slabs, 1).Flip(fmt.Sprintf("%06d.slab", at.Slab), at.Off+extent.BlockBytes+10, 1))
		}, volume.ErrKey.Error()},
		"old, no catalogue": {1, lose(indexDir), "lost"},
		"old, no FORMAT":    {1, lose("FORMAT"), "FORMAT is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			mem := vfs.NewMem()
			cfg := onMem(s.config(), mem)
			things := append(segments(1, 6), chain(50, 3, tenantB)...)
			s.filled(cfg, things)
			test.spoil(s, mem, cfg)
			path := mem.PathJoin(cfg.Dir, "KEY")
			own := getFile(t, mem, path)
			setFile(t, mem, path, s.strangeKey(test.from))
			before := s.contents(mem, cfg.Dir)
			for _, deep := range []bool{false, true} {
				if r := s.mustCheck(cfg, deep); len(r.Problems) != 1 || !strings.Contains(r.Problems[0].What, test.check) {
					t.Errorf("check, deep %v: %v", deep, r.Problems)
				}
			}
			for _, all := range []bool{false, true} {
				if _, err := offline.RepairPlace(t.Context(), place(cfg), offline.CheckOptions{All: all}); !errors.Is(err, volume.ErrKey) {
					t.Errorf("repair, all %v: %v", all, err)
				}
			}
			for range 2 {
				lower := s.open(cfg)
				if h := lower.Health(); h.State != StateUnreadable {
					t.Errorf("state %v: %s", h.State, h.Cause)
				}
				_ = lower.close()
			}
			if after := s.contents(mem, cfg.Dir); !maps.Equal(after, before) {
				t.Error("the directory was changed")
			}
			setFile(t, mem, path, own)
			s.mustRepair(cfg)
			lower := s.openOK(cfg)
			for i, w := range things {
				if i == 0 && name == "old, one wrong byte" {
					continue
				}
				s.mustRead(lower.Tier, w)
			}
		})
	}
}

// FORMAT and KEY of another store do not make repair give up what is in the slabs.
func TestRepairRefusesTheFormatOfAnotherStore(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg, other := onMem(s.config(), mem), s.config()
	other.Dir = "other"
	other = onMem(other, mem)
	things := segments(1, 6)
	s.filled(cfg, things)
	must(t, s.openOK(other).close())
	own := map[string][]byte{}
	for _, name := range []string{"FORMAT", "KEY"} {
		own[name] = getFile(t, mem, mem.PathJoin(cfg.Dir, name))
		setFile(t, mem, mem.PathJoin(cfg.Dir, name), getFile(t, mem, mem.PathJoin(other.Dir, name)))
	}
	before := s.contents(mem, cfg.Dir)
	if r := s.mustCheck(cfg, false); r.Clean() {
		t.Error("check finds nothing")
	}
	if _, err := offline.RepairPlace(t.Context(), place(cfg), offline.CheckOptions{}); !errors.Is(err, volume.ErrFormat) {
		t.Errorf("repair: %v", err)
	}
	if after := s.contents(mem, cfg.Dir); !maps.Equal(after, before) {
		t.Error("the directory was changed")
	}
	for name, content := range own {
		setFile(t, mem, mem.PathJoin(cfg.Dir, name), content)
	}
	lower := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(lower.Tier, w)
	}
}

// A profile that no file has hides whose KEY it is. Its entries stay nevertheless: once an
// engine registers it, the first read shows that the KEY is wrong.
func TestKeyIsJudgedOnceAProfileIsKnown(t *testing.T) {
	tiertest.Leaks(t)
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg := onMem(s.config(), mem)
	cfg.RetryMin, cfg.RetryMax = time.Millisecond, time.Millisecond
	things := segments(1, 6)
	s.filled(cfg, things)
	s.withoutBinding(cfg, mem)
	must(t, mem.Remove(profilePath(mem, cfg, things[0].profile)))
	path := mem.PathJoin(cfg.Dir, "KEY")
	own := getFile(t, mem, path)
	setFile(t, mem, path, s.strangeKey(1))
	var registered atomic.Pointer[profile.Profile]
	cfg.Profile = func(profile.Fingerprint) *profile.Profile { return registered.Load() }
	lower := s.openOK(cfg)
	if h := lower.Health(); h.Dormant != len(things) {
		t.Errorf("%d dormant", h.Dormant)
	}
	registered.Store(things[0].profile)
	if !tiertest.Wait(time.Minute, func() bool { return found(lower.Tier, things) > 0 }) {
		t.Fatal("the entries stay dormant")
	}
	for _, w := range things {
		if err := s.read(lower.Tier, w); err == nil {
			t.Error("read with a wrong key")
		}
	}
	if !tiertest.Wait(time.Minute, func() bool { return lower.Health().State == StateUnreadable }) {
		t.Errorf("%+v", lower.Health())
	}
	if err := lower.close(); err != nil {
		t.Error(err)
	}
	setFile(t, mem, path, own)
	again := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(again.Tier, w)
	}
}

// Without the line "key", or with one that is damaged, a good directory opens as ever, and
// the line is written once an entry shows that the KEY is the own one. A disk that does not
// take it costs nothing.
func TestFormatIsBoundAtOpening(t *testing.T) {
	for name, spoil := range map[string]func(good []byte) []byte{
		"none":     func(good []byte) []byte { return good[:bytes.Index(good, []byte("key "))] },
		"torn":     func(good []byte) []byte { return good[:len(good)-30] },
		"torn sum": func(good []byte) []byte { return good[:len(good)-1] },
		"zeros":    func(good []byte) []byte { return append(good[:len(good)-40:len(good)-40], make([]byte, 40)...) },
		"flipped": func(good []byte) []byte {
			bad := bytes.Clone(good)
			bad[bytes.Index(good, []byte("key "))+10] ^= 1
			return bad
		},
	} {
		t.Run(name, func(t *testing.T) {
			tiertest.Leaks(t)
			s := newShelf(t)
			mem := vfs.NewMem()
			cfg := onMem(s.config(), mem)
			things := segments(1, 6)
			s.filled(cfg, things)
			path := mem.PathJoin(cfg.Dir, "FORMAT")
			good := getFile(t, mem, path)
			setFile(t, mem, path, spoil(good))
			if r := s.mustCheck(cfg, true); !r.Clean() {
				t.Errorf("check: %v", r.Problems)
			}
			if r := s.mustRepair(cfg); !r.Clean() {
				t.Errorf("repair: %v", r.Problems)
			}
			full := cfg
			full.Index = failing(mem, nil, unix.ENOSPC, func(op errorfs.Op) bool { return op.Path == path+".new" && writes(op) })
			for _, c := range []Config{full, cfg} {
				lower := s.openOK(c)
				for _, w := range things {
					s.mustRead(lower.Tier, w)
				}
				must(t, lower.close())
			}
			if got := getFile(t, mem, path); !bytes.Equal(got, good) {
				t.Errorf("FORMAT is %q, it was %q", got, good)
			}
		})
	}
}
