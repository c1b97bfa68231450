package slab_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	. "github.com/spliced-kv/spliced/tiering/disk/slab"
	. "github.com/spliced-kv/spliced/tiering/disk/slab/slabtest"
)

func TestCreateAllocates(t *testing.T) {
	for _, kind := range []string{"direct", "buffered"} {
		t.Run(kind, func(t *testing.T) {
			const size = 3 << 20
			fsys := kinds[kind](t)
			f := closing[File](t)(fsys.Create("a", size)).(*DirFile)
			var st unix.Stat_t
			noError(t, unix.Fstat(f.FD(), &st))
			if st.Size != size || st.Blocks*512 < size {
				t.Errorf("%d bytes, %d allocated, want %d", st.Size, st.Blocks*512, size)
			}
			if st.Mode&0o777 != 0o600 {
				t.Errorf("mode %o", st.Mode&0o777)
			}
		})
	}
}

// TestCreateSaysNoSpace asks a tmpfs for more than it has: it refuses at once,
// other file systems would first fill up.
func TestCreateSaysNoSpace(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != unix.TMPFS_MAGIC || st.Blocks == 0 {
		t.Skipf("/dev/shm is no tmpfs of limited size (%v)", err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "slab")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	fsys := must[FS](t)(OpenDir(dir))
	free := must[int64](t)(fsys.Free())
	if free > int64(st.Blocks)*st.Bsize {
		t.Errorf("%d bytes free of %d", free, int64(st.Blocks)*st.Bsize)
	}
	_, err = fsys.Create("a", int64(st.Blocks)*st.Bsize+BlockBytes)
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("more than there is: %v", err)
	}
	if names := must[[]string](t)(fsys.List()); len(names) != 0 {
		t.Errorf("%q are left", names)
	}
}

// TestTransfersGoOnAfterShortAndInterruptedCalls has a kernel that does as little
// as it may.
func TestTransfersGoOnAfterShortAndInterruptedCalls(t *testing.T) {
	for _, kind := range []string{"direct", "buffered"} {
		t.Run(kind, func(t *testing.T) {
			const size = 64 * BlockBytes
			f := closing[File](t)(kinds[kind](t).Create("a", size)).(*DirFile)
			rng := rand.New(rand.NewPCG(7, 7))
			shorts, interrupted := 0, 0
			lazy := func(call VectorCall) VectorCall {
				partial := false
				return func(fd int, bufs [][]byte, off int64) (int, error) {
					if rng.IntN(3) == 0 {
						interrupted++
						return 0, unix.EINTR
					}
					n, err := call(fd, bufs, off)
					if err != nil || rng.IntN(2) == 0 && !partial {
						return n, err
					}
					// Less than was moved, down to less than a block; but not
					// twice, since that is no progress at all.
					n = min(n, rng.IntN(n)+1)
					partial = n < BlockBytes && !partial
					if n < BlockBytes && !partial {
						n = BlockBytes
					}
					shorts++
					return n, nil
				}
			}
			f.SetCalls(lazy(unix.Preadv), lazy(unix.Pwritev))
			for i := range 50 {
				data, got := Random(uint64(i), size), AlignedBuffer(size)
				noError(t, f.WriteAt(Pieces(rng, data, 8), 0))
				noError(t, f.ReadAt(Pieces(rng, got, 8), 0))
				if !bytes.Equal(got, data) {
					t.Fatal("other bytes came back")
				}
			}
			if shorts < 50 || interrupted < 50 {
				t.Errorf("%d short, %d interrupted: too few", shorts, interrupted)
			}
		})
	}
}

func TestCallsThatMoveNothingEnd(t *testing.T) {
	f := closing[File](t)(kinds["direct"](t).Create("a", 4*BlockBytes)).(*DirFile)
	buf := [][]byte{AlignedBuffer(2 * BlockBytes)}
	for _, n := range []int{0, 100} {
		nothing := func(int, [][]byte, int64) (int, error) { return n, nil }
		f.SetCalls(nothing, nothing)
		if err := f.ReadAt(buf, 0); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("read of %d: %v", n, err)
		}
		if err := f.WriteAt(buf, 0); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("write of %d: %v", n, err)
		}
	}
}

// TestFileThatEndsEarly is cut behind its owner's back.
func TestFileThatEndsEarly(t *testing.T) {
	for _, kind := range []string{"direct", "buffered"} {
		t.Run(kind, func(t *testing.T) {
			f := closing[File](t)(kinds[kind](t).Create("a", 8*BlockBytes)).(*DirFile)
			noError(t, unix.Ftruncate(f.FD(), 4*BlockBytes+100))
			if err := f.ReadAt([][]byte{AlignedBuffer(8 * BlockBytes)}, 0); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("read over the end: %v", err)
			}
			noError(t, f.ReadAt([][]byte{AlignedBuffer(4 * BlockBytes)}, 0))
		})
	}
}

// TestFirstTransferRefused has O_DIRECT accepted at open and refused later, in
// several transfers at once.
func TestFirstTransferRefused(t *testing.T) {
	const size = 32 * BlockBytes
	f := closing[File](t)(kinds["direct"](t).Create("a", size)).(*DirFile)
	if !f.Direct() {
		t.Skip("the file system of the temporary directory has no O_DIRECT")
	}
	f.SetCalls(unix.Preadv, func(fd int, bufs [][]byte, off int64) (int, error) {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_DIRECT != 0 {
			return 0, errors.Join(err, unix.EINVAL)
		}
		return unix.Pwritev(fd, bufs, off)
	})
	data, got := Random(1, size), AlignedBuffer(size)
	var writers sync.WaitGroup
	for off := int64(0); off < size; off += 4 * BlockBytes {
		writers.Go(func() {
			if err := f.WriteAt([][]byte{data[off : off+4*BlockBytes]}, off); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if f.Direct() {
		t.Error("still said to be direct")
	}
	noError(t, f.Sync())
	noError(t, f.ReadAt([][]byte{got}, 0))
	if !bytes.Equal(got, data) {
		t.Error("other bytes came back")
	}
}

// TestLaterRefusalIsAnError: once O_DIRECT worked, EINVAL means something else.
func TestLaterRefusalIsAnError(t *testing.T) {
	f := closing[File](t)(kinds["direct"](t).Create("a", BlockBytes)).(*DirFile)
	buf := [][]byte{AlignedBuffer(BlockBytes)}
	noError(t, f.WriteAt(buf, 0))
	was := f.Direct()
	f.SetCalls(func(int, [][]byte, int64) (int, error) { return 0, unix.EINVAL }, unix.Pwritev)
	if err := f.ReadAt(buf, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("%v", err)
	}
	if f.Direct() != was {
		t.Error("a late refusal changed how the file is used")
	}
}

// TestBufferedLeavesThePageCacheEmpty counts resident pages.
func TestBufferedLeavesThePageCacheEmpty(t *testing.T) {
	const size = 4 << 20
	fsys := kinds["buffered"](t)
	f := closing[File](t)(fsys.Create("a", size)).(*DirFile)
	var st unix.Statfs_t
	noError(t, unix.Fstatfs(f.FD(), &st))
	if st.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary directory is the page cache itself")
	}
	noError(t, f.WriteAt([][]byte{Random(1, size)}, 0))
	if resident(t, f.FD(), size) == 0 {
		t.Error("a buffered write left nothing in the page cache: is it buffered?")
	}
	noError(t, f.Sync())
	if n := resident(t, f.FD(), size); n > size/BlockBytes/10 {
		t.Errorf("%d pages are resident after the sync", n)
	}
	noError(t, f.ReadAt([][]byte{AlignedBuffer(size)}, 0))
	if n := resident(t, f.FD(), size); n > size/BlockBytes/10 {
		t.Errorf("%d pages are resident after the read", n)
	}
}

func resident(t *testing.T, fd, size int) (pages int) {
	t.Helper()
	mem := must[[]byte](t)(unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED))
	defer unix.Munmap(mem)
	vec := make([]byte, size/BlockBytes)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(size), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, v := range vec {
		pages += int(v & 1)
	}
	return pages
}

const readOnlyRole = "SLAB_TEST_READONLY"

// TestReadOnlyFileSystemServesReads runs itself again in namespaces of its own,
// where it may mount.
func TestReadOnlyFileSystemServesReads(t *testing.T) {
	if dir := os.Getenv(readOnlyRole); dir != "" {
		readOnly(t, dir)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestReadOnlyFileSystemServesReads$", "-test.v")
	cmd.Env = append(os.Environ(), readOnlyRole+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case strings.Contains(string(out), "--- SKIP"), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EINVAL):
		t.Skipf("no namespaces of our own here: %v %s", err, out)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	}
}

func readOnly(t *testing.T, dir string) {
	if err := unix.Mount("slabs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip(err)
	}
	o := SetOptions{StoreID: StoreID{1, 2, 3}, SlabBytes: 4 << 20, Granule: 64 << 10}
	fsys := must[FS](t)(OpenDir(dir))
	s := must[*Set](t)(OpenSet(fsys, o))
	slab := must[SlabInfo](t)(s.Grow())
	runs := []Run{{slab.Number, o.Granule, o.Granule}}
	data, got := Random(1, int(o.Granule)), AlignedBuffer(int(o.Granule))
	noError(t, s.Write(runs, 0, [][]byte{data}))
	noError(t, s.Close())
	noError(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))

	s = closing[*Set](t)(OpenSet(fsys, o))
	if refused := s.Refused(); len(refused) != 0 {
		t.Fatalf("refused: %v", refused)
	}
	noError(t, s.Read(runs, 0, [][]byte{got}))
	if !bytes.Equal(got, data) {
		t.Error("other bytes came back")
	}
	if err := s.Write(runs, 0, [][]byte{data}); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: %v", err)
	}
	if _, err := s.Grow(); !errors.Is(err, unix.EROFS) {
		t.Errorf("grow: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, FileName(2))); err == nil {
		t.Error("a failed growth left a file")
	}
}
