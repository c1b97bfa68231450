package gpuipc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attackRole tries to change or resize the memory behind descriptor 3 and prints
// one line for each attempt: what it was, then "no" or "DONE".
func attackRole() error {
	f := os.NewFile(3, "arena")
	st, err := f.Stat()
	if err != nil {
		return err
	}
	n := int(st.Size())
	reopened, err := os.OpenFile("/proc/self/fd/3", os.O_RDWR, 0)
	fmt.Println("reopen for writing:", err == nil) // allowed, and of no use
	for _, target := range []*os.File{f, reopened} {
		if target == nil {
			continue
		}
		fd := int(target.Fd())
		for _, a := range attacks(fd, n) {
			verdict := "no"
			if err := a.try(); err == nil {
				verdict = "DONE"
			}
			fmt.Println(a.name+":", verdict)
		}
	}
	// A private copy is the client's own business, ours must not change.
	private, err := unix.Mmap(3, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	clear(private)
	return nil
}

type attack struct {
	name string
	try  func() error
}

func attacks(fd, n int) []attack {
	bad := []byte("overwritten by a client")
	at := func(name string, try func() error) attack { return attack{name, try} }
	mapped := func(name string, try func(b []byte) error) attack {
		return at(name, func() error {
			b, err := unix.Mmap(fd, 0, n, unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			return errors.Join(try(b), unix.Munmap(b))
		})
	}
	return []attack{
		at("write", func() error { _, err := unix.Write(fd, bad); return err }),
		at("pwrite", func() error { _, err := unix.Pwrite(fd, bad, 100); return err }),
		at("pwritev", func() error { _, err := unix.Pwritev(fd, [][]byte{bad}, 0); return err }),
		at("mmap for writing", func() error {
			b, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err == nil {
				copy(b, bad)
			}
			return err
		}),
		mapped("mprotect", func(b []byte) error {
			if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err != nil {
				return err
			}
			copy(b, bad)
			return nil
		}),
		mapped("madvise remove", func(b []byte) error { return unix.Madvise(b, unix.MADV_REMOVE) }),
		at("punch a hole", func() error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
		}),
		at("zero a range", func() error {
			return unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
		}),
		at("allocate past the end", func() error { return unix.Fallocate(fd, 0, int64(n), 4096) }),
		at("truncate", func() error { return unix.Ftruncate(fd, 4096) }),
		at("grow", func() error { return unix.Ftruncate(fd, int64(2*n)) }),
		at("add a seal", func() error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
			return err
		}),
		at("splice into it", func() error {
			var p [2]int
			if err := unix.Pipe(p[:]); err != nil {
				return nil // must not pass for a refusal
			}
			if _, err := unix.Write(p[1], bad); err != nil {
				return nil
			}
			_, err := unix.Splice(p[0], nil, fd, nil, len(bad), unix.SPLICE_F_NONBLOCK)
			return err
		}),
		mapped("write through /proc/self/mem", func(b []byte) error { return writeOwnMemory(b, bad) }),
	}
}

// writeOwnMemory writes as a debugger would, which looks past the protection of
// private pages.
func writeOwnMemory(b, bad []byte) error {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	_, err = mem.WriteAt(bad, int64(uintptr(unsafe.Pointer(&b[0]))))
	return err
}

func TestNoClientChangesARegionOfReaders(t *testing.T) {
	t.Run("small pages", func(t *testing.T) { attackRegion(t, HugeNever) })
	t.Run("huge pages", func(t *testing.T) {
		if freeHugePages() == 0 {
			t.Skip("no huge pages are reserved here")
		}
		attackRegion(t, HugeRequire)
	})
}

func attackRegion(t *testing.T, huge HugePages) {
	d := newTestHost(t, HostOptions{})
	r := newTestRegion(t, d, RegionSpec{Bytes: 1 << 16, Access: ClientReads, Huge: huge})
	want := bytes.Repeat([]byte("spliced "), int(r.Bytes())/8)
	must(t, d.Store(context.Background(), refOf(r, 0, r.Bytes()), want))
	// What a client gets where /proc is hidden from us is a read-write descriptor.
	fallback, err := unix.FcntlInt(r.file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	must(t, err)
	direct := os.NewFile(uintptr(fallback), "direct")
	defer direct.Close()
	for name, f := range map[string]*os.File{"exported": exported(t, r), "read-write": direct} {
		t.Run(name, func(t *testing.T) {
			out, err := otherProcess("attack", f).Output()
			must(t, err)
			if strings.Contains(string(out), "DONE") || strings.Count(string(out), ": no\n") < 28 {
				t.Errorf("attacks:\n%s", out)
			}
			got := make([]byte, len(want))
			must(t, d.Load(context.Background(), got, refOf(r, 0, r.Bytes())))
			if !bytes.Equal(got, want) {
				t.Errorf("the client changed the region; attacks:\n%s", out)
			}
		})
	}
	// We can still write, and readers see it.
	m, err := Map(Handle{File: dupForTest(t, r), Bytes: r.Bytes()}, false)
	must(t, err)
	defer m.Close()
	must(t, d.Store(context.Background(), refOf(r, 40, 3), []byte("new")))
	if string(m.Bytes()[40:43]) != "new" {
		t.Error("a mapping does not see what was written after it")
	}
}

// dupForTest is an export whose owner is the callee.
func dupForTest(t testing.TB, r Region) *os.File {
	t.Helper()
	h, err := r.Export()
	must(t, err)
	return h.File
}

// writerRole is a client with staging at descriptor 3: it writes, then tries to
// resize what it got.
func writerRole() error {
	f := os.NewFile(3, "staging")
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for name, try := range map[string]func() error{
		"shrink":     func() error { return f.Truncate(0) },
		"grow":       func() error { return f.Truncate(2 * st.Size()) },
		"add a seal": func() error { _, err := unix.FcntlInt(3, unix.F_ADD_SEALS, unix.F_SEAL_GROW); return err },
	} {
		if try() == nil {
			return fmt.Errorf("could %s", name)
		}
	}
	m, err := Map(Handle{File: f, Bytes: st.Size()}, true)
	if err != nil {
		return err
	}
	copy(m.Bytes(), "from the client")
	return m.Close()
}

func TestAStagingRegionIsWrittenByItsClientAndKeepsItsSize(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	r := newTestRegion(t, d, RegionSpec{Bytes: 1 << 16, Access: ClientWrites})
	must(t, otherProcess("writer", exported(t, r)).Run())
	got := make([]byte, 15)
	must(t, d.Load(context.Background(), got, refOf(r, 0, 15)))
	if string(got) != "from the client" {
		t.Errorf("the region holds %q", got)
	}
}

// hammerRole writes descriptor 3 all over, again and again, until killed.
func hammerRole() error {
	f := os.NewFile(3, "staging")
	st, err := f.Stat()
	if err != nil {
		return err
	}
	m, err := Map(Handle{File: f, Bytes: st.Size()}, true)
	if err != nil {
		return err
	}
	for v := byte(1); ; v++ {
		for i := range m.Bytes() {
			m.Bytes()[i] = v
		}
		if v == 1 {
			fmt.Println("writing")
		}
	}
}

func TestDigestsAreThoseOfTheStoredBytesUnderAWritingClient(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	const n = 2*ChunkBytes + 4096
	staging := newTestRegion(t, d, RegionSpec{Bytes: n, Access: ClientWrites})
	arena := newTestRegion(t, d, RegionSpec{Bytes: 2 * n, Access: ClientReads})
	cmd := otherProcess("hammer", exported(t, staging))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	whole := refOf(arena, 0, n)
	pieces := Ref{Region: arena, Extents: []Extent{{n + 4096, 1 << 19}, {0, n - 1<<19}}}
	mixed := 0
	for round := range 60 {
		dst := whole
		if round%2 == 1 {
			dst = pieces
		}
		got, want := make([]uint64, 3), make([]uint64, 3)
		must(t, d.CopyDigests(context.Background(), dst, refOf(staging, 0, n), got))
		must(t, d.Digests(context.Background(), dst, want))
		if [3]uint64(got) != [3]uint64(want) {
			t.Fatalf("round %d: digests %x, the stored bytes have %x", round, got, want)
		}
		if arena.mem[0] != arena.mem[n/2] {
			mixed++
		}
	}
	if mixed == 0 {
		t.Skip("the client never wrote during a copy: nothing was tested")
	}
}

// clipperRole owns memory that it exports on descriptor 3 without the seal.
func clipperRole() error {
	f := os.NewFile(3, "engine")
	return f.Truncate(4096)
}
