package cuda

import (
	"bytes"
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
)

// openTwo opens both devices of a machine that has two.
func openTwo(t *testing.T) (devices [2]gpuipc.Accelerator, lib *fakecuda.Library) {
	t.Helper()
	lib = fakecuda.Open(t)
	lib.Set(t, "DEVICES", "2")
	lib.LeakCheck(t)
	list, err := Devices(lib.Path)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d devices, %v", len(list), err)
	}
	for i := range devices {
		if devices[i], err = Open(Options{Library: lib.Path, Device: list[i].UUID.String()}); err != nil {
			t.Fatal(err)
		}
		if devices[i].UUID() != list[i].UUID {
			t.Errorf("device %d is %v, want %v", i, devices[i].UUID(), list[i].UUID)
		}
	}
	return devices, lib
}

// Host memory is registered once for all devices of a process, and each can copy it.
func TestDevicesShareRegisteredMemory(t *testing.T) {
	devices, lib := openTwo(t)
	host := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	memory := newRegion(t, host, gpuipc.RegionSpec{Bytes: 1 << 20})
	before := lib.Stats().RegisteredBytes
	var detaches []func() error
	for i, d := range devices {
		detach, err := d.AttachHost(memory)
		if err != nil {
			t.Fatalf("device %d: %v", i, err)
		}
		detaches = append(detaches, detach)
	}
	if n := lib.Stats().RegisteredBytes - before; n != 1<<20 {
		t.Errorf("%d bytes are registered, want %d", n, 1<<20)
	}
	want := bytes.Repeat([]byte("spliced "), 512)
	must(t, host.Store(t.Context(), at(memory, 0, 4096), want))
	for i, d := range devices {
		r, err := d.NewRegion(gpuipc.RegionSpec{Name: "copy", Bytes: 4096, Access: gpuipc.ClientWrites})
		must(t, err)
		got := make([]byte, 4096)
		if err := errors.Join(d.Upload(t.Context(), at(r, 0, 4096), at(memory, 0, 4096), nil), d.Load(t.Context(), got, at(r, 0, 4096))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("device %d: equal is %v, %v", i, bytes.Equal(got, want), err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	for i, d := range devices {
		if err := errors.Join(detaches[i](), d.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A device that is lost takes no other with it.
func TestALostDeviceLeavesTheOther(t *testing.T) {
	devices, lib := openTwo(t)
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Lost, Call: "run.copy@0", Nth: 1, Value: 999})
	load := func(d gpuipc.Accelerator) error {
		r, err := d.NewRegion(gpuipc.RegionSpec{Name: "bytes", Bytes: 4096, Access: gpuipc.ClientWrites})
		if err != nil {
			return err
		}
		defer r.Close()
		return d.Load(t.Context(), make([]byte, 4096), at(r, 0, 4096))
	}
	if err := load(devices[0]); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("on the lost device: %v", err)
	}
	if err := load(devices[1]); err != nil {
		t.Errorf("on the other: %v", err)
	}
	for i, want := range []bool{true, false} {
		if got := devices[i].(*device).Lost(); got != want {
			t.Errorf("device %d is lost: %v, want %v", i, got, want)
		}
	}
	if err := errors.Join(devices[0].Close(), devices[1].Close()); err != nil {
		t.Error(err)
	}
	lib.Reset()
}

// One that does not answer what it is costs those who want another nothing.
func TestADeviceThatCannotBeAskedCostsItselfOnly(t *testing.T) {
	lib := fakecuda.Open(t)
	lib.Set(t, "DEVICES", "2")
	lib.LeakCheck(t)
	lib.Inject(t, fakecuda.Fault{Kind: fakecuda.Fail, Call: "cuDeviceGetAttribute@0", Nth: 0, Value: 999})
	list, err := Devices(lib.Path)
	if err != nil || len(list) != 2 || list[0].Trouble == "" || list[1].Trouble != "" || list[0].UUID == (gpuipc.UUID{}) {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := Open(Options{Library: lib.Path, Device: list[0].UUID.String()}); !errors.Is(err, gpuipc.ErrUnavailable) {
		t.Errorf("the device that cannot be asked: %v", err)
	}
	other, err := Open(Options{Library: lib.Path, Device: list[1].UUID.String()})
	must(t, err)
	must(t, other.Close())
}
