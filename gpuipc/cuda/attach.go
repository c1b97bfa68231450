package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// attachments has the host regions that are registered for Upload and Download.
type attachments struct {
	mu sync.Mutex
	of map[gpuipc.Region]*attachment // the value is nil while the region is being registered
}

// attachPiece is the number of bytes of host memory that one call registers. A call takes a
// fraction of a second if pages of 4 KiB must be backed and pinned (known from other
// systems, not measured here).
const attachPiece = 1 << 30

// attachment is one attached host region. A goroutine registers it piece by piece.
type attachment struct {
	host  gpuipc.Device
	mem   []byte
	piece int64

	pinned     atomic.Int64  // number of bytes from the beginning that are registered
	others     []int64       // offsets of pieces that another device registered; to be read after registered is closed
	stopping   atomic.Bool   // register must start no more pieces
	registered chan struct{} // closed when no more pieces will be registered
	err        error         // set if the device was lost; to be read after registered is closed

	mu struct {
		sync.Mutex
		users  int
		ending bool
	}
	idle chan struct{} // closed when ending is set and there are no users
}

// AttachHost registers a region of a host device with the driver, which pins it. From then
// on every page of the region is in memory and is charged to the process, even if until
// then the system allocated pages only at their first use. AttachHost waits up to
// Options.AttachWait; the remaining pages are pinned in the background. Memory that is not
// pinned yet, or that the driver refuses to pin, is copied through staging buffers instead,
// and Options.Log reports it. The region counts as in use until detach is called. detach
// waits for the piece that is being pinned.
func (d *device) AttachHost(r gpuipc.Region) (detach func() error, err error) {
	if err := d.gone(); err != nil {
		return nil, err
	}
	host, ok := gpuipc.HostOf(r)
	if !ok {
		return nil, fmt.Errorf("cuda: attach: not a region of a host device: %w", gpuipc.ErrInvalid)
	}
	views, unpin, err := host.Pin(gpuipc.Ref{Region: r, Extents: []gpuipc.Extent{{Len: r.Bytes()}}}, false)
	if err != nil {
		return nil, fmt.Errorf("cuda: attach: %w", err)
	}
	if !d.attached.reserve(r) {
		unpin()
		return nil, fmt.Errorf("cuda: attach: the region is attached already: %w", gpuipc.ErrInvalid)
	}
	a := &attachment{host: host, mem: views[0], piece: d.attachPiece, registered: make(chan struct{}), idle: make(chan struct{})}
	go d.register(a)
	if err := d.awaitRegistered(a); err != nil {
		d.attached.remove(r)
		unpin()
		return nil, fmt.Errorf("cuda: attach %d bytes: %w", len(a.mem), err)
	}
	d.attached.set(r, a)
	return func() error {
		if !a.end() {
			return fmt.Errorf("cuda: detach: detached already: %w", gpuipc.ErrInvalid)
		}
		a.stopping.Store(true)
		<-a.registered
		err := d.unregister(a)
		d.attached.remove(r)
		unpin()
		return err
	}, nil
}

// awaitRegistered waits until the goroutine of a.register has ended, or until
// Options.AttachWait is over. If awaitRegistered returns an error, nothing is pinned any
// more.
func (d *device) awaitRegistered(a *attachment) error {
	timer := time.NewTimer(d.options.AttachWait)
	defer timer.Stop()
	select {
	case <-a.registered:
		if a.err != nil {
			_ = d.unregister(a) // the first error says more
		}
		return a.err
	case <-timer.C:
		d.options.Log(fmt.Sprintf("cuda: %d of %d bytes of host memory are pinned after %v; the rest follows, and is copied through buffers until then",
			a.pinned.Load(), len(a.mem), d.options.AttachWait))
		return nil
	}
}

// attachTold is the duration from which on pinning is logged.
const attachTold = time.Second

// register pins one piece after the other.
func (d *device) register(a *attachment) {
	defer close(a.registered)
	start, total := time.Now(), int64(len(a.mem))
	for off := int64(0); off < total && !a.stopping.Load(); off = a.pinned.Load() {
		n := min(a.piece, total-off)
		err := d.registerPiece(a, off, n)
		if errors.Is(err, driver.AlreadyRegistered) {
			// Another device of this process registered this piece. Registered memory is
			// pinned only once, for the contexts of all devices
			// (CU_MEMHOSTREGISTER_PORTABLE). If that device unregisters the piece before we
			// do, copies go through a buffer of the driver.
			a.others, err = append(a.others, off), nil
		}
		if err != nil {
			if a.err = d.gone(); a.err == nil {
				d.tellUnpinned(err)
			}
			return
		}
		a.pinned.Store(off + n)
	}
	if took := time.Since(start); took >= attachTold {
		d.options.Log(fmt.Sprintf("cuda: %d of %d bytes of host memory were pinned in %v", a.pinned.Load(), total, took.Round(time.Millisecond)))
	}
}

func (d *device) registerPiece(a *attachment, off, n int64) error {
	return d.fail(d.onThread(func() error { return d.api.HostRegister(unsafe.Pointer(&a.mem[off]), n) }))
}

// unregister unpins the memory. It must not run while a piece is being registered.
func (d *device) unregister(a *attachment) error {
	var errs []error
	for off := int64(0); off < a.pinned.Load(); off += a.piece {
		if slices.Contains(a.others, off) {
			continue
		}
		d.release(func() { errs = append(errs, d.api.HostUnregister(unsafe.Pointer(&a.mem[off]))) })
	}
	err := d.fail(errors.Join(errs...))
	if d.gone() != nil {
		return nil
	}
	return err
}

// covers reports whether all bytes of r are pinned, so that they can be copied without a
// staging buffer.
func (a *attachment) covers(r gpuipc.Ref) bool {
	pinned := a.pinned.Load()
	for _, e := range r.Extents {
		if e.Off+e.Len > pinned {
			return false
		}
	}
	return true
}

// appendRuns appends the bytes [off, off+n) as runs that are each within one piece. CUDA's
// documentation does not say that a copy may cross from one registered piece into another.
func (a *attachment) appendRuns(out []hostRun, off, n int64) []hostRun {
	for end := off + n; off < end; {
		next := min(end, (off/a.piece+1)*a.piece)
		out = append(out, hostRun{a.mem[off:next]})
		off = next
	}
	return out
}

// reserve reserves the place of a region. It returns false if the place is occupied.
func (p *attachments) reserve(r gpuipc.Region) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.of[r]; taken {
		return false
	}
	if p.of == nil {
		p.of = map[gpuipc.Region]*attachment{}
	}
	p.of[r] = nil
	return true
}

func (p *attachments) set(r gpuipc.Region, a *attachment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of[r] = a
}

func (p *attachments) remove(r gpuipc.Region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, r)
}

func (p *attachments) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.of)
}

func (p *attachments) get(r gpuipc.Region) *attachment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.of[r]
}

var errNotAttached = errors.New("cuda: the host region is not attached")

// The method begin keeps the attachment for one operation, until the method done is called.
func (a *attachment) begin() error {
	if a == nil {
		return fmt.Errorf("%w: %w", errNotAttached, gpuipc.ErrInvalid)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.ending {
		return fmt.Errorf("%w any more: %w", errNotAttached, gpuipc.ErrInvalid)
	}
	a.mu.users++
	return nil
}

func (a *attachment) done() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.users--; a.mu.users == 0 && a.mu.ending {
		close(a.idle)
	}
}

// The method end refuses new operations and waits for the running ones. It returns false if
// end was called before.
func (a *attachment) end() bool {
	a.mu.Lock()
	if a.mu.ending {
		a.mu.Unlock()
		return false
	}
	a.mu.ending = true
	if a.mu.users == 0 {
		close(a.idle)
	}
	a.mu.Unlock()
	<-a.idle
	return true
}
