package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// deviceMemory is what the daemon lends of its GPU, mapped here.
type deviceMemory struct {
	arena   gpuipc.Region
	private gpuipc.Region
	order   *order.Page
	kernels []byte // PTX text
}

// attachRequest is the id of the second and last request that is sent before
// others may be; theirs are larger.
const attachRequest = 2

// attachDevice asks for device memory and maps it. After an error nothing of it
// stays, and unless that is errNoReply the connection is as good as before.
func (a *attachment) attachDevice(device gpuipc.Accelerator, deadline time.Time) error {
	if !a.lends {
		return fmt.Errorf("attach-device: the daemon lends no memory of a GPU: %w", ErrUnsupported)
	}
	uuid := device.UUID()
	h := wire.Header{Op: wire.OpAttachDevice, Request: attachRequest, Epoch: a.epoch, Deadline: microseconds(deadline)}
	frame, err := wire.AppendFrame(nil, &h, &wire.AttachDeviceRequest{Ways: wire.WayDescriptor | wire.WayHandle, UUID: uuid[:]})
	if err != nil {
		return err
	}
	if err := a.send(a.client.ctx, frame, nil, deadline); err != nil {
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
		a.device, err = mapDevice(a.client.ctx, device, &m, files, deadline)
	}
	for _, f := range files {
		f.Close() // those that are mapped are closed already
	}
	return err
}

// mapDevice maps both runs of chunks. What it has taken of files it closes, with
// or without an error.
func mapDevice(ctx context.Context, device gpuipc.Accelerator, m *wire.AttachDeviceReply, files []*os.File, deadline time.Time) (*deviceMemory, error) {
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
	d := &deviceMemory{kernels: kernels}
	if d.arena, err = device.ImportShare(ctx, public); err != nil {
		return nil, errors.Join(fmt.Errorf("attach-device: arena: %w", err), private.Close())
	}
	if d.private, err = device.ImportShare(ctx, private); err != nil {
		return nil, errors.Join(fmt.Errorf("attach-device: private memory: %w", err), d.arena.Close())
	}
	if d.order, err = order.In(device, d.private, int64(m.OrderOff)); err != nil {
		return nil, errors.Join(err, d.private.Close(), d.arena.Close())
	}
	return d, nil
}

// maxKernels is far more than the kernels' text has.
const maxKernels = 64 << 20

// shares divides the chunks of a reply.
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

// letGo passes the waits of our own streams for a daemon that is gone.
func (d *deviceMemory) letGo(c *Client) {
	ctx, stop := context.WithTimeout(context.Background(), c.opt.Timeouts.Attach)
	defer stop()
	if err := d.order.Release(ctx, order.Daemon); err != nil {
		c.opt.Log.Warn().Err(err).Msg("waits for the cache daemon on the device could not be ended")
	}
}

func (d *deviceMemory) close(c *Client) {
	for _, r := range []gpuipc.Region{d.private, d.arena} {
		if err := r.Close(); err != nil {
			c.opt.Log.Error().Err(err).Msg("unmapping device memory of the daemon")
		}
	}
}

// Kernels is the PTX text of the attached daemon's kernels; nil without device
// memory. It is not to be changed.
func (c *Client) Kernels() []byte {
	if a := c.current(); a != nil && a.device != nil {
		return a.device.kernels
	}
	return nil
}

// Order is the order page of the attached daemon in this process: the client's
// slot is written with it, or on a stream at its address. False without device
// memory. It is good until the attachment ends, see Client.Epoch.
func (c *Client) Order() (*order.Page, bool) {
	if a := c.current(); a != nil && a.device != nil {
		return a.device.order, true
	}
	return nil, false
}

// ReleaseBehind gives device leases of one tenant back when this process's slot
// of the order page has reached after; 0 = at once. Then the daemon writes signal
// into its own, unless it is 0. It returns when that was done. With ErrLate
// nothing was; the leases are held as before.
func (m *Model) ReleaseBehind(ctx context.Context, after, signal uint64, leases ...*DeviceLease) error {
	r, err := m.enter()
	if err != nil {
		return err
	}
	defer r.a.release()
	q := &wire.OrderRequest{After: after, Signal: signal}
	held := slices.DeleteFunc(slices.Clone(leases), func(l *DeviceLease) bool { return l == nil })
	for _, l := range held {
		id, err := l.lease(r.a)
		if err != nil {
			return err
		}
		q.Leases = append(q.Leases, id)
	}
	c := m.client
	k := c.call(ctx, c.opt.Timeouts.Transfer)
	defer c.put(k)
	k.op = wire.OpOrder
	body, err := r.a.do(ctx, k, r.tenant, q, nil)
	if err != nil {
		return err
	}
	var reply wire.CodesReply
	if err := r.a.decode(wire.OpOrder, &reply, body); err != nil {
		return err
	}
	if err := r.a.rows(wire.OpOrder, len(reply.Codes), len(q.Leases)); err != nil {
		return err
	}
	for _, l := range held { // a lease that expired meanwhile is over too
		if !l.released.Swap(true) {
			l.a.release()
		}
	}
	return nil
}
