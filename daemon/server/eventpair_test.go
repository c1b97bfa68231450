package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// Behind the number comes the event: a release waits for both.
func TestAReleaseWaitsForTheEventBehindTheNumber(t *testing.T) {
	lib := fakecuda.Open(t)
	lib.Set(t, "NOWAITVALUE", "1")
	lib.Set(t, "DIR", t.TempDir())
	lib.LeakCheck(t)
	device := openDevice(t, lib.Path)
	region, err := device.NewRegion(gpuipc.RegionSpec{Name: "order", Bytes: order.PageBytes, Access: gpuipc.ClientWrites})
	must(t, err)
	defer region.Close()
	l := &attachedGPU{}
	l.order, err = order.In(device, region, 0)
	if err == nil {
		l.pair, err = newEventPair(device)
	}
	ctx := t.Context()
	must(t, errors.Join(err, l.order.Clear(ctx)))
	defer func() {
		if err := l.pair.close(); err != nil {
			t.Error(err)
		}
	}()

	short, stop := context.WithTimeout(ctx, 10*time.Millisecond)
	defer stop()
	if err := l.passed(short, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no number: %v", err)
	}
	asked := lib.Calls("cuEventQuery")
	if err := errors.Join(l.order.Signal(ctx, order.Client, 1), l.passed(ctx, 1)); err != nil {
		t.Error(err)
	}
	if lib.Calls("cuEventQuery") == asked {
		t.Error("the event was not asked for")
	}
	recorded := lib.Calls("cuEventRecord")
	if err := l.signal(ctx, 5); err != nil {
		t.Error(err)
	}
	if v, err := l.order.Read(ctx, order.Daemon); v != 5 || err != nil {
		t.Errorf("the daemon's slot is at %d, %v", v, err)
	}
	if lib.Calls("cuEventRecord") == recorded {
		t.Error("the daemon's event was not recorded")
	}
}

func openDevice(t testing.TB, library string) gpuipc.Accelerator {
	t.Helper()
	device, err := cuda.Open(cuda.Options{Library: library})
	must(t, err)
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Errorf("closing the engine's device: %v", err)
		}
	})
	return device
}
