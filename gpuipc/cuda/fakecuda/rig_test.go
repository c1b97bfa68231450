package fakecuda_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

// roleVariable makes the test binary play another process, which loads the
// library at libraryVariable; descriptors are from 3 on.
const (
	roleVariable    = "FAKECUDA_TEST_ROLE"
	libraryVariable = "FAKECUDA_TEST_LIBRARY"
)

var roles = map[string]func(*driver.API) error{
	"owner": ownerRole,
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	if err := play(role); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func play(role string) error {
	api, err := driver.Load(os.Getenv(libraryVariable))
	if err != nil {
		return err
	}
	return roles[role](api)
}

// useDevice makes the context of a device current on this thread.
func useDevice(api *driver.API) error {
	context, err := api.PrimaryContextRetain(0)
	if err != nil {
		return err
	}
	return api.ContextSetCurrent(context)
}

// rig is the driver with a current context and a stream, in this process.
type rig struct {
	*driver.API
	fake   *fakecuda.Library
	stream driver.Stream
}

// newRig locks the test to its thread; the test's end checks that nothing is left.
func newRig(t testing.TB) *rig {
	t.Helper()
	r := loadRig(t)
	t.Cleanup(func() {
		r.fake.Clear()
		must(t, r.ContextSetCurrent(0))
		must(t, r.PrimaryContextRelease(0))
	})
	r.stream = r.newStream(t)
	return r
}

// newBrokenRig is for tests after which the driver answers errors only: all that
// they made goes with the context.
func newBrokenRig(t testing.TB) *rig {
	t.Helper()
	r := loadRig(t)
	t.Cleanup(func() {
		r.fake.Reset()
		must(t, r.ContextSetCurrent(0))
	})
	var err error
	r.stream, err = r.StreamCreate()
	must(t, err)
	return r
}

func loadRig(t testing.TB) *rig {
	t.Helper()
	l := fakecuda.Open(t)
	api, err := driver.Load(l.Path)
	must(t, err)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	l.LeakCheck(t)
	must(t, useDevice(api))
	return &rig{API: api, fake: l}
}

func (r *rig) newStream(t testing.TB) driver.Stream {
	t.Helper()
	s, err := r.StreamCreate()
	must(t, err)
	t.Cleanup(func() { must(t, r.StreamDestroy(s)) })
	return s
}

// alloc is memory until the test's end, of words that are all value.
func (r *rig) alloc(t testing.TB, bytes int64, value byte) driver.DevicePtr {
	t.Helper()
	p, err := r.MemAlloc(bytes)
	must(t, err)
	t.Cleanup(func() { must(t, r.MemFree(p)) })
	must(t, r.MemsetD8Async(p, value, bytes, r.stream))
	must(t, r.StreamSynchronize(r.stream))
	return p
}

func (r *rig) word(t testing.TB, p driver.DevicePtr) uint64 {
	t.Helper()
	v, err := readWord(r.API, p, r.stream)
	must(t, err)
	return v
}

func readWord(api *driver.API, p driver.DevicePtr, s driver.Stream) (uint64, error) {
	b := make([]byte, 8)
	err := api.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), p, 8, s)
	return binary.LittleEndian.Uint64(b), errors.Join(err, api.StreamSynchronize(s))
}

func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

func wants(t testing.TB, err error, r driver.Result) {
	t.Helper()
	if !errors.Is(err, r) {
		t.Fatalf("%v, not %v", err, r)
	}
}

// args lays out parameters of 8 and 4 bytes as a kernel takes them.
func args(values ...any) []byte {
	var b []byte
	for _, v := range values {
		switch v := v.(type) {
		case driver.DevicePtr:
			b = binary.LittleEndian.AppendUint64(b, uint64(v))
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, v)
		}
	}
	return b
}
