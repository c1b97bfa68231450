package slabtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

func memory(t testing.TB, fsys vfs.FS) slab.FS {
	t.Helper()
	noError(t, fsys.MkdirAll("slabs", 0o755))
	return slab.OverVFS(fsys, "slabs")
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		noError(t, err)
		return v
	}
}

func noError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// closing closes at the end of the test.
func closing[T io.Closer](t testing.TB) func(T, error) T {
	return func(c T, err error) T {
		t.Helper()
		noError(t, err)
		t.Cleanup(func() { noError(t, c.Close()) })
		return c
	}
}

// faulty has a file "a" of blocks that hold old, and what lies below the faults.
func faulty(t *testing.T, seed uint64, old []byte) (faults *Faults, through, below slab.File) {
	t.Helper()
	fsys := memory(t, vfs.NewMem())
	below = closing[slab.File](t)(fsys.Create("a", int64(len(old))))
	noError(t, below.WriteAt([][]byte{old}, 0))
	faults = NewFaults(fsys, seed)
	return faults, closing[slab.File](t)(faults.Open("a")), below
}

func contents(t *testing.T, f slab.File) []byte {
	t.Helper()
	b := slab.AlignedBuffer(int(f.Bytes()))
	noError(t, f.ReadAt([][]byte{b}, 0))
	return b
}

// differing counts the bits by which two buffers differ.
func differing(a, b []byte) (n int) {
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return n
}

const faultBlocks = 16

// several runs a test with many seeds, on fresh old and new bytes.
func several(t *testing.T, run func(t *testing.T, seed uint64, old, new []byte)) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			run(t, seed, Random(2*seed, faultBlocks*slab.BlockBytes), Random(2*seed+1, faultBlocks*slab.BlockBytes))
		})
	}
}

// shapes are the errno a fault is told to answer, and the answer of a write.
var shapes = map[unix.Errno]error{0: nil, unix.EIO: unix.EIO}

func TestTornWriteIsAPrefixOfSectors(t *testing.T) {
	lengths := map[int]bool{}
	several(t, func(t *testing.T, seed uint64, old, new []byte) {
		for errno, want := range shapes {
			faults, f, below := faulty(t, seed, old)
			faults.Set(Rule{Op: OpWrite, Kind: FaultTorn, Errno: errno})
			rng := rand.New(rand.NewPCG(seed, 1))
			if err := f.WriteAt(Pieces(rng, new, 3), 0); !errors.Is(err, want) {
				t.Errorf("errno %d: %v", errno, err)
			}
			got := contents(t, below)
			n := 0
			for n < len(got) && bytes.Equal(got[n:n+sectorBytes], new[n:n+sectorBytes]) {
				n += sectorBytes
			}
			if n == len(new) || !bytes.Equal(got[n:], old[n:]) {
				t.Errorf("%d bytes of %d are new, and the rest is not old", n, len(new))
			}
			lengths[n] = true
			if faults.Injected(FaultTorn) != 1 || faults.InjectedAll() != 1 {
				t.Errorf("%d torn, %d in all", faults.Injected(FaultTorn), faults.InjectedAll())
			}
		}
	})
	inside := 0
	for n := range lengths {
		if n%slab.BlockBytes != 0 {
			inside++
		}
	}
	if len(lengths) < 20 || inside < 10 {
		t.Errorf("%d lengths, %d of them inside a block", len(lengths), inside)
	}
}

func TestReorderedWriteLosesSomeBlocks(t *testing.T) {
	gaps := 0 // writes with a block that is there behind one that is not
	several(t, func(t *testing.T, seed uint64, old, new []byte) {
		for errno, want := range shapes {
			faults, f, below := faulty(t, seed, old)
			faults.Set(Rule{Op: OpWrite, Kind: FaultReordered, Errno: errno})
			rng := rand.New(rand.NewPCG(seed, 1))
			if err := f.WriteAt(Pieces(rng, new, 3), 0); !errors.Is(err, want) {
				t.Errorf("errno %d: %v", errno, err)
			}
			got := contents(t, below)
			written, gap := 0, false
			for off := 0; off < len(got); off += slab.BlockBytes {
				block := got[off : off+slab.BlockBytes]
				switch {
				case bytes.Equal(block, new[off:off+slab.BlockBytes]):
					written++
					gap = gap || written*slab.BlockBytes <= off
				case !bytes.Equal(block, old[off:off+slab.BlockBytes]):
					t.Fatalf("the block at %d is neither old nor new", off)
				}
			}
			if written == 0 || written == faultBlocks {
				t.Errorf("%d of %d blocks were written", written, faultBlocks)
			}
			if gap {
				gaps++
			}
			if faults.Injected(FaultReordered) != 1 || faults.InjectedAll() != 1 {
				t.Errorf("%d reordered, %d in all", faults.Injected(FaultReordered), faults.InjectedAll())
			}
		}
	})
	if gaps < 50 {
		t.Errorf("%d of 100 writes have a later block without an earlier one", gaps)
	}
}

func TestReorderedWriteOfOneBlockLosesIt(t *testing.T) {
	old, new := Random(1, slab.BlockBytes), Random(2, slab.BlockBytes)
	faults, f, below := faulty(t, 1, old)
	faults.Set(Rule{Op: OpWrite, Kind: FaultReordered})
	noError(t, f.WriteAt([][]byte{new}, 0))
	if !bytes.Equal(contents(t, below), old) {
		t.Error("the block was written")
	}
}

func TestShortReadFillsAPrefix(t *testing.T) {
	several(t, func(t *testing.T, seed uint64, old, new []byte) {
		faults, f, _ := faulty(t, seed, old)
		faults.Set(Rule{Op: OpRead, Kind: FaultShort})
		got := slab.AlignedBuffer(len(old))
		copy(got, new)
		rng := rand.New(rand.NewPCG(seed, 1))
		if err := f.ReadAt(Pieces(rng, got, 3), 0); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%v", err)
		}
		n := 0
		for n < len(got) && bytes.Equal(got[n:n+slab.BlockBytes], old[n:n+slab.BlockBytes]) {
			n += slab.BlockBytes
		}
		if n == len(got) || !bytes.Equal(got[n:], new[n:]) {
			t.Errorf("%d bytes were read, and the rest was touched or there is none", n)
		}
		if faults.Injected(FaultShort) != 1 || faults.InjectedAll() != 1 {
			t.Errorf("%d short, %d in all", faults.Injected(FaultShort), faults.InjectedAll())
		}
	})
}

func TestFlippedBits(t *testing.T) {
	several(t, func(t *testing.T, seed uint64, old, new []byte) {
		for _, count := range []int{0, 1, 5} {
			faults, f, below := faulty(t, seed, old)
			want := max(1, count)
			faults.Set(Rule{Op: OpRead, Kind: FaultFlipRead, Bits: count})
			if n := differing(contents(t, f), old); n != want {
				t.Errorf("%d bits flipped in a read, want %d", n, want)
			}
			if n := differing(contents(t, below), old); n != 0 {
				t.Errorf("%d bits flipped on the disk by a read", n)
			}
			faults.Set(Rule{Op: OpWrite, Kind: FaultFlipRest, Bits: count})
			noError(t, f.WriteAt([][]byte{new}, 0))
			if n := differing(contents(t, below), new); n != want {
				t.Errorf("%d bits flipped on the disk, want %d", n, want)
			}
			if r, w := faults.Injected(FaultFlipRead), faults.Injected(FaultFlipRest); r != 1 || w != 1 {
				t.Errorf("%d and %d counted", r, w)
			}
		}
	})
}

func TestFlipChangesAFileAtRest(t *testing.T) {
	old := Random(1, 2*slab.BlockBytes)
	faults, f, _ := faulty(t, 1, old)
	noError(t, faults.Flip("a", slab.BlockBytes+7, 0x81))
	got := contents(t, f)
	if differing(got, old) != 2 || got[slab.BlockBytes+7] != old[slab.BlockBytes+7]^0x81 {
		t.Errorf("%d bits differ", differing(got, old))
	}
	if err := faults.Flip("none", 0, 1); err == nil {
		t.Error("flipped a bit of no file")
	}
}

func TestErrorsAreOfTheErrnoAskedFor(t *testing.T) {
	for errno, want := range map[unix.Errno][]error{
		0:           {unix.EIO},
		unix.EROFS:  {unix.EROFS},
		unix.ENOSPC: {unix.ENOSPC, slab.ErrNoSpace},
		unix.EDQUOT: {unix.EDQUOT, slab.ErrNoSpace},
	} {
		old := Random(1, slab.BlockBytes)
		faults, f, below := faulty(t, 1, old)
		buf := [][]byte{Random(2, slab.BlockBytes)}
		calls := map[Op]func() error{
			OpCreate:  func() error { _, err := faults.Create("b", slab.BlockBytes); return err },
			OpOpen:    func() error { _, err := faults.Open("a"); return err },
			OpRemove:  func() error { return faults.Remove("a") },
			OpList:    func() error { _, err := faults.List(); return err },
			OpFree:    func() error { _, err := faults.Free(); return err },
			OpSyncDir: faults.Sync,
			OpRead:    func() error { return f.ReadAt(buf, 0) },
			OpWrite:   func() error { return f.WriteAt(buf, 0) },
			OpSync:    f.Sync,
		}
		if len(calls) != int(opCount)-1 {
			t.Fatalf("%d operations of %d", len(calls), opCount-1)
		}
		for op, call := range calls {
			for _, rule := range []Rule{{Op: op, Errno: errno}, {Errno: errno}} {
				faults.Set(rule)
				err := call()
				for _, w := range want {
					if !errors.Is(err, w) {
						t.Errorf("%s, errno %d: %v", opNames[op], errno, err)
					}
				}
				if errors.Is(err, slab.ErrNoSpace) && len(want) < 2 {
					t.Errorf("%s, errno %d: %v is no space", opNames[op], errno, err)
				}
			}
		}
		faults.Set()
		if !bytes.Equal(contents(t, below), old) {
			t.Error("a failed write wrote")
		}
		if names := must[[]string](t)(faults.List()); !slices.Equal(names, []string{"a"}) {
			t.Errorf("files %q", names)
		}
		if n := faults.Injected(FaultError); n != 2*uint64(len(calls)) {
			t.Errorf("%d errors counted, want %d", n, 2*len(calls))
		}
	}
}

// TestRulesMeetTheCallsTheyName writes ten times under each rule.
func TestRulesMeetTheCallsTheyName(t *testing.T) {
	for name, c := range map[string]struct {
		rule Rule
		want string
	}{
		"all":            {Rule{}, "xxxxxxxxxx"},
		"third":          {Rule{Op: OpWrite, First: 3}, "..x......."},
		"from third":     {Rule{Op: OpWrite, First: 3, Last: Forever}, "..xxxxxxxx"},
		"third to fifth": {Rule{Op: OpWrite, First: 3, Last: 5}, "..xxx....."},
		"another op":     {Rule{Op: OpRead}, ".........."},
		"another name":   {Rule{Op: OpWrite, Name: "b"}, ".........."},
		"its name":       {Rule{Op: OpWrite, Name: "a", First: 1}, "x........."},
		"never":          {Rule{Op: OpWrite, Rate: 1e-18}, ".........."},
		"any, of reads":  {Rule{Kind: FaultFlipRead}, ".........."},
	} {
		t.Run(name, func(t *testing.T) {
			faults, f, _ := faulty(t, 1, Random(1, slab.BlockBytes))
			faults.Set(c.rule)
			got := ""
			for range 10 {
				if err := f.WriteAt([][]byte{slab.AlignedBuffer(slab.BlockBytes)}, 0); err != nil {
					got += "x"
				} else {
					got += "."
				}
			}
			if got != c.want {
				t.Errorf("failed calls %s, want %s", got, c.want)
			}
			if faults.Calls(OpWrite) != 10 || faults.Calls(AnyOp) != 11 { // and the open
				t.Errorf("%d writes, %d calls", faults.Calls(OpWrite), faults.Calls(AnyOp))
			}
		})
	}
}

// TestSeedDecides has the same faults for one seed and others for another.
func TestSeedDecides(t *testing.T) {
	run := func(seed uint64) (failed string, rest []byte) {
		faults, f, below := faulty(t, seed, Random(1, faultBlocks*slab.BlockBytes))
		faults.Set(Rule{Op: OpWrite, Rate: 0.2}, Rule{Op: OpWrite, Rate: 0.3, Kind: FaultTorn})
		for i := range uint64(200) {
			failed += fmt.Sprint(f.WriteAt([][]byte{Random(i, faultBlocks*slab.BlockBytes)}, 0) != nil)
		}
		if e, torn := faults.Injected(FaultError), faults.Injected(FaultTorn); e < 15 || e > 75 || torn < 20 || torn > 90 {
			t.Errorf("%d errors and %d torn of 200 at rates of 0.2 and 0.3 of the rest", e, torn)
		}
		return failed, contents(t, below)
	}
	a, restA := run(1)
	b, restB := run(1)
	c, _ := run(2)
	if a != b || !bytes.Equal(restA, restB) {
		t.Error("one seed, two runs")
	}
	if a == c {
		t.Error("two seeds, one run")
	}
}

// TestSlowCallsWaitAndThenGoOn with the next rule that meets them.
func TestSlowCallsWaitAndThenGoOn(t *testing.T) {
	faults, f, _ := faulty(t, 1, Random(1, slab.BlockBytes))
	entered, wait, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	faults.Set(Rule{Op: OpSync, First: 1, Kind: FaultSlow, Entered: entered, Wait: wait},
		Rule{Op: OpSync, First: 1, Errno: unix.ENOSPC})
	go func() { done <- f.Sync() }()
	<-entered
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	noError(t, f.Sync()) // the second: neither waits nor fails
	close(wait)
	if err := <-done; !errors.Is(err, slab.ErrNoSpace) {
		t.Errorf("%v", err)
	}
	if faults.Injected(FaultSlow) != 1 {
		t.Errorf("%d slow calls counted", faults.Injected(FaultSlow))
	}
}

// TestFaultsAreSwitchedWhileInUse is for the race detector, and counts.
func TestFaultsAreSwitchedWhileInUse(t *testing.T) {
	faults, f, _ := faulty(t, 1, Random(1, faultBlocks*slab.BlockBytes))
	var users sync.WaitGroup
	var failed [8]uint64
	for i := range failed {
		users.Go(func() {
			b := slab.AlignedBuffer(slab.BlockBytes)
			for range 300 {
				if f.WriteAt([][]byte{b}, int64(i)*slab.BlockBytes) != nil {
					failed[i]++
				}
				if f.ReadAt([][]byte{b}, int64(i)*slab.BlockBytes) != nil {
					failed[i]++
				}
			}
		})
	}
	for i := range 200 {
		switch i % 3 {
		case 0:
			faults.Set(Rule{Rate: 0.5})
		case 1:
			faults.Set(Rule{Op: OpWrite, Kind: FaultTorn, Rate: 0.5, Errno: unix.EIO}, Rule{Op: OpRead, Kind: FaultShort, Rate: 0.1})
		default:
			faults.Set()
		}
	}
	users.Wait()
	all := uint64(0)
	for _, n := range failed {
		all += n
	}
	if n := faults.InjectedAll(); n != all {
		t.Errorf("%d injected, %d calls failed", n, all)
	}
	if n := faults.Calls(AnyOp); n != 8*600+1 {
		t.Errorf("%d calls", n)
	}
}
