package cuda

import (
	"context"
	"fmt"
	"hash/crc32"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

const (
	// copyPiece is the number of bytes of a copy that are enqueued at once. They take 0.2
	// ms over a bus of 50 GB/s, which is many times the cost of a call.
	copyPiece = 8 << 20
	// devicePiece is the number of bytes enqueued at once when both ends of a copy are on
	// the device. Such copies are 50 times as fast.
	devicePiece = 256 << 20
)

// CopyDigests copies within the device. The device hashes the destination.
func (d *device) CopyDigests(ctx context.Context, dst, src gpuipc.Ref, digests []uint64) error {
	c := d.checker()
	defer c.letGo()
	err := c.Copy(dst, src)
	if err == nil {
		err = gpuipc.CheckDigests(digests, dst.Len())
	}
	if err == nil {
		err = d.on(ctx, func(l *lane) error {
			to, from := objectOf(dst), objectOf(src)
			err := l.pieces(ctx, to.n, devicePiece, func(_ int, off, n int64) error {
				return l.copyRuns(to.slice(off, n), from.slice(off, n))
			}, nil)
			if err != nil {
				return err
			}
			return l.digests(ctx, to, digests)
		})
	}
	return operation(gpuipc.OpCopyDigests, dst.Len(), err)
}

// Digests stores the digest of each chunk of src. The device hashes them.
func (d *device) Digests(ctx context.Context, src gpuipc.Ref, digests []uint64) error {
	return d.sum(ctx, gpuipc.OpDigests, src, digests, func(l *lane) error { return l.digests(ctx, objectOf(src), digests) })
}

// Checksums copies the bytes to the host, which hashes them. There is no kernel for CRC-32,
// because only clients without XXH3 need it.
func (d *device) Checksums(ctx context.Context, src gpuipc.Ref, sums []uint64) error {
	return d.sum(ctx, gpuipc.OpChecksums, src, sums, func(l *lane) error {
		return l.fetch(ctx, objectOf(src), gpuipc.ChunkBytes, func(off int64, b []byte) error {
			sums[off/gpuipc.ChunkBytes] = uint64(crc32.ChecksumIEEE(b))
			return nil
		})
	})
}

func (d *device) sum(ctx context.Context, op gpuipc.Op, src gpuipc.Ref, sums []uint64, f func(l *lane) error) error {
	c := d.checker()
	defer c.letGo()
	n := src.Len()
	err := c.Reads("source", src, 1, n)
	if err == nil {
		err = gpuipc.CheckDigests(sums, n)
	}
	if err == nil {
		err = d.on(ctx, f)
	}
	return operation(op, n, err)
}

// Load copies src to dst; their lengths must be equal.
func (d *device) Load(ctx context.Context, dst []byte, src gpuipc.Ref) error {
	c := d.checker()
	defer c.letGo()
	err := c.Reads("source", src, 1, int64(len(dst)))
	if err == nil {
		err = d.lanesFor(len(dst)).on(ctx, func(l *lane) error {
			return l.fetch(ctx, objectOf(src), stagingBytes, func(off int64, b []byte) error {
				copy(dst[off:], b)
				return nil
			})
		})
	}
	return operation(gpuipc.OpLoad, int64(len(dst)), err)
}

// Store copies src to dst; their lengths must be equal.
func (d *device) Store(ctx context.Context, dst gpuipc.Ref, src []byte) error {
	c := d.checker()
	defer c.letGo()
	err := c.Writes("destination", dst, 1, int64(len(src)))
	if err == nil {
		err = c.Disjoint()
	}
	if err == nil {
		err = d.lanesFor(len(src)).on(ctx, func(l *lane) error {
			return l.send(ctx, objectOf(dst), func(off int64, b []byte) error {
				copy(b, src[off:])
				return nil
			})
		})
	}
	return operation(gpuipc.OpStore, int64(len(src)), err)
}

// operation adds the operation and its size to err.
func operation(op gpuipc.Op, n int64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cuda: %s of %d bytes: %w", op, n, err)
}

// fetch copies an object to the host in pieces. The parameter piece is the most bytes of a
// piece. For each piece, in order, fetch calls the function use. The bytes are valid until
// use returns.
func (l *lane) fetch(ctx context.Context, from object, piece int64, use func(off int64, b []byte) error) error {
	if err := l.openStaging(); err != nil {
		return err
	}
	return l.pieces(ctx, from.n, piece, func(slot int, off, n int64) error {
		b := l.slot(slot)
		for _, r := range from.slice(off, n).runs {
			if err := l.dev.api.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), r.at, r.n, l.stream); err != nil {
				return err
			}
			b = b[r.n:]
		}
		return nil
	}, func(slot int, off, n int64) error {
		return use(off, l.slot(slot)[:n])
	})
}

// send copies an object from the host in pieces. The function fill writes the bytes of each
// piece.
func (l *lane) send(ctx context.Context, to object, fill func(off int64, b []byte) error) error {
	if err := l.openStaging(); err != nil {
		return err
	}
	return l.pieces(ctx, to.n, stagingBytes, func(slot int, off, n int64) error {
		b := l.slot(slot)[:n]
		if err := fill(off, b); err != nil {
			return err
		}
		for _, r := range to.slice(off, n).runs {
			if err := l.dev.api.MemcpyHtoDAsync(r.at, unsafe.Pointer(&b[0]), r.n, l.stream); err != nil {
				return err
			}
			b = b[r.n:]
		}
		return nil
	}, nil)
}

// hostCopy enqueues copies between registered host memory and the device.
func (l *lane) hostCopy(host []hostRun, device object, toDevice bool) error {
	api := l.dev.api
	for _, r := range device.runs {
		for done := int64(0); done < r.n; {
			h := &host[0]
			n := min(r.n-done, int64(len(h.b)))
			at, p := r.at+driver.DevicePtr(done), unsafe.Pointer(unsafe.SliceData(h.b))
			var err error
			if toDevice {
				err = api.MemcpyHtoDAsync(at, p, n, l.stream)
			} else {
				err = api.MemcpyDtoHAsync(p, at, n, l.stream)
			}
			if err != nil {
				return err
			}
			done += n
			if h.b = h.b[n:]; len(h.b) == 0 {
				host = host[1:]
			}
		}
	}
	return nil
}

// hostRun is a run of registered host memory.
type hostRun struct{ b []byte }
