package catalog

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

const dir = "index"

var storeA = slab.StoreID{1, 2, 3}

func mustOpen(t testing.TB, fs vfs.FS) *Catalog {
	t.Helper()
	c, err := Open(fs, dir, Options{StoreID: storeA})
	must(t, err)
	return c
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// row is the i-th of many rows that differ in all that may differ.
func row(i int) Row {
	rng := rand.New(rand.NewPCG(uint64(i), 1))
	r := Row{
		Name:       extent.Name{Kind: uint8(rng.IntN(3))},
		Generation: uint64(i) + 1,
		Coded:      rng.IntN(2) == 1,
		Level:      uint8(2 + rng.IntN(2)),
		Tenant:     rng.Uint32(),
		Spec:       profile.SegmentSpec{Role: profile.RoleMid, Head: rng.IntN(9), Tail: rng.IntN(9), Tokens: rng.IntN(1 << 20)},
		Begin:      rng.IntN(100),
		Ranks:      1 + rng.IntN(8),
		RankBytes:  rng.Int64N(1 << 30),
		Created:    rng.Int64(),

		HeaderBytes: (1 + rng.IntN(4)) * extent.BlockBytes,
		ManifestSum: rng.Uint64(),
	}
	r.End = r.Begin + rng.IntN(1000)
	for _, b := range [][]byte{r.Key[:], r.Fingerprint[:], r.Parent.Key[:]} {
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
	}
	r.Parent.Kind = uint8(rng.IntN(3))
	if i%2 == 1 {
		r.Hash = profile.SegmentHash{Lead: rng.Uint64(), Whole: rng.Uint64()}
	}
	if i%4 == 3 {
		r.Packed = profile.PackedOf(rng.Float32(), rng.Float32(), []int64{int64(1+rng.IntN(1<<20)) * profile.PartAlign, profile.PartAlign})
	}
	if i%5 == 4 {
		r.Spec.Primer = profile.PrimerID{1, byte(rng.Uint32())}
	}
	for range 1 + rng.IntN(3) {
		r.Runs = append(r.Runs, slab.Run{Slab: rng.Uint32(), Off: int64(rng.Uint32()) * extent.BlockBytes, Len: int64(8+rng.IntN(100)) * extent.BlockBytes})
	}
	r.PayloadBytes = slab.RunBytes(r.Runs) - int64(r.HeaderBytes)
	return r
}

func put(i int) Change {
	r := row(i)
	return Change{Row: &r, Manifest: manifest(i)}
}

func manifest(i int) []byte { return []byte{'m', byte(i), byte(i >> 8)} }

func load(t testing.TB, c *Catalog) map[extent.Name]Row {
	t.Helper()
	out := map[extent.Name]Row{}
	must(t, c.Load(func(r Row) error {
		out[r.Name] = r
		return nil
	}))
	return out
}

// created is what Load answers for a row whose use was not saved.
func created(i int) Row {
	r := row(i)
	r.Used = r.Created
	return r
}

func TestRowsComeBack(t *testing.T) {
	fs := vfs.NewMem()
	c := mustOpen(t, fs)
	const n = 3000
	want := map[extent.Name]Row{}
	for i := range n {
		must(t, c.Commit([]Change{put(i)}, i%100 == 0))
		want[row(i).Name] = created(i)
	}
	gone := row(7).Name
	must(t, c.Commit([]Change{{Delete: &gone}, put(n)}, false))
	delete(want, gone)
	want[row(n).Name] = created(n)
	for round := range 2 {
		if got := load(t, c); !reflect.DeepEqual(got, want) {
			t.Fatalf("round %d: %d rows, want %d", round, len(got), len(want))
		}
		m, ok, err := c.Manifest(row(5).Name)
		if err != nil || !ok || !reflect.DeepEqual(m, manifest(5)) {
			t.Fatalf("manifest %x, %v, %v", m, ok, err)
		}
		if _, ok, err := c.Manifest(gone); ok || err != nil {
			t.Fatalf("manifest of what was deleted: %v, %v", ok, err)
		}
		r, ok, err := c.Entry(row(6).Name)
		if err != nil || !ok || !reflect.DeepEqual(r, row(6)) {
			t.Fatalf("entry %+v, %v, %v", r, ok, err)
		}
		if _, ok, err := c.Entry(gone); ok || err != nil {
			t.Fatalf("entry that was deleted: %v, %v", ok, err)
		}
		must(t, c.Close())
		c = mustOpen(t, fs)
	}
	must(t, c.Close())
}

// Rows of each version are read for as long as there are directories with them, and one without
// a primer is written as before there were any.
func TestRowsAreWrittenAsEver(t *testing.T) {
	full := row(3) // with a hash and packed parts
	plain, hash := full, full
	plain.Hash, plain.Packed = profile.SegmentHash{}, ""
	hash.Packed = ""
	primed, bare := full, plain
	primed.Spec.Primer, bare.Spec.Primer = profile.PrimerID{7, 8}, profile.PrimerID{7, 8}
	for name, row := range map[string]struct {
		row     Row
		version byte
		sum     string
	}{
		"plain":          {plain, 1, "17a1eb4f9afa0818"},
		"hash":           {hash, 2, "812381c4ab2e3469"},
		"packed":         {full, 3, "5ae3b343a75c6581"},
		"primer":         {bare, 4, "13e2c77d6b958427"},
		"primer, packed": {primed, 4, "15bf234f88991a6e"},
	} {
		t.Run(name, func(t *testing.T) {
			b := row.row.append(nil)
			if sum := fmt.Sprintf("%x", sha256.Sum256(b)); b[0] != row.version || sum[:16] != row.sum {
				t.Errorf("version %d, sum %s; want %d, %s", b[0], sum[:16], row.version, row.sum)
			}
			if len(b) > rowMaxBytes {
				t.Errorf("%d bytes, at most %d", len(b), rowMaxBytes)
			}
			got, err := parseRow(row.row.Name, b)
			if err != nil || !reflect.DeepEqual(got, row.row) {
				t.Errorf("read %+v, %v", got, err)
			}
			for n := range b {
				if _, err := parseRow(row.row.Name, b[:n]); err == nil {
					t.Fatalf("%d of %d bytes are a row", n, len(b))
				}
			}
			if at := bytes.Index(b, row.row.Spec.Primer[:]); row.version == rowPrimedVersion {
				copy(b[at:], make([]byte, rowPrimerBytes))
				if _, err := parseRow(row.row.Name, b); !errors.Is(err, tier.ErrCorrupt) {
					t.Errorf("a primer of zeros: %v", err)
				}
			}
		})
	}
}

// A row that is put again without its manifest keeps it.
func TestRowAloneKeepsItsManifest(t *testing.T) {
	c := mustOpen(t, vfs.NewMem())
	defer c.Close()
	must(t, c.Commit([]Change{put(1)}, false))
	r := row(1)
	r.Level = 3
	r.Generation = 99
	must(t, c.Commit([]Change{{Row: &r}}, false))
	m, ok, err := c.Manifest(r.Name)
	if err != nil || !ok || !reflect.DeepEqual(m, manifest(1)) {
		t.Fatalf("manifest %x, %v, %v", m, ok, err)
	}
	if got := load(t, c)[r.Name]; got.Generation != 99 || got.Level != 3 {
		t.Fatalf("row %+v", got)
	}
}

func TestLastUsesAreMerged(t *testing.T) {
	fs := vfs.NewMem()
	c := mustOpen(t, fs)
	var uses []Use
	want := map[extent.Name]int64{}
	for i := range 100 {
		must(t, c.Commit([]Change{put(i)}, false))
		want[row(i).Name] = row(i).Created
		if i%3 == 0 {
			uses = append(uses, Use{row(i).Name, int64(i)})
			want[row(i).Name] = int64(i)
		}
		uses = append(uses, Use{row(1000 + i).Name, 5}) // no such entry
	}
	must(t, c.SaveUses(uses))
	gone := row(3).Name
	must(t, c.Commit([]Change{{Delete: &gone}}, false))
	delete(want, gone)
	must(t, c.Close())

	c = mustOpen(t, fs)
	defer c.Close()
	for range 2 { // the first one forgets the orphans
		got := map[extent.Name]int64{}
		for n, r := range load(t, c) {
			got[n] = r.Used
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("last uses %v, want %v", got, want)
		}
	}
	left := 0
	must(t, c.names(spaceUse, func(string, []byte) error { left++; return nil }))
	if left != 33 {
		t.Fatalf("%d last uses are left, want those of 33 entries", left)
	}
}

func TestLoadEndsWithItsCallersError(t *testing.T) {
	c := mustOpen(t, vfs.NewMem())
	for i := range 10 * loadRows {
		must(t, c.SaveUses([]Use{{row(i).Name, 1}}))
		must(t, c.apply(pebble.NoSync, func(b *pebble.Batch) error {
			ch := put(i)
			return ch.apply(b)
		}))
	}
	enough := errors.New("enough")
	calls := 0
	err := c.Load(func(Row) error {
		calls++
		return enough
	})
	if !errors.Is(err, enough) || calls != 1 {
		t.Fatalf("%v after %d calls", err, calls)
	}
	must(t, c.Close()) // waits for the scan, which has to have ended
}

func TestNumbersAreStable(t *testing.T) {
	fs := vfs.NewMem()
	c := mustOpen(t, fs)
	names := []string{"b", "a", "", "tenant with a longer name"}
	for round := range 2 {
		for i, name := range names {
			n, err := c.TenantNumber(name)
			if err != nil || n != uint32(i+1) {
				t.Fatalf("round %d: %q is number %d, %v", round, name, n, err)
			}
		}
		if got := c.Tenants(); len(got) != len(names) || got[1] != "b" {
			t.Fatalf("tenants %v", got)
		}
		must(t, c.Close())
		c = mustOpen(t, fs)
	}
	if n, err := c.TenantNumber("later"); n != 5 || err != nil {
		t.Fatalf("number %d, %v", n, err)
	}
	if _, err := c.TenantNumber(string(make([]byte, extent.MaxNameBytes+1))); !errors.Is(err, tier.ErrInvalid) {
		t.Fatal(err)
	}
	must(t, c.SaveCounters(map[string]uint64{"hits": 7, "misses": 1 << 60}))
	if got := c.Counters(); len(got) != 0 {
		t.Fatalf("counters %v before they were read", got)
	}
	must(t, c.Close())
	c = mustOpen(t, fs)
	if got := c.Counters(); !reflect.DeepEqual(got, map[string]uint64{"hits": 7, "misses": 1 << 60}) {
		t.Fatalf("counters %v", got)
	}
	must(t, c.Close())
}

func TestGenerationsGrowOverPowerCuts(t *testing.T) {
	fs := vfs.NewCrashableMem()
	last := uint64(0)
	for round := range 5 {
		c := mustOpen(t, fs)
		for _, n := range []int{1, 1, 100, generationsAhead, 3 * generationsAhead, 1} {
			first, err := c.NextGenerations(n)
			if err != nil || first <= last {
				t.Fatalf("round %d: first %d after %d, %v", round, first, last, err)
			}
			last = first + uint64(n) - 1
		}
		if _, err := c.NextGenerations(0); !errors.Is(err, tier.ErrInvalid) {
			t.Fatal(err)
		}
		next := fs.CrashClone(vfs.CrashCloneCfg{})
		must(t, c.Close())
		fs = next
	}
}

func TestAnotherStoreOrVersionIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	must(t, mustOpen(t, fs).Close())
	if _, err := Open(fs, dir, Options{StoreID: slab.StoreID{9}}); !errors.Is(err, ErrStore) {
		t.Fatalf("another store: %v", err)
	}
	c, err := Open(fs, dir, Options{})
	if err != nil || c.StoreID() != storeA {
		t.Fatalf("any store: %v, %v", c.StoreID(), err)
	}
	set := func(key, value []byte) {
		t.Helper()
		must(t, c.write(false, func(b *pebble.Batch) error { return b.Set(key, value, nil) }))
	}
	newer := appendFormat(nil, storeA)
	newer[1] = 2
	set([]byte{spaceFormat}, newer)
	must(t, c.Close())
	_, err = Open(fs, dir, Options{StoreID: storeA})
	if !errors.Is(err, ErrVersion) {
		t.Fatalf("another format: %v", err)
	}
	t.Log(err)
}

func TestRowsOfAnotherVersionAreRefusedByName(t *testing.T) {
	n := row(1).Name
	for what, spoil := range map[string]struct{ key, value []byte }{
		"entry":      {nameKey(spaceEntry, &n), append([]byte{9}, make([]byte, 200)...)},
		"last use":   {nameKey(spaceUse, &n), []byte{9, 0, 0, 0, 0, 0, 0, 0, 0}},
		"manifest":   {nameKey(spaceManifest, &n), []byte{9}},
		"tenant":     {textKey(spaceTenant, "x"), []byte{9, 0, 0, 0, 0}},
		"counter":    {textKey(spaceCounter, "x"), []byte{9, 0, 0, 0, 0, 0, 0, 0, 0}},
		"generation": {[]byte{spaceGeneration}, []byte{9, 0, 0, 0, 0, 0, 0, 0, 0}},
		"format":     {[]byte{spaceFormat}, []byte{9, 0, 0, 0, 0}},
	} {
		t.Run(what, func(t *testing.T) {
			fs := vfs.NewMem()
			c := mustOpen(t, fs)
			must(t, c.Commit([]Change{put(1)}, false))
			must(t, c.write(false, func(b *pebble.Batch) error { return b.Set(spoil.key, spoil.value, nil) }))
			must(t, c.Close())
			c, err := Open(fs, dir, Options{StoreID: storeA})
			if err == nil {
				err = c.Load(func(Row) error { return nil })
				if err == nil {
					_, _, err = c.Manifest(n)
				}
				must(t, c.Close())
			}
			want := what + " row of version 9, want 1"
			if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), want) {
				t.Fatalf("%v, want %q", err, want)
			}
		})
	}
}

func TestClosedCatalogueAnswersSo(t *testing.T) {
	before := runtime.NumGoroutine()
	c := mustOpen(t, vfs.NewMem())
	must(t, c.Commit([]Change{put(1)}, true))
	must(t, c.Close())
	for what, err := range map[string]error{
		"close":  c.Close(),
		"commit": c.Commit([]Change{put(1)}, false),
		"sync":   c.SyncNow(),
		"load":   c.Load(func(Row) error { return nil }),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	settled(t, before)
}

// settled waits until no more goroutines are left than there were.
func settled(t testing.TB, before int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func TestCommitRefusesWhatCannotBeRead(t *testing.T) {
	c := mustOpen(t, vfs.NewMem())
	defer c.Close()
	n := row(1).Name
	for what, ch := range map[string]Change{
		"nothing":             {},
		"both":                {Row: put(1).Row, Delete: &n},
		"manifest of nothing": {Delete: &n, Manifest: []byte{1}},
		"generation 0":        changed(func(r *Row) { r.Generation = 0 }),
		"no runs":             changed(func(r *Row) { r.Runs = nil }),
		"odd run":             changed(func(r *Row) { r.Runs[0].Off++ }),
		"short runs":          changed(func(r *Row) { r.PayloadBytes += extent.BlockBytes }),
		"odd payload":         changed(func(r *Row) { r.PayloadBytes-- }),
		"no header":           changed(func(r *Row) { r.HeaderBytes = 0 }),
		"no ranks":            changed(func(r *Row) { r.Ranks = 0 }),
		"begin after end":     changed(func(r *Row) { r.Begin = r.End + 1 }),
		"negative head":       changed(func(r *Row) { r.Spec.Head = -1 }),
		"negative rank":       changed(func(r *Row) { r.RankBytes = -1 }),
	} {
		if err := c.Commit([]Change{put(2), ch}, false); !errors.Is(err, tier.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := load(t, c); len(got) != 0 {
		t.Fatalf("%d rows of commits that were refused", len(got))
	}
}

func changed(f func(*Row)) Change {
	ch := put(1)
	f(ch.Row)
	return ch
}

// A file that none of the catalogue's can be is refused before it is read.
func TestFilesAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		file string
		more int64 // than the bound
	}{
		"options at the bound": {"OPTIONS-000099", 0},
		"options above it":     {"OPTIONS-000099", 1},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			must(t, mustOpen(t, mem).Close())
			f, err := mem.Create(mem.PathJoin(dir, test.file), vfs.WriteCategoryUnspecified)
			if err == nil {
				_, err = f.Write(bytes.Repeat([]byte{'#'}, int(optionsMost+test.more)))
			}
			must(t, errors.Join(err, f.Close()))
			if err := checkFiles(mem, dir); (err != nil) != (test.more > 0) {
				t.Errorf("%v", err)
			}
			if _, err := Open(mem, dir, Options{StoreID: storeA}); test.more > 0 && (!errors.Is(err, tier.ErrCorrupt) || !strings.Contains(err.Error(), test.file)) {
				t.Errorf("it is opened: %v", err)
			}
		})
	}
	mem := vfs.NewMem()
	must(t, mem.MkdirAll(mem.PathJoin(dir, "000007.log"), 0o700))
	if err := checkFiles(mem, dir); !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("a folder for a log: %v", err)
	}
}
