package gpuipctest

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

func TestFailFailsOneCallAndDoesNothing(t *testing.T) {
	d := HostDevice(t, gpuipc.HostOptions{Workers: 1})
	r, err := d.NewRegion(gpuipc.RegionSpec{Name: "r", Bytes: 4096, Access: gpuipc.ClientReads})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ref := gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: 0, Len: 1}}}
	broken := errors.New("broken")
	d.Fail(gpuipc.OpStore, 2, broken)
	for i, want := range []error{nil, broken, nil} {
		if err := d.Store(context.Background(), ref, []byte{byte(i + 1)}); !errors.Is(err, want) {
			t.Errorf("call %d: %v", i, err)
		}
		got := make([]byte, 1)
		if err := d.Load(context.Background(), got, ref); err != nil {
			t.Fatal(err)
		}
		if stored := [...]byte{1, 1, 3}[i]; got[0] != stored {
			t.Errorf("after call %d the byte is %d", i, got[0])
		}
	}
	if n := d.Calls(gpuipc.OpStore); n != 3 {
		t.Errorf("%d calls counted", n)
	}
}

func TestAFailedImportTakesTheDescriptor(t *testing.T) {
	d := HostDevice(t, gpuipc.HostOptions{})
	broken := errors.New("broken")
	d.Fail(gpuipc.OpImport, 1, broken)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Import(gpuipc.Handle{File: f, Bytes: 1}); !errors.Is(err, broken) {
		t.Error(err)
	}
	if f.Close() == nil {
		t.Error("the descriptor is still open")
	}
}

func TestAStalledCallWaitsEvenWhenItsContextEnds(t *testing.T) {
	d := HostDevice(t, gpuipc.HostOptions{})
	stall := d.Stall(t, gpuipc.OpDigests, 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	result := make(chan error, 1)
	go func() { result <- d.Digests(ctx, gpuipc.Ref{}, nil) }()
	stall.Await()
	select {
	case err := <-result:
		t.Fatalf("returned: %v", err)
	default:
	}
	stall.Release()
	stall.Release()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
