package daemon

import (
	"context"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// clocked is an accelerator whose composes are timed.
type clocked struct {
	gpuipc.Accelerator
	took atomic.Int64 // nanoseconds of the last one
}

func (d *clocked) ComposeAll(ctx context.Context, jobs []gpuipc.ComposeJob) error {
	begun := time.Now()
	err := d.Accelerator.ComposeAll(ctx, jobs)
	d.took.Store(int64(time.Since(begun)))
	return err
}

// BenchmarkOnDevice is what requests about device memory cost beside the device:
// beside-p50-us is the round trip without the call of the device. On the fake
// driver kernels are emulated and take milliseconds, which leaves caches cold and
// has a stand-in read for the busy reader; on the double they take microseconds.
func BenchmarkOnDevice(b *testing.B) {
	b.Run("fake", func(b *testing.B) {
		device, err := cuda.Open(cuda.Options{Library: fakecuda.Open(b).Path})
		must(b, err)
		b.Cleanup(func() { device.Close() })
		onDeviceOf(b, device, nil)
	})
	b.Run("double", func(b *testing.B) {
		host := gpuipctest.HostDevice(b, gpuipc.HostOptions{Workers: 1})
		onDeviceOf(b, gpuipctest.NewAccelerator(b, host), host)
	})
}

func onDeviceOf(b *testing.B, device gpuipc.Accelerator, host *gpuipctest.Device) {
	watched := &clocked{Accelerator: device}
	parts := Parts{Accelerators: []gpuipc.Accelerator{watched}}
	if host != nil { // whose regions the double takes
		parts.Device = host
	}
	r := startParts(b, deviceConfig(b), parts)
	d := newDocument(testProfile(1), nil, 1, 64, profile.RoleFirst)
	c, lease := attachedFake(b, r, d)

	b.Run("compose/layer", func(b *testing.B) {
		m := &wire.ComposeRequest{Profile: c.profile, Layer: 0, Plan: onePlan(lease, d, 1)}
		var slot wire.ComposeReply
		c.call(wire.OpCompose, m, &slot)
		m.Into = slot.Lease
		k := c.bare(b, wire.OpCompose, m)
		var trips, beside []time.Duration
		for b.Loop() {
			begun := time.Now()
			k.do(b)
			took := time.Since(begun)
			trips, beside = append(trips, took), append(beside, took-time.Duration(watched.took.Load()))
		}
		medians(b, map[string][]time.Duration{"trip-p50-us": trips, "beside-p50-us": beside})
	})
	b.Run("acquire+release", func(b *testing.B) {
		acquire := c.bare(b, wire.OpAcquireDevice, &wire.AcquireDeviceRequest{Profile: c.profile, Keys: [][32]byte{d.key}})
		release := c.bare(b, wire.OpRelease, &wire.ReleaseRequest{Leases: make([]uint64, 1)})
		var trips []time.Duration
		for b.Loop() {
			begun := time.Now()
			var a wire.AcquireReply
			must(b, a.Decode(acquire.do(b)))
			trips = append(trips, time.Since(begun))
			binary.LittleEndian.PutUint64(release.frame[wire.HeaderBytes+8:], a.Leases[0])
			release.do(b)
		}
		medians(b, map[string][]time.Duration{"acquire-p50-us": trips})
	})
}

func medians(b *testing.B, of map[string][]time.Duration) {
	for name, list := range of {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Nanoseconds())/1e3, name)
	}
}
