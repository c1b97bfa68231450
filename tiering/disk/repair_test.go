package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// editRows changes a catalogue behind everybody's back.
func (s *shelf) editRows(cfg Config, edit func([]catalog.Row) []catalog.Change) {
	s.Helper()
	o, err := openOffline(place(cfg))
	if err != nil {
		s.Fatal(err)
	}
	rows, err := o.rows()
	if err != nil {
		s.Fatal(err)
	}
	if err := o.catalog.Commit(edit(rows), true); err != nil {
		s.Fatal(err)
	}
	if err := o.close(); err != nil {
		s.Fatal(err)
	}
}

func (s *shelf) mustRepair(cfg Config) *Report {
	s.Helper()
	r, err := RepairPlace(context.Background(), place(cfg), CheckOptions{})
	if err != nil {
		s.Fatal(err)
	}
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
	tier := s.openOK(cfg)
	for _, w := range things {
		s.mustRead(tier.Tier, w)
	}
}

// sectors is slabs with blocks that do not read.
type sectors struct {
	slab.FS
	bad map[int64]bool // by offset, in every file
}

func (f sectors) Open(name string) (slab.File, error) {
	file, err := f.FS.Open(name)
	if err != nil {
		return nil, err
	}
	return sectorsFile{file, f.bad}, nil
}

type sectorsFile struct {
	slab.File
	bad map[int64]bool
}

func (f sectorsFile) ReadAt(bufs [][]byte, off int64) error {
	at := off
	for _, b := range bufs {
		for range len(b) / slab.BlockBytes {
			if f.bad[at] {
				return fmt.Errorf("block at %d: %w", at, unix.EIO)
			}
			at += slab.BlockBytes
		}
	}
	return f.File.ReadAt(bufs, off)
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
	cfg.Slabs = sectors{cfg.Slabs, map[int64]bool{header.Off: true, payload.Off + slab.BlockBytes: true, 500 << 10: true}}
	r := s.mustRepair(cfg)
	if !r.Rebuilt || r.Segments != len(things)-2 || len(r.Problems) != 5 { // the catalogue, three sectors, an extent
		t.Errorf("%d of %d entries are back: %v", r.Segments, len(things), r.Problems)
	}
	if r := s.mustCheck(whole, true); !r.Clean() {
		t.Errorf("%v", r.Problems)
	}
	tier := s.openOK(whole)
	for i, w := range things {
		if i != 3 && i != 8 {
			s.mustRead(tier.Tier, w)
		}
	}
}

// A header of a slab that is damaged, zeroed, or does not read costs nothing, with
// a catalogue and without.
func TestRepairRestoresSlabHeaders(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, cfg Config){
		"bit": func(t *testing.T, cfg Config) {
			if err := slab.NewFaults(cfg.Slabs, 1).Flip("000001.slab", 100, 1); err != nil {
				t.Fatal(err)
			}
		},
		"zeros": func(t *testing.T, cfg Config) {
			f, err := cfg.Slabs.Open("000001.slab")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.WriteAt([][]byte{slab.AlignedBuffer(slab.BlockBytes)}, 0), f.Close()); err != nil {
				t.Fatal(err)
			}
		},
		"does not read": func(_ *testing.T, cfg Config) {
			cfg.Slabs.(*slab.Faults).Set(slab.Rule{Op: slab.OpRead, Name: "000001.slab", First: 1, Last: 2})
		},
	} {
		for _, index := range []string{"there", "gone"} {
			t.Run(name+", catalogue "+index, func(t *testing.T) {
				s := newShelf(t)
				mem := vfs.NewMem()
				cfg := onMem(s.config(), mem)
				cfg.Slabs = slab.NewFaults(cfg.Slabs, 1)
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
				tier := s.openOK(cfg)
				for _, w := range things {
					s.mustRead(tier.Tier, w)
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
				if err != nil {
					t.Fatal(err)
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
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
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.ReadAt([][]byte{left}, 0), f.Close(), cfg.Slabs.Remove(name)); err != nil {
		t.Fatal(err)
	}
	if f, err = cfg.Slabs.Create(name, at.Off+100); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.WriteAt([][]byte{left}, 0), f.Close()); err != nil {
		t.Fatal(err)
	}
	if r := s.mustRepair(cfg); r.Restored != 1 || r.Segments != 10 || r.Forgotten != 10 {
		t.Errorf("%+v", r)
	}
	if r := s.mustCheck(cfg, true); !r.Clean() {
		t.Errorf("after repair: %v", r.Problems)
	}
	tier := s.openOK(cfg)
	for _, w := range things[:10] {
		s.mustRead(tier.Tier, w)
	}
	s.mustWrite(tier.Tier, things[11], tiering.LevelSynced)
	s.check(tier.Tier)
}

// A slab that cannot be opened now, or is of another version, is no damage: nothing
// is said about it and nothing in it forgotten.
func TestOfflineStopsAtSlabsItCannotJudge(t *testing.T) {
	s := newShelf(t)
	cfg, faults := faulty(s.config(), 1)
	things := segments(1, 3)
	s.filled(cfg, things)
	for _, errno := range []unix.Errno{unix.EMFILE, unix.EACCES} {
		faults.Set(slab.Rule{Op: slab.OpOpen, Name: "000001.slab", Last: slab.Forever, Errno: errno})
		if r, err := CheckPlace(t.Context(), place(cfg), CheckOptions{}); !errors.Is(err, errno) {
			t.Errorf("check: %+v, %v", r, err)
		}
		if r, err := RepairPlace(t.Context(), place(cfg), CheckOptions{}); !errors.Is(err, errno) {
			t.Errorf("repair: %+v, %v", r, err)
		}
	}
	faults.Set()
	f, err := cfg.Slabs.Open("000001.slab")
	if err != nil {
		t.Fatal(err)
	}
	b := slab.AlignedBuffer(slab.BlockBytes)
	if err := f.ReadAt([][]byte{b}, 0); err != nil {
		t.Fatal(err)
	}
	b[8] = 9 // version
	binary.LittleEndian.PutUint64(b[len(b)-8:], xxh3.Hash(b[:len(b)-8]))
	if err := errors.Join(f.WriteAt([][]byte{b}, 0), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := CheckPlace(t.Context(), place(cfg), CheckOptions{}); !errors.Is(err, ErrVersion) {
		t.Errorf("check: %v", err)
	}
	if _, err := RepairPlace(t.Context(), place(cfg), CheckOptions{}); !errors.Is(err, ErrVersion) {
		t.Errorf("repair: %v", err)
	}
}
