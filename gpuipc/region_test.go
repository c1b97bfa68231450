package gpuipc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestALargeRegionIsReadyAtOnceAndHoldsNoMemory(t *testing.T) {
	const size = 4 << 30
	if limit, ok := MemoryLimit(); ok && limit < size {
		t.Skipf("this machine may hold %d bytes", limit)
	}
	d := newTestHost(t, HostOptions{})
	r := newTestRegion(t, d, RegionSpec{Bytes: size, Access: ClientReads, Huge: HugeNever})
	if n, err := r.Resident(); err != nil || n != 0 {
		t.Errorf("%d bytes resident, %v", n, err)
	}
	must(t, d.Store(context.Background(), refOf(r, size-8192, 8192), make([]byte, 8192)))
	if n, err := r.Resident(); err != nil || n < 8192 || n > 4<<20 {
		t.Errorf("%d bytes resident after writing 8192, %v", n, err)
	}
}

func TestFirstWritesTakeNoMoreMemoryThanTheUnitsTheyTouch(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	r := newTestRegion(t, d, RegionSpec{Bytes: 8 << 20, Access: ClientReads, Huge: HugeNever})
	for _, e := range []Extent{{100, 1 << 20}, {r.Bytes() - 2*warmBytes - 1, 2*warmBytes + 1}} {
		before, _ := r.Resident()
		must(t, d.Store(context.Background(), refOf(r, e.Off, e.Len), make([]byte, e.Len)))
		after, err := r.Resident()
		if err != nil || after-before < e.Len || after-before > e.Len+2*warmBytes {
			t.Errorf("%d bytes more resident after writing %d, %v", after-before, e.Len, err)
		}
	}
}

func TestARegionLargerThanMemoryIsRefused(t *testing.T) {
	limit, ok := MemoryLimit()
	if !ok {
		t.Skip("no memory limit known here")
	}
	d := newTestHost(t, HostOptions{})
	if _, err := d.NewRegion(RegionSpec{Bytes: limit + 1, Access: ClientReads}); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
}

func TestRequiredHugePagesAreThereOrRefused(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	free := freeHugePages()
	if _, err := d.NewRegion(RegionSpec{Bytes: (free + 1) * hugePageBytes, Access: ClientReads, Huge: HugeRequire}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("with %d huge pages free: %v", free, err)
	}
	if free == 0 {
		t.Skip("no huge pages are reserved here: only the refusal was tested")
	}
	r := newTestRegion(t, d, RegionSpec{Bytes: 5, Access: ClientReads, Huge: HugeRequire})
	if r.Bytes() != hugePageBytes {
		t.Errorf("%d bytes", r.Bytes())
	}
	if err := d.Store(context.Background(), refOf(r, 100, 3), []byte("abc")); err != nil {
		t.Error(err)
	}
	m, err := Map(Handle{File: dupForTest(t, r), Bytes: r.Bytes()}, false)
	must(t, err)
	defer m.Close()
	if string(m.Bytes()[100:103]) != "abc" {
		t.Error("a client does not see a huge region's bytes")
	}
	if _, err := Map(Handle{File: dupForTest(t, r), Bytes: r.Bytes()}, true); !errors.Is(err, ErrInvalid) {
		t.Errorf("map a readers' huge region for writing: %v", err)
	}
}

// engineMemory is a memfd as an engine would make it.
func engineMemory(t *testing.T, size int64, seals int) *os.File {
	t.Helper()
	f, err := createMemfd("engine", size, false)
	must(t, err)
	if seals != 0 {
		must(t, addSeals(f, seals))
	}
	return f
}

func TestImportTakesOnlyMemoryThatCannotShrink(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	readOnly := func(t *testing.T) *os.File {
		f := engineMemory(t, 8192, unix.F_SEAL_SHRINK)
		defer f.Close()
		r, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		must(t, err)
		return r
	}
	plainFile := func(t *testing.T) *os.File {
		f, err := os.Create(t.TempDir() + "/kv")
		must(t, err)
		must(t, f.Truncate(8192))
		return f
	}
	memfd := func(seals int) func(t *testing.T) *os.File {
		return func(t *testing.T) *os.File { return engineMemory(t, 8192, seals) }
	}
	for _, c := range []struct {
		name   string
		file   func(t *testing.T) *os.File
		bytes  int64
		remedy string // part of the message; "" = accepted
	}{
		{"sealed against shrinking", memfd(unix.F_SEAL_SHRINK), 8192, ""},
		{"sealed in size", memfd(sealSize), 8192, ""},
		{"not sealed", memfd(0), 8192, "add F_SEAL_SHRINK"},
		{"sealed against growing only", memfd(unix.F_SEAL_GROW), 8192, "add F_SEAL_SHRINK"},
		{"sealed against writes", memfd(unix.F_SEAL_SHRINK | unix.F_SEAL_WRITE), 8192, "open for reading and writing"},
		{"sealed against later writes", memfd(unix.F_SEAL_SHRINK | unix.F_SEAL_FUTURE_WRITE), 8192, "open for reading and writing"},
		{"open for reading", readOnly, 8192, "open for reading and writing"},
		{"larger than said", memfd(sealSize), 4096, "8192 bytes"},
		{"smaller than said", memfd(sealSize), 16384, "8192 bytes"},
		{"of no size", memfd(sealSize), 0, "8192 bytes"},
		{"a file on a disk", plainFile, 8192, "memfd_create"},
		{"a pipe", func(t *testing.T) *os.File { r, w, _ := os.Pipe(); w.Close(); return r }, 8192, "memfd_create"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := c.file(t)
			if c.remedy == "" {
				fillHoles(t, f, c.bytes)
			}
			r, err := d.Import(Handle{File: f, Bytes: c.bytes})
			if c.remedy != "" {
				if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.remedy) {
					t.Errorf("answered %v", err)
				}
				if f.Close() == nil {
					t.Error("the descriptor was not taken over")
				}
				return
			}
			must(t, err)
			if err := d.Store(context.Background(), refOf(r, 8000, 5), []byte("hello")); err != nil {
				t.Error(err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnEngineSeesWhatIsWrittenIntoItsMemory(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	f := engineMemory(t, 8192, unix.F_SEAL_SHRINK)
	mine, err := mapShared(f, 8192, unix.PROT_READ|unix.PROT_WRITE)
	must(t, err)
	defer func() { _ = unix.Munmap(mine) }()
	fillHoles(t, f, 8192)
	r, err := d.Import(Handle{File: f, Bytes: 8192})
	must(t, err)
	copy(mine[100:], "engine")
	got := make([]byte, 6)
	if err := d.Load(context.Background(), got, refOf(r, 100, 6)); err != nil || string(got) != "engine" {
		t.Errorf("loaded %q, %v", got, err)
	}
	if err := d.Store(context.Background(), refOf(r, 200, 7), []byte("spliced")); err != nil || string(mine[200:207]) != "spliced" {
		t.Errorf("the engine sees %q, %v", mine[200:207], err)
	}
	must(t, r.Close())
}

// fillHoles gives every byte of f its page, as an engine does before it shares f.
func fillHoles(t *testing.T, f *os.File, n int64) {
	t.Helper()
	must(t, unix.Fallocate(int(f.Fd()), 0, 0, n))
}

// A hole that we fill is charged to us, for as long as its owner likes; the owner may
// punch it after any check.
func TestHolesOfAnEngineStayHoles(t *testing.T) {
	d := newTestHost(t, HostOptions{Workers: 1})
	if d.holes.file == nil {
		t.Skip("SKIP: no userfaultfd here")
	}
	const n = 1 << 20
	f := engineMemory(t, n, unix.F_SEAL_SHRINK)
	mine, err := mapShared(f, n, unix.PROT_READ|unix.PROT_WRITE)
	must(t, err)
	defer func() { _ = unix.Munmap(mine) }()
	kept := secondDescriptor(t, f)
	r, err := d.Import(Handle{File: f, Bytes: n})
	must(t, err)
	defer r.Close()
	own := newTestRegion(t, d, RegionSpec{Bytes: n, Access: ClientReads})
	ctx := context.Background()
	table := Scatter{Region: r, Blocks: []uint32{0, 1}, BlockRows: 1, BlockStride: 8192, RowStride: 256, HeadStride: 256}
	turn := &Rotation{Dims: 128, Cos: make([]float32, 64), Sin: make([]float32, 64)}
	operations := map[string]func() error{
		"load":    func() error { return d.Load(ctx, make([]byte, n), refOf(r, 0, n)) },
		"store":   func() error { return d.Store(ctx, refOf(r, 0, n), make([]byte, n)) },
		"digests": func() error { return d.Digests(ctx, refOf(r, 0, n), make([]uint64, 1)) },
		"copy":    func() error { return d.CopyDigests(ctx, refOf(r, 0, n), refOf(own, 0, n), make([]uint64, 1)) },
		"rotate": func() error {
			return d.Rotate(ctx, &RotateJob{Rows: 2, Heads: 1, Dim: 128, Type: 2, Turn: turn, Src: refOf(own, 0, 512), Dst: table})
		},
	}
	for _, written := range []int64{0, 4096} {
		clear(mine[:written]) // its first pages exist
		for name, run := range operations {
			if err := run(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "no page") {
				t.Errorf("%s into memory with %d bytes of pages: %v", name, written, err)
			}
			if got, err := residentBytes(kept); err != nil || got != written {
				t.Errorf("%s: %d bytes have pages, %d had before, %v", name, got, written, err)
			}
		}
	}
	clear(mine)
	for name, run := range operations {
		if err := run(); err != nil {
			t.Errorf("%s with all pages there: %v", name, err)
		}
	}
	must(t, unix.Madvise(mine[512<<10:], unix.MADV_REMOVE))
	if err := operations["store"](); !errors.Is(err, ErrInvalid) {
		t.Errorf("store into memory whose pages were taken away: %v", err)
	}
	if got, _ := residentBytes(kept); got != 512<<10 {
		t.Errorf("%d bytes have pages, of which the owner left %d", got, 512<<10)
	}
}

// secondDescriptor is a second descriptor of f, closed by the test's end.
func secondDescriptor(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	must(t, err)
	second := os.NewFile(uintptr(fd), "second")
	t.Cleanup(func() { second.Close() })
	return second
}

func TestImportedMemoryKeepsNoDescriptor(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	before := held(t)[0]
	r, err := d.Import(Handle{File: engineMemory(t, 8192, unix.F_SEAL_SHRINK), Bytes: 8192})
	must(t, err)
	if after := held(t)[0]; after != before {
		t.Errorf("%d descriptors of memfds, %d before", after, before)
	}
	if _, err := r.Export(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("export of a client's memory: %v", err)
	}
	must(t, r.Close())
}

func TestARegionThatIsNotSharedAnyMoreKeepsNoDescriptor(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	before := held(t)[0]
	r, err := d.NewRegion(RegionSpec{Name: "slots", Bytes: 8192, Access: ClientReads})
	must(t, err)
	exported(t, r).Close()
	if err := errors.Join(Unshare(r), Unshare(r)); err != nil {
		t.Error(err)
	}
	if after := held(t)[0]; after != before {
		t.Errorf("%d descriptors of memfds, %d before", after, before)
	}
	if _, err := r.Export(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("export: %v", err)
	}
	if err := d.Store(context.Background(), refOf(r, 0, 5), []byte("hello")); err != nil {
		t.Error(err)
	}
	must(t, r.Close())
}

func TestWhatAMappingMayCost(t *testing.T) {
	const n = 1 << 30
	tables := MappingCost(&hostRegion{mem: make([]byte, 0), imported: true, guarded: true})
	if tables <= 0 || tables > 64<<10 {
		t.Errorf("nothing costs %d bytes", tables)
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	must(t, err)
	defer func() { _ = unix.Munmap(mem) }()
	if got := MappingCost(&hostRegion{mem: mem, imported: true, guarded: true}); got < n/512 || got > n/256 {
		t.Errorf("page tables of %d bytes cost %d", n, got)
	}
	if got := MappingCost(&hostRegion{mem: mem, imported: true}); got < n+n/512 || got > n+n/256 {
		t.Errorf("%d bytes whose holes we may fill cost %d", n, got)
	}
}

// Import would never accept such memory; here it stands for a page that the
// kernel cannot back.
func TestAFaultFailsOneOperationOnly(t *testing.T) {
	for _, workers := range []int{1, 3} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) { faultEveryOperation(t, workers) })
	}
}

func faultEveryOperation(t *testing.T, workers int) {
	d := newTestHost(t, HostOptions{Workers: workers})
	const n = 4 * ChunkBytes
	f := engineMemory(t, n, 0)
	mem, err := mapShared(f, n, unix.PROT_READ|unix.PROT_WRITE)
	must(t, err)
	d.regions.Add(1)
	clipped := &hostRegion{dev: d, name: "clipped", access: ClientWrites, file: f, mem: mem}
	defer clipped.Close()
	good := newTestRegion(t, d, RegionSpec{Bytes: n, Access: ClientReads})
	must(t, otherProcess("clipper", f).Run())
	ctx := context.Background()
	from, to := refOf(clipped, 0, n), refOf(good, 0, n)
	compose := &ComposeJob{Transition: 3, Heads: 2, DK: 128, DV: 128, From: refOf(clipped, 8192, 128<<10), Out: refOf(good, 0, 128<<10),
		Steps: []ComposeStep{{T: refOf(clipped, 1<<20, 128<<10), TType: 1, S: refOf(clipped, 2<<20, 128<<10), SType: 1}}}
	table := Scatter{Region: clipped, Blocks: []uint32{0}, BlockRows: 1 << 20, RowStride: 256, HeadStride: 256}
	turn := &Rotation{Dims: 128, Cos: make([]float32, 64), Sin: make([]float32, 64)}
	for name, err := range map[string]error{
		"copy":    d.CopyDigests(ctx, to, from, make([]uint64, 4)),
		"digests": d.Digests(ctx, from, make([]uint64, 4)),
		"store":   d.Store(ctx, from, make([]byte, n)),
		"compose": d.Compose(ctx, compose),
		"rotate":  d.Rotate(ctx, &RotateJob{Rows: 4096, Heads: 1, Dim: 128, Type: 2, Turn: turn, Src: refOf(good, 0, 1<<20), Dst: table}),
	} {
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := d.Load(ctx, make([]byte, n), to); err != nil {
		t.Errorf("the device is of no use any more: %v", err)
	}
}

// serverRole makes a region, hands it over and waits to be killed.
func serverRole() error {
	d, err := NewHost(HostOptions{})
	if err != nil {
		return err
	}
	r, err := d.NewRegion(RegionSpec{Name: "arena", Bytes: 1 << 16, Access: ClientReads})
	if err != nil {
		return err
	}
	if err := d.Store(context.Background(), refOf(r, 5000, 10), []byte("still here")); err != nil {
		return err
	}
	h, err := r.Export()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(3, []byte("!"), unix.UnixRights(int(h.File.Fd())), nil, 0); err != nil {
		return err
	}
	_, err = bufio.NewReader(os.Stdin).ReadByte() // nothing ever comes
	return err
}

func TestAMappingSurvivesTheDeathOfItsDaemon(t *testing.T) {
	newTestHost(t, HostOptions{}) // counts descriptors and mappings
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	defer unix.Close(pair[0])
	cmd := otherProcess("server", theirs)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	must(t, cmd.Start())
	theirs.Close()
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	must(t, err)
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d control messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	must(t, err)
	m, err := Map(Handle{File: os.NewFile(uintptr(fds[0]), "arena"), Bytes: 1 << 16}, false)
	must(t, err)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed, as wanted
	if string(m.Bytes()[5000:5010]) != "still here" {
		t.Errorf("the mapping holds %q", m.Bytes()[5000:5010])
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); !errors.Is(err, ErrInvalid) {
		t.Errorf("second close: %v", err)
	}
}

func TestMapRefusesWhatItCannotTrust(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	r := newTestRegion(t, d, RegionSpec{Bytes: 8192, Access: ClientReads})
	for name, c := range map[string]struct {
		h        Handle
		writable bool
	}{
		"nothing":           {Handle{Bytes: 4096}, false},
		"readers' region":   {Handle{dupForTest(t, r), r.Bytes()}, true},
		"wrong size":        {Handle{dupForTest(t, r), r.Bytes() + 4096}, false},
		"memory can shrink": {Handle{engineMemory(t, 4096, 0), 4096}, false},
	} {
		m, err := Map(c.h, c.writable)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			m.Close()
		}
	}
}

func TestClosingARegionInUsePanics(t *testing.T) {
	var r *hostRegion
	var panicked any
	d := newTestHost(t, HostOptions{Workers: 1, Between: func(Op, int) {
		defer func() { panicked = recover() }()
		_ = r.Close()
	}})
	r = newTestRegion(t, d, RegionSpec{Bytes: 2 * ChunkBytes, Access: ClientReads})
	must(t, d.Digests(context.Background(), refOf(r, 0, 2*ChunkBytes), make([]uint64, 2)))
	if s, _ := panicked.(string); !strings.Contains(s, "under 1 running") {
		t.Errorf("close answered %v", panicked)
	}
}

func TestDescriptorsDoNotReachChildren(t *testing.T) {
	d := newTestHost(t, HostOptions{})
	for _, access := range []Access{ClientReads, ClientWrites} {
		r := newTestRegion(t, d, RegionSpec{Bytes: 4096, Access: access})
		for name, f := range map[string]*os.File{"region": r.file, "export": exported(t, r)} {
			if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("%s of access %d: flags %#x, %v", name, access, flags, err)
			}
		}
	}
}
