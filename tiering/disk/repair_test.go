package disk

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

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
