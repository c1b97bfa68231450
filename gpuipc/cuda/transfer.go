package cuda

import (
	"context"
	"fmt"

	"github.com/spliced-kv/spliced/gpuipc"
)

// transfer is one checked copy between an attached host region and the device.
type transfer struct {
	dev     *device
	host    *attachment
	ref     gpuipc.Ref // the object in host memory
	device  object
	digests []uint64 // nil = no digests are wanted
}

// Upload copies from an attached host region to the device. The device hashes what arrived.
func (d *device) Upload(ctx context.Context, dst, src gpuipc.Ref, digests []uint64) error {
	own, other := d.checker(), hostChecker{dev: d}
	defer own.letGo()
	defer other.letGo()
	n := dst.Len()
	err := own.Writes("destination", dst, 1, n)
	if err == nil {
		err = own.Disjoint()
	}
	if err == nil {
		err = other.reads(src, n)
	}
	if err == nil && digests != nil {
		err = gpuipc.CheckDigests(digests, n)
	}
	if err == nil {
		t := &transfer{d, other.attachment, src, objectOf(dst), digests}
		err = d.on(ctx, func(l *lane) error { return t.upload(ctx, l) })
	}
	if err != nil {
		return fmt.Errorf("cuda: upload of %d bytes: %w", n, err)
	}
	return nil
}

// Download copies from the device to an attached host region. The host hashes what arrived.
func (d *device) Download(ctx context.Context, dst, src gpuipc.Ref, digests []uint64) error {
	own, other := d.checker(), hostChecker{dev: d}
	defer own.letGo()
	defer other.letGo()
	n := src.Len()
	err := own.Reads("source", src, 1, n)
	if err == nil {
		err = other.writes(dst, n)
	}
	if err == nil && digests != nil {
		err = gpuipc.CheckDigests(digests, n)
	}
	if err == nil {
		t := &transfer{d, other.attachment, dst, objectOf(src), digests}
		err = d.on(ctx, func(l *lane) error { return t.download(ctx, l) })
	}
	if err != nil {
		return fmt.Errorf("cuda: download of %d bytes: %w", n, err)
	}
	return nil
}

// hostChecker checks the host's side of a copy and keeps its attachment.
type hostChecker struct {
	dev        *device
	checks     gpuipc.Checker
	attachment *attachment
}

// Hold keeps the attachment of a host region in use.
func (c *hostChecker) Hold(r gpuipc.Region) error {
	if _, ok := gpuipc.HostOf(r); !ok {
		return fmt.Errorf("not a region of a host device: %w", gpuipc.ErrInvalid)
	}
	a := c.dev.attached.get(r)
	if err := a.begin(); err != nil {
		return err
	}
	c.attachment = a
	return nil
}

func (c *hostChecker) reads(r gpuipc.Ref, n int64) error {
	c.checks.Holder = c
	return c.checks.Reads("source", r, 1, n)
}

func (c *hostChecker) writes(r gpuipc.Ref, n int64) error {
	c.checks.Holder = c
	if err := c.checks.Writes("destination", r, 1, n); err != nil {
		return err
	}
	return c.checks.Disjoint()
}

func (c *hostChecker) letGo() {
	if c.attachment != nil {
		c.attachment.done()
	}
}

func (t *transfer) upload(ctx context.Context, l *lane) error {
	var err error
	switch {
	case t.device.n == 0:
	case t.host.covers(t.ref):
		err = l.pieces(ctx, t.device.n, copyPiece, func(_ int, off, n int64) error {
			return l.hostCopy(t.runs(off, n), t.device.slice(off, n), true)
		}, nil)
	default:
		t.dev.unpinned.Add(t.device.n)
		err = l.send(ctx, t.device, func(off int64, b []byte) error {
			return t.host.host.Load(ctx, b, t.ref.Slice(off, int64(len(b))))
		})
	}
	if err != nil || t.digests == nil {
		return err
	}
	return l.digests(ctx, t.device, t.digests)
}

func (t *transfer) download(ctx context.Context, l *lane) error {
	if t.device.n == 0 {
		return nil
	}
	if t.host.covers(t.ref) {
		return l.pieces(ctx, t.device.n, copyPiece, func(_ int, off, n int64) error {
			return l.hostCopy(t.runs(off, n), t.device.slice(off, n), false)
		}, func(_ int, off, n int64) error { return t.hash(ctx, off, n) })
	}
	t.dev.unpinned.Add(t.device.n)
	return l.fetch(ctx, t.device, stagingBytes, func(off int64, b []byte) error {
		if err := t.host.host.Store(ctx, t.ref.Slice(off, int64(len(b))), b); err != nil {
			return err
		}
		return t.hash(ctx, off, int64(len(b)))
	})
}

// hash stores the digests of the bytes [off, off+n), which have arrived at the host and are
// whole chunks.
func (t *transfer) hash(ctx context.Context, off, n int64) error {
	if t.digests == nil {
		return nil
	}
	first := off / gpuipc.ChunkBytes
	return t.host.host.Digests(ctx, t.ref.Slice(off, n), t.digests[first:first+int64(gpuipc.Chunks(n))])
}

// runs returns the host memory of the bytes [off, off+n) of the object.
func (t *transfer) runs(off, n int64) []hostRun {
	var out []hostRun
	for _, e := range t.ref.Slice(off, n).Extents {
		out = t.host.appendRuns(out, e.Off, e.Len)
	}
	return out
}
