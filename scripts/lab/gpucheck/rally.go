package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// The memory of a rally: the order page, then the ball.
const (
	ballOff   = 4096
	ballBytes = 1 << 20
)

// ordered lets two processes pass a buffer back and forth, ordered only by sequence numbers,
// while kernels load the device. In exchange n, this process fills the buffer with n and signals
// n. The other process waits for n on its stream, copies the buffer out, signals n and checks
// the copy.
func (c *check) ordered() error {
	const name = "sequence numbers order two processes, %d exchanges of 1 MiB under load"
	title := fmt.Sprintf(name, c.Sizes.Rallies)
	if len(c.Self) == 0 {
		c.report.Skip(title, errNoSecond.Error())
		return nil
	}
	w, err := c.stopwatch()
	if err != nil {
		return err
	}
	ok, err := w.api.DeviceAttribute(w.device, driver.StreamMemOps64)
	if err == nil && ok == 0 {
		c.report.Skip(title, "the device has no 64-bit stream memory operations")
		return w.close()
	}
	if err == nil {
		err = c.serve(w)
	}
	c.report.Holds(title, err)
	return w.close()
}

func (c *check) serve(w *stopwatch) (err error) {
	base, err := w.alloc(ballOff + ballBytes)
	if err != nil {
		return err
	}
	if err := w.upload(base, make([]byte, ballOff)); err != nil {
		return err
	}
	handle, err := w.api.IPCMemHandle(base)
	if err != nil {
		return err
	}
	chunk := gpuipc.Chunk{Bytes: ballOff + ballBytes, Handle: handle}
	p, err := c.start(&message{Role: roleRally, Rallies: c.Sizes.Rallies, Share: &gpuipc.Share{Way: gpuipc.WayHandle, Chunks: []gpuipc.Chunk{chunk}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	quiet, err := c.load()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, quiet()) }()
	page := order.Streams{API: w.api, Page: base}
	// If this side ends early, the stream of the other side must be released, or it would wait
	// forever.
	defer func() {
		if err != nil {
			_ = page.Release(w.stream, order.Daemon)
		}
	}()
	// A peer that fails sends its error before it ends; no more signals arrive then.
	ctx, stop := context.WithCancelCause(c.ctx)
	defer stop(nil)
	verdict := make(chan error, 1)
	go func() {
		m, err := p.receive(c.ctx)
		if err == nil && m.Count != c.Sizes.Rallies {
			err = fmt.Errorf("the other process saw %d exchanges", m.Count)
		}
		if err != nil {
			stop(err)
		}
		verdict <- err
	}()
	host, err := order.At(w.api, w.stream, base)
	if err != nil {
		return err
	}
	for n := uint64(1); n <= uint64(c.Sizes.Rallies); n++ {
		if err := errors.Join(
			w.api.MemsetD8Async(base+ballOff, byte(n), ballBytes, w.stream),
			page.Signal(w.stream, order.Daemon, n)); err != nil {
			return err
		}
		// The host waits, not the stream: a peer that has failed will not signal.
		if _, err := host.Wait(ctx, order.Client, n); err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return <-verdict
}

// load runs compose jobs continuously on separate streams, until the function that it returns is
// called.
func (c *check) load() (quiet func() error, err error) {
	job, a, err := c.someJob()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := c.gpu.Compose(ctx, job); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	return func() error { stop(); return errors.Join(<-ended, a.close()) }, nil
}

// rally is the second process of ordered. It enqueues its waits before the first process
// signals, so that only the sequence numbers order its copies after the writes.
func rally(ctx context.Context, p *peer, m *message) (err error) {
	c := &check{Options: Options{Library: m.Library, Device: m.Device}, ctx: ctx}
	w, err := c.stopwatch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	base, err := w.api.IPCOpen(m.Share.Chunks[0].Handle)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.api.IPCClose(base)) }()
	seen, err := unix.Mmap(-1, 0, ballBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(seen)) }()
	at := unsafe.Pointer(&seen[0])
	if err := w.api.HostRegister(at, ballBytes); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.api.HostUnregister(at)) }()
	page := order.Streams{API: w.api, Page: base}
	for n := uint64(1); n <= uint64(m.Rallies); n++ {
		if err := errors.Join(
			page.Wait(w.stream, order.Daemon, n),
			w.api.MemcpyDtoHAsync(at, base+ballOff, ballBytes, w.stream),
			page.Signal(w.stream, order.Client, n),
			w.api.StreamSynchronize(w.stream)); err != nil {
			return err
		}
		for i, v := range seen {
			if v != byte(n) {
				return fmt.Errorf("exchange %d: byte %d is %d: a copy ran ahead of the write", n, i, v)
			}
		}
	}
	return p.send(&message{Count: m.Rallies})
}
