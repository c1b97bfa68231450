package slab_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	. "github.com/spliced-kv/spliced/tiering/disk/slab"
	. "github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
)

// TestCrashCloneHasSlabsAndCatalogueOfOneInstant writes entries in the order of
// the disk tier, data, sync, row, while clones are taken at any moment: whatever
// row a clone has, the clone has its data too.
func TestCrashCloneHasSlabsAndCatalogueOfOneInstant(t *testing.T) {
	for _, percent := range []int{0, 50} {
		t.Run(fmt.Sprintf("unsynced=%d%%", percent), func(t *testing.T) {
			mem, o := vfs.NewCrashableMem(), testOptions()
			o.SlabBytes = 1 << 20
			noError(t, mem.MkdirAll("slabs", 0o755))
			syncDir(t, mem, "/")
			s := closing[*Set](t)(OpenSet(OverVFS(mem, "slabs"), o))
			db := closing[*pebble.DB](t)(pebble.Open("index", &pebble.Options{FS: mem, Logger: quiet{}}))
			syncDir(t, mem, "/")
			space := NewSpace(o.Granule)

			clones := make(chan *vfs.MemFS, 40)
			next := make(chan struct{})
			go func() { // beside the writer, so that it hits any step
				defer close(clones)
				for range next {
					rng := rand.New(rand.NewPCG(uint64(len(clones)), 4))
					clones <- mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				}
			}()
			entries := 40
			if testing.Short() {
				entries = 16
			}
			for i := range uint64(entries) {
				next <- struct{}{}
				writeEntry(t, s, space, db, i)
			}
			close(next)
			survivors := 0
			for clone := range clones {
				survivors += checkClone(t, clone, o)
			}
			last := mem.CrashClone(vfs.CrashCloneCfg{})
			if n := checkClone(t, last, o); n != entries {
				t.Errorf("%d of %d synced entries survived", n, entries)
			}
			if survivors < entries*entries/4 {
				t.Errorf("%d entries survived in all clones: too few to mean much", survivors)
			}
		})
	}
}

func writeEntry(t *testing.T, s *Set, space *Space, db *pebble.DB, i uint64) {
	t.Helper()
	const bytes = 100 << 10
	runs, err := space.Alloc(bytes)
	if err != nil {
		slab := must[SlabInfo](t)(s.Grow())
		space.AddSlab(slab.Number, slab.Bytes)
		runs = must[[]Run](t)(space.Alloc(bytes))
	}
	noError(t, s.Write(runs, 0, [][]byte{Random(i, bytes)}))
	for _, r := range runs {
		noError(t, s.Sync(r.Slab))
	}
	row := binary.LittleEndian.AppendUint64(nil, i)
	for _, r := range runs {
		row = binary.LittleEndian.AppendUint32(row, r.Slab)
		row = binary.LittleEndian.AppendUint64(row, uint64(r.Off))
		row = binary.LittleEndian.AppendUint64(row, uint64(r.Len))
	}
	noError(t, db.Set(row[:8], row[8:], pebble.Sync))
}

// checkClone opens a clone as a restart would and counts the rows.
func checkClone(t *testing.T, clone *vfs.MemFS, o SetOptions) (rows int) {
	t.Helper()
	s := must[*Set](t)(OpenSet(OverVFS(clone, "slabs"), o))
	db := must[*pebble.DB](t)(pebble.Open("index", &pebble.Options{FS: clone, Logger: quiet{}}))
	space := NewSpace(o.Granule)
	for _, slab := range s.Slabs() {
		space.AddSlab(slab.Number, slab.Bytes)
	}
	for _, r := range s.Refused() {
		noError(t, s.Remove(r.Number))
	}
	it := must[*pebble.Iterator](t)(db.NewIter(nil))
	for it.First(); it.Valid(); it.Next() {
		i, v := binary.LittleEndian.Uint64(it.Key()), it.Value()
		var runs []Run
		for ; len(v) > 0; v = v[20:] {
			runs = append(runs, Run{
				Slab: binary.LittleEndian.Uint32(v),
				Off:  int64(binary.LittleEndian.Uint64(v[4:])),
				Len:  int64(binary.LittleEndian.Uint64(v[12:])),
			})
		}
		noError(t, space.Take(runs))
		want := Random(i, 100<<10)
		got := AlignedBuffer(len(want))
		noError(t, s.Read(runs, 0, [][]byte{got}))
		if !bytes.Equal(got, want) {
			t.Errorf("entry %d: other bytes", i)
		}
		rows++
	}
	noError(t, it.Close())
	noError(t, db.Close())
	noError(t, s.Close())
	return rows
}

func syncDir(t *testing.T, fsys vfs.FS, dir string) {
	t.Helper()
	d := must[vfs.File](t)(fsys.OpenDir(dir))
	noError(t, d.Sync())
	noError(t, d.Close())
}

type quiet struct{}

func (quiet) Infof(string, ...any)           {}
func (quiet) Errorf(string, ...any)          {}
func (quiet) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
