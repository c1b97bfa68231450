package disk

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/tiering/disk/catalog"
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
