package gpuipc

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// roleVariable makes the test binary play another process: the tests start it
// again, with descriptors from 3 on.
const roleVariable = "GPUIPC_TEST_ROLE"

var roles = map[string]func() error{
	"attack":  attackRole,
	"writer":  writerRole,
	"server":  serverRole,
	"hammer":  hammerRole,
	"clipper": clipperRole,
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// otherProcess prepares the test binary in a role.
func otherProcess(role string, files ...*os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	return cmd
}

// held counts what a test may leave behind: descriptors and mappings of memfds,
// and goroutines.
func held(t testing.TB) [3]int {
	t.Helper()
	var n [3]int
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, "memfd:") {
			n[0]++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	n[1] = strings.Count(string(maps), "memfd:")
	n[2] = runtime.NumGoroutine()
	return n
}

// newTestHost opens a host device; when the test ends it must close, and
// nothing may be left.
func newTestHost(t testing.TB, o HostOptions) *host {
	t.Helper()
	before := held(t)
	d, err := NewHost(o)
	must(t, err)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		after := held(t)
		// A goroutine that was waited for may still be on its way out.
		for start := time.Now(); after[2] > before[2] && time.Since(start) < 10*time.Second; time.Sleep(time.Millisecond) {
			after[2] = runtime.NumGoroutine()
		}
		if after[0] > before[0] || after[1] > before[1] || after[2] > before[2] {
			t.Errorf("memfds, mappings, goroutines: %v before, %v after", before, after)
		}
	})
	return d.(*host)
}

// newTestRegion makes a region that the test's end closes.
func newTestRegion(t testing.TB, d Device, spec RegionSpec) *hostRegion {
	t.Helper()
	spec.Name = "test"
	r, err := d.NewRegion(spec)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r.(*hostRegion)
}

func refOf(r Region, off, n int64) Ref { return Ref{Region: r, Extents: []Extent{{off, n}}} }

// exported is a descriptor of r for another process; the test's end closes it.
func exported(t testing.TB, r Region) *os.File {
	t.Helper()
	h, err := r.Export()
	must(t, err)
	t.Cleanup(func() { h.File.Close() })
	return h.File
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
