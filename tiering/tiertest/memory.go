package tiertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc"
)

// memoryPage is the page size in bytes. It is small, so that objects have several extents.
const memoryPage = 4 << 10

// Memory is a region of a device through which objects are passed to the subject.
type Memory struct {
	dev    gpuipc.Device
	region gpuipc.Region

	mu    sync.Mutex
	pages *gpuipc.PageAllocator
}

// NewMemory creates a region, which is closed when the test ends. All of its memory must
// be free by then.
func NewMemory(t testing.TB, dev gpuipc.Device, bytes int64) *Memory {
	t.Helper()
	region, err := dev.NewRegion(gpuipc.RegionSpec{Name: "tiertest", Bytes: bytes, Access: gpuipc.ClientWrites, Huge: gpuipc.HugeNever})
	if err != nil {
		t.Fatal(err)
	}
	m := &Memory{dev: dev, region: region, pages: gpuipc.NewPageAllocator(bytes, memoryPage)}
	t.Cleanup(func() {
		if used := m.pages.UsedBytes(); used != 0 && !t.Failed() {
			t.Errorf("%d bytes of memory were not given back", used)
		}
		if err := region.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// NewDevice opens a host device that is closed when the test ends.
func NewDevice(t testing.TB) gpuipc.Device {
	t.Helper()
	dev, err := gpuipc.NewHost(gpuipc.HostOptions{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// alloc allocates exactly n bytes in runs of a few pages.
func (m *Memory) alloc(n int64) (gpuipc.Ref, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := gpuipc.Ref{Region: m.region}
	for run := int64(3); n > 0; run = run*2 + 1 {
		x, err := m.pages.Alloc(min(n, run*memoryPage))
		if err != nil {
			m.freeLocked(r)
			return gpuipc.Ref{}, fmt.Errorf("memory of the test: %w", err)
		}
		for i := range x {
			x[i].Len = min(x[i].Len, n)
			n -= x[i].Len
		}
		r.Extents = append(r.Extents, x...)
	}
	return r, nil
}

func (m *Memory) free(refs ...gpuipc.Ref) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range refs {
		m.freeLocked(r)
	}
}

func (m *Memory) freeLocked(r gpuipc.Ref) {
	for _, x := range r.Extents {
		m.pages.Free([]gpuipc.Extent{{Off: x.Off, Len: (x.Len + memoryPage - 1) &^ (memoryPage - 1)}})
	}
}

// Put allocates memory and writes bytes to it.
func (m *Memory) Put(b []byte) (gpuipc.Ref, error) {
	r, err := m.alloc(int64(len(b)))
	if err != nil {
		return r, err
	}
	return r, m.dev.Store(context.Background(), r, b)
}

// Load returns a copy of the contents of memory.
func (m *Memory) Load(r gpuipc.Ref) ([]byte, error) {
	b := make([]byte, r.Len())
	return b, m.dev.Load(context.Background(), b, r)
}

// Spend overwrites memory that is no longer needed, and frees it. A late read or write of
// it is thereby noticed.
func (m *Memory) Spend(refs ...gpuipc.Ref) error {
	var errs []error
	for _, r := range refs {
		junk := make([]byte, r.Len())
		for i := range junk {
			junk[i] = 0xa5
		}
		errs = append(errs, m.dev.Store(context.Background(), r, junk))
	}
	m.free(refs...)
	return errors.Join(errs...)
}
