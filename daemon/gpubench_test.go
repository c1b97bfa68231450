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

// BenchmarkOnDevice is what requests about device memory cost beside the device,
// on the fake driver: its kernels run on the processor, and their time says
// nothing. beside-p50-us is the round trip without the call of the device.
func BenchmarkOnDevice(b *testing.B) {
	lib := fakecuda.Open(b)
	device, err := cuda.Open(cuda.Options{Library: lib.Path})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { device.Close() })
	watched := &clocked{Accelerator: device}
	r := startParts(b, deviceConfig(b), Parts{Accelerator: watched})
	d := newDocument(testProfile(b, 1), nil, 1, 64, profile.RoleFirst)
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
			if err := a.Decode(acquire.do(b)); err != nil {
				b.Fatal(err)
			}
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
