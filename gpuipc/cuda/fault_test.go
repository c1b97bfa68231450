package cuda

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/internal/bounded"
	"github.com/spliced-kv/spliced/gpuipc/cuda/kernels"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
)

// everything is one call of every operation on the first bytes of a region.
func everything(ctx context.Context, d gpuipc.Accelerator, r gpuipc.Region, host gpuipc.Region) map[string]error {
	compose := gpuipc.ComposeJob{Transition: 1, Heads: 1, DK: 1, DV: 1, From: at(r, 0, 4), Out: at(r, 64, 4)}
	rotate := gpuipc.RotateJob{Rows: 1, Heads: 1, Dim: 2, Type: 1, Src: at(r, 0, 8), Dst: gpuipc.Scatter{Rows: at(r, 64, 8)}}
	_, newErr := d.NewRegion(gpuipc.RegionSpec{Name: "r", Bytes: 1, Access: gpuipc.ClientReads})
	_, shareErr := r.(gpuipc.SharedRegion).Share(gpuipc.WayDescriptor)
	_, importErr := d.ImportShare(ctx, gpuipc.Share{Way: gpuipc.WayHandle, Device: d.UUID(), Chunks: []gpuipc.Chunk{{Bytes: 1}}})
	_, attachErr := d.AttachHost(host)
	return map[string]error{
		"new region": newErr, "share": shareErr, "import": importErr, "attach": attachErr,
		"copy":        d.CopyDigests(ctx, at(r, 0, 10), at(r, 100, 10), make([]uint64, 1)),
		"digests":     d.Digests(ctx, at(r, 0, 10), make([]uint64, 1)),
		"checksums":   d.Checksums(ctx, at(r, 0, 10), make([]uint64, 1)),
		"load":        d.Load(ctx, make([]byte, 10), at(r, 0, 10)),
		"store":       d.Store(ctx, at(r, 0, 10), make([]byte, 10)),
		"upload":      d.Upload(ctx, at(r, 0, 10), at(host, 0, 10), nil),
		"download":    d.Download(ctx, at(host, 0, 10), at(r, 0, 10), nil),
		"compose":     d.Compose(ctx, &compose),
		"compose all": d.ComposeAll(ctx, []gpuipc.ComposeJob{compose}),
		"rotate":      d.Rotate(ctx, &rotate),
		"rotate all":  d.RotateAll(ctx, []gpuipc.RotateJob{rotate}),
		"replay":      d.Replay(ctx, &gpuipc.ReplayJob{Heads: 1, KeyHeads: 1, DK: 1, DV: 1, Out: at(r, 64, 4)}),
	}
}

func TestALostDeviceAnswersUnavailableAtOnce(t *testing.T) {
	lib := fakecuda.Open(t)
	t.Cleanup(lib.Reset) // what the lost device keeps, as the process' end would
	var said []string
	acc, err := Open(Options{Library: lib.Path, Log: func(s string) { said = append(said, s) }})
	must(t, err)
	host := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	memory := newRegion(t, host, gpuipc.RegionSpec{Bytes: 4096})
	other := newRegion(t, host, gpuipc.RegionSpec{Bytes: 4096})
	r, err := acc.NewRegion(gpuipc.RegionSpec{Name: "r", Bytes: 4096, Access: gpuipc.ClientWrites})
	must(t, err)
	detach, err := acc.AttachHost(memory)
	must(t, err)
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Lost, Call: "run.copy", Nth: 1, Value: 999})
	if err := acc.Store(t.Context(), at(r, 0, 10), make([]byte, 10)); !errors.Is(err, gpuipc.ErrUnavailable) || !errors.Is(err, driver.Unknown) {
		t.Errorf("the call that lost it: %v", err)
	}
	before := lib.Calls("*")
	for name, err := range everything(t.Context(), acc, r, memory) {
		if !errors.Is(err, gpuipc.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := acc.AttachHost(other); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("attach: %v", err)
	}
	if n := lib.Calls("*") - before; n != 0 {
		t.Errorf("%d calls of the driver after the loss", n)
	}
	if len(said) != 1 || !strings.Contains(said[0], "lost") {
		t.Errorf("said %q", said)
	}
	// Everything can still be let go of.
	must(t, errors.Join(detach(), r.Close(), acc.Close()))
}

func TestNoRoomIsFull(t *testing.T) {
	for _, chunk := range []int64{0, 2 << 20} {
		t.Run(fmt.Sprintf("chunks of %d bytes", chunk), func(t *testing.T) {
			lib := fakecuda.Open(t)
			lib.Set(t, "MEM", "16M")
			d, _ := openFake(t, Options{ChunkBytes: chunk})
			for _, way := range []gpuipc.Way{gpuipc.WayDescriptor, gpuipc.WayHandle} {
				spec := gpuipc.RegionSpec{Name: "r", Bytes: 32 << 20, Access: gpuipc.ClientWrites, Way: way}
				if _, err := d.NewRegion(spec); !errors.Is(err, gpuipc.ErrFull) {
					t.Errorf("way %d: %v", way, err)
				}
				spec.Bytes = 8 << 20 // the failure before left nothing behind
				r, err := d.NewRegion(spec)
				if err != nil {
					t.Fatalf("way %d: %v", way, err)
				}
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestScratchThatDoesNotFitIsFull(t *testing.T) {
	fakecuda.Open(t).Set(t, "MEM", "9M")
	d, _ := openFake(t, Options{})
	r := newRegion(t, d, gpuipc.RegionSpec{Bytes: 8 << 20})
	job := &gpuipc.ComposeJob{Transition: 1, Heads: 1, DK: 1024, DV: 700, From: at(r, 0, 4*1024*700), Out: gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{
		{Off: 4 << 20, Len: 1024}, {Off: 5 << 20, Len: 4*1024*700 - 1024},
	}}}
	if err := d.Compose(t.Context(), job); !errors.Is(err, gpuipc.ErrFull) {
		t.Errorf("an operand that must be gathered: %v", err)
	}
	if err := d.Store(t.Context(), at(r, 0, 8), make([]byte, 8)); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func TestEveryFailureOfStartingIsUndone(t *testing.T) {
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	for _, call := range []string{"cuMemGetAllocationGranularity", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuModuleLoadDataEx",
		"cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncSetAttribute",
		"cuDeviceGetUuid_v2", "cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDeviceGetCount", "cuDeviceGet"} {
		lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: call, Nth: 1, Value: 304})
		d, err := Open(Options{Library: lib.Path})
		lib.Clear()
		if call == "cuMemGetAllocationGranularity" { // then regions leave by handle
			if err != nil {
				t.Errorf("%s: %v", call, err)
			} else if err := d.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, gpuipc.ErrUnavailable) {
			t.Errorf("%s: %v", call, err)
		}
	}
	for name, o := range map[string]Options{
		"no such library": {Library: "/nowhere/libcuda.so.1"},
		"another device":  {Library: lib.Path, Device: "GPU-00000000-0000-0000-0000-00000000ffff"},
	} {
		if _, err := Open(o); !errors.Is(err, gpuipc.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []Options{{Library: lib.Path, Device: "7"}, {Streams: -1}, {Streams: maxStreams + 1}, {ChunkBytes: -1}, {CallTimeout: -1}} {
		if _, err := Open(o); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestKernelsAreLoadedBeforeTheFirstLaunch(t *testing.T) {
	d, lib := openFake(t, Options{})
	r := newRegion(t, d, gpuipc.RegionSpec{Bytes: 4096})
	if n := len(kernels.Entries(kernels.PTX())); len(d.kernels.functions) != n || n == 0 {
		t.Errorf("%d of %d kernels", len(d.kernels.functions), n)
	}
	calls := func() (n uint64) {
		for _, name := range []string{"cuModuleGetFunction", "cuFuncGetAttribute", "cuFuncSetAttribute"} {
			n += lib.Calls(name)
		}
		return n
	}
	before := calls()
	if before == 0 {
		t.Error("nothing was loaded")
	}
	must(t, d.Digests(t.Context(), at(r, 0, 10), make([]uint64, 1)))
	if n := calls() - before; n != 0 {
		t.Errorf("%d calls about kernels at a launch", n)
	}
}

// liveIn is what is live without the threads of streams, which end when they end.
func liveIn(lib *fakecuda.Library) fakecuda.Stats {
	s := lib.Stats().Live()
	s.Workers = 0
	return s
}

func TestAFailureInTheMiddleLeavesNothing(t *testing.T) {
	d, lib := openFake(t, Options{ChunkBytes: 2 << 20})
	calls := []string{"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuStreamCreate", "cuMemsetD8Async", "cuMemAlloc_v2"}
	for _, call := range calls {
		for nth := 1; nth <= 2; nth++ {
			before := liveIn(lib)
			lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: call, Nth: nth, Value: 304})
			way := gpuipc.WayDescriptor
			if call == "cuMemAlloc_v2" {
				way = gpuipc.WayHandle
			}
			r, err := d.NewRegion(gpuipc.RegionSpec{Name: "r", Bytes: 6 << 20, Access: gpuipc.ClientWrites, Way: way})
			lib.Clear()
			if err == nil {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, gpuipc.ErrUnavailable) {
				t.Errorf("%s, call %d: %v", call, nth, err)
			}
			if after := liveIn(lib); after != before {
				t.Errorf("%s, call %d: before %+v, after %+v", call, nth, before, after)
			}
		}
	}
}

// awaitUnstuck waits for calls that nobody waits for to end. Nothing tells but
// their number.
func awaitUnstuck(t *testing.T, d *device) {
	t.Helper()
	for start := time.Now(); d.Counters().StuckCalls != 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("%d calls are stuck", d.Counters().StuckCalls)
		}
	}
}

func TestAStuckImportIsLeftBehind(t *testing.T) {
	d, lib := openFake(t, Options{CallTimeout: 500 * time.Millisecond})
	own := newRegion(t, d, gpuipc.RegionSpec{Bytes: 2 << 20}).(gpuipc.SharedRegion)
	share := func() gpuipc.Share {
		s, err := own.Share(gpuipc.WayDescriptor)
		must(t, err)
		return s
	}
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuMemImportFromShareableHandle"})
	before := lib.Stats()
	var group sync.WaitGroup
	for range bounded.Most + 3 { // three more than goroutines may hang
		s := share()
		group.Go(func() {
			if _, err := d.ImportShare(context.Background(), s); !errors.Is(err, gpuipc.ErrUnavailable) {
				t.Errorf("import: %v", err)
			}
		})
	}
	group.Wait()
	awaitHanging(t, lib, bounded.Most)
	if c := d.Counters(); c.StuckCalls != bounded.Most || c.LateCalls != bounded.Most {
		t.Errorf("%+v, want %d stuck calls", c, bounded.Most)
	}
	// The device goes on meanwhile.
	if err := d.Store(t.Context(), at(own, 0, 8), make([]byte, 8)); err != nil {
		t.Error(err)
	}
	lib.Clear()
	lib.Release()
	awaitUnstuck(t, d)
	// What they made in the end was given back, and there is room again.
	r, err := d.ImportShare(t.Context(), share())
	must(t, err)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	after := lib.Stats()
	if after.Physical != before.Physical || after.Mappings != before.Mappings || after.Reservations != before.Reservations {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestAStuckCloseDoesNotHoldItsCaller(t *testing.T) {
	d, lib := openFake(t, Options{CallTimeout: 500 * time.Millisecond})
	own, err := d.NewRegion(gpuipc.RegionSpec{Name: "own", Bytes: 2 << 20, Access: gpuipc.ClientWrites})
	must(t, err)
	s, err := own.(gpuipc.SharedRegion).Share(gpuipc.WayDescriptor)
	must(t, err)
	r, err := d.ImportShare(t.Context(), s)
	must(t, errors.Join(err, own.Close()))
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuMemUnmap", Nth: 1})
	if err := r.Close(); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("close: %v", err)
	}
	if n := d.Counters().StuckCalls; n != 1 {
		t.Errorf("%d stuck calls", n)
	}
	if err := r.Close(); !errors.Is(err, gpuipc.ErrInvalid) {
		t.Errorf("second close: %v", err)
	}
	if err := d.Close(); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("close of the device under a call: %v", err)
	}
	awaitHanging(t, lib, 1)
	lib.Release()
	awaitUnstuck(t, d)
}
