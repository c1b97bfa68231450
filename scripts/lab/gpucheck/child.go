package gpucheck

import (
	"context"
	"fmt"
	"os"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// The roles of a second process.
const (
	roleReader    = "reader"
	roleRally     = "rally"
	roleNeighbour = "neighbour"
	roleRescue    = "rescue"
)

// Child is the main function of a second process. It receives its role on descriptor 3, and
// sends errors there.
func Child(ctx context.Context) error {
	conn, err := connOf(os.NewFile(3, "peer"))
	if err != nil {
		return fmt.Errorf("descriptor 3 is no socket of a check: %w", err)
	}
	p := &peer{conn: conn}
	m, err := p.receive(ctx)
	if err != nil {
		return err
	}
	switch m.Role {
	case roleReader:
		err = reader(ctx, p, m)
	case roleRally:
		err = rally(ctx, p, m)
	case roleNeighbour:
		err = busy(ctx, p, m)
	case roleRescue:
		err = rescue(ctx, p, m)
	default:
		err = fmt.Errorf("role %q: %w", m.Role, gpuipc.ErrInvalid)
	}
	if err != nil {
		err = p.send(&message{Error: err.Error()})
	}
	return err
}

// shared checks that a second process can map a region, in both ways of sharing. The second
// process must read what this process wrote, and the reverse.
func (c *check) shared() error {
	for way, name := range map[gpuipc.Way]string{gpuipc.WayDescriptor: "descriptor", gpuipc.WayHandle: "IPC handle"} {
		if len(c.Self) == 0 {
			c.report.Skip("second process maps memory by "+name, errNoSecond.Error())
			continue
		}
		c.report.Holds("second process maps memory by "+name, c.sharedBy(way))
	}
	return nil
}

const sharedBytes = 4 * gpuipc.ChunkBytes

func (c *check) sharedBy(way gpuipc.Way) (err error) {
	r, err := c.gpu.NewRegion(gpuipc.RegionSpec{Name: "gpu-check", Bytes: sharedBytes, Access: gpuipc.ClientWrites, Way: way})
	if err != nil {
		return err
	}
	defer func() {
		if e := r.Close(); err == nil {
			err = e
		}
	}()
	b := c.random(sharedBytes/4, kernel.F32, 1)
	all := gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Len: sharedBytes}}}
	if err := c.gpu.Store(c.ctx, all, b); err != nil {
		return err
	}
	s, err := r.(gpuipc.SharedRegion).Share(way)
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := c.start(&message{Role: roleReader, Share: &s})
	if err != nil {
		return err
	}
	m, err := p.receive(c.ctx)
	if err == nil {
		err = sameDigests(m.Digests, b)
	}
	if err == nil {
		back := make([]byte, sharedBytes)
		if err = c.gpu.Load(c.ctx, back, all); err == nil {
			for i, v := range back {
				if v != ^b[i] {
					err = fmt.Errorf("byte %d is %d, the other process wrote %d", i, v, ^b[i])
					break
				}
			}
		}
	}
	if e := p.end(); err == nil {
		err = e
	}
	return err
}

func sameDigests(got []uint64, b []byte) error {
	if len(got) != gpuipc.Chunks(int64(len(b))) {
		return fmt.Errorf("%d digests for %d bytes", len(got), len(b))
	}
	for i, d := range got {
		if want := gpuipc.DigestBytes(b[i*gpuipc.ChunkBytes : min(len(b), (i+1)*gpuipc.ChunkBytes)]); d != want {
			return fmt.Errorf("the other process reads chunk %d as %x, here it is %x", i, d, want)
		}
	}
	return nil
}

// reader maps the region, replies with the digests of its bytes, and replaces every byte by its
// complement.
func reader(ctx context.Context, p *peer, m *message) (err error) {
	gpu, err := cuda.Open(cuda.Options{Library: m.Library, Device: m.Device})
	if err != nil {
		return err
	}
	r, err := gpu.ImportShare(ctx, *m.Share)
	if err != nil {
		return err
	}
	all := gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Len: m.Share.Bytes()}}}
	digests := make([]uint64, gpuipc.Chunks(all.Len()))
	if err := gpu.Digests(ctx, all, digests); err != nil {
		return err
	}
	b := make([]byte, all.Len())
	if err := gpu.Load(ctx, b, all); err != nil {
		return err
	}
	for i := range b {
		b[i] = ^b[i]
	}
	if err := gpu.Store(ctx, all, b); err != nil {
		return err
	}
	if err := r.Close(); err != nil {
		return err
	}
	if err := gpu.Close(); err != nil {
		return err
	}
	return p.send(&message{Digests: digests})
}
