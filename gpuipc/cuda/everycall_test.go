package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// tour uses a device in every way that one process alone can, with an error as
// soon as something fails and with everything given back. Bytes that come back
// without an error must be right.
func tour(library string) (err error) {
	host, err := gpuipc.NewHost(gpuipc.HostOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	memory, err := host.NewRegion(gpuipc.RegionSpec{Name: "host", Bytes: 64 << 10, Access: gpuipc.ClientReads})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	d, err := Open(Options{Library: library, Streams: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	detach, err := d.AttachHost(memory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, detach()) }()
	for _, way := range []gpuipc.Way{gpuipc.WayDescriptor, gpuipc.WayHandle} {
		if err := tourRegion(d, host, memory, way); err != nil {
			return err
		}
	}
	return nil
}

func tourRegion(d gpuipc.Accelerator, host gpuipc.Device, memory gpuipc.Region, way gpuipc.Way) (err error) {
	ctx := context.Background()
	region, err := d.NewRegion(gpuipc.RegionSpec{Name: "tour", Bytes: 1, Access: gpuipc.ClientWrites, Way: way})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	share, err := region.(gpuipc.SharedRegion).Share(way)
	if err != nil {
		return err
	}
	if err := share.Close(); err != nil {
		return err
	}
	const n = 8192
	want := bytes.Repeat([]byte{1, 2, 3, 5}, n/4)
	digests, sums := make([]uint64, 1), make([]uint64, 1)
	back := make([]byte, n)
	steps := []func() error{
		func() error { return host.Store(ctx, at(memory, 0, n), want) },
		func() error { return d.Upload(ctx, at(region, 0, n), at(memory, 0, n), digests) },
		func() error { return d.CopyDigests(ctx, at(region, n, n), at(region, 0, n), digests) },
		func() error { return d.Checksums(ctx, at(region, n, n), sums) },
		func() error {
			return d.Rotate(ctx, &gpuipc.RotateJob{
				Rows: 8, Heads: 2, Dim: 16, Type: kernel.F32, Src: at(region, n, 1024), Dst: gpuipc.Scatter{Rows: at(region, 2*n, 1024)},
			})
		},
		func() error { return d.Download(ctx, at(memory, n, 1024), at(region, 2*n, 1024), digests) },
		func() error { return d.Download(ctx, at(memory, n+1024, n-1024), at(region, 1024, n-1024), nil) },
		func() error { return host.Load(ctx, back, at(memory, n, n)) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	if !bytes.Equal(back, want) {
		return errWrongBytes
	}
	return nil
}

var errWrongBytes = errors.New("wrong bytes without an error")

// givingBack are the calls whose failure leaves memory with the driver: nobody
// can take it from there.
var givingBack = []string{"Free", "Release", "Unmap", "Destroy", "Unregister", "Unload", "Close"}

func givesBack(call string) bool {
	return slices.ContainsFunc(givingBack, func(s string) bool { return strings.Contains(call, s) })
}

// waits are calls that tell when memory is free of the device. These fail only
// with the device: nothing else keeps a driver from waiting.
func waits(call string) bool {
	return strings.HasSuffix(call, "Synchronize") || strings.HasSuffix(call, "Query")
}

// driverCalls are the functions that package driver binds.
var driverCalls = []string{
	"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2", "cuDeviceGetName", "cuDeviceGetAttribute",
	"cuDeviceTotalMem_v2", "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuCtxSynchronize",
	"cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetAddressRange_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2",
	"cuIpcCloseMemHandle", "cuIpcGetEventHandle", "cuIpcOpenEventHandle", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemRelease",
	"cuMemAddressReserve", "cuMemAddressFree", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemExportToShareableHandle",
	"cuMemImportFromShareableHandle", "cuMemHostRegister_v2", "cuMemHostUnregister", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
	"cuMemcpyDtoDAsync_v2", "cuMemsetD8Async", "cuStreamCreate", "cuStreamCreateWithPriority", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamQuery",
	"cuStreamWaitEvent", "cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2", "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord",
	"cuEventQuery", "cuEventSynchronize", "cuEventElapsedTime", "cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction",
	"cuFuncSetAttribute", "cuFuncGetAttribute", "cuLaunchKernel",
}

// timesCalled is how often a tour calls each function, at most most times.
func timesCalled(t *testing.T, lib *fakecuda.Library, most int) map[string]int {
	t.Helper()
	before := map[string]uint64{}
	for _, name := range driverCalls {
		before[name] = lib.Calls(name)
	}
	must(t, tour(lib.Path))
	n := map[string]int{}
	for _, name := range driverCalls {
		n[name] = min(int(lib.Calls(name)-before[name]), most)
	}
	return n
}

// atMost is a few in an ordinary run, one in a short one and all in a long one.
func atMost(few, all int) int {
	if os.Getenv("SPLICED_LONG") != "" {
		return all
	}
	if testing.Short() {
		return 1
	}
	return few
}

// held is what a process has of the system that a tour must give back.
type held struct{ files, goroutines int }

func heldNow(t *testing.T) held {
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return held{len(files), runtime.NumGoroutine()}
}

// awaitGivenBack waits until no more is held than before.
func awaitGivenBack(t *testing.T, before held) {
	t.Helper()
	now := heldNow(t)
	for until := time.Now().Add(5 * time.Second); (now.files > before.files || now.goroutines > before.goroutines) && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
		now = heldNow(t)
	}
	if now.files > before.files || now.goroutines > before.goroutines {
		t.Fatalf("%d files and %d goroutines, were %d and %d", now.files, now.goroutines, before.files, before.goroutines)
	}
}

// A call of the driver that fails leaves nothing behind, and never wrong bytes,
// whichever it is.
func TestAnyCallMayFail(t *testing.T) {
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	codes := []int{2, 1, 201, 304}
	runs := 0
	times := timesCalled(t, lib, atMost(2, 20))
	before := heldNow(t)
	for _, name := range driverCalls {
		for nth := 1; nth <= times[name]; nth++ {
			fault := fakecuda.Fault{Kind: fakecuda.Fail, Call: name, Nth: nth, Value: codes[runs%len(codes)]}
			if waits(name) {
				fault.Kind, fault.Value = fakecuda.Lost, int(driver.LaunchFailed)
			}
			runs++
			misuses := lib.Stats().Misuses
			live := lib.Stats().Live()
			lib.Inject(t, fault)
			err := tour(lib.Path)
			what := fmt.Sprintf("%+v", fault)
			checkKind(t, what, err)
			if n := lib.Stats().Misuses - misuses; n != 0 {
				t.Errorf("%s: %d misuses: %v", what, n, err)
			}
			if givesBack(name) || waits(name) {
				lib.Reset()
			}
			lib.Clear()
			if after := lib.Stats().Live(); !streamsApart(after, live) {
				t.Fatalf("%s: %v\nbefore %+v\nafter  %+v\n%s", what, err, live, after, lib.Live())
			}
			awaitGivenBack(t, before)
		}
	}
	if runs < 30 {
		t.Errorf("%d calls in a tour", runs)
	}
}

// streamsApart compares without the threads of destroyed streams, which may still
// be on their way out.
func streamsApart(a, b fakecuda.Stats) bool {
	a.Workers, b.Workers = 0, 0
	return a == b
}

// checkKind wants no error (the driver's answer did not matter) or one of a kind
// that callers know.
func checkKind(t *testing.T, what string, err error) {
	t.Helper()
	if errors.Is(err, errWrongBytes) {
		t.Fatalf("%s: %v", what, err)
	}
	if err != nil && !kinded(err) {
		t.Errorf("%s: %v, which is of no kind", what, err)
	}
}

// A device may be lost at any call: everything ends, with ErrUnavailable, and the
// process holds nothing of its own.
func TestTheDeviceMayBeLostAtAnyCall(t *testing.T) {
	lib := fakecuda.Open(t)
	times := timesCalled(t, lib, atMost(2, 20))
	before := heldNow(t)
	codes := []driver.Result{999, driver.DeviceUnavailable, driver.ECCUncorrectable}
	for i, name := range driverCalls {
		for nth := 1; nth <= times[name]; nth++ {
			fault := fakecuda.Fault{Kind: fakecuda.Lost, Call: name, Nth: nth, Value: int(codes[(i+nth)%len(codes)])}
			lib.Inject(t, fault)
			err := tour(lib.Path)
			lib.Reset()
			checkKind(t, fmt.Sprintf("%+v", fault), err)
			if s := lib.Stats(); s.MemoryObjects != 0 || s.Streams != 0 {
				t.Fatalf("%+v: %+v after a reset", fault, s)
			}
			awaitGivenBack(t, before)
		}
	}
}

// tourRole is a process that makes a tour, and dies on the way if its driver says
// so.
func tourRole() error { return tour(os.Getenv(libraryVariable)) }

// Processes that die in the driver give their memory back to those that live.
func TestAProcessMayDieAtAnyCall(t *testing.T) {
	lib := fakecuda.Open(t)
	times := timesCalled(t, lib, 1)
	setup := fakecuda.Setup{Dir: t.TempDir(), Bytes: 8 << 20}
	for i, name := range driverCalls {
		if times[name] == 0 || testing.Short() && i%4 != 0 {
			continue
		}
		setup.Faults = []fakecuda.Fault{{Kind: fakecuda.Die, Call: name, Nth: 1}}
		cmd := otherProcess("tour", lib.Path, setup)
		_ = cmd.Run()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("%s: %v", name, cmd.ProcessState)
		}
	}
	// There is room for one tour, not for what the dead had.
	setup.Faults = nil
	must(t, otherProcess("tour", lib.Path, setup).Run())
}
