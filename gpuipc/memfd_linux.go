package gpuipc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// These are the seals of our regions. A client with any descriptor of a region can neither
// resize it nor add seals. A ClientReads region also has the seal F_SEAL_FUTURE_WRITE. With
// this seal, a client cannot get a writable mapping, call write(2) or punch a hole, not
// even if it opens the region again under /proc/self/fd for reading and writing. Our own
// mapping is older than the seal and stays writable.
//
// F_SEAL_FUTURE_WRITE forbids us to punch holes too (and MADV_REMOVE). So memory of a
// ClientReads region is freed only with the whole region, when the last client has closed
// it. ClientViews regions, one for each connection, do not have this seal for that reason.
const (
	sealSize  = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	sealReads = sealSize | unix.F_SEAL_FUTURE_WRITE
)

const hugePageBytes = 2 << 20

// createMemfd makes an unsealed memfd of size bytes.
func createMemfd(name string, size int64, huge bool) (*os.File, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	// The memfd is made not executable, if the kernel knows the flag for that (since 6.3).
	// Hardened systems refuse memfds without the flag (vm.memfd_noexec=2).
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memfd:"+name)
	if err := unix.Ftruncate(fd, size); err != nil {
		f.Close()
		return nil, fmt.Errorf("ftruncate to %d bytes: %w", size, err)
	}
	return f, nil
}

// mapShared maps the first size bytes of f.
func mapShared(f *os.File, size int64, prot int) ([]byte, error) {
	if size <= 0 || size != int64(int(size)) {
		return nil, fmt.Errorf("map %d bytes: %w", size, ErrInvalid)
	}
	// NORESERVE: a large region reserves nothing. Its pages are charged one by one.
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", size, err)
	}
	return mem, nil
}

// addSeals seals f.
func addSeals(f *os.File, seals int) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("seal with %#x: %w", seals, err)
	}
	return nil
}

// checkFixed refuses memory whose owner could shrink it under a mapping. An access past the
// new end would kill the process that has the mapping.
func checkFixed(f *os.File, size int64) error {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("not a memfd that takes seals (%w); share memory made by memfd_create(MFD_ALLOW_SEALING): %w", err, ErrInvalid)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return fmt.Errorf("memfd can still shrink (seals %#x); add F_SEAL_SHRINK with fcntl(F_ADD_SEALS) before sharing it: %w", seals, ErrInvalid)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("fstat: %w: %w", err, ErrInvalid)
	}
	if st.Size != size {
		return fmt.Errorf("memfd has %d bytes, its handle says %d: %w", st.Size, size, ErrInvalid)
	}
	return nil
}

// residentBytes returns the bytes of memory that f uses, without visiting its pages.
func residentBytes(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	return st.Blocks * 512, nil
}

// duplicate returns a descriptor for a client. If /proc is mounted, readers get a read-only
// descriptor of the same memory. The seal protects the memory; the read-only descriptor
// only makes mistakes of the client fail early.
func duplicate(f *os.File, name string, access Access) (*os.File, error) {
	if access != ClientWrites {
		fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// freeHugePages returns the number of reserved 2 MiB pages that no process has claimed,
// limited by the hugetlb limit of our control group.
func freeHugePages() int64 {
	const dir = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	free, ok := readNumber(dir + "free_hugepages")
	if !ok {
		return 0
	}
	claimed, _ := readNumber(dir + "resv_hugepages")
	free -= claimed
	// A fault above the limit is a SIGBUS, not an error, so the region must stay below the
	// limit.
	if room, limited := cgroupRoom("hugetlb.2MB.max", "hugetlb.2MB.current"); limited {
		free = min(free, room/hugePageBytes)
	}
	return max(free, 0)
}

// readNumber reads a file with one decimal number.
func readNumber(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}
