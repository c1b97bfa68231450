package gpuipc

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// holeGuard keeps holes in imported regions from being filled. A memfd gets its memory page
// by page. The process that first reads or writes a hole is charged for the new page. So a
// client could have its memory charged to the daemon, and it could punch a hole after any
// check of ours. With userfaultfd, the kernel answers our access to a hole with SIGBUS and
// adds no page. This fails only the one operation (see guarded).
//
// Some systems do not allow userfaultfd, for example many seccomp profiles of containers.
// Then any byte of the region may be charged to us: see MappingCost.
type holeGuard struct {
	mu   sync.Mutex
	file *os.File                 // the userfaultfd; nil = not supported
	kept map[*hostRegion]struct{} // the open imported regions
}

// From linux/userfaultfd.h; the numbers of the requests apply to amd64 and arm64.
const (
	uffdUserModeOnly    = 1
	uffdAPI             = 0xaa
	uffdMissingHugetlb  = 1 << 4
	uffdMissingShmem    = 1 << 5
	uffdSigbus          = 1 << 7
	uffdRegisterMissing = 1
	uffdioAPI           = 0xc018aa3f
	uffdioRegister      = 0xc020aa00
)

// open opens the userfaultfd. It leaves file nil if the system does not support it.
func (g *holeGuard) open() {
	g.kept = map[*hostRegion]struct{}{}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|uffdUserModeOnly, 0, 0)
	if errno != 0 {
		return
	}
	file := os.NewFile(fd, "userfaultfd")
	api := struct{ api, features, ioctls uint64 }{api: uffdAPI, features: uffdSigbus | uffdMissingShmem | uffdMissingHugetlb}
	if err := ioctl(file, uffdioAPI, unsafe.Pointer(&api)); err != nil {
		file.Close()
		return
	}
	g.file = file
}

func (g *holeGuard) close() {
	if g.file != nil {
		g.file.Close()
	}
}

// keep guards a mapping of an imported region, if that is possible.
func (g *holeGuard) keep(r *hostRegion) {
	g.mu.Lock()
	g.kept[r] = struct{}{}
	g.mu.Unlock()
	if g.file == nil {
		return
	}
	whole := struct{ start, length, mode, ioctls uint64 }{
		start:  uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem)))),
		length: uint64(roundUp(r.Bytes(), int64(os.Getpagesize()))),
		mode:   uffdRegisterMissing,
	}
	r.guarded = ioctl(g.file, uffdioRegister, unsafe.Pointer(&whole)) == nil
}

// forget drops a region that is about to be unmapped. Unmapping ends the guard.
func (g *holeGuard) forget(r *hostRegion) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.kept, r)
}

// explain returns ErrInvalid with a reason if err is a fault in memory of a client. It
// returns any other error unchanged.
func (g *holeGuard) explain(err error) error {
	fault, ok := errors.AsType[*memoryFault](err)
	if !ok {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for r := range g.kept {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(r.mem)))
		if fault.addr >= begin && fault.addr-begin < uintptr(len(r.mem)) {
			return fmt.Errorf("byte %d of imported memory has no page: its owner has to write or fallocate it before it shares it, and not to punch holes: %w",
				fault.addr-begin, ErrInvalid)
		}
	}
	return err
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
	runtime.KeepAlive(f)
	if errno != 0 {
		return errno
	}
	return nil
}

// MappingCost returns the most memory of this process, or of its control group, that an
// imported region can use. That is the page tables: one page of 512 entries for each 2 MiB
// that is touched, and the page tables of higher levels. The region itself is added if its
// holes can be filled.
func MappingCost(r Region) int64 {
	page := int64(os.Getpagesize())
	cost := r.Bytes()/(page/8)*257/256 + 4*page
	if hr, ok := r.(*hostRegion); ok && hr.imported && !hr.guarded {
		cost += r.Bytes()
	}
	return cost
}
