package cuda

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
)

// pieces is a host region of a few pieces and as much device memory.
type pieces struct {
	device *device
	lib    *fakecuda.Library
	host   gpuipc.Device
	memory gpuipc.Region
	hbm    gpuipc.Region
}

const testPiece = 64 << 10

func newPieces(t *testing.T, o Options, bytes int64) *pieces {
	t.Helper()
	p := &pieces{host: gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})}
	p.device, p.lib = openFake(t, o)
	p.device.attachPiece = testPiece
	p.memory = newRegion(t, p.host, gpuipc.RegionSpec{Bytes: bytes})
	p.hbm = newRegion(t, p.device, gpuipc.RegionSpec{Bytes: bytes})
	return p
}

// thereAndBack sends n numbers at off to the device and fetches them to where they
// came from.
func (p *pieces) thereAndBack(t *testing.T, off, n int64) {
	t.Helper()
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i % 251)
	}
	got := make([]byte, n)
	ctx, memory, hbm := t.Context(), at(p.memory, off, n), at(p.hbm, off, n)
	if err := errors.Join(
		p.host.Store(ctx, memory, want),
		p.device.Upload(ctx, hbm, memory, nil),
		p.host.Store(ctx, memory, got),
		p.device.Download(ctx, memory, hbm, nil),
		p.host.Load(ctx, got, memory),
	); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes at %d: equal is %v, %v", n, off, bytes.Equal(got, want), err)
	}
}

func TestHostMemoryIsPinnedInPieces(t *testing.T) {
	p := newPieces(t, Options{}, 3*testPiece+4096)
	before := p.lib.Calls("cuMemHostRegister_v2")
	detach, err := p.device.AttachHost(p.memory)
	must(t, err)
	if n := p.lib.Calls("cuMemHostRegister_v2") - before; n != 4 {
		t.Errorf("%d calls, want one for each piece", n)
	}
	p.thereAndBack(t, testPiece-100, 2*testPiece+200) // over two borders
	p.thereAndBack(t, 3*testPiece, 4096)
	if n := p.device.Counters().Unpinned; n != 0 {
		t.Errorf("%d bytes went through buffers", n)
	}
	before = p.lib.Calls("cuMemHostUnregister")
	if err := detach(); err != nil {
		t.Error(err)
	}
	if n := p.lib.Calls("cuMemHostUnregister") - before; n != 4 {
		t.Errorf("%d pieces were given back", n)
	}
}

func TestASlowDriverPinsBehindTheStart(t *testing.T) {
	var mu sync.Mutex
	var said []string
	p := newPieces(t, Options{AttachWait: time.Millisecond, Log: func(s string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, s)
	}}, 3*testPiece)
	p.lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuMemHostRegister_v2", Nth: 2})
	detach, err := p.device.AttachHost(p.memory)
	must(t, err)
	awaitHanging(t, p.lib, 1)
	p.thereAndBack(t, 0, testPiece)
	if n := p.device.Counters().Unpinned; n != 0 {
		t.Errorf("%d bytes of the first piece went through buffers", n)
	}
	p.thereAndBack(t, 100, testPiece)
	if n := p.device.Counters().Unpinned; n != 2*testPiece {
		t.Errorf("%d bytes went through buffers, want %d each way", n, testPiece)
	}
	mu.Lock()
	if len(said) != 1 || !strings.Contains(said[0], "the rest follows") {
		t.Errorf("said %q", said)
	}
	mu.Unlock()
	p.lib.Release()
	must(t, detach())
}

func TestDetachEndsThePinning(t *testing.T) {
	p := newPieces(t, Options{AttachWait: time.Millisecond}, 64*testPiece)
	p.lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "cuMemHostRegister_v2", Nth: 2})
	detach, err := p.device.AttachHost(p.memory)
	must(t, err)
	awaitHanging(t, p.lib, 1)
	a := p.device.attached.get(p.memory)
	detached := make(chan error, 1)
	go func() { detached <- detach() }()
	for !a.stopping.Load() {
		select {
		case err := <-detached:
			t.Fatalf("detached under a call: %v", err)
		default:
			time.Sleep(time.Millisecond)
		}
	}
	p.lib.Release()
	if err := <-detached; err != nil {
		t.Error(err)
	}
	if n := a.pinned.Load(); n != 2*testPiece {
		t.Errorf("%d bytes were pinned, want the two pieces that had begun", n)
	}
}

func TestALossWhileMemoryIsPinnedIsTold(t *testing.T) {
	lib := fakecuda.Open(t)
	t.Cleanup(lib.Reset)
	d, err := Open(Options{Library: lib.Path})
	must(t, err)
	d.(*device).attachPiece = testPiece
	host := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	memory := newRegion(t, host, gpuipc.RegionSpec{Bytes: 3 * testPiece})
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Lost, Call: "cuMemHostRegister_v2", Nth: 2, Value: 700})
	if _, err := d.AttachHost(memory); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("attach: %v", err)
	}
	must(t, d.Close())
}

func TestChunksOfHandlesKeepAlignment(t *testing.T) {
	d, _ := openFake(t, Options{})
	for name, chunks := range map[string][]gpuipc.Chunk{
		"an odd offset":       {{Bytes: 64, Off: 8}},
		"an odd size between": {{Bytes: 24}, {Bytes: 64}},
	} {
		s := gpuipc.Share{Way: gpuipc.WayHandle, Device: d.UUID(), Chunks: chunks}
		if _, err := d.ImportShare(context.Background(), s); !errors.Is(err, gpuipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The end of the last one is free; only the driver refuses it here.
	s := gpuipc.Share{Way: gpuipc.WayHandle, Device: d.UUID(), Chunks: []gpuipc.Chunk{{Bytes: 64}, {Bytes: 25}}}
	if _, err := d.ImportShare(context.Background(), s); errors.Is(err, gpuipc.ErrInvalid) {
		t.Errorf("an odd end: %v", err)
	}
}
