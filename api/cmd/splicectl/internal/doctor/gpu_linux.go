package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// checkGPU checks the driver, the devices visible to this process and those that the daemon
// reports, and maps the daemon's memory as an engine would.
func checkGPU(ctx context.Context, v *visit) []Check {
	shares := v.hello.Features&wire.FeatureDevice != 0
	devices, err := cuda.Devices(v.options.Library)
	checks := describeDevices(devices, err, shares)
	for i := range v.gpus {
		checks = append(checks, describeGPU(&v.gpus[i]))
	}
	if shares && err == nil {
		checks = append(checks, checkDeviceMemory(ctx, v, devices))
	}
	return checks
}

const seeDevice = "give this container the daemon's GPU: NVIDIA_VISIBLE_DEVICES, or one resource claim for both (docs/gpu.md)"

// describeDevices returns a check for each device visible to this process.
func describeDevices(devices []cuda.Info, err error, shares bool) []Check {
	const name = "gpu"
	switch {
	case err != nil && shares:
		return []Check{warn(name, seeDevice, "the daemon shares memory of a GPU that this process cannot use: %v", err)}
	case err != nil:
		return []Check{ok(name, "none, and the daemon shares none: %v", err)}
	case len(devices) == 0:
		return []Check{ok(name, "a driver but no device")}
	}
	var checks []Check
	for i := range devices {
		checks = append(checks, describeDevice(&devices[i]))
	}
	return checks
}

// describeDevice describes a device, and the first obstacle to sharing it between engine
// and daemon.
func describeDevice(d *cuda.Info) Check {
	name := "gpu " + d.UUID.String()
	what := fmt.Sprintf("%s, %d MiB, capability %d.%d, driver for CUDA %d.%d, compute mode %s", d.Name, d.Bytes>>20, d.Major, d.Minor,
		d.Driver/1000, d.Driver%1000/10, d.Mode)
	switch {
	case d.Major < 8:
		return warn(name, "the kernels need compute capability 8.0", "%s", what)
	case d.Mode == "prohibited":
		return warn(name, "nvidia-smi -c DEFAULT", "%s: no process may use it", what)
	case d.Mode == "exclusive process" && d.MPS != cuda.Yes:
		return warn(name, "nvidia-smi -c DEFAULT, or run the engine and the daemon under MPS", "%s: engine and daemon cannot both use it", what)
	case !d.Descriptors:
		return warn(name, "shared by handles: engine and daemon need PID values that differ, such as by shareProcessNamespace", "%s: memory cannot leave as descriptors", what)
	case !d.WaitValues:
		return warn(name, "", "%s: streams cannot wait for numbers in memory, so that engines wait for the daemon on the host", what)
	}
	return ok(name, "%s, %s", what, sharing(d.MPS.String()))
}

// sharing describes how contexts of several processes run.
func sharing(mps string) string {
	switch mps {
	case "yes":
		return "MPS: kernels of engine and daemon run side by side"
	case "no":
		return "no MPS: kernels of engine and daemon take turns (time slicing)"
	}
	return "MPS or time slicing: the driver does not say"
}

func describeGPU(g *api.GPU) Check {
	name := "gpu of the daemon " + g.UUID
	switch g.State {
	case api.GPUServing:
	case api.GPULost:
		return warn(name, "look for NVRM in the kernel's log, then start the daemon again", "lost: %s", g.Trouble)
	default:
		return warn(name, "see docs/gpu.md, which lists errors by their code, and hbm-device", "%s: %s", g.State, g.Trouble)
	}
	what := fmt.Sprintf("%s, driver for CUDA %s, compute mode %s, shared by %s, %s; %d copies, %d of %d MiB", g.Name, g.Driver, g.Mode, g.Way,
		sharing(g.MPS), g.Copies, g.UsedBytes>>20, g.CapacityBytes>>20)
	if g.Stuck > 0 {
		return warn(name, "a client that hangs keeps them: see splicectl ls connections", "%s: %d calls of the driver do not come back", what, g.Stuck)
	}
	return ok(name, "%s", what)
}

const attachTimeout = 10 * time.Second

// checkDeviceMemory attaches the first device that the daemon shares and this process sees. It maps
// the device's memory and reads the order page, in which daemon and client announce finished GPU
// work by sequence numbers.
func checkDeviceMemory(ctx context.Context, v *visit, devices []cuda.Info) Check {
	const name = "gpu memory"
	var m wire.AttachDeviceReply
	fds, err := attachFirst(v, devices, &m)
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "device chunk")
		defer files[i].Close()
	}
	if err != nil {
		return warn(name, seeDevice+"; the document lists errors by their code", "%v", err)
	}
	share := gpuipc.Share{Way: gpuipc.Way(m.Way), Device: gpuipc.UUID(m.UUID)}
	for i := int(m.PublicChunks); i < len(m.ChunkBytes); i++ {
		c := gpuipc.Chunk{Bytes: int64(m.ChunkBytes[i])}
		if m.Way == wire.WayHandle {
			copy(c.Handle[:], m.Handles[i*wire.HandleBytes:])
			c.Off = int64(m.Offsets[i])
		} else if 1+i < len(files) {
			c.File = files[1+i]
		}
		share.Chunks = append(share.Chunks, c)
	}
	if err := readOrder(ctx, v.options.Library, share, int64(m.OrderOff)); err != nil {
		return warn(name, mapRemedy(v, m.Way), "%v", err)
	}
	way := map[uint8]string{wire.WayDescriptor: "descriptors", wire.WayHandle: "handles"}[m.Way]
	return ok(name, "of %v, mapped by %s, %d MiB of all clients and %d MiB of our own", share.Device, way, m.PublicBytes>>20, m.PrivateBytes>>20)
}

// attachFirst requests devices in turn until the daemon shares one. The error contains the
// reasons why it shares none.
func attachFirst(v *visit, devices []cuda.Info, m *wire.AttachDeviceReply) ([]int, error) {
	failed := []error{errors.New("this process sees none of the daemon's GPUs")}
	for i := range devices {
		fds, err := v.call(&wire.Header{Op: wire.OpAttachDevice, Request: 2, Epoch: v.hello.BootEpoch},
			&wire.AttachDeviceRequest{Ways: wire.WayDescriptor | wire.WayHandle, UUID: devices[i].UUID[:]}, m)
		if err == nil {
			return fds, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

// readOrder maps the shared memory of a device and reads the daemon's sequence number in its order
// page. The number must be 0.
func readOrder(ctx context.Context, library string, share gpuipc.Share, off int64) (err error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	device, err := cuda.Open(cuda.Options{Library: library, Device: share.Device.String()})
	if err != nil {
		return errors.Join(err, share.Close())
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	region, err := device.ImportShare(ctx, share)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, region.Close()) }()
	page, err := order.In(device, region, off)
	if err != nil {
		return err
	}
	if n, err := page.Read(ctx, order.Daemon); err != nil || n != 0 {
		return fmt.Errorf("the order page begins at %d, want 0: %w", n, errors.Join(err))
	}
	return nil
}

// mapRemedy returns the remedy for memory that cannot be mapped.
func mapRemedy(v *visit, way uint8) string {
	cred, err := unix.GetsockoptUcred(v.conn.Fd(), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if way == wire.WayHandle && err == nil && int(cred.Pid) == os.Getpid() {
		return "both processes have the same PID value in their containers: set shareProcessNamespace, or let the daemon share by descriptors"
	}
	return "see docs/gpu.md, which lists errors by their code"
}
