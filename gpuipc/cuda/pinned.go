package cuda

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
)

// pinned is host memory for copies. It is a separate mapping, never on Go's heap. It is
// registered with the driver if that is allowed. Otherwise copies also work, through a
// buffer of the driver.
type pinned struct {
	mem        []byte
	registered bool
}

func (d *device) newPinned(n int64) (pinned, error) {
	mem, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return pinned{}, fmt.Errorf("cuda: %d bytes of host memory: %w: %w", n, err, gpuipc.ErrFull)
	}
	p := pinned{mem: mem}
	if err := d.api.HostRegister(p.at(0), n); err != nil {
		if err = d.fail(err); d.gone() != nil {
			_ = unix.Munmap(mem)
			return pinned{}, err
		}
		d.tellUnpinned(err)
		return p, nil
	}
	p.registered = true
	return p, nil
}

// tellUnpinned logs, only once, that copies are slower than they could be.
func (d *device) tellUnpinned(err error) {
	if d.told.CompareAndSwap(false, true) {
		d.options.Log(fmt.Sprintf("cuda: host memory is not pinned, copies go through buffers: %v", err))
	}
}

func (p *pinned) at(off int64) unsafe.Pointer { return unsafe.Pointer(&p.mem[off]) }

func (p *pinned) close(d *device) {
	if p.mem == nil {
		return
	}
	if p.registered {
		_ = d.api.HostUnregister(p.at(0))
	}
	_ = unix.Munmap(p.mem)
	*p = pinned{}
}

// stagingBytes is the size of each of a lane's two staging buffers. A copy of this size
// takes much longer than its launch, and the memory for two buffers per lane does not
// matter.
const stagingBytes = 2 << 20

// staging has a lane's buffers for copies between the device and host memory that is not
// registered, such as Go's memory.
type staging struct{ both pinned }

// slot returns staging buffer i of a lane.
func (l *lane) slot(i int) []byte {
	return l.staging.both.mem[i*stagingBytes : (i+1)*stagingBytes]
}

// openStaging creates the staging buffers at their first use.
func (l *lane) openStaging() (err error) {
	if l.staging.both.mem == nil {
		l.staging.both, err = l.dev.newPinned(2 * stagingBytes)
	}
	return err
}

func (s *staging) close(d *device) { s.both.close(d) }
