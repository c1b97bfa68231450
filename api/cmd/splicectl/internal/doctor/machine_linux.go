package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// soPeerPIDFD is SO_PEERPIDFD (Linux 6.5), the same number on amd64 and arm64.
const soPeerPIDFD = 77

// arenaSeals are the seals that a daemon sets on the arena before sharing it.
const arenaSeals = unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// machine performs the checks that need no daemon.
func machine() []Check {
	return []Check{checkSeals(), checkPeerDeath(), checkInstructions(), checkHugePages(), checkMemoryLimit(), checkFiles()}
}

// checkSeals creates a small arena as the daemon does, and tries to write to it.
func checkSeals() Check {
	const name = "memfd seals"
	const remedy = "Linux 5.1 or later is needed, with memfd_create allowed by the seccomp profile"
	fd, err := unix.MemfdCreate("spliced-doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fail(name, remedy, "memfd_create: %v", err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return fail(name, remedy, "%v", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, arenaSeals); err != nil {
		return fail(name, remedy, "sealing: %v", err)
	}
	if err := tryWriting(f); err != nil {
		return fail(name, "this kernel does not enforce seals: do not run spliced on it", "%v", err)
	}
	return ok(name, "sealed shared memory cannot be written, not even when reopened")
}

// tryWriting tries every way in which a client could change a sealed file. It returns nil if the
// kernel refused all of them.
func tryWriting(f *os.File) error {
	fds := []*os.File{f}
	if again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_RDWR, 0); err == nil {
		defer again.Close()
		fds = append(fds, again)
	}
	for i, f := range fds {
		if err := tryWritingAs([]string{"as received", "opened again through /proc"}[i], f); err != nil {
			return err
		}
	}
	return nil
}

func tryWritingAs(how string, f *os.File) error {
	if _, err := f.WriteAt([]byte{1}, 0); err == nil {
		return fmt.Errorf("a write %s went through", how)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		return errors.Join(fmt.Errorf("it can be mapped for writing %s", how), unix.Munmap(mem))
	}
	if err := upgradeMapping(f); err != nil {
		return fmt.Errorf("%s: %w", how, err)
	}
	for _, size := range []int64{0, 1 << 50} {
		if unix.Ftruncate(int(f.Fd()), size) == nil {
			return fmt.Errorf("its size could be changed %s", how)
		}
	}
	return nil
}

// upgradeMapping maps for reading and then requests write access.
func upgradeMapping(f *os.File) error {
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("it cannot be mapped for reading: %w", err)
	}
	defer func() { _ = unix.Munmap(mem) }() // our own page: nothing depends on it
	if unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE) == nil {
		return errors.New("a mapping for reading could be made writable")
	}
	return nil
}

// checkPeerDeath checks the kernel feature by which a daemon notices that a client has died.
func checkPeerDeath() Check {
	const name = "peer pidfd"
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fail(name, "SOCK_SEQPACKET unix sockets are needed: check the seccomp profile", "%v", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, soPeerPIDFD)
	if err != nil {
		return warn(name, "Linux 6.5 or later reports deaths without relying on end-of-file", "SO_PEERPIDFD: %v; deaths are seen as end-of-file only", err)
	}
	_ = unix.Close(fd) // only tested for existence
	return ok(name, "deaths of clients are seen across PID namespaces")
}

func checkInstructions() Check {
	const name = "instructions"
	if features := kernel.Features(); len(features) > 0 {
		return ok(name, "kernels use %s", strings.Join(features, ", "))
	}
	return warn(name, "a processor with AVX2 and FMA composes several times faster", "kernels run as plain Go")
}

func checkHugePages() Check {
	const name = "huge pages"
	const remedy = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (as root) saves page faults in the pools"
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if err != nil {
		return warn(name, remedy, "not offered for shared memory: %v", err)
	}
	_, chosen, _ := strings.Cut(string(text), "[")
	chosen, _, _ = strings.Cut(chosen, "]")
	if chosen == "never" || chosen == "deny" {
		return warn(name, remedy, "switched off for shared memory (%s)", chosen)
	}
	return ok(name, "offered for shared memory (%s)", chosen)
}

func checkMemoryLimit() Check {
	const name = "memory limit"
	const floor = 2 << 30
	limit, known := gpuipc.MemoryLimit()
	switch {
	case !known:
		return warn(name, "mount /proc and the control group file system", "neither a limit nor the machine's memory can be read")
	case limit < floor:
		return warn(name, "raise the container's memory limit, or set a small -arena and -private", "%.1f GiB: less than the default pools want", float64(limit)/(1<<30))
	}
	return ok(name, "%.1f GiB for this process", float64(limit)/(1<<30))
}

func checkFiles() Check {
	const name = "open files"
	const floor = 1024
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return warn(name, "", "limit not readable: %v", err)
	}
	if limit.Max < floor {
		return warn(name, "raise the hard limit of open files (ulimit -Hn)", "at most %d; each client takes about 8", limit.Max)
	}
	return ok(name, "%d now, %d at most", limit.Cur, limit.Max)
}
