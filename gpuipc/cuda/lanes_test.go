package cuda

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// awaitHanging waits until the driver holds n calls or operations.
func awaitHanging(t *testing.T, lib *fakecuda.Library, n uint64) {
	t.Helper()
	for start := time.Now(); lib.Stats().Hanging != n; time.Sleep(time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("%d calls hang, want %d", lib.Stats().Hanging, n)
		}
	}
}

func TestCallersWaitForAStreamWithTheirContext(t *testing.T) {
	d, lib := openFake(t, Options{Streams: 1})
	r := newRegion(t, d, gpuipc.RegionSpec{Bytes: 4096})
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.copy", Nth: 1})
	first := make(chan error, 1)
	go func() { first <- d.Store(context.Background(), at(r, 0, 3), []byte("abc")) }()
	awaitHanging(t, lib, 1)
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() { second <- d.Store(ctx, at(r, 8, 3), []byte("def")) }()
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("the second caller: %v", err)
	}
	lib.Release()
	if err := <-first; err != nil {
		t.Errorf("the first caller: %v", err)
	}
	got := make([]byte, 11)
	if err := d.Load(t.Context(), got, at(r, 0, 11)); err != nil || string(got) != "abc\x00\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAWordDoesNotWaitForCopies(t *testing.T) {
	d, lib := openFake(t, Options{Streams: 1})
	r := newRegion(t, d, gpuipc.RegionSpec{Bytes: 4096})
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.copy", Nth: 1})
	first := make(chan error, 1)
	go func() { first <- d.Store(context.Background(), at(r, 0, 100), make([]byte, 100)) }()
	awaitHanging(t, lib, 1)
	want, got := []byte("12345678"), make([]byte, wordBytes)
	if err := errors.Join(d.Store(t.Context(), at(r, 128, 8), want), d.Load(t.Context(), got, at(r, 128, 8))); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	lib.Release()
	must(t, <-first)
}

func TestStreamsAreBounded(t *testing.T) {
	d, _ := openFake(t, Options{Streams: 3})
	r := newRegion(t, d, gpuipc.RegionSpec{Bytes: 1 << 20})
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			off := int64(i) * 1024
			want := bytes.Repeat([]byte{byte(i + 1)}, 1024)
			got := make([]byte, 1024)
			err := errors.Join(d.Store(context.Background(), at(r, off, 1024), want), d.Load(context.Background(), got, at(r, off, 1024)))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	group.Wait()
	if n := d.Counters().Lanes; n < 1 || n > 3 {
		t.Errorf("%d streams were made", n)
	}
}

// uploading is a device beside an attached host region of sevens.
type uploading struct {
	*device
	lib    *fakecuda.Library
	hbm    gpuipc.Region
	memory gpuipc.Region
	detach func() error
}

func newUploading(t *testing.T, n int64) *uploading {
	t.Helper()
	host := gpuipctest.HostDevice(t, gpuipc.HostOptions{})
	u := &uploading{}
	u.device, u.lib = openFake(t, Options{})
	u.memory = newRegion(t, host, gpuipc.RegionSpec{Bytes: n})
	must(t, host.Store(t.Context(), at(u.memory, 0, n), bytes.Repeat([]byte{7}, int(n))))
	u.hbm = newRegion(t, u.device, gpuipc.RegionSpec{Bytes: n})
	var err error
	if u.detach, err = u.AttachHost(u.memory); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestAnEndedContextStopsAnUploadBetweenPieces(t *testing.T) {
	const pieces = 5
	const n = pieces * copyPiece
	u := newUploading(t, n)
	u.lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.copy", Nth: 2})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- u.Upload(ctx, at(u.hbm, 0, n), at(u.memory, 0, n), nil) }()
	awaitHanging(t, u.lib, 1)
	cancel()
	select {
	case err := <-result:
		t.Fatalf("returned with a copy under way: %v", err)
	default:
	}
	u.lib.Release()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	got := make([]byte, n)
	must(t, errors.Join(u.Load(t.Context(), got, at(u.hbm, 0, n)), u.detach()))
	if copied := bytes.Count(got, []byte{7}); copied < 2*copyPiece || copied > 3*copyPiece {
		t.Errorf("%d of %d bytes were copied, want two or three pieces of %d", copied, int64(n), copyPiece)
	}
}

func TestDetachWaitsForWhatRuns(t *testing.T) {
	u := newUploading(t, 4096)
	u.lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.copy", Nth: 1})
	result, detached := make(chan error, 1), make(chan error, 1)
	go func() { result <- u.Upload(context.Background(), at(u.hbm, 0, 4096), at(u.memory, 0, 4096), nil) }()
	awaitHanging(t, u.lib, 1)
	go func() { detached <- u.detach() }()
	// Once it is ending, nobody new comes in.
	for {
		err := u.Upload(t.Context(), at(u.hbm, 0, 0), at(u.memory, 0, 0), nil)
		if errors.Is(err, gpuipc.ErrInvalid) {
			break
		}
		must(t, err)
	}
	select {
	case err := <-detached:
		t.Fatalf("detached under an upload: %v", err)
	default:
	}
	if n := u.lib.Stats().Registered; n == 0 {
		t.Error("unregistered under an upload")
	}
	u.lib.Release()
	if err := errors.Join(<-result, <-detached); err != nil {
		t.Error(err)
	}
	if err := u.detach(); !errors.Is(err, gpuipc.ErrInvalid) {
		t.Errorf("second detach: %v", err)
	}
}

func TestARegionIsNotClosedUnderAnOperation(t *testing.T) {
	d, lib := openFake(t, Options{})
	r := newRegion(t, d, gpuipc.RegionSpec{Bytes: 4096})
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Hang, Call: "run.copy", Nth: 1})
	result := make(chan error, 1)
	go func() { result <- d.Store(context.Background(), at(r, 0, 1), []byte{1}) }()
	awaitHanging(t, lib, 1)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("closed under an operation")
			}
		}()
		_ = r.Close()
	}()
	lib.Release()
	must(t, <-result)
}

func TestHostMemoryThatIsNotPinnedIsSaidOnce(t *testing.T) {
	lib := fakecuda.Open(t)
	lib.LeakCheck(t)
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuMemHostRegister_v2", Value: 304})
	var mu sync.Mutex
	var said []string
	d, err := Open(Options{Library: lib.Path, Log: func(s string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, s)
	}})
	must(t, err)
	host := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	memory := newRegion(t, host, gpuipc.RegionSpec{Bytes: 3 * stagingBytes})
	r, err := d.NewRegion(gpuipc.RegionSpec{Name: "r", Bytes: 3 * stagingBytes, Access: gpuipc.ClientWrites})
	must(t, err)
	detach, err := d.AttachHost(memory)
	must(t, err)
	const n = 3*stagingBytes - 5
	if err := d.Upload(t.Context(), at(r, 0, n), at(memory, 5, n), make([]uint64, gpuipc.Chunks(n))); err != nil {
		t.Error(err)
	}
	if c := d.(*device).Counters(); c.Unpinned != n {
		t.Errorf("%+v", c)
	}
	if err := errors.Join(detach(), r.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "not pinned") {
		t.Errorf("said %q", said)
	}
}

// TestABlockTableStaysInOneChunk: chunks that come as handles lie anywhere.
func TestABlockTableStaysInOneChunk(t *testing.T) {
	dir := t.TempDir()
	fakecuda.Open(t).Set(t, "DIR", dir)
	d, lib := openFake(t, Options{})
	e := startEngine(t, lib, fakecuda.Setup{Dir: dir})
	const half = 2 << 20
	first, second := e.share.Chunks[0], e.share.Chunks[0]
	first.Bytes, second.Bytes = half, half
	second.Off += half
	share := gpuipc.Share{Way: gpuipc.WayHandle, Device: e.share.Device, Chunks: []gpuipc.Chunk{second, first}}
	r, err := d.ImportShare(t.Context(), share)
	must(t, err)
	own := newRegion(t, d, gpuipc.RegionSpec{Bytes: 4096})
	const tokens, row = 2, 64
	job := &gpuipc.RotateJob{Rows: 4, Heads: 2, Dim: 16, Type: kernel.F16, Src: at(own, 0, 4*row), Dst: gpuipc.Scatter{
		Region: r, BlockRows: tokens, BlockStride: tokens * row, RowStride: row, HeadStride: row / 2,
	}}
	const border = half / (tokens * row) // first block of the second chunk
	job.Dst.Blocks = []uint32{border - 1, border}
	if err := d.Rotate(t.Context(), job); !errors.Is(err, gpuipc.ErrInvalid) {
		t.Errorf("a table over both chunks: %v", err)
	}
	job.Dst.Blocks = []uint32{border + 1, border}
	want := bytes.Repeat([]byte{5}, 2*half)
	if err := errors.Join(
		d.Store(t.Context(), at(r, 0, 2*half), want),
		d.Store(t.Context(), at(own, 0, 4*row), slices.Repeat([]byte{1, 2}, 2*row)),
		d.Rotate(t.Context(), job),
	); err != nil {
		t.Fatal(err)
	}
	copy(want[half:], slices.Repeat([]byte{1, 2}, 2*row))
	got := make([]byte, 2*half)
	if err := d.Load(t.Context(), got, at(r, 0, 2*half)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the second chunk begins with %v, %v", got[half:half+4], err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	e.fillAndEnd(t, d)
}

func TestDevicesAreDescribed(t *testing.T) {
	lib := fakecuda.Open(t)
	all, err := Devices(lib.Path)
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	i := all[0]
	if i.Name == "" || i.Bytes <= 0 || i.Major < 8 || i.Driver < 11080 || i.Mode != "default" || !i.Descriptors || !i.WaitValues {
		t.Errorf("%+v", i)
	}
	if _, err := Devices("/nowhere/libcuda.so.1"); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("no library: %v", err)
	}
	d, _ := openFake(t, Options{Device: i.UUID.String()})
	if d.UUID() != i.UUID || d.Describe().Kind != "cuda" || d.Describe().Name != i.Name {
		t.Errorf("%v, %+v", d.UUID(), d.Describe())
	}
}
