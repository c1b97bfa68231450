package driver

import "unsafe"

// MemAlloc allocates device memory, aligned to 256 bytes or more. IPCMemHandle works only
// for this kind of memory.
func (a *API) MemAlloc(size int64) (DevicePtr, error) {
	var p DevicePtr
	r := call(a.memAlloc, uintptr(unsafe.Pointer(&p)), uintptr(size))
	return p, fail("cuMemAlloc_v2", r)
}

// MemFree frees memory of MemAlloc. If another process still has the memory open, the
// driver's behavior is undefined, so importers must close it first.
func (a *API) MemFree(p DevicePtr) error {
	return fail("cuMemFree_v2", call(a.memFree, uintptr(p)))
}

// IPCMemHandle returns a handle of the whole allocation that contains p, for other
// processes. For memory of MemCreate it returns InvalidValue.
func (a *API) IPCMemHandle(p DevicePtr) ([IPCHandleBytes]byte, error) {
	var h [IPCHandleBytes]byte
	r := call(a.ipcGetMemHandle, uintptr(unsafe.Pointer(&h)), uintptr(p))
	return h, fail("cuIpcGetMemHandle", r)
}

// IPCOpen maps the allocation that a handle of another process stands for, and returns its
// base address. If a context is current and IPCOpen returns InvalidContext, both processes
// have the same PID in separate namespaces. Opening a handle again returns the same
// address. Each IPCOpen needs its own IPCClose.
func (a *API) IPCOpen(h [IPCHandleBytes]byte) (DevicePtr, error) {
	var p DevicePtr
	r := a.ipcOpenMemHandle(&p, ipcHandleOf(h), ipcLazyPeerAccess)
	return p, fail("cuIpcOpenMemHandle_v2", r)
}

// IPCClose unmaps memory that IPCOpen mapped.
func (a *API) IPCClose(p DevicePtr) error {
	return fail("cuIpcCloseMemHandle", call(a.ipcCloseMemHandle, uintptr(p)))
}

// MemAddressRange returns the base address and the size in bytes of the allocation that
// contains p.
func (a *API) MemAddressRange(p DevicePtr) (base DevicePtr, size int64, err error) {
	var b DevicePtr
	var n uint64
	r := call(a.memGetAddressRange, uintptr(unsafe.Pointer(&b)), uintptr(unsafe.Pointer(&n)), uintptr(p))
	return b, int64(n), fail("cuMemGetAddressRange_v2", r)
}

const hostRegisterPortable = 1

// HostRegister pins host memory, so that copies run asynchronously and at the speed of the
// bus. The memory must be a mapping, never on Go's heap.
func (a *API) HostRegister(p unsafe.Pointer, size int64) error {
	r := call(a.memHostRegister, uintptr(p), uintptr(size), hostRegisterPortable)
	return fail("cuMemHostRegister_v2", r)
}

// HostUnregister undoes HostRegister of the same pointer. No copy of this memory may be
// running.
func (a *API) HostUnregister(p unsafe.Pointer) error {
	return fail("cuMemHostUnregister", call(a.memHostUnregister, uintptr(p)))
}

// MemcpyHtoDAsync enqueues a copy of n bytes of host memory to the device. Memory that is
// not registered is copied through a buffer of the driver, and part of that happens before
// the call returns.
func (a *API) MemcpyHtoDAsync(dst DevicePtr, src unsafe.Pointer, n int64, s Stream) error {
	r := call(a.memcpyHtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
	return fail("cuMemcpyHtoDAsync_v2", r)
}

// MemcpyDtoHAsync enqueues a copy of n bytes of device memory to host memory.
func (a *API) MemcpyDtoHAsync(dst unsafe.Pointer, src DevicePtr, n int64, s Stream) error {
	r := call(a.memcpyDtoHAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
	return fail("cuMemcpyDtoHAsync_v2", r)
}

// MemcpyDtoDAsync enqueues a copy of n bytes within the device.
func (a *API) MemcpyDtoDAsync(dst, src DevicePtr, n int64, s Stream) error {
	r := call(a.memcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
	return fail("cuMemcpyDtoDAsync_v2", r)
}

// MemsetD8Async enqueues a fill of n bytes of device memory with v.
func (a *API) MemsetD8Async(dst DevicePtr, v byte, n int64, s Stream) error {
	r := call(a.memsetD8Async, uintptr(dst), uintptr(v), uintptr(n), uintptr(s))
	return fail("cuMemsetD8Async", r)
}
