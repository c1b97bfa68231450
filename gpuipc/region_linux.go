package gpuipc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/policy/errkind"
)

// hostRegion is a memfd that we map for reading and writing, our own or an imported one.
type hostRegion struct {
	dev      *host
	name     string
	access   Access
	file     *os.File // nil = imported, or no longer shared
	mem      []byte
	warm     []atomic.Uint64 // one bit per warmBytes, set = populated; nil = populate does nothing
	imported bool
	guarded  bool // imported, and its holes are guarded

	// users is the number of running operations, or closedRegion once the region is closed.
	users atomic.Int64
}

const closedRegion = -1 << 62

// NewRegion creates a memfd, maps it and seals it. It does not touch the memory: a page
// costs nothing before its first write. A region larger than this process may ever use
// (MemoryLimit) is refused with ErrFull, because writing it would get the process killed.
//
// HugeAuto uses the pages that the operator reserved in hugetlbfs, if enough of them are
// unclaimed for the whole region. Otherwise it advises transparent huge pages, which the
// kernel uses or not depending on shmem_enabled. HugeRequire accepts only reserved pages.
func (h *host) NewRegion(spec RegionSpec) (Region, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	if limit, ok := MemoryLimit(); ok && spec.Bytes > limit {
		return nil, fmt.Errorf("region %s: %d bytes are more than the %d this process may hold: %w", spec.Name, spec.Bytes, limit, ErrFull)
	}
	r, err := h.newHugeRegion(spec)
	if err != nil && spec.Huge == HugeRequire {
		return nil, err
	}
	if r == nil {
		if r, err = h.makeRegion(spec, roundUp(spec.Bytes, int64(os.Getpagesize())), false); err != nil {
			return nil, err
		}
		if spec.Huge == HugeAuto {
			// Advice only: kernels without it, or with shmem_enabled=never, use small pages.
			_ = unix.Madvise(r.mem, unix.MADV_HUGEPAGE)
		}
	}
	h.regions.Add(1)
	return r, nil
}

// Check returns ErrInvalid for a region that no device can make.
func (spec *RegionSpec) Check() error {
	switch {
	case spec.Bytes <= 0 || spec.Bytes > 1<<46:
		return fmt.Errorf("region %q of %d bytes: %w", spec.Name, spec.Bytes, ErrInvalid)
	case spec.Access < ClientReads || spec.Access > ClientViews:
		return fmt.Errorf("region %q: access %d: %w", spec.Name, spec.Access, ErrInvalid)
	case spec.Huge > HugeRequire:
		return fmt.Errorf("region %q: huge pages %d: %w", spec.Name, spec.Huge, ErrInvalid)
	case spec.Way > WayHandle:
		return fmt.Errorf("region %q: way %d: %w", spec.Name, spec.Way, ErrInvalid)
	case len(spec.Name) > 200 || strings.ContainsRune(spec.Name, 0):
		return fmt.Errorf("region name %q: %w", spec.Name, ErrInvalid)
	}
	return nil
}

// newHugeRegion makes a region of reserved huge pages. If it cannot, it returns nil and the
// reason; for HugeNever the reason is nil too.
func (h *host) newHugeRegion(spec RegionSpec) (*hostRegion, error) {
	if spec.Huge == HugeNever {
		return nil, nil
	}
	size := roundUp(spec.Bytes, hugePageBytes)
	if free := freeHugePages(); size/hugePageBytes > free {
		return nil, fmt.Errorf("region %s: needs %d huge pages of 2 MiB, %d are reserved and free; raise vm.nr_hugepages: %w", spec.Name, size/hugePageBytes, free, ErrUnavailable)
	}
	r, err := h.makeRegion(spec, size, true)
	if err != nil {
		return nil, err
	}
	// The first page shows whether the control group allows any.
	if err := unix.Madvise(r.mem[:hugePageBytes], unix.MADV_POPULATE_WRITE); err != nil && !errors.Is(err, unix.EINVAL) {
		_ = r.unmap()
		return nil, fmt.Errorf("region %s: first huge page: %w: %w", spec.Name, err, ErrUnavailable)
	}
	return r, nil
}

// makeRegion maps the memory before it seals it, because the seal F_SEAL_FUTURE_WRITE does
// not restrict mappings that exist already.
func (h *host) makeRegion(spec RegionSpec, size int64, huge bool) (*hostRegion, error) {
	f, err := createMemfd(spec.Name, size, huge)
	if err != nil {
		return nil, regionError(spec.Name, size, err)
	}
	mem, err := mapShared(f, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		f.Close()
		return nil, regionError(spec.Name, size, err)
	}
	r := &hostRegion{dev: h, name: spec.Name, access: spec.Access, file: f, mem: mem,
		warm: make([]atomic.Uint64, size/warmBytes/64+1)}
	seals := sealSize
	if spec.Access == ClientReads {
		seals = sealReads
	}
	if spec.Access == ClientViews {
		err = f.Chmod(0o400) // so that other users cannot open it for writing through /proc
	}
	if err == nil {
		err = addSeals(f, seals)
	}
	if err != nil {
		_ = r.unmap()
		return nil, regionError(spec.Name, size, err)
	}
	// A crash dump must not carry gigabytes of cached prompts.
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	return r, nil
}

// regionError wraps an error of the kernel and one of our kinds of failure.
func regionError(name string, size int64, err error) error {
	kind := ErrUnavailable
	switch {
	case errors.Is(err, ErrInvalid):
		return fmt.Errorf("region %s of %d bytes: %w", name, size, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		kind = ErrFull
	}
	return errkind.With(fmt.Errorf("region %s of %d bytes: %w", name, size, err), kind)
}

// Import maps a client's memfd for reading and writing, and closes the descriptor. If the
// system supports a holeGuard, an operation that touches a hole of this memory ends with
// ErrInvalid and fills nothing.
func (h *host) Import(hd Handle) (Region, error) {
	if hd.File == nil {
		return nil, fmt.Errorf("import: no descriptor: %w", ErrInvalid)
	}
	if err := checkFixed(hd.File, hd.Bytes); err != nil {
		hd.File.Close()
		return nil, fmt.Errorf("import: %w", err)
	}
	mem, err := mapShared(hd.File, hd.Bytes, unix.PROT_READ|unix.PROT_WRITE)
	hd.File.Close()
	if err != nil {
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
			return nil, fmt.Errorf("import: %w; the descriptor must be open for reading and writing and not sealed against writes: %w", err, ErrInvalid)
		}
		return nil, regionError("import", hd.Bytes, err)
	}
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
	h.regions.Add(1)
	r := &hostRegion{dev: h, name: "import", access: ClientWrites, mem: mem, imported: true}
	h.holes.keep(r)
	return r, nil
}

// HostOf returns the host device that made or imported r, for accelerators that copy to and
// from the device's memory. It returns false if r is not a region of a host device.
func HostOf(r Region) (Device, bool) {
	hr, ok := r.(*hostRegion)
	if !ok {
		return nil, false
	}
	return hr.dev, true
}

func (r *hostRegion) Bytes() int64 { return int64(len(r.mem)) }

func (r *hostRegion) Export() (Handle, error) {
	if err := r.acquire(); err != nil {
		return Handle{}, err
	}
	defer r.release()
	if r.file == nil {
		return Handle{}, errNotShared
	}
	f, err := duplicate(r.file, r.name, r.access)
	if err != nil {
		return Handle{}, regionError(r.name, r.Bytes(), err)
	}
	return Handle{File: f, Bytes: r.Bytes()}, nil
}

func (r *hostRegion) Resident() (int64, error) {
	if err := r.acquire(); err != nil {
		return 0, err
	}
	defer r.release()
	if r.file == nil {
		return 0, errNotShared
	}
	return residentBytes(r.file)
}

var errNotShared = fmt.Errorf("the region has no descriptor: it was imported, or is not shared any more: %w", ErrUnavailable)

// Unshare closes the descriptor of a region that no other client will get. From then on,
// Export and Resident return ErrUnavailable; they must not run at the same time as Unshare.
// Unshare does nothing for regions of other devices.
func Unshare(r Region) error {
	hr, ok := r.(*hostRegion)
	if !ok || hr.file == nil {
		return nil
	}
	file := hr.file
	hr.file = nil
	return file.Close()
}

// Discard returns the pages of a region to the system, even if others still have a
// descriptor or a mapping of it. Without Discard, the pages would be charged to us for as
// long as a client keeps them. The region must not be read any more: its bytes are zero.
// Discard does nothing for regions where this is impossible (imported, sealed, or of an
// accelerator).
func Discard(r Region) error {
	hr, ok := r.(*hostRegion)
	if !ok || hr.imported || hr.access == ClientReads {
		return nil
	}
	if err := hr.acquire(); err != nil {
		return err
	}
	defer hr.release()
	if err := unix.Madvise(hr.mem, unix.MADV_REMOVE); err != nil {
		return fmt.Errorf("discard region %s: %w", hr.name, err)
	}
	return nil
}

// Close panics if an operation is still using the memory. That operation could otherwise
// write into whatever is mapped there next.
func (r *hostRegion) Close() error {
	if !r.users.CompareAndSwap(0, closedRegion) {
		if n := r.users.Load(); n > 0 {
			panic(fmt.Sprintf("gpuipc: close of region %s under %d running operations", r.name, n))
		}
		return fmt.Errorf("close region %s: closed already: %w", r.name, ErrInvalid)
	}
	r.dev.regions.Add(-1)
	return r.unmap()
}

func (r *hostRegion) unmap() error {
	if r.imported {
		r.dev.holes.forget(r)
	}
	return errors.Join(unix.Munmap(r.mem), Unshare(r))
}

// acquire keeps the region mapped for one operation, until release.
func (r *hostRegion) acquire() error {
	if r.users.Add(1) < 0 {
		r.users.Add(-1)
		return fmt.Errorf("region %s is closed: %w", r.name, ErrInvalid)
	}
	return nil
}

// warmBytes is the unit of populate.
const warmBytes = 64 << 10

// populate lets the operating system back [at, at+n) with cleared pages in one call before
// the first write. A fault for each page would make a first copy 1.4 times slower (measured,
// 4 KiB pages). A failure does not matter, because a missing page is faulted in later.
func (r *hostRegion) populate(at, n int64) {
	if r.warm == nil || n < warmBytes {
		return
	}
	for unit, end := at/warmBytes, (at+n-1)/warmBytes+1; unit < end; unit++ {
		begin := unit
		for unit < end && r.warm[unit/64].Load()>>(unit%64)&1 == 0 {
			r.warm[unit/64].Or(1 << (unit % 64))
			unit++
		}
		if begin < unit {
			_ = unix.Madvise(r.mem[begin*warmBytes:min(unit*warmBytes, r.Bytes())], unix.MADV_POPULATE_WRITE)
		}
	}
}

func (r *hostRegion) release() { r.users.Add(-1) }

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
