package cuda

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
)

// attachments are the host regions that can be a side of Upload and Download.
type attachments struct {
	mu sync.Mutex
	of map[gpuipc.Region]*attachment // nil while it is being registered
}

// attachment is one host region.
type attachment struct {
	host   gpuipc.Device
	mem    []byte
	pinned bool // registered with the driver

	mu struct {
		sync.Mutex
		users  int
		ending bool
	}
	idle chan struct{} // closed when it is ending and nobody uses it
}

// AttachHost registers a region of a host device with the driver, which pins it:
// every page of it is backed and charged from then on, however lazily it was
// made. Where the driver refuses, copies go through staging buffers instead, and
// Options.Log hears of it once. The region counts as in use until detach.
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
	a := &attachment{host: host, mem: views[0], idle: make(chan struct{})}
	if err := d.register(a); err != nil {
		d.attached.remove(r)
		unpin()
		return nil, fmt.Errorf("cuda: attach %d bytes: %w", len(a.mem), err)
	}
	d.attached.set(r, a)
	return func() error {
		if !a.end() {
			return fmt.Errorf("cuda: detach: detached already: %w", gpuipc.ErrInvalid)
		}
		err := d.unregister(a)
		d.attached.remove(r)
		unpin()
		return err
	}, nil
}

func (d *device) register(a *attachment) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	err := d.api.HostRegister(unsafe.Pointer(&a.mem[0]), int64(len(a.mem)))
	if err == nil {
		a.pinned = true
		return nil
	}
	if _ = d.fail(err); d.gone() != nil {
		return d.gone()
	}
	d.tellUnpinned(err)
	return nil
}

func (d *device) unregister(a *attachment) (err error) {
	if !a.pinned {
		return nil
	}
	d.release(func() { err = d.api.HostUnregister(unsafe.Pointer(&a.mem[0])) })
	if err = d.fail(err); d.gone() != nil {
		return nil
	}
	return err
}

// reserve takes the place of a region, false when it is taken.
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

// begin keeps the attachment for one operation.
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

// end keeps new operations out and waits for those that run; false when that was
// done before.
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
