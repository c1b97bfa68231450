package fakecuda_test

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

const granule = 2 << 20

func TestFreshMemoryHoldsNoNumber(t *testing.T) {
	r := newRig(t)
	p, err := r.MemAlloc(64)
	must(t, err)
	if v := r.word(t, p+56); v != 1<<64-1 {
		t.Fatalf("%#x", v)
	}
	must(t, r.MemFree(p))
}

func TestCopiesStayInsideAllocations(t *testing.T) {
	r := newRig(t)
	p := r.alloc(t, 100, 0)
	host := make([]byte, 128)
	at := unsafe.Pointer(&host[0])
	must(t, r.MemcpyHtoDAsync(p, at, 100, r.stream))
	must(t, r.StreamSynchronize(r.stream))
	for name, err := range map[string]error{
		"past the end":   r.MemcpyHtoDAsync(p, at, 101, r.stream),
		"across the end": r.MemcpyDtoHAsync(at, p+99, 2, r.stream),
		"before":         r.MemsetD8Async(p-1, 0, 2, r.stream),
		"behind":         r.MemcpyDtoDAsync(p, p+100, 1, r.stream),
		"wrapping":       r.MemsetD8Async(p, 0, -1, r.stream),
	} {
		t.Run(name, func(t *testing.T) { wants(t, err, driver.InvalidValue) })
	}
}

func TestReleasedContextsAreRefused(t *testing.T) {
	r := newBrokenRig(t)
	must(t, r.PrimaryContextRelease(0))
	_, err := r.MemAlloc(1)
	wants(t, err, driver.ContextDestroyed)
	wants(t, r.PrimaryContextRelease(0), driver.InvalidContext)
	must(t, useDevice(r.API))
	wants(t, r.StreamSynchronize(r.stream), driver.InvalidHandle)
}

func TestMappingsNeedAccessAndEndWhole(t *testing.T) {
	r := newRig(t)
	m, err := r.MemCreate(2*granule, 0)
	must(t, err)
	_, err = r.MemCreate(granule+4096, 0)
	wants(t, err, driver.InvalidValue)
	p, err := r.AddressReserve(8 * granule)
	must(t, err)
	must(t, r.MemMap(p, 2*granule, m))
	wants(t, r.MemMap(p+granule, granule, m), driver.InvalidValue)
	wants(t, r.MemMap(p+7*granule, 2*granule, m), driver.InvalidValue)
	wants(t, r.MemsetD8Async(p, 1, 8, r.stream), driver.InvalidValue)
	must(t, r.MemSetAccess(p, 2*granule, 0))
	must(t, r.MemsetD8Async(p, 1, 2*granule, r.stream))
	must(t, r.StreamSynchronize(r.stream))
	_, err = r.IPCMemHandle(p)
	wants(t, err, driver.InvalidValue)
	// Memory lives as long as it is mapped.
	must(t, r.MemRelease(m))
	wants(t, r.MemRelease(m), driver.InvalidValue)
	if v := r.word(t, p+2*granule-8); v != 0x0101010101010101 {
		t.Fatalf("%#x", v)
	}
	wants(t, r.MemUnmap(p, granule), driver.InvalidValue)
	wants(t, r.AddressFree(p, 8*granule), driver.InvalidValue)
	must(t, r.MemUnmap(p, 2*granule))
	wants(t, r.AddressFree(p, granule), driver.InvalidValue)
	must(t, r.AddressFree(p, 8*granule))
}

func TestMemoryRunsOut(t *testing.T) {
	r := newRig(t)
	r.fake.Set(t, "MEM", "8M")
	p, err := r.MemAlloc(5 << 20)
	must(t, err)
	_, err = r.MemAlloc(4 << 20)
	wants(t, err, driver.OutOfMemory)
	_, err = r.MemCreate(2*granule, 0)
	wants(t, err, driver.OutOfMemory)
	free, total, err := r.MemInfo()
	must(t, err)
	if free != 3<<20 || total != 8<<20 {
		t.Fatalf("%d free of %d", free, total)
	}
	must(t, r.MemFree(p))
	wants(t, r.MemFree(p), driver.InvalidValue)
	m, err := r.MemCreate(4*granule, 0)
	must(t, err)
	must(t, r.MemRelease(m))
}

func TestRegistrationsAreExact(t *testing.T) {
	r := newRig(t)
	host := make([]byte, 3*4096)
	at := unsafe.Pointer(&host[4096])
	must(t, r.HostRegister(at, 4096))
	wants(t, r.HostRegister(unsafe.Pointer(&host[0]), 4097), driver.AlreadyRegistered)
	wants(t, r.HostUnregister(unsafe.Pointer(&host[4097])), driver.NotRegistered)
	closed, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	must(t, err)
	wants(t, r.HostRegister(unsafe.Pointer(unsafe.SliceData(closed)), 4096), driver.InvalidValue)
	must(t, syscall.Munmap(closed))
	must(t, r.HostUnregister(at))
	wants(t, r.HostUnregister(at), driver.NotRegistered)
}

func TestAWriteBehindAnAllocationIsSeen(t *testing.T) {
	r := newRig(t)
	fill, _ := r.probes(t)
	p, err := r.MemAlloc(100)
	must(t, err)
	must(t, r.Launch(fill, one, [3]uint32{26, 1, 1}, 0, r.stream, args(p, uint32(26), uint32(1))))
	must(t, r.StreamSynchronize(r.stream))
	before := r.fake.Stats().Misuses
	must(t, r.MemFree(p))
	if n := r.fake.Stats().Misuses - before; n != 1 {
		t.Fatalf("%d misuses", n)
	}
	r.fake.Forgive(1)
}
