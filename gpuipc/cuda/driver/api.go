package driver

import (
	"bytes"
	"unsafe"
)

// API is a loaded driver, which Load returns. Its zero value is not usable.
type API struct {
	version int
	symbols
}

// DriverVersion returns the CUDA version that the driver supports, as 1000*major +
// 10*minor. 12040 is CUDA 12.4.
func (a *API) DriverVersion() int { return a.version }

// fail turns the result of a call into an error.
func fail(call string, r Result) error {
	if r == Success {
		return nil
	}
	return &Error{Call: call, Result: r}
}

// DeviceCount returns the number of devices that are visible to this process.
func (a *API) DeviceCount() (int, error) {
	var n int32
	r := call(a.deviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), fail("cuDeviceGetCount", r)
}

// DeviceAt returns device i, which must be below DeviceCount.
func (a *API) DeviceAt(i int) (Device, error) {
	var d Device
	r := call(a.deviceGet, uintptr(unsafe.Pointer(&d)), uintptr(i))
	return d, fail("cuDeviceGet", r)
}

// DeviceUUID returns the UUID of the device, which is the same in all processes. For a MIG
// instance it is the UUID of the instance.
func (a *API) DeviceUUID(d Device) ([16]byte, error) {
	var u [16]byte
	r := call(a.deviceGetUUID, uintptr(unsafe.Pointer(&u)), uintptr(d))
	return u, fail("cuDeviceGetUuid_v2", r)
}

// DeviceName returns the name of the product.
func (a *API) DeviceName(d Device) (string, error) {
	var name [256]byte
	r := call(a.deviceGetName, uintptr(unsafe.Pointer(&name)), uintptr(len(name)), uintptr(d))
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return string(text), fail("cuDeviceGetName", r)
}

// DeviceAttribute returns a property of the device. Flags are 0 or 1.
func (a *API) DeviceAttribute(d Device, at Attribute) (int, error) {
	var v int32
	r := call(a.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(at), uintptr(d))
	return int(v), fail("cuDeviceGetAttribute", r)
}

// DeviceTotalMem returns the size of the device's memory in bytes.
func (a *API) DeviceTotalMem(d Device) (int64, error) {
	var n uint64
	r := call(a.deviceTotalMem, uintptr(unsafe.Pointer(&n)), uintptr(d))
	return int64(n), fail("cuDeviceTotalMem_v2", r)
}

// PrimaryContextRetain returns the primary context of the device, which all libraries of a
// process share. It creates the context if there is none, and counts one more user of it.
func (a *API) PrimaryContextRetain(d Device) (Context, error) {
	var c Context
	r := call(a.primaryCtxRetain, uintptr(unsafe.Pointer(&c)), uintptr(d))
	return c, fail("cuDevicePrimaryCtxRetain", r)
}

// PrimaryContextRelease undoes one PrimaryContextRetain. After the last one, the driver
// frees everything that the process still has in this context.
func (a *API) PrimaryContextRelease(d Device) error {
	return fail("cuDevicePrimaryCtxRelease_v2", call(a.primaryCtxRelease, uintptr(d)))
}

// ContextSetCurrent makes c the current context of the calling thread. With zero, the
// thread has no context any more.
func (a *API) ContextSetCurrent(c Context) error {
	return fail("cuCtxSetCurrent", call(a.ctxSetCurrent, uintptr(c)))
}

// ContextSynchronize waits until all work of the current context has ended.
func (a *API) ContextSynchronize() error {
	return fail("cuCtxSynchronize", call(a.ctxSynchronize))
}

// MemInfo returns the free and the total bytes of the current context's device. Other
// processes use the same memory.
func (a *API) MemInfo() (free, total int64, err error) {
	var f, t uint64
	r := call(a.memGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&t)))
	return int64(f), int64(t), fail("cuMemGetInfo_v2", r)
}
