package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// DeviceMemory is the GPU memory that the daemon shares, as mapped here.
type DeviceMemory struct {
	Arena   gpuipc.Region
	Private gpuipc.Region
	Order   *order.Page
	Kernels []byte // PTX text
}

// attachRequest is the id of the second and last setup request. Later requests have larger
// ids.
const attachRequest = 2

// attachDevice requests device memory and maps it. After an error nothing stays mapped. The
// connection remains usable unless the error is errNoReply.
func (a *Attachment) attachDevice(device gpuipc.Accelerator, deadline time.Time) error {
	if !a.hasDevice {
		return fmt.Errorf("attach-device: the daemon shares no memory of a GPU: %w", ErrUnsupported)
	}
	uuid := device.UUID()
	h := wire.Header{Op: wire.OpAttachDevice, Request: attachRequest, Epoch: a.Epoch, Deadline: microseconds(deadline)}
	frame, err := wire.AppendFrame(nil, &h, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor | wire.WayHandle, UUID: uuid[:]})
	if err != nil {
		return err
	}
	if err := a.send(a.host.Context, frame, nil, deadline); err != nil {
		return fmt.Errorf("attach-device: %w: %w", errNoReply, err)
	}
	body, fds, err := a.early(&h, deadline)
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), fmt.Sprintf("descriptor %d of attach-device", i))
	}
	var m wire.AttachDeviceReply
	if err == nil {
		err = m.Decode(body)
	}
	if err == nil {
		a.Device, err = mapDevice(a.host.Context, device, &m, files, deadline)
	}
	for _, f := range files {
		f.Close() // mapped files are closed already
	}
	return err
}

// mapDevice maps the public and the private chunks. It closes the files that it has mapped, also
// after an error.
func mapDevice(ctx context.Context, device gpuipc.Accelerator, m *wire.AttachDeviceReply, files []*os.File, deadline time.Time) (*DeviceMemory, error) {
	want, err := wire.Descriptors(m.Way, len(m.ChunkBytes), wire.AttachDescriptors)
	if err != nil || len(files) != want {
		return nil, fmt.Errorf("attach-device: %d descriptors for %d chunks of way %d: %w", len(files), len(m.ChunkBytes), m.Way, ErrUnavailable)
	}
	kernels, err := io.ReadAll(io.NewSectionReader(files[0], 0, maxKernels))
	if err != nil {
		return nil, fmt.Errorf("attach-device: kernels: %w", err)
	}
	ctx, stop := context.WithDeadline(ctx, deadline)
	defer stop()
	public, private := shares(m, files[1:])
	d := &DeviceMemory{Kernels: kernels}
	if d.Arena, err = device.ImportShare(ctx, public); err != nil {
		return nil, errors.Join(fmt.Errorf("attach-device: arena: %w", err), private.Close())
	}
	if d.Private, err = device.ImportShare(ctx, private); err != nil {
		return nil, errors.Join(fmt.Errorf("attach-device: private memory: %w", err), d.Arena.Close())
	}
	if d.Order, err = order.In(device, d.Private, int64(m.OrderOff)); err != nil {
		return nil, errors.Join(err, d.Private.Close(), d.Arena.Close())
	}
	return d, nil
}

// maxKernels is far more than the size of the kernels' text.
const maxKernels = 64 << 20

// shares splits the chunks of a reply into public and private ones.
func shares(m *wire.AttachDeviceReply, files []*os.File) (public, private gpuipc.Share) {
	list := make([]gpuipc.Chunk, len(m.ChunkBytes))
	for i, bytes := range m.ChunkBytes {
		list[i].Bytes = int64(bytes)
		if m.Way == wire.WayDescriptor {
			list[i].File = files[i]
			continue
		}
		copy(list[i].Handle[:], m.Handles[i*wire.HandleBytes:])
		list[i].Off = int64(m.Offsets[i])
	}
	n := m.PublicChunks
	of := gpuipc.Share{Way: gpuipc.Way(m.Way), Device: gpuipc.UUID(m.UUID)}
	public, private = of, of
	public.Chunks, private.Chunks = list[:n:n], list[n:]
	return public, private
}

// letGo releases GPU streams of this process that wait for the daemon's number in the order
// page, because the daemon is gone.
func (d *DeviceMemory) letGo(h *Host) {
	ctx, stop := context.WithTimeout(context.Background(), h.AttachTimeout)
	defer stop()
	if err := d.Order.Release(ctx, order.Daemon); err != nil {
		h.Log.Warn().Err(err).Msg("cannot end device waits for the cache daemon")
	}
}

func (d *DeviceMemory) close(h *Host) {
	for _, r := range []gpuipc.Region{d.Private, d.Arena} {
		if err := r.Close(); err != nil {
			h.Log.Error().Err(err).Msg("unmapping device memory of the daemon")
		}
	}
}
