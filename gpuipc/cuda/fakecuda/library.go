package fakecuda

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	_ "embed"

	"github.com/ebitengine/purego"
)

// ProbePTX has two kernels, for tests that need no kernel of package kernels:
// probe_fill(u64 dst, u32 n, u32 value) and probe_add(u64 dst, u64 src, u32 n). Both work
// on words of four bytes.
//
//go:embed probe.ptx
var ProbePTX []byte

// Library gives a test access to the fake driver in this process. The code under test must
// load the driver from Path too. Settings and faults apply to the whole process, so tests
// that use them must not run in parallel. A Library is safe for concurrent use.
type Library struct {
	Path string

	stats   func(*Stats, uintptr)
	live    func(*byte, uintptr) uintptr
	set     func(string, *byte) int32
	fault   func(string, string) int32
	clear   func()
	release func()
	calls   func(string) uint64
	reset   func()

	forgiven atomic.Uint64 // number of misuses that a test made on purpose
}

// Open builds the library if necessary, and loads it. At the end of the test all faults are
// cleared.
func Open(tb testing.TB) *Library {
	tb.Helper()
	l := &Library{Path: Build(tb)}
	lib, err := purego.Dlopen(l.Path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		tb.Fatal(err)
	}
	for name, f := range map[string]any{
		"stats": &l.stats, "live": &l.live, "set": &l.set, "fault": &l.fault, "clear": &l.clear,
		"release": &l.release, "calls": &l.calls, "reset": &l.reset,
	} {
		purego.RegisterLibFunc(f, lib, "fakecuda_"+name)
	}
	tb.Cleanup(l.clear)
	return l
}

// Stats returns the counts of live objects in this process.
func (l *Library) Stats() (s Stats) {
	l.stats(&s, unsafe.Sizeof(s))
	return s
}

// Live returns a line for each live object.
func (l *Library) Live() string {
	for room := 4096; ; room *= 4 {
		text := make([]byte, room)
		if n := int(l.live(&text[0], uintptr(room))); n < room {
			return string(text[:n])
		}
	}
}

// Set changes a setting of fakecuda.h until the test ends. Some settings are read at the
// first call of the driver, as the header says; Set must come before this call.
func (l *Library) Set(tb testing.TB, name, value string) {
	tb.Helper()
	text := append([]byte(value), 0)
	if l.set(name, &text[0]) != 0 {
		tb.Fatalf("fakecuda: no setting %s=%s", name, value)
	}
	tb.Cleanup(func() { l.set(name, nil) })
}

// Inject sets faults. They last until Clear, or until the end of the test that opened l.
func (l *Library) Inject(tb testing.TB, faults ...Fault) {
	tb.Helper()
	for _, f := range faults {
		if l.fault(string(f.Kind), f.spec()) != 0 {
			tb.Fatalf("fakecuda: fault %s=%s is not understood", f.Kind, f.spec())
		}
	}
}

// Clear ends all faults, including a lost device. Calls that hang continue.
func (l *Library) Clear() { l.clear() }

// Release lets the calls that hang now continue. Later calls hang again.
func (l *Library) Release() { l.release() }

// Calls returns the number of calls of a function so far; "*" counts all functions.
func (l *Library) Calls(name string) uint64 { return l.calls(name) }

// Reset removes everything that a lost or broken device left in this process, as the driver
// does at the end of a process. All objects and memory are freed, and handles become
// invalid. No call of the driver may be running.
func (l *Library) Reset() { l.reset() }

// Forgive makes LeakCheck ignore n misuses, which the test made on purpose.
func (l *Library) Forgive(n uint64) { l.forgiven.Add(n) }

// LeakCheck compares the live objects at its call with those at the end of the test. The
// comparison runs after all cleanups that are registered later.
func (l *Library) LeakCheck(tb testing.TB) {
	tb.Helper()
	before := l.Stats()
	tb.Cleanup(func() {
		after := l.Stats()
		// The thread of a destroyed stream may not have ended yet.
		for until := time.Now().Add(5 * time.Second); after.Live() != before.Live() && time.Now().Before(until); {
			runtime.Gosched()
			after = l.Stats()
		}
		if after.Live() != before.Live() {
			tb.Errorf("before %+v\nafter  %+v\nlive:\n%s", before.Live(), after.Live(), l.Live())
		}
		if n := after.Misuses - before.Misuses - l.forgiven.Load(); n != 0 {
			tb.Errorf("%d misuses of the driver: see stderr", n)
		}
	})
}
