package gpuipctest

import (
	"context"
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

// pair is an accelerator with a region beside an attached host region.
type pair struct {
	*testing.T
	acc    *Accelerator
	host   *Device
	memory gpuipc.Region // of the host
	hbm    gpuipc.Region
}

func newPair(t *testing.T, bytes int64) *pair {
	p := &pair{T: t, host: HostDevice(t, gpuipc.HostOptions{Workers: 1})}
	p.acc = NewAccelerator(t, p.host)
	var err error
	spec := gpuipc.RegionSpec{Name: "r", Bytes: bytes, Access: gpuipc.ClientReads}
	if p.memory, err = p.host.NewRegion(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.memory.Close() })
	if p.hbm, err = p.acc.NewRegion(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.hbm.Close() })
	detach, err := p.acc.AttachHost(p.memory)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := detach(); err != nil || p.acc.Attached() != 0 {
			t.Errorf("detach: %v, %d regions stay attached", err, p.acc.Attached())
		}
	})
	return p
}

func whole(r gpuipc.Region, n int64) gpuipc.Ref {
	return gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Off: n / 2, Len: n - n/2}, {Off: 0, Len: n / 2}}}
}

func TestAcceleratorConforms(t *testing.T) {
	Conformance(t, func(t testing.TB) gpuipc.Device {
		return NewAccelerator(t, HostDevice(t, gpuipc.HostOptions{Workers: 1}))
	})
	AcceleratorConformance(t, func(t testing.TB) (gpuipc.Accelerator, gpuipc.Device) {
		host := HostDevice(t, gpuipc.HostOptions{Workers: 1})
		return NewAccelerator(t, host), host
	})
}

func TestAShareIsTheSameMemory(t *testing.T) {
	p := newPair(t, 8192)
	ctx := context.Background()
	share, err := p.hbm.(gpuipc.SharedRegion).Share(gpuipc.WayDescriptor)
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.acc.ImportShare(ctx, share)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	got := make([]byte, 4)
	err = errors.Join(p.acc.Store(ctx, whole(p.hbm, 4), []byte("abcd")), p.acc.Load(ctx, got, whole(other, 4)))
	if err != nil || string(got) != "abcd" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestALostAcceleratorStaysLost(t *testing.T) {
	p := newPair(t, 8192)
	p.acc.Lose()
	ctx := context.Background()
	hbm := whole(p.hbm, 4096)
	_, regionErr := p.acc.NewRegion(gpuipc.RegionSpec{Name: "r", Bytes: 4096})
	for what, err := range map[string]error{
		"upload": p.acc.Upload(ctx, hbm, whole(p.memory, 4096), nil), "region": regionErr,
		"compose": p.acc.ComposeAll(ctx, nil), "rotate": p.acc.RotateAll(ctx, nil),
	} {
		if !errors.Is(err, gpuipc.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
