package driver_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

func TestDevicesTellAboutThemselves(t *testing.T) {
	g, _ := newGPU(t)
	if n, err := g.DeviceCount(); n != 1 || err != nil {
		t.Errorf("%d devices, %v", n, err)
	}
	if g.DriverVersion() < driver.MinDriverVersion {
		t.Errorf("version %d", g.DriverVersion())
	}
	name, err1 := g.DeviceName(g.dev)
	uuid, err2 := g.DeviceUUID(g.dev)
	total, err3 := g.DeviceTotalMem(g.dev)
	check(t, err1, err2, err3)
	if name == "" || strings.Contains(name, "\x00") || uuid == [16]byte{} || total != 1<<30 {
		t.Errorf("name %q, uuid %x, %d bytes", name, uuid, total)
	}
	for _, at := range []driver.Attribute{driver.VirtualMemorySupport, driver.DescriptorSupport, driver.StreamMemOps64} {
		if v, err := g.DeviceAttribute(g.dev, at); v != 1 || err != nil {
			t.Errorf("attribute %d is %d, %v", at, v, err)
		}
	}
	if _, err := g.DeviceAttribute(g.dev, 9999); !errors.Is(err, driver.InvalidValue) {
		t.Errorf("an attribute that no driver has: %v", err)
	}
	if _, err := g.DeviceAt(7); !errors.Is(err, driver.InvalidDevice) {
		t.Errorf("device 7: %v", err)
	}
}

func TestCopiesArriveWhole(t *testing.T) {
	g, fake := newGPU(t)
	const size = 3<<20 + 5
	from, to := host(t, size), host(t, size)
	rand.NewChaCha8([32]byte{1}).Read(from)
	check(t, g.HostRegister(pointer(from), size))
	s := must(g.StreamCreate())(t)
	a, b := must(g.MemAlloc(size))(t), must(g.MemAlloc(size))(t)
	if base, n, err := g.MemAddressRange(a + 100); base != a || n < size || err != nil {
		t.Errorf("%#x lies in %d bytes at %#x, %v", a+100, n, base, err)
	}
	check(t,
		g.MemcpyHtoDAsync(a, pointer(from), size, s),
		g.MemcpyDtoDAsync(b, a, size, s),
		g.MemsetD8Async(b+7, 0xA5, 1000, s),
		g.MemcpyDtoHAsync(pointer(to), b, size, s),
		g.StreamSynchronize(s))
	want := bytes.Clone(from)
	copy(want[7:], bytes.Repeat([]byte{0xA5}, 1000))
	if !bytes.Equal(to, want) {
		t.Error("other bytes came back")
	}
	if err := g.MemcpyDtoDAsync(b, a, size+1<<30, s); !errors.Is(err, driver.InvalidValue) {
		t.Errorf("a copy beyond the allocation: %v", err)
	}
	if n := fake.Stats().Registered; n != 1 {
		t.Errorf("%d ranges are registered", n)
	}
	free, total, err := g.MemInfo()
	if err != nil || total != 1<<30 || free > total-2*size {
		t.Errorf("%d of %d bytes free, %v", free, total, err)
	}
	check(t, g.HostUnregister(pointer(from)), g.MemFree(a), g.MemFree(b), g.StreamDestroy(s), g.ContextSynchronize())
}

// A call on a thread without the context is the easiest mistake to make.
func TestAThreadWithoutContextIsError201(t *testing.T) {
	g, _ := newGPU(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_, err := g.MemAlloc(1 << 20)
		done <- err
	}()
	if err := <-done; !errors.Is(err, driver.InvalidContext) {
		t.Errorf("%v", err)
	}
}

func TestFailuresNameTheirCall(t *testing.T) {
	g, fake := newGPU(t)
	fake.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemAlloc_v2", Nth: 2, Value: 2})
	p := must(g.MemAlloc(64))(t)
	_, err := g.MemAlloc(64)
	if e, ok := errors.AsType[*driver.Error](err); !ok || e.Error() != "cuMemAlloc_v2: 2 CUDA_ERROR_OUT_OF_MEMORY" {
		t.Errorf("%v", err)
	}
	// The device's own limit reads the same.
	if _, err := g.MemAlloc(2 << 30); !errors.Is(err, driver.OutOfMemory) {
		t.Errorf("%v", err)
	}
	check(t, g.MemFree(p))
	if err := g.MemFree(p); !errors.Is(err, driver.InvalidValue) {
		t.Errorf("freed twice: %v", err)
	}
}

// A stream that waits for a value is held until it is there; queries say so.
func TestStreamsAndEventsKeepTheirOrder(t *testing.T) {
	g, _ := newGPU(t)
	held, free := must(g.StreamCreate())(t), must(g.StreamCreate())(t)
	first, last := must(g.EventCreate(0))(t), must(g.EventCreate(driver.EventBlocking))(t)
	p := must(g.MemAlloc(64))(t)
	check(t, g.MemsetD8Async(p, 0, 64, free), g.StreamSynchronize(free))
	if done, err := g.EventQuery(first); !done || err != nil {
		t.Errorf("an event without record: %v, %v", done, err)
	}
	check(t, g.EventRecord(first, held), g.StreamWaitValue64GEQ(held, p+8, 5), g.EventRecord(last, held))
	check(t, g.EventSynchronize(first), g.StreamWriteValue64(free, p+8, 4), g.StreamSynchronize(free))
	for name, query := range map[string]func() (bool, error){
		"stream": func() (bool, error) { return g.StreamQuery(held) },
		"event":  func() (bool, error) { return g.EventQuery(last) },
	} {
		if done, err := query(); done || err != nil {
			t.Errorf("%s behind a wait for 5 at 4: %v, %v", name, done, err)
		}
	}
	// Work of one stream behind an event of another.
	check(t, g.StreamWriteValue64(free, p+8, 5), g.StreamWaitEvent(free, last), g.StreamSynchronize(free))
	if done, err := g.EventQuery(last); !done || err != nil {
		t.Errorf("the event that was waited for: %v, %v", done, err)
	}
	check(t, g.StreamSynchronize(held))
	if done, err := g.StreamQuery(held); !done || err != nil {
		t.Errorf("behind its wait: %v, %v", done, err)
	}
	if ms, err := g.EventElapsed(first, last); ms < 0 || err != nil {
		t.Errorf("%v ms, %v", ms, err)
	}
	if err := g.StreamWaitValue64GEQ(held, p+4, 1); !errors.Is(err, driver.InvalidValue) {
		t.Errorf("a value that is not aligned: %v", err)
	}
	check(t, g.EventDestroy(first), g.EventDestroy(last), g.MemFree(p), g.StreamDestroy(held), g.StreamDestroy(free))
	if err := g.EventRecord(last, 0); !errors.Is(err, driver.InvalidHandle) {
		t.Errorf("a destroyed event: %v", err)
	}
}

func TestDriversThatCannotServeAreRefused(t *testing.T) {
	path := library(t).Path
	for name, c := range map[string]struct {
		setup fakecuda.Setup
		want  string
	}{
		"old":       {fakecuda.Setup{Version: 11040}, "serves CUDA 11.4, needed is 11.8"},
		"no device": {fakecuda.Setup{Faults: []fakecuda.Fault{{Kind: fakecuda.Fail, Call: "cuInit", Value: 100}}}, "cuInit: 100 CUDA_ERROR_NO_DEVICE"},
		"stub":      {fakecuda.Setup{Faults: []fakecuda.Fault{{Kind: fakecuda.Fail, Call: "cuInit", Value: 34}}}, "34 CUDA_ERROR_STUB_LIBRARY"},
	} {
		p := startPeer(t, "load", c.setup.Env(path))
		if got := p.Ask(t, "%s", path); !strings.Contains(got, c.want) || !strings.Contains(got, gpuipc.ErrUnavailable.Error()) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
