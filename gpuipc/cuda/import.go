package cuda

import (
	"context"
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/internal/bounded"
)

// importChunks bounds the chunks of one import. It is enough for the layers of an engine,
// each with a few allocations.
const importChunks = 4096

// importChunkBytes bounds the size of one chunk, so that no sum of sizes overflows.
const importChunkBytes = 1 << 40

// ImportShare maps memory of another process. Chunks that come as descriptors are mapped
// one after the other. Chunks that come as handles have separate addresses, so all blocks
// of a block table must be within one chunk.
func (d *device) ImportShare(ctx context.Context, s gpuipc.Share) (gpuipc.Region, error) {
	if err := d.checkShare(ctx, &s); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("cuda: import: %w", err)
	}
	r := &region{dev: d, name: "import", way: s.Way, imported: true}
	open := r.openHandles
	if s.Way == gpuipc.WayDescriptor {
		open = r.importDescriptors
	}
	err := d.foreign.Do(ctx, bounded.Call{
		What: "open memory of another process",
		Run:  func() error { return open(s.Chunks) },
		Undo: func() { _ = r.giveBack() },
		Last: func() { _ = s.Close() }, // runs last, because a stuck call still uses the descriptors
	})
	if err != nil {
		return nil, fmt.Errorf("cuda: import of %d chunks: %w", len(s.Chunks), d.importError(s.Way, err))
	}
	d.regions.Add(1)
	return r, nil
}

func (d *device) checkShare(ctx context.Context, s *gpuipc.Share) error {
	if err := d.gone(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.Way != gpuipc.WayDescriptor && s.Way != gpuipc.WayHandle {
		return fmt.Errorf("way %d: %w", s.Way, gpuipc.ErrInvalid)
	}
	if s.Device != d.info.UUID {
		return fmt.Errorf("memory of device %s, this one is %s; give both processes the same GPU: %w", s.Device, d.info.UUID, gpuipc.ErrInvalid)
	}
	if len(s.Chunks) == 0 || len(s.Chunks) > importChunks {
		return fmt.Errorf("%d chunks, want 1 to %d: %w", len(s.Chunks), importChunks, gpuipc.ErrInvalid)
	}
	if s.Way == gpuipc.WayDescriptor && !d.info.Descriptors {
		return fmt.Errorf("%s does not take memory as descriptors: %w", d.info.Name, gpuipc.ErrUnavailable)
	}
	for i := range s.Chunks {
		if err := d.checkChunk(s.Way, &s.Chunks[i], i == len(s.Chunks)-1); err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
	}
	return nil
}

// handleAlign is the alignment of chunks that come as handles: their offsets and sizes are
// multiples of handleAlign. The size of the last chunk may be any number, because no chunk
// follows it.
const handleAlign = 16

func (d *device) checkChunk(way gpuipc.Way, c *gpuipc.Chunk, last bool) error {
	switch {
	case c.Bytes <= 0 || c.Bytes > importChunkBytes || c.Off < 0:
		return fmt.Errorf("%d bytes at %d: %w", c.Bytes, c.Off, gpuipc.ErrInvalid)
	case way == gpuipc.WayHandle && (c.Off%handleAlign != 0 || !last && c.Bytes%handleAlign != 0):
		return fmt.Errorf("%d bytes at %d of an allocation are not multiples of %d: %w", c.Bytes, c.Off, handleAlign, gpuipc.ErrInvalid)
	case way == gpuipc.WayHandle:
		return nil
	case c.File == nil:
		return fmt.Errorf("no descriptor: %w", gpuipc.ErrInvalid)
	case c.Bytes%d.granularity != 0:
		return fmt.Errorf("%d bytes are not a multiple of %d: %w", c.Bytes, d.granularity, gpuipc.ErrInvalid)
	}
	return nil
}

// importError explains why an import failed.
func (d *device) importError(way gpuipc.Way, err error) error {
	var result driver.Result
	if !errors.As(err, &result) || kinded(err) {
		return err
	}
	switch {
	case way == gpuipc.WayHandle && result == driver.InvalidContext:
		return fmt.Errorf("%w: both processes have the same PID in namespaces of their own; set shareProcessNamespace, or share by descriptors: %w", err, gpuipc.ErrUnavailable)
	case way == gpuipc.WayHandle && (result == driver.InvalidValue || result == driver.InvalidHandle):
		return fmt.Errorf("%w: the handle names no allocation of a living process; memory of expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) or of a sleep mode has none, turn them off or share by descriptors: %w", err, gpuipc.ErrUnavailable)
	case way == gpuipc.WayDescriptor && (result == driver.InvalidValue || result == driver.InvalidHandle):
		return fmt.Errorf("%w: the descriptor is not one of an allocation of that size on this device: %w", err, gpuipc.ErrInvalid)
	case result == driver.MapFailed || result == driver.OperatingSystem || result == driver.DeviceUnavailable || result == driver.Unknown:
		// No documentation says when these results occur here.
		err = fmt.Errorf("%w: its process may have ended, or live in another IPC or user namespace, or in a container that sees the device in another way", err)
	}
	return d.failForeign(err)
}

// importDescriptors maps the chunks. The mapping keeps the memory, whatever the owner does.
func (r *region) importDescriptors(in []gpuipc.Chunk) error {
	d := r.dev
	var chunks []vmmChunk
	defer func() { d.releaseChunks(chunks) }()
	for i := range in {
		a, err := d.api.ImportFD(int(in[i].File.Fd()))
		if err != nil {
			return err
		}
		chunks = append(chunks, vmmChunk{a, in[i].Bytes})
		r.bytes += in[i].Bytes
	}
	base, err := d.mapChunks(chunks)
	if err != nil {
		return err
	}
	r.spans = []span{{0, r.bytes, base}}
	r.giveBack = func() error { return d.unmapChunks(base, chunks) }
	return nil
}

// openHandles opens every allocation once, however many chunks are in it.
func (r *region) openHandles(in []gpuipc.Chunk) (err error) {
	d := r.dev
	type allocation struct {
		base driver.DevicePtr
		size int64
	}
	opened := map[[64]byte]allocation{}
	r.giveBack = func() error {
		var errs []error
		for _, a := range opened {
			errs = append(errs, d.api.IPCClose(a.base))
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			_ = r.giveBack() // the first error says more
		}
	}()
	for i := range in {
		c := &in[i]
		a, ok := opened[c.Handle]
		if !ok {
			if a.base, err = d.api.IPCOpen(c.Handle); err != nil {
				return err
			}
			opened[c.Handle] = a
			if _, a.size, err = d.api.MemAddressRange(a.base); err != nil {
				return err
			}
			opened[c.Handle] = a
		}
		if c.Off > a.size || c.Bytes > a.size-c.Off {
			return fmt.Errorf("chunk %d: [%d, +%d) of an allocation of %d bytes: %w", i, c.Off, c.Bytes, a.size, gpuipc.ErrInvalid)
		}
		r.spans = append(r.spans, span{r.bytes, c.Bytes, a.base + driver.DevicePtr(c.Off)})
		r.bytes += c.Bytes
	}
	return nil
}
