package kernels

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// emulation is all kernels as host code, loaded into the test. Addresses are the host's.
type emulation struct {
	launch func(name string, grid, block *[3]uint32, shared uint32, args *byte, n uint64) int32
	error  func() string
}

var emulationFlags = []string{"-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-ffp-contract=off",
	"-fno-strict-aliasing", "-Wall", "-Wextra", "-DSPLICED_EMULATE", "-I.", "-x", "c++", "spliced.cu", "emulate/emulate.cc"}

var loadEmulation = sync.OnceValues(func() (*emulation, error) {
	library, err := emulationLibrary()
	if err != nil {
		return nil, err
	}
	h, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	var e emulation
	purego.RegisterLibFunc(&e.launch, h, "emulate_launch")
	purego.RegisterLibFunc(&e.error, h, "emulate_error")
	return &e, nil
})

// emulationLibrary compiles, which takes seconds, unless the user's cache folder has the library
// of the same sources.
func emulationLibrary() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	digest, err := emulationDigest()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(base, "spliced-kernels", digest)
	library := filepath.Join(folder, "kernels.so")
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	scratch := filepath.Join(folder, fmt.Sprintf("%d.so", os.Getpid())) // another test may build it too
	defer os.Remove(scratch)
	if out, err := exec.Command("c++", append(emulationFlags, "-o", scratch)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("c++: %w\n%s", err, out)
	}
	return library, os.Rename(scratch, library)
}

// emulationDigest is of the compiler, its flags and all that it reads.
func emulationDigest() (string, error) {
	version, err := exec.Command("c++", "-v").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("c++ -v: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s%q", version, emulationFlags)
	for _, pattern := range []string{"*.cu", "*.h", "emulate/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, f := range files {
			// Read here, a file is also one whose change makes go test forget a result.
			b, err := os.ReadFile(f)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s %d\n%s", f, len(b), b)
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}

// emulated loads the emulation once for all tests.
func emulated(tb testing.TB) *emulation {
	tb.Helper()
	if _, err := exec.LookPath("c++"); err != nil {
		tb.Skip("no C++ compiler to build the emulation with")
	}
	e, err := loadEmulation()
	must(tb, err)
	return e
}

// run launches as a driver would: the tables go to memory of their own, whose address becomes
// the first argument.
func (e *emulation) run(tb testing.TB, l Launch) {
	tb.Helper()
	args := bytes.Clone(l.Args)
	if len(l.Tables) > 0 {
		tables := memory(tb, len(l.Tables), 0)
		copy(tables, l.Tables)
		binary.LittleEndian.PutUint64(args, address(tables))
	}
	runtime.LockOSThread() // the error is the thread's
	defer runtime.UnlockOSThread()
	if e.launch(l.Name, &l.Grid, &l.Block, l.Shared, &args[0], uint64(len(args))) != 0 {
		tb.Fatal(e.error())
	}
}

func (e *emulation) runAll(tb testing.TB, launches []Launch, err error) {
	tb.Helper()
	must(tb, err)
	for _, l := range launches {
		e.run(tb, l)
	}
}

const guardBytes = 256

// memory is n bytes that stand for device memory, off bytes behind a multiple of 16 (of 256 when
// off is 0). The test fails if bytes beside them are written; a page further the process faults.
func memory(tb testing.TB, n, off int) []byte {
	tb.Helper()
	page := os.Getpagesize()
	size := (n + off + 2*guardBytes + page - 1) / page * page
	all, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	must(tb, err)
	tb.Cleanup(func() { _ = syscall.Munmap(all) })
	open := all[page : page+size]
	must(tb, syscall.Mprotect(open, syscall.PROT_READ|syscall.PROT_WRITE))
	for i := range open {
		open[i] = 0xa5
	}
	begin := guardBytes + off
	tb.Cleanup(func() {
		for i, b := range open {
			if b != 0xa5 && (i < begin || i >= begin+n) {
				tb.Errorf("byte %d of %d was written", i-begin, n)
				return
			}
		}
	})
	return open[begin : begin+n : begin+n]
}

// address is 0 for no memory.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// f32s is memory as numbers; its address has to be a multiple of 4.
func f32s(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func randomBytes(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// seeded is a source whose seed the log tells.
func seeded(tb testing.TB) *rand.Rand {
	seed := rand.Uint64()
	tb.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
