package order_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
	"github.com/spliced-kv/spliced/gpuipc/cuda/order"
)

// A page and bytes to order lie in one chunk of device memory that two processes
// map: the test is the daemon, and starts itself again as the client.
const (
	roleVariable    = "ORDER_TEST_ROLE"
	libraryVariable = "ORDER_TEST_LIBRARY"
	dataOff         = 4096
	dataBytes       = 1 << 20
)

var roles = map[string]func(c *chunk, in *bufio.Reader, out io.Writer) error{
	"client": clientRole,
	"dies":   diesRole,
	"events": eventsRole,
}

func TestMain(m *testing.M) {
	role := os.Getenv(roleVariable)
	if role == "" {
		os.Exit(m.Run())
	}
	if err := playRole(role); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func playRole(role string) error {
	c, err := enter(os.Getenv(libraryVariable), os.NewFile(3, "chunk"))
	if err != nil {
		return err
	}
	return errors.Join(roles[role](c, bufio.NewReader(os.Stdin), os.Stdout), c.leave())
}

// chunk is the shared chunk in one process, its context on the calling thread.
type chunk struct {
	*driver.API
	dev   driver.Device
	grain int64
	base  driver.DevicePtr
	work  driver.Stream // what the numbers speak of
	side  driver.Stream // never waits
	page  *order.Page
	order order.Streams
	alloc driver.Allocation
}

// enter makes the chunk, or maps the one behind a descriptor.
func enter(library string, from *os.File) (*chunk, error) {
	api, err := driver.Load(library)
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	c := &chunk{API: api}
	dev, err1 := api.DeviceAt(0)
	context, err2 := api.PrimaryContextRetain(dev)
	err3 := api.ContextSetCurrent(context)
	c.dev = dev
	grain, err4 := api.Granularity(dev)
	c.grain = (dataOff + dataBytes + grain - 1) / grain * grain
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	if from != nil {
		c.alloc, err1 = api.ImportFD(int(from.Fd()))
		err2 = from.Close()
	} else {
		c.alloc, err1 = api.MemCreate(c.grain, dev)
	}
	c.base, err3 = api.AddressReserve(c.grain)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	c.work, err1 = api.StreamCreate()
	c.side, err2 = api.StreamCreate()
	c.page, err3 = order.At(api, c.side, c.base)
	c.order = order.Streams{API: api, Page: c.base}
	return c, errors.Join(err1, err2, err3, api.MemMap(c.base, c.grain, c.alloc), api.MemSetAccess(c.base, c.grain, dev))
}

func (c *chunk) leave() error {
	err := errors.Join(
		c.StreamSynchronize(c.work), c.StreamSynchronize(c.side), c.StreamDestroy(c.work), c.StreamDestroy(c.side),
		c.MemUnmap(c.base, c.grain), c.MemRelease(c.alloc), c.AddressFree(c.base, c.grain),
		c.ContextSetCurrent(0), c.PrimaryContextRelease(c.dev))
	runtime.UnlockOSThread()
	return err
}

// put enqueues bytes of one value as the shared data.
func (c *chunk) put(s driver.Stream, v byte) error {
	return c.MemsetD8Async(c.base+dataOff, v, dataBytes, s)
}

// newChunk is the daemon's side of a chunk with a cleared page.
func newChunk(t *testing.T) (*chunk, *fakecuda.Library) {
	t.Helper()
	if !driver.Built {
		t.Skip("built without CUDA")
	}
	fake := fakecuda.Open(t)
	fake.LeakCheck(t)
	c, err := enter(fake.Path, nil)
	check(t, err)
	t.Cleanup(func() {
		fake.Clear()
		c.releaseIfFailed(t)
		check(t, c.leave())
	})
	check(t, c.page.Clear(t.Context()))
	return c, fake
}

// releaseIfFailed lets both sides end after a test that stopped half way.
func (c *chunk) releaseIfFailed(t *testing.T) {
	if t.Failed() {
		_ = c.page.Release(context.Background(), order.Client)
		_ = c.page.Release(context.Background(), order.Daemon)
	}
}

// startPeer starts the client's process.
func (c *chunk) startPeer(t *testing.T, role string, library string, setup fakecuda.Setup) *fakecuda.Peer {
	t.Helper()
	fd, err := c.ExportFD(c.alloc)
	check(t, err)
	f := os.NewFile(uintptr(fd), "chunk")
	p := fakecuda.StartPeer(t, append(setup.Env(library), roleVariable+"="+role, libraryVariable+"="+library), f)
	check(t, f.Close())
	t.Cleanup(func() {
		c.releaseIfFailed(t)
		if err := p.End(); err != nil && role != "dies" {
			t.Errorf("%s: %v", role, err)
		}
	})
	return p
}

func check(t testing.TB, errs ...error) {
	if err := errors.Join(errs...); err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// host is memory that copies may use while Go runs on: a mapping.
func host(t *testing.T, size int) []byte {
	t.Helper()
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(m)) })
	return m
}

func pointer(m []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m)) }
