package driver_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// roleVariable makes the test binary play another process.
const roleVariable = "DRIVER_TEST_ROLE"

var roles = map[string]func(in *bufio.Reader, out io.Writer) error{
	"load":       loadRole,
	"handle":     handleRole,
	"descriptor": descriptorRole,
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := roles[role](bufio.NewReader(os.Stdin), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// startPeer starts another process in a role.
func startPeer(t *testing.T, role string, env []string, files ...*os.File) *fakecuda.Peer {
	t.Helper()
	p := fakecuda.StartPeer(t, append(env, roleVariable+"="+role), files...)
	t.Cleanup(func() {
		if err := p.End(); err != nil && !t.Failed() {
			t.Errorf("%s: %v", role, err)
		}
	})
	return p
}

// gpu is the fake device with its context on the calling thread.
type gpu struct {
	*driver.API
	dev driver.Device
}

// enter makes the device's context current on the calling goroutine's thread.
func enter(library string) (*gpu, func() error, error) {
	api, err := driver.Load(library)
	if err != nil {
		return nil, nil, err
	}
	runtime.LockOSThread()
	dev, err1 := api.DeviceAt(0)
	c, err2 := api.PrimaryContextRetain(dev)
	err3 := api.ContextSetCurrent(c)
	leave := func() error {
		err := errors.Join(api.ContextSetCurrent(0), api.PrimaryContextRelease(dev))
		runtime.UnlockOSThread()
		return err
	}
	return &gpu{API: api, dev: dev}, leave, errors.Join(err1, err2, err3)
}

// library is the fake driver, for a build that can load one.
func library(t *testing.T) *fakecuda.Library {
	t.Helper()
	if !driver.Built {
		t.Skip("built without CUDA")
	}
	return fakecuda.Open(t)
}

// newGPU loads the fake driver; nothing may be left on it when the test ends.
func newGPU(t *testing.T) (*gpu, *fakecuda.Library) {
	t.Helper()
	fake := library(t)
	fake.LeakCheck(t)
	g, leave, err := enter(fake.Path)
	check(t, err)
	t.Cleanup(func() {
		fake.Clear()
		if err := leave(); err != nil {
			t.Error(err)
		}
	})
	return g, fake
}

// host is memory that copies may use: a mapping, not Go's heap.
func host(t *testing.T, size int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(m)) })
	return m
}

func pointer(m []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m)) }

// must stops a test at what has to work for it to go on.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func check(t testing.TB, errs ...error) {
	if err := errors.Join(errs...); err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
