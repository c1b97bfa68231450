package gpuipc_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// long is one operation of many chunks from the first half of a region into the
// second half.
type long struct {
	op  gpuipc.Op
	run func(ctx context.Context, d gpuipc.Device, r gpuipc.Region) error
}

const half = 8 << 20

func at(r gpuipc.Region, off, n int64) gpuipc.Ref {
	return gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: off, Len: n}}}
}

var longOnes = []long{
	{gpuipc.OpCopyDigests, func(ctx context.Context, d gpuipc.Device, r gpuipc.Region) error {
		return d.CopyDigests(ctx, at(r, half, half), at(r, 0, half), make([]uint64, gpuipc.Chunks(half)))
	}},
	{gpuipc.OpStore, func(ctx context.Context, d gpuipc.Device, r gpuipc.Region) error {
		return d.Store(ctx, at(r, half, half), bytes.Repeat([]byte{7}, half))
	}},
	{gpuipc.OpCompose, func(ctx context.Context, d gpuipc.Device, r gpuipc.Region) error {
		job := &gpuipc.ComposeJob{Transition: kernel.Dense, Heads: half / 65536, DK: 128, DV: 128, From: at(r, 0, half), Out: at(r, half, half)}
		return d.Compose(ctx, job)
	}},
	{gpuipc.OpRotate, func(ctx context.Context, d gpuipc.Device, r gpuipc.Region) error {
		const tokens, row = 16, 1024
		table := gpuipc.Scatter{Region: r, Base: half, BlockRows: tokens, BlockStride: tokens * row, RowStride: row, HeadStride: row / 2}
		for b := range half / (tokens * row) {
			table.Blocks = append(table.Blocks, uint32(b))
		}
		slices.Reverse(table.Blocks)
		turn := &gpuipc.Rotation{Dims: 64, Cos: slices.Repeat([]float32{1}, 32), Sin: make([]float32, 32)}
		return d.Rotate(ctx, &gpuipc.RotateJob{Rows: half / row, Heads: 2, Dim: 256, Type: kernel.BF16, Turn: turn, Src: at(r, 0, half), Dst: table})
	}},
}

// region makes a region whose first half is filled with fives.
func region(t *testing.T, d gpuipc.Device) gpuipc.Region {
	t.Helper()
	r, err := d.NewRegion(gpuipc.RegionSpec{Name: "stall", Bytes: 2 * half, Access: gpuipc.ClientWrites})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Store(context.Background(), at(r, 0, half), bytes.Repeat([]byte{5}, half)); err != nil {
		t.Fatal(err)
	}
	return r
}

// untouched counts the zero bytes of the second half, as another process that
// maps the memory sees them.
func untouched(t *testing.T, r gpuipc.Region) int {
	t.Helper()
	h, err := r.Export()
	if err != nil {
		t.Fatal(err)
	}
	m, err := gpuipc.Map(h, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return bytes.Count(m.Bytes()[half:], []byte{0})
}

func TestAnOperationStoppedInItsMiddleWritesNothingLater(t *testing.T) {
	for _, l := range longOnes {
		t.Run(l.op.String(), func(t *testing.T) {
			d := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
			r := region(t, d)
			stall := d.StallInside(t, l.op, 2)
			ctx, cancel := context.WithCancel(context.Background())
			result := make(chan error, 1)
			go func() { result <- l.run(ctx, d, r) }()
			stall.Await()
			before := untouched(t, r)
			if before == 0 || before == half {
				t.Errorf("%d bytes untouched: not in the middle", before)
			}
			cancel()
			select {
			case err := <-result:
				t.Fatalf("returned while it stood still: %v", err)
			default:
			}
			stall.Release()
			if err := <-result; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if after := untouched(t, r); after != before {
				t.Errorf("%d bytes untouched before, %d after the context had ended", before, after)
			}
		})
	}
}

func TestNoOperationReturnsBeforeItsLastWorker(t *testing.T) {
	for _, l := range longOnes {
		t.Run(l.op.String(), func(t *testing.T) {
			d := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 3})
			r := region(t, d)
			stall := d.StallInside(t, l.op, 1)
			result := make(chan error, 1)
			go func() { result <- l.run(context.Background(), d, r) }()
			stall.Await()
			// The others finish everything but what the stalled worker holds.
			left, before := untouched(t, r), half
			for left != before || left > half/2 {
				time.Sleep(time.Millisecond)
				before, left = left, untouched(t, r)
			}
			select {
			case err := <-result:
				t.Fatalf("returned with a worker inside: %v", err)
			default:
			}
			stall.Release()
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			if n := untouched(t, r); n != 0 || left == 0 {
				t.Errorf("%d bytes untouched in the end, %d during the stall", n, left)
			}
		})
	}
}

func TestWorkersOfAllOperationsAreBounded(t *testing.T) {
	const workers, operations = 3, 2
	const most = operations + workers - 1 // each caller works too
	arrived, release := make(chan struct{}, 1000), make(chan struct{})
	var entered atomic.Int64
	d, err := gpuipc.NewHost(gpuipc.HostOptions{Workers: workers, Between: func(op gpuipc.Op, _ int) {
		if op == gpuipc.OpDigests {
			entered.Add(1)
			arrived <- struct{}{}
			<-release
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := region(t, d)
	before := runtime.NumGoroutine()
	results := make(chan error, operations)
	for range operations {
		go func() {
			results <- d.Digests(context.Background(), at(r, 0, half), make([]uint64, gpuipc.Chunks(half)))
		}()
	}
	for range most {
		<-arrived
	}
	if n := runtime.NumGoroutine() - before; n > most {
		t.Errorf("%d goroutines work, more than %d", n, most)
	}
	if n := entered.Load(); n > most {
		t.Errorf("%d workers are inside", n)
	}
	close(release)
	for range operations {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}
