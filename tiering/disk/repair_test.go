package disk

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/offline"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
	"github.com/spliced-kv/spliced/tiering/disk/volume"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// editRows changes a catalogue behind everybody's back.
func (s *shelf) editRows(cfg Config, edit func([]catalog.Row) []catalog.Change) {
	s.Helper()
	v := s.existing(cfg)
	must(s, v.OpenCatalog())
	rows, err := v.ReadRows()
	must(s, err)
	must(s, v.Catalog.Commit(edit(rows), true))
	must(s, v.Close())
}

// existing opens all of a directory but its catalogue.
func (s *shelf) existing(cfg Config) *volume.Volume {
	s.Helper()
	v, err := volume.OpenExisting(cfg.volume())
	must(s, err)
	return v
}

func (s *shelf) mustRepair(cfg Config) *offline.Report {
	s.Helper()
	r, err := offline.RepairPlace(context.Background(), place(cfg), offline.CheckOptions{})
	must(s, err)
	return r
}

// A row that points to the space of another costs nothing but itself: it claims no
// space, and its name, which is that of no parent, takes nobody along.
func TestRepairKeepsTheRowThatOwnsTheSpace(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	things := append(segments(1, 6), chain(50, 3, tenantB)...)
	s.filled(cfg, things)
	s.editRows(cfg, func(rows []catalog.Row) []catalog.Change {
		var changes []catalog.Change
		for i, generation := range []uint64{1, 1 << 40} {
			r := rows[len(rows)-1-i]
			r.Kind, r.Key, r.Generation = uint8(i), [32]byte{}, generation
			changes = append(changes, catalog.Change{Row: &r, Manifest: []byte{1}})
		}
		return changes
	})
	if r := s.mustCheck(cfg, false); len(r.Problems) != 2 {
		t.Errorf("%v", r.Problems)
	}
	if r := s.mustRepair(cfg); r.Forgotten != 2 || r.Rebuilt {
		t.Errorf("forgotten %d where two rows are wrong: %v", r.Forgotten, r.Problems)
	}
	if r := s.mustCheck(cfg, true); !r.Clean() || r.Segments != 6 || r.Checkpoints != 3 {
		t.Errorf("%+v", r)
	}
	lower := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(lower.Tier, w)
	}
}

// sectors is slabs with blocks that do not read, or take no writes.
type sectors struct {
	slab.FS
	bad    map[int64]bool // by offset, in every file
	writes bool           // fail, else reads
}

func (f sectors) Open(name string) (slab.File, error) { return f.wrap(f.FS.Open(name)) }

func (f sectors) Create(name string, bytes int64) (slab.File, error) {
	return f.wrap(f.FS.Create(name, bytes))
}

func (f sectors) wrap(file slab.File, err error) (slab.File, error) {
	if err != nil {
		return nil, err
	}
	return sectorsFile{file, f}, nil
}

type sectorsFile struct {
	slab.File
	of sectors
}

func (f sectorsFile) meets(bufs [][]byte, at int64) error {
	for _, b := range bufs {
		for range len(b) / slab.BlockBytes {
			if f.of.bad[at] {
				return fmt.Errorf("block at %d: %w", at, unix.EIO)
			}
			at += slab.BlockBytes
		}
	}
	return nil
}

func (f sectorsFile) ReadAt(bufs [][]byte, off int64) error {
	if err := f.meets(bufs, off); err != nil && !f.of.writes {
		return err
	}
	return f.File.ReadAt(bufs, off)
}

func (f sectorsFile) WriteAt(bufs [][]byte, off int64) error {
	if err := f.meets(bufs, off); err != nil && f.of.writes {
		return err
	}
	return f.File.WriteAt(bufs, off)
}

// A sector that does not read costs the extent that it lies in, if any: not what
// else lies near it when a catalogue is made anew.
func TestRebuildLosesOnlyWhatDoesNotRead(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg := onMem(s.config(), mem)
	things := segments(1, 20)
	s.filled(cfg, things)
	header, payload := s.whereIs(cfg, things[3]), s.whereIs(cfg, things[8])
	s.lose(mem, mem.PathJoin(cfg.Dir, indexDir), "gone")
	whole := cfg
	cfg.Slabs = sectors{FS: cfg.Slabs, bad: map[int64]bool{header.Off: true, payload.Off + slab.BlockBytes: true, 500 << 10: true}}
	r := s.mustRepair(cfg)
	if !r.Rebuilt || r.Segments != len(things)-2 || len(r.Problems) != 5 { // the catalogue, three sectors, an extent
		t.Errorf("%d of %d entries are back: %v", r.Segments, len(things), r.Problems)
	}
	if r := s.mustCheck(whole, true); !r.Clean() {
		t.Errorf("%v", r.Problems)
	}
	lower := s.openOK(whole)
	for i, w := range things {
		if i != 3 && i != 8 {
			s.mustRead(lower.Tier, w)
		}
	}
}

// A header of a slab that is damaged, zeroed, or does not read costs nothing, with
// a catalogue and without.
func TestRepairRestoresSlabHeaders(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, cfg Config){
		"bit": func(t *testing.T, cfg Config) {
			must(t, slabtest.NewFaults(cfg.Slabs, 1).Flip("000001.slab", 100, 1))
		},
		"zeros": func(t *testing.T, cfg Config) {
			f, err := cfg.Slabs.Open("000001.slab")
			must(t, err)
			must(t, errors.Join(f.WriteAt([][]byte{slab.AlignedBuffer(slab.BlockBytes)}, 0), f.Close()))
		},
		"does not read": func(_ *testing.T, cfg Config) {
			cfg.Slabs.(*slabtest.Faults).Set(slabtest.Rule{Op: slabtest.OpRead, Name: "000001.slab", First: 1, Last: 2})
		},
	} {
		for _, index := range []string{"there", "gone"} {
			t.Run(name+", catalogue "+index, func(t *testing.T) {
				s := newShelf(t)
				mem := vfs.NewMem()
				cfg := onMem(s.config(), mem)
				cfg.Slabs = slabtest.NewFaults(cfg.Slabs, 1)
				things := append(segments(1, 60), chain(500, 3, tenantB)...) // in two slabs
				s.filled(cfg, things)
				if index == "gone" {
					s.lose(mem, mem.PathJoin(cfg.Dir, indexDir), "gone")
				}
				spoil(t, cfg)
				r := s.mustRepair(cfg)
				if r.Restored != 1 || r.Forgotten != 0 || r.Clean() || r.Segments != 60 || r.Checkpoints != 3 {
					t.Errorf("%+v", r)
				}
				if r := s.mustCheck(cfg, true); !r.Clean() {
					t.Errorf("after repair: %v", r.Problems)
				}
				lower := s.openOK(cfg)
				for _, w := range things {
					s.mustRead(lower.Tier, w)
				}
			})
		}
	}
}

// A slab file whose making was cut short is no damage, and repair removes it.
func TestUnfinishedSlabsAreNoDamage(t *testing.T) {
	for _, index := range []string{"there", "gone"} {
		for _, bytes := range []int64{0, 100, 4 << 10, 512 << 10} {
			t.Run(fmt.Sprintf("catalogue %s, %d bytes", index, bytes), func(t *testing.T) {
				s := newShelf(t)
				mem := vfs.NewMem()
				cfg := onMem(s.config(), mem)
				s.filled(cfg, segments(1, 2))
				f, err := cfg.Slabs.Create("000002.slab", bytes)
				must(t, err)
				must(t, f.Close())
				if r := s.mustCheck(cfg, true); !r.Clean() {
					t.Errorf("before repair: %v", r.Problems)
				}
				problems := 0
				if index == "gone" {
					problems = 1
					s.lose(mem, mem.PathJoin(cfg.Dir, indexDir), "gone")
				}
				r := s.mustRepair(cfg)
				if r.Removed != 1 || r.Restored != 0 || r.Segments != 2 || len(r.Problems) != problems || r.Slabs != 1 || r.SlabBytes != 512<<10 {
					t.Errorf("%+v", r)
				}
				if names, err := cfg.Slabs.List(); err != nil || len(names) != 1 {
					t.Errorf("%q, %v", names, err)
				}
				if r := s.mustCheck(cfg, true); !r.Clean() {
					t.Errorf("after repair: %v", r.Problems)
				}
			})
		}
	}
}

// A slab that was cut short keeps what lies in the rest of it.
func TestRepairKeepsWhatIsLeftOfASlab(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg := onMem(s.config(), mem)
	things := segments(1, 20)
	s.filled(cfg, things)
	at := s.whereIs(cfg, things[10])
	const name = "000001.slab"
	left := slab.AlignedBuffer(int(at.Off))
	f, err := cfg.Slabs.Open(name)
	must(t, err)
	must(t, errors.Join(f.ReadAt([][]byte{left}, 0), f.Close(), cfg.Slabs.Remove(name)))
	if f, err = cfg.Slabs.Create(name, at.Off+100); err != nil {
		t.Fatal(err)
	}
	must(t, errors.Join(f.WriteAt([][]byte{left}, 0), f.Close()))
	if r := s.mustRepair(cfg); r.Restored != 1 || r.Segments != 10 || r.Forgotten != 10 {
		t.Errorf("%+v", r)
	}
	if r := s.mustCheck(cfg, true); !r.Clean() {
		t.Errorf("after repair: %v", r.Problems)
	}
	lower := s.openOK(cfg)
	for _, w := range things[:10] {
		s.mustRead(lower.Tier, w)
	}
	s.mustWrite(lower.Tier, things[11], tier.LevelSynced)
	s.check(lower.Tier)
}

// A slab that cannot be opened now, or is of another version, is no damage: nothing
// is said about it and nothing in it forgotten.
func TestOfflineStopsAtSlabsItCannotJudge(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	things := segments(1, 3)
	s.filled(cfg, things)
	for _, errno := range []unix.Errno{unix.EMFILE, unix.EACCES} {
		faults.Set(slabtest.Rule{Op: slabtest.OpOpen, Name: "000001.slab", Last: slabtest.Forever, Errno: errno})
		if r, err := offline.CheckPlace(t.Context(), place(cfg), offline.CheckOptions{}); !errors.Is(err, errno) {
			t.Errorf("check: %+v, %v", r, err)
		}
		if r, err := offline.RepairPlace(t.Context(), place(cfg), offline.CheckOptions{}); !errors.Is(err, errno) {
			t.Errorf("repair: %+v, %v", r, err)
		}
	}
	faults.Set()
	f, err := cfg.Slabs.Open("000001.slab")
	must(t, err)
	b := slab.AlignedBuffer(slab.BlockBytes)
	must(t, f.ReadAt([][]byte{b}, 0))
	b[8] = 9 // version
	binary.LittleEndian.PutUint64(b[len(b)-8:], xxh3.Hash(b[:len(b)-8]))
	must(t, errors.Join(f.WriteAt([][]byte{b}, 0), f.Close()))
	if _, err := offline.CheckPlace(t.Context(), place(cfg), offline.CheckOptions{}); !errors.Is(err, volume.ErrVersion) {
		t.Errorf("check: %v", err)
	}
	if _, err := offline.RepairPlace(t.Context(), place(cfg), offline.CheckOptions{}); !errors.Is(err, volume.ErrVersion) {
		t.Errorf("repair: %v", err)
	}
}

// An extent that does not read now may read later: repair reports it and keeps it.
func TestRepairKeepsWhatDoesNotRead(t *testing.T) {
	s := newShelf(t)
	cfg := onMem(s.config(), vfs.NewMem())
	things := append(segments(1, 6), chain(50, 3, tenantB)...)
	s.filled(cfg, things)
	whole := cfg
	cfg.Slabs = sectors{FS: cfg.Slabs, bad: map[int64]bool{s.whereIs(cfg, things[2]).Off: true, s.whereIs(cfg, things[6]).Off + 8<<10: true}}
	if r := s.mustRepair(cfg); len(r.Problems) != 2 || r.Unread != 2 || r.Forgotten != 0 || r.Rebuilt || r.UsedBytes+r.FreeBytes != r.SlabBytes-int64(r.Slabs)*r.GranuleBytes {
		t.Errorf("%+v", r)
	}
	if r := s.mustCheck(cfg, true); len(r.Problems) != 2 {
		t.Errorf("%v", r.Problems)
	}
	lower := s.openOK(whole)
	for _, w := range things {
		s.mustRead(lower.Tier, w)
	}
}

// Errors of the disk, and another version, say nothing about a catalogue: check does
// not call it damaged, and repair makes no new one.
func TestOfflineTellsTroubleFromDamage(t *testing.T) {
	reads := func(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsRead }
	files := func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileReadAt }
	for name, c := range map[string]struct {
		errno unix.Errno
		fails func(errorfs.Op) bool
	}{
		"read-only":              {unix.EROFS, writes},
		"full":                   {unix.ENOSPC, writes},
		"no access":              {unix.EACCES, reads},
		"too many files":         {unix.EMFILE, reads},
		"unreadable":             {unix.EIO, reads},
		"unreadable tables":      {unix.EIO, files},
		"another version":        {},
		"another version of row": {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShelf(t)
			mem := vfs.NewMem()
			cfg := onMem(s.config(), mem)
			things := segments(1, 3)
			s.filled(cfg, things)
			s.mustCheck(cfg, false) // leaves a table
			p, want := place(cfg), error(c.errno)
			switch {
			case c.fails != nil:
				p.Index = failing(mem, nil, c.errno, inIndex(c.fails))
			case name == "another version":
				want = volume.ErrVersion
				s.editIndex(mem, cfg, []byte{0}, []byte{1, 2})
			default:
				want = volume.ErrVersion
				s.editIndex(mem, cfg, append([]byte{1, 0}, make([]byte, 32)...), []byte{99})
			}
			if r, err := offline.CheckPlace(t.Context(), p, offline.CheckOptions{}); !errors.Is(err, want) {
				t.Errorf("check: %+v, %v", r, err)
			}
			if r, err := offline.RepairPlace(t.Context(), p, offline.CheckOptions{}); !errors.Is(err, want) || r != nil && r.Rebuilt {
				t.Errorf("repair: %+v, %v", r, err)
			}
			if c.fails != nil {
				lower := s.openOK(cfg)
				for _, w := range things {
					s.mustRead(lower.Tier, w)
				}
			}
		})
	}
}

// editIndex changes the bytes of a row; of the format row, those in front.
func (s *shelf) editIndex(mem vfs.FS, cfg Config, key, value []byte) {
	s.Helper()
	db, err := pebble.Open(mem.PathJoin(cfg.Dir, indexDir), &pebble.Options{FS: mem, FormatMajorVersion: pebble.FormatVirtualSSTables})
	must(s, err)
	if old, closer, err := db.Get(key); err == nil {
		value = append(value, old[len(value):]...)
		_ = closer.Close()
	}
	must(s, errors.Join(db.Set(key, value, pebble.Sync), db.Close()))
}

// A byte that is wrong anywhere in the tables of a catalogue costs nothing: repair
// sees it and makes a new catalogue, or it is in no row.
func TestRepairOfDamagedTables(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewCrashableMem()
	cfg := onMem(s.config(), mem)
	s.mkdirs(mem, cfg)
	things := append(segments(1, 20), chain(50, 3, tenantB)...)
	s.filled(cfg, things)
	s.mustCheck(cfg, false) // leaves a table
	index := mem.PathJoin(cfg.Dir, indexDir)
	names, err := mem.List(index)
	must(t, err)
	rebuilt, tables := 0, 0
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		tables++
		for i := range short(16, 200) {
			damaged := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
			cfg := onMem(cfg, damaged)
			flipPart(t, damaged, mem.PathJoin(index, name), i, short(16, 200))
			if r := s.mustRepair(cfg); r.Rebuilt {
				rebuilt++
			}
			if r := s.mustCheck(cfg, true); !r.Clean() || r.Segments != 20 || r.Checkpoints != 3 {
				t.Errorf("%s, part %d: %+v", name, i, r)
			}
		}
	}
	if tables == 0 || rebuilt == 0 {
		t.Errorf("%d tables, %d times rebuilt", tables, rebuilt)
	}
}

// flipPart changes a byte in the i-th of n parts of a file.
func flipPart(t *testing.T, fs vfs.FS, path string, i, n int) {
	t.Helper()
	b := getFile(t, fs, path)
	b[len(b)*(2*i+1)/(2*n)] ^= 0x55
	setFile(t, fs, path, b)
}

// A profile that is damaged, does not read, or that only another version understands, costs
// no entries: those of a damaged one are kept and reported until it is registered again.
func TestRepairWithoutAProfile(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg := onMem(quick(s.config()), mem)
	things := append(segments(1, 6), chain(50, 3, tenantB)...)
	s.filled(cfg, things)
	fp := smallTwo.Fingerprint()
	path := mem.PathJoin(cfg.Dir, profileDir, fmt.Sprintf("%x", fp[:]))
	p := place(cfg)
	p.Index = failing(mem, nil, unix.EIO, func(op errorfs.Op) bool { return op.Path == path })
	if r, err := offline.RepairPlace(t.Context(), p, offline.CheckOptions{}); !errors.Is(err, unix.EIO) {
		t.Errorf("%+v, %v", r, err)
	}
	flipPart(t, mem, path, 0, 2)
	for range 2 { // the damaged file is removed
		if r := s.mustRepair(cfg); r.Forgotten != 0 || r.Unread != 3 || r.Segments != 6 || r.Checkpoints != 3 {
			t.Errorf("%+v", r)
		}
		if r := s.mustCheck(cfg, true); len(r.Problems) != 3 || r.Profiles != 1 {
			t.Errorf("after repair: %+v", r)
		}
	}
	strange := []byte("a profile of the next version")
	setFile(t, mem, mem.PathJoin(cfg.Dir, profileDir, fmt.Sprintf("%x", sha256.Sum256(strange))), strange)
	if r, err := offline.RepairPlace(t.Context(), place(cfg), offline.CheckOptions{}); !errors.Is(err, volume.ErrVersion) {
		t.Errorf("%+v, %v", r, err)
	}
	cfg.Profile = func(profile.Fingerprint) *profile.Profile { return smallTwo }
	lower := s.openOK(cfg)
	await(t, "entries of a profile that is registered", func() bool { return found(lower.Tier, things[6:]) == 3 })
	for _, w := range things {
		s.mustRead(lower.Tier, w)
	}
}

// An extent whose header and manifest are whole, but which nobody can have written,
// is refused before memory is taken for what it says.
func TestRepairOfHostileExtents(t *testing.T) {
	s := newShelf(t)
	mem := vfs.NewMem()
	cfg := onMem(s.config(), mem)
	cfg.Coded = []profile.PartKind{profile.PartK, profile.PartV, profile.PartS}
	things := segments(1, 4)
	s.filled(cfg, things)
	s.forge(cfg, s.whereIs(cfg, things[2]), func(h *extent.Header, m *extent.Manifest) {
		for i := range m.Parts[0] {
			if p := &m.Parts[0][i]; len(p.Chunks) > 0 {
				p.Chunks[0] = 3 << 30
				break
			}
		}
		h.PayloadBytes = m.PayloadBytes()
		m.StoredDigests = make([]uint64, extent.Chunks(h.PayloadBytes))
		h.Runs[0].Len = 4<<30 - slab.BlockBytes
	})
	s.lose(mem, mem.PathJoin(cfg.Dir, indexDir), "gone")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := s.mustRepair(cfg)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<30 {
		t.Errorf("%d bytes were taken", n)
	}
	if r.Segments != 3 || len(r.Problems) != 2 || !strings.Contains(r.Problems[1].What, "stored") {
		t.Errorf("%+v", r)
	}
}

// forge writes another header over that of an extent.
func (s *shelf) forge(cfg Config, at slab.Run, change func(*extent.Header, *extent.Manifest)) {
	s.Helper()
	v := s.existing(cfg)
	f, err := payload.ReadExtent(v, []slab.Run{at})
	must(s, err)
	change(&f.Header, f.Manifest)
	stored, err := f.Manifest.Encode(nil)
	must(s, err)
	b, err := f.Append(nil, stored)
	must(s, err)
	block := slab.AlignedBuffer(len(b))
	copy(block, b)
	must(s, errors.Join(v.Write([]slab.Run{{Slab: at.Slab, Off: at.Off, Len: int64(len(b))}}, [][]byte{block}), v.Close()))
}
