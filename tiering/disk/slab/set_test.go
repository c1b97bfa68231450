package slab_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spliced-kv/spliced/tiering/tier"
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	. "github.com/spliced-kv/spliced/tiering/disk/slab"
	. "github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
)

func testOptions() SetOptions {
	return SetOptions{StoreID: StoreID{1, 2, 3}, SlabBytes: 4 << 20, Granule: 64 << 10}
}

func TestSetKeepsWhatWasWritten(t *testing.T) {
	for kind, open := range kinds {
		t.Run(kind, func(t *testing.T) {
			fsys, o := open(t), testOptions()
			s := must[*Set](t)(OpenSet(fsys, o))
			space := NewSpace(o.Granule)
			for range 3 {
				slab := must[SlabInfo](t)(s.Grow())
				if slab.Bytes != o.SlabBytes || slab.Name != FileName(slab.Number) {
					t.Errorf("%+v", slab)
				}
				space.AddSlab(slab.Number, slab.Bytes)
			}
			written := writeEntries(t, s, space)
			noError(t, s.Sync(1, 2, 3))
			noError(t, s.Close())

			s = closing[*Set](t)(OpenSet(fsys, o))
			if slabs := s.Slabs(); len(slabs) != 3 || slabs[0].Number != 1 || slabs[2].Number != 3 {
				t.Errorf("slabs %+v", slabs)
			}
			if refused := s.Refused(); len(refused) != 0 {
				t.Errorf("refused %v", refused)
			}
			readEntries(t, s, written)
			if slab := must[SlabInfo](t)(s.Grow()); slab.Number != 4 {
				t.Errorf("slab %d after three", slab.Number)
			}
		})
	}
}

type written struct {
	runs []Run
	data []byte
}

// writeEntries fills the space with entries, in shapes that runs, buffers and
// pieces have at their worst.
func writeEntries(t *testing.T, s *Set, space *Space) (all []written) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 9))
	for seed := uint64(0); ; seed++ {
		data := Random(seed, (1+rng.IntN(600))*BlockBytes)
		runs, err := space.Alloc(int64(len(data)))
		if errors.Is(err, tier.ErrFull) {
			return all
		}
		noError(t, err)
		if seed%3 == 0 && len(runs) == 1 { // its granules backwards
			runs = slices.Collect(func(yield func(Run) bool) {
				for off := runs[0].Len - space.Granule(); off >= 0; off -= space.Granule() {
					if !yield(Run{runs[0].Slab, runs[0].Off + off, space.Granule()}) {
						return
					}
				}
			})
		}
		cut := rng.IntN(len(data)/BlockBytes) * BlockBytes
		noError(t, s.Write(runs, int64(cut), Pieces(rng, data[cut:], 200)))
		noError(t, s.Write(runs, 0, Pieces(rng, data[:cut], 200)))
		all = append(all, written{runs, data})
	}
}

func readEntries(t *testing.T, s *Set, all []written) {
	t.Helper()
	if len(all) < 5 {
		t.Fatalf("%d entries only", len(all))
	}
	rng := rand.New(rand.NewPCG(2, 9))
	for i, w := range all {
		from := rng.IntN(len(w.data)/BlockBytes) * BlockBytes
		to := from + (1+rng.IntN((len(w.data)-from)/BlockBytes))*BlockBytes
		got := AlignedBuffer(to - from)
		noError(t, s.Read(w.runs, int64(from), Pieces(rng, got, 300)))
		if !bytes.Equal(got, w.data[from:to]) {
			t.Fatalf("entry %d: other bytes came back in [%d,%d)", i, from, to)
		}
	}
}

func TestSetRefusesTransfersOutsideItsSlabs(t *testing.T) {
	o := testOptions()
	s := closing[*Set](t)(OpenSet(kinds["memory"](t), o))
	must[SlabInfo](t)(s.Grow())
	block := [][]byte{AlignedBuffer(BlockBytes)}
	for name, c := range map[string]struct {
		runs []Run
		off  int64
	}{
		"no runs":      {nil, 0},
		"no such slab": {[]Run{{9, o.Granule, o.Granule}}, 0},
		"the header":   {[]Run{{1, 0, o.Granule}}, 0},
		"behind runs":  {[]Run{{1, o.Granule, o.Granule}}, o.Granule},
		"far behind":   {[]Run{{1, o.Granule, o.Granule}}, 2 * o.Granule},
		"before runs":  {[]Run{{1, o.Granule, o.Granule}}, -BlockBytes},
		"behind slab":  {[]Run{{1, o.SlabBytes, o.Granule}}, 0},
		"unaligned":    {[]Run{{1, o.Granule, o.Granule}}, 8},
	} {
		if err := s.Read(c.runs, c.off, block); !errors.Is(err, tier.ErrInvalid) {
			t.Errorf("read, %s: %v", name, err)
		}
		if err := s.Write(c.runs, c.off, block); !errors.Is(err, tier.ErrInvalid) {
			t.Errorf("write, %s: %v", name, err)
		}
	}
	if err := s.Sync(1, 9); !errors.Is(err, tier.ErrInvalid) {
		t.Errorf("sync of no slab: %v", err)
	}
	noError(t, s.Read([]Run{{1, o.Granule, o.Granule}}, o.Granule, nil))
}

func TestSetOptionsNameEveryBadSetting(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*SetOptions)
		says   []string
	}{
		"granule":    {func(o *SetOptions) { o.Granule = 5000 }, []string{"granule 5000"}},
		"large":      {func(o *SetOptions) { o.Granule = 2 << 20 }, []string{"granule 2097152"}},
		"slab":       {func(o *SetOptions) { o.SlabBytes = o.Granule }, []string{"slab of 65536"}},
		"rest":       {func(o *SetOptions) { o.SlabBytes++ }, []string{"slab of 4194305"}},
		"everything": {func(o *SetOptions) { o.SlabBytes, o.Width = 0, -1 }, []string{"slab of 0", "width -1"}},
	} {
		o := testOptions()
		c.change(&o)
		_, err := OpenSet(kinds["memory"](t), o)
		for _, says := range c.says {
			if !errors.Is(err, tier.ErrInvalid) || !strings.Contains(fmt.Sprint(err), says) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// rewrite changes a slab's header in place; sum says to make it intact again.
func rewrite(t *testing.T, fsys FS, n uint32, sum bool, change func(block []byte)) {
	t.Helper()
	f := must[File](t)(fsys.Open(FileName(n)))
	block := [][]byte{AlignedBuffer(BlockBytes)}
	noError(t, f.ReadAt(block, 0))
	change(block[0])
	if sum {
		binary.LittleEndian.PutUint64(block[0][SumOff:], xxh3.Hash(block[0][:SumOff]))
	}
	noError(t, f.WriteAt(block, 0))
	noError(t, f.Close())
}

func TestSlabsThatAreNotOursAreRefusedByName(t *testing.T) {
	sentinels := []error{ErrUnfinished, ErrHeader, ErrVersion, ErrStore, ErrSize, ErrGranule}
	put32 := func(off int, v uint32) func([]byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[off:], v) }
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, fsys FS, o *SetOptions)
		want  error
		says  string
	}{
		"zeros":          {func(t *testing.T, fsys FS, _ *SetOptions) { rewrite(t, fsys, 1, false, func(b []byte) { clear(b) }) }, ErrUnfinished, "000001.slab"},
		"magic":          {func(t *testing.T, fsys FS, _ *SetOptions) { rewrite(t, fsys, 1, true, func(b []byte) { b[0] = 'X' }) }, ErrHeader, "XPLCSLAB"},
		"sum":            {func(t *testing.T, fsys FS, _ *SetOptions) { rewrite(t, fsys, 1, false, func(b []byte) { b[100] = 1 }) }, ErrHeader, "stored"},
		"version":        {func(t *testing.T, fsys FS, _ *SetOptions) { rewrite(t, fsys, 1, true, put32(8, 7)) }, ErrVersion, "version 7, this release reads version 1"},
		"bit in version": {func(t *testing.T, fsys FS, _ *SetOptions) { rewrite(t, fsys, 1, false, put32(8, 3)) }, ErrHeader, "stored"},
		"number":         {func(t *testing.T, fsys FS, _ *SetOptions) { rewrite(t, fsys, 1, true, put32(12, 2)) }, ErrHeader, "slab 2"},
		"store":          {func(_ *testing.T, _ FS, o *SetOptions) { o.StoreID[15]++ }, ErrStore, "01020300000000000000000000000000"},
		"granule":        {func(_ *testing.T, _ FS, o *SetOptions) { o.Granule *= 2 }, ErrGranule, "65536"},
		"size":           {func(t *testing.T, fsys FS, _ *SetOptions) { rewrite(t, fsys, 1, true, put32(32, 2<<20)) }, ErrSize, "2097152"},
		"too short": {func(t *testing.T, fsys FS, _ *SetOptions) {
			noError(t, fsys.Remove(FileName(1)))
			noError(t, must[File](t)(fsys.Create(FileName(1), 100)).Close())
		}, ErrUnfinished, "100 bytes"},
		"cannot be read": {func(_ *testing.T, fsys FS, _ *SetOptions) {
			fsys.(*Faults).Set(Rule{Op: OpRead, Name: FileName(1)})
		}, unix.EIO, "read"},
		"cannot be opened": {func(_ *testing.T, fsys FS, _ *SetOptions) {
			fsys.(*Faults).Set(Rule{Op: OpOpen, Name: FileName(1), Errno: unix.EACCES})
		}, unix.EACCES, "open"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys, o := kinds["faults"](t), testOptions()
			o.SlabBytes = 1 << 20
			s := must[*Set](t)(OpenSet(fsys, o))
			for range 2 {
				must[SlabInfo](t)(s.Grow())
			}
			noError(t, s.Close())
			noError(t, must[File](t)(fsys.Create("notes.txt", BlockBytes)).Close())
			noError(t, must[File](t)(fsys.Create("1.slab", BlockBytes)).Close()) // not a name of ours
			c.spoil(t, fsys, &o)

			s = closing[*Set](t)(OpenSet(fsys, o))
			refused := s.Refused()
			i := slices.IndexFunc(refused, func(r Refusal) bool { return r.Number == 1 })
			if i < 0 || refused[i].Name != FileName(1) {
				t.Fatalf("refused %v", refused)
			}
			err := refused[i].Err
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), FileName(1)) {
				t.Errorf("%v", err)
			}
			for _, sentinel := range sentinels {
				if errors.Is(err, sentinel) && !errors.Is(c.want, sentinel) {
					t.Errorf("%v is also %v", err, sentinel)
				}
			}
			if whole := errors.Is(c.want, ErrStore) || errors.Is(c.want, ErrGranule); whole != (len(s.Slabs()) == 0) {
				t.Errorf("slabs in use: %v", s.Slabs())
			}
			if slab := must[SlabInfo](t)(s.Grow()); slab.Number != 3 {
				t.Errorf("grown slab %d over a refused one", slab.Number)
			}
			noError(t, s.Remove(1))
			if names := must[[]string](t)(fsys.List()); slices.Contains(names, FileName(1)) || !slices.Contains(names, "notes.txt") {
				t.Errorf("files %q", names)
			}
			if err := s.Remove(1); !errors.Is(err, tier.ErrInvalid) {
				t.Errorf("removed twice: %v", err)
			}
		})
	}
}

// A header that is damaged, zeroed or does not read costs nothing that lies in the
// slab, and what is right is not written again.
func TestRestoreGivesTheHeaderBack(t *testing.T) {
	cut := func(bytes int64) func(t *testing.T, fsys FS) {
		return func(t *testing.T, fsys FS) {
			whole := AlignedBuffer(int(bytes) &^ (BlockBytes - 1))
			f := must[File](t)(fsys.Open(FileName(1)))
			noError(t, f.ReadAt([][]byte{whole}, 0))
			noError(t, errors.Join(f.Close(), fsys.Remove(FileName(1))))
			f = must[File](t)(fsys.Create(FileName(1), bytes))
			noError(t, errors.Join(f.WriteAt([][]byte{whole}, 0), f.Close()))
		}
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, fsys FS)
		want  error
	}{
		"bit":   {func(t *testing.T, fsys FS) { rewrite(t, fsys, 1, false, func(b []byte) { b[100] ^= 1 }) }, nil},
		"zeros": {func(t *testing.T, fsys FS) { rewrite(t, fsys, 1, false, func(b []byte) { clear(b) }) }, nil},
		"does not read": {func(_ *testing.T, fsys FS) {
			fsys.(*Faults).Set(Rule{Op: OpRead, Name: FileName(1), Last: 2, First: 1})
		}, nil},
		"read wrong once": {func(_ *testing.T, fsys FS) {
			fsys.(*Faults).Set(Rule{Op: OpRead, Name: FileName(1), Kind: FaultFlipRead, First: 1}, Rule{Op: OpWrite, Last: Forever})
		}, nil},
		"cut short":   {cut(640<<10 + 100), nil},
		"hardly left": {cut(40 << 10), ErrSize},
		"of another store": {func(t *testing.T, fsys FS) {
			rewrite(t, fsys, 1, true, func(b []byte) { b[16]++ })
		}, ErrStore},
	} {
		t.Run(name, func(t *testing.T) {
			fsys, o := kinds["faults"](t), testOptions()
			o.SlabBytes = 1 << 20
			s := must[*Set](t)(OpenSet(fsys, o))
			must[SlabInfo](t)(s.Grow())
			runs, data := []Run{{Slab: 1, Off: o.Granule, Len: BlockBytes}}, AlignedBuffer(BlockBytes)
			copy(data, "what lies in it")
			noError(t, s.Write(runs, 0, [][]byte{data}))
			noError(t, s.Close())
			c.spoil(t, fsys)

			s = closing[*Set](t)(OpenSet(fsys, o))
			if len(s.Refused()) != 1 {
				t.Fatalf("refused %v", s.Refused())
			}
			if _, err := s.Restore(1); !errors.Is(err, c.want) {
				t.Fatalf("%v", err)
			}
			if c.want != nil {
				if len(s.Refused()) != 1 || len(s.Slabs()) != 0 {
					t.Errorf("refused %v, in use %v", s.Refused(), s.Slabs())
				}
				return
			}
			got := AlignedBuffer(BlockBytes)
			noError(t, s.Read(runs, 0, [][]byte{got}))
			if !bytes.Equal(got, data) {
				t.Errorf("%q", got[:20])
			}
			again := closing[*Set](t)(OpenSet(fsys, o))
			if len(again.Refused()) != 0 || len(again.Slabs()) != 1 {
				t.Errorf("refused %v, in use %v", again.Refused(), again.Slabs())
			}
		})
	}
}

// TestGrowFailsWithoutTrace fails each call of a growth in turn.
func TestGrowFailsWithoutTrace(t *testing.T) {
	fsys, o := kinds["faults"](t).(*Faults), testOptions()
	o.SlabBytes = 1 << 20
	s := closing[*Set](t)(OpenSet(fsys, o))
	first := must[SlabInfo](t)(s.Grow())
	before := fsys.Calls(AnyOp)
	must[SlabInfo](t)(s.Grow())
	calls := fsys.Calls(AnyOp) - before
	if calls != 4 { // create, write, sync, sync of the directory
		t.Fatalf("a growth makes %d calls", calls)
	}
	for i := uint64(1); i <= calls; i++ {
		fsys.Set(Rule{First: i, Errno: unix.ENOSPC})
		slab, err := s.Grow()
		if !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("call %d: %+v %v", i, slab, err)
		}
		if names := must[[]string](t)(fsys.List()); len(names) != 2 {
			t.Errorf("call %d left %q", i, names)
		}
	}
	fsys.Set()
	last := must[SlabInfo](t)(s.Grow())
	if last.Number <= first.Number+1 || len(s.Slabs()) != 3 {
		t.Errorf("slab %d, slabs %v", last.Number, s.Slabs())
	}
	noError(t, s.Sync(last.Number))
}

// TestRemoveThatFailsRefusesTheSlab keeps the file known as long as it is there.
func TestRemoveThatFailsRefusesTheSlab(t *testing.T) {
	fsys := kinds["faults"](t).(*Faults)
	s := closing[*Set](t)(OpenSet(fsys, testOptions()))
	n := must[SlabInfo](t)(s.Grow()).Number
	fsys.Set(Rule{Op: OpRemove, First: 1, Errno: unix.EROFS})
	if err := s.Remove(n); !errors.Is(err, unix.EROFS) {
		t.Fatalf("%v", err)
	}
	if refused := s.Refused(); len(refused) != 1 || len(s.Slabs()) != 0 {
		t.Fatalf("refused %v, used %v", refused, s.Slabs())
	}
	noError(t, s.Remove(n))
	if len(s.Refused()) != 0 {
		t.Errorf("refused %v", s.Refused())
	}
}

// TestTransferHasWidthRequestsInFlight holds all of them in the file system.
func TestTransferHasWidthRequestsInFlight(t *testing.T) {
	fsys, o := kinds["faults"](t).(*Faults), testOptions()
	o.Width = 3
	s := closing[*Set](t)(OpenSet(fsys, o))
	slab := must[SlabInfo](t)(s.Grow())
	runs := []Run{{slab.Number, o.Granule, o.SlabBytes - o.Granule}}
	data := Random(1, int(runs[0].Len))
	requests := uint64((len(data) + PieceBytes - 1) / PieceBytes)
	if requests <= 3 {
		t.Fatalf("%d requests are no test of a width of 3", requests)
	}

	entered, wait, done := make(chan struct{}), make(chan struct{}), make(chan error)
	before := fsys.Calls(OpWrite)
	fsys.Set(Rule{Op: OpWrite, Kind: FaultSlow, Entered: entered, Wait: wait})
	go func() { done <- s.Write(runs, 0, [][]byte{data}) }()
	for range 3 {
		<-entered
	}
	if n := fsys.Calls(OpWrite) - before; n != 3 {
		t.Errorf("%d requests in flight", n)
	}
	fsys.Set()
	close(wait)
	noError(t, <-done)
	if n := fsys.Calls(OpWrite) - before; n != requests {
		t.Errorf("%d requests, want %d", n, requests)
	}
	got := AlignedBuffer(len(data))
	noError(t, s.Read(runs, 0, [][]byte{got}))
	if !bytes.Equal(got, data) {
		t.Error("other bytes came back")
	}
}

// TestSyncsRunSideBySide holds the syncs of two slabs.
func TestSyncsRunSideBySide(t *testing.T) {
	fsys := kinds["faults"](t).(*Faults)
	s := closing[*Set](t)(OpenSet(fsys, testOptions()))
	must[SlabInfo](t)(s.Grow())
	must[SlabInfo](t)(s.Grow())
	entered, wait, done := make(chan struct{}), make(chan struct{}), make(chan error)
	fsys.Set(Rule{Op: OpSync, Kind: FaultSlow, Entered: entered, Wait: wait},
		Rule{Op: OpSync, Name: FileName(2)})
	go func() { done <- s.Sync(1, 2) }()
	<-entered
	<-entered
	close(wait)
	if err := <-done; !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), FileName(2)) {
		t.Errorf("one of two syncs failed: %v", err)
	}
}

// TestFailedTransferWaitsForTheOthers: the caller may use its buffers again when
// the call returns, so no request may be left.
func TestFailedTransferWaitsForTheOthers(t *testing.T) {
	fsys, o := kinds["faults"](t).(*Faults), testOptions()
	o.Width = 2
	s := closing[*Set](t)(OpenSet(fsys, o))
	n := must[SlabInfo](t)(s.Grow()).Number
	runs := []Run{{n, o.Granule, o.SlabBytes - o.Granule}}
	entered, wait, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	fsys.Set(Rule{Op: OpRead, First: 1, Kind: FaultSlow, Entered: entered, Wait: wait},
		Rule{Op: OpRead, First: 2, Last: Forever})
	before := fsys.Calls(OpRead)
	go func() { done <- s.Read(runs, 0, [][]byte{AlignedBuffer(int(runs[0].Len))}) }()
	<-entered
	for fsys.Injected(FaultError) == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	select {
	case err := <-done:
		t.Fatalf("returned while a request was running: %v", err)
	default:
	}
	close(wait)
	if err := <-done; !errors.Is(err, unix.EIO) {
		t.Errorf("%v", err)
	}
	// One more may begin between the failure and its being noted.
	all := must[int](t)(s.Requests(runs, [][]byte{AlignedBuffer(int(runs[0].Len))}))
	if calls := fsys.Calls(OpRead) - before; calls > 3 || all <= 3 {
		t.Errorf("%d of %d requests were begun, although the second failed", calls, all)
	}
}

// TestSetLeavesNothingOpen counts descriptors and goroutines.
func TestSetLeavesNothingOpen(t *testing.T) {
	dir := t.TempDir()
	count := func() (fds, workers int) {
		return len(must[[]os.DirEntry](t)(os.ReadDir("/proc/self/fd"))), runtime.NumGoroutine()
	}
	once := func() {
		faults := NewFaults(must[FS](t)(OpenDir(dir)), 1)
		s := must[*Set](t)(OpenSet(faults, testOptions()))
		must[SlabInfo](t)(s.Grow())
		faults.Set(Rule{Op: OpWrite})
		if _, err := s.Grow(); err == nil {
			t.Error("no error")
		}
		faults.Set()
		must[SlabInfo](t)(s.Grow())
		noError(t, s.Remove(s.Slabs()[0].Number))
		rewrite(t, faults, s.Slabs()[0].Number, false, func(b []byte) { b[9] = 9 })
		noError(t, s.Close())
		s = must[*Set](t)(OpenSet(faults, testOptions()))
		for _, r := range s.Refused() {
			noError(t, s.Remove(r.Number))
		}
		noError(t, s.Close())
	}
	once()
	fds, workers := count()
	for range 3 {
		once()
	}
	if f, w := count(); f != fds || w > workers {
		t.Errorf("%d descriptors and %d goroutines, were %d and %d", f, w, fds, workers)
	}
}

// TestSetOverPebbleMemory is the smallest use of a Set in a crash test.
func TestSetOverPebbleMemory(t *testing.T) {
	mem := vfs.NewCrashableMem()
	o := testOptions()
	s := closing[*Set](t)(OpenSet(memory(t, mem), o))
	n := must[SlabInfo](t)(s.Grow()).Number
	runs := []Run{{n, o.Granule, o.Granule}}
	noError(t, s.Write(runs, 0, [][]byte{Random(1, int(o.Granule))}))
	d := must[vfs.File](t)(mem.OpenDir("/"))
	noError(t, d.Sync())
	noError(t, d.Close())

	after := closing[*Set](t)(OpenSet(OverVFS(mem.CrashClone(vfs.CrashCloneCfg{}), "slabs"), o))
	if slabs := after.Slabs(); len(slabs) != 1 || slabs[0].Bytes != o.SlabBytes {
		t.Fatalf("a grown slab did not survive: %v, refused %v", slabs, after.Refused())
	}
	got := AlignedBuffer(int(o.Granule))
	noError(t, after.Read(runs, 0, [][]byte{got}))
	if !AllZero(got) {
		t.Error("bytes that were not synced survived a crash that keeps none")
	}
}
