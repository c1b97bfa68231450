package driver

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/errkind"
)

// Library is the default path of Load: the name by which the loader finds the machine's
// driver.
const Library = "libcuda.so.1"

const ipcLazyPeerAccess = 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

// ipcHandle is a 64-byte handle in the form in which C functions take it: by value.
type ipcHandle struct{ a, b, c, d, e, f, g, h uint64 }

func ipcHandleOf(raw [IPCHandleBytes]byte) ipcHandle {
	w := func(i int) uint64 { return binary.NativeEndian.Uint64(raw[8*i:]) }
	return ipcHandle{w(0), w(1), w(2), w(3), w(4), w(5), w(6), w(7)}
}

// symbols has the addresses of the driver's functions.
type symbols struct {
	deviceGetCount, deviceGet, deviceGetUUID, deviceGetName   uintptr
	deviceGetAttribute, deviceTotalMem                        uintptr
	primaryCtxRetain, primaryCtxRelease                       uintptr
	ctxSetCurrent, ctxSynchronize, memGetInfo                 uintptr
	memAlloc, memFree, memGetAddressRange                     uintptr
	ipcGetMemHandle, ipcCloseMemHandle, ipcGetEventHandle     uintptr
	memGetGranularity, memCreate, memRelease                  uintptr
	memAddressReserve, memAddressFree, memMap, memUnmap       uintptr
	memSetAccess, memExport, memImport                        uintptr
	memHostRegister, memHostUnregister                        uintptr
	memcpyHtoDAsync, memcpyDtoHAsync, memcpyDtoDAsync         uintptr
	memsetD8Async                                             uintptr
	streamCreate, streamDestroy, streamSynchronize            uintptr
	streamCreateWithPriority                                  uintptr
	streamQuery, streamWaitEvent, streamWrite64, streamWait64 uintptr
	eventCreate, eventDestroy, eventRecord, eventQuery        uintptr
	eventSynchronize, eventElapsed                            uintptr
	moduleLoadDataEx, moduleUnload, moduleGetFunction         uintptr
	funcSetAttribute, funcGetAttribute, launchKernel          uintptr
	initialize, driverVersion                                 uintptr
	rawIPCOpenMemHandle, rawIPCOpenEventHandle                uintptr

	ipcOpenMemHandle   func(*DevicePtr, ipcHandle, uint32) Result
	ipcOpenEventHandle func(*Event, ipcHandle) Result
}

// table returns the name of each function and the variable for its address.
func (s *symbols) table() []struct {
	name string
	to   *uintptr
} {
	return []struct {
		name string
		to   *uintptr
	}{
		{"cuInit", &s.initialize},
		{"cuDriverGetVersion", &s.driverVersion},
		{"cuDeviceGetCount", &s.deviceGetCount},
		{"cuDeviceGet", &s.deviceGet},
		{"cuDeviceGetUuid_v2", &s.deviceGetUUID},
		{"cuDeviceGetName", &s.deviceGetName},
		{"cuDeviceGetAttribute", &s.deviceGetAttribute},
		{"cuDeviceTotalMem_v2", &s.deviceTotalMem},
		{"cuDevicePrimaryCtxRetain", &s.primaryCtxRetain},
		{"cuDevicePrimaryCtxRelease_v2", &s.primaryCtxRelease},
		{"cuCtxSetCurrent", &s.ctxSetCurrent},
		{"cuCtxSynchronize", &s.ctxSynchronize},
		{"cuMemGetInfo_v2", &s.memGetInfo},
		{"cuMemAlloc_v2", &s.memAlloc},
		{"cuMemFree_v2", &s.memFree},
		{"cuMemGetAddressRange_v2", &s.memGetAddressRange},
		{"cuIpcGetMemHandle", &s.ipcGetMemHandle},
		{"cuIpcOpenMemHandle_v2", &s.rawIPCOpenMemHandle},
		{"cuIpcCloseMemHandle", &s.ipcCloseMemHandle},
		{"cuIpcGetEventHandle", &s.ipcGetEventHandle},
		{"cuIpcOpenEventHandle", &s.rawIPCOpenEventHandle},
		{"cuMemGetAllocationGranularity", &s.memGetGranularity},
		{"cuMemCreate", &s.memCreate},
		{"cuMemRelease", &s.memRelease},
		{"cuMemAddressReserve", &s.memAddressReserve},
		{"cuMemAddressFree", &s.memAddressFree},
		{"cuMemMap", &s.memMap},
		{"cuMemUnmap", &s.memUnmap},
		{"cuMemSetAccess", &s.memSetAccess},
		{"cuMemExportToShareableHandle", &s.memExport},
		{"cuMemImportFromShareableHandle", &s.memImport},
		{"cuMemHostRegister_v2", &s.memHostRegister},
		{"cuMemHostUnregister", &s.memHostUnregister},
		{"cuMemcpyHtoDAsync_v2", &s.memcpyHtoDAsync},
		{"cuMemcpyDtoHAsync_v2", &s.memcpyDtoHAsync},
		{"cuMemcpyDtoDAsync_v2", &s.memcpyDtoDAsync},
		{"cuMemsetD8Async", &s.memsetD8Async},
		{"cuStreamCreate", &s.streamCreate},
		{"cuStreamCreateWithPriority", &s.streamCreateWithPriority},
		{"cuStreamDestroy_v2", &s.streamDestroy},
		{"cuStreamSynchronize", &s.streamSynchronize},
		{"cuStreamQuery", &s.streamQuery},
		{"cuStreamWaitEvent", &s.streamWaitEvent},
		{"cuStreamWriteValue64_v2", &s.streamWrite64},
		{"cuStreamWaitValue64_v2", &s.streamWait64},
		{"cuEventCreate", &s.eventCreate},
		{"cuEventDestroy_v2", &s.eventDestroy},
		{"cuEventRecord", &s.eventRecord},
		{"cuEventQuery", &s.eventQuery},
		{"cuEventSynchronize", &s.eventSynchronize},
		{"cuEventElapsedTime", &s.eventElapsed},
		{"cuModuleLoadDataEx", &s.moduleLoadDataEx},
		{"cuModuleUnload", &s.moduleUnload},
		{"cuModuleGetFunction", &s.moduleGetFunction},
		{"cuFuncSetAttribute", &s.funcSetAttribute},
		{"cuFuncGetAttribute", &s.funcGetAttribute},
		{"cuLaunchKernel", &s.launchKernel},
	}
}

// ErrNoLibrary is the error of a library that cannot be opened, a gpuipc.ErrUnavailable.
var ErrNoLibrary = fmt.Errorf("no driver library: %w", gpuipc.ErrUnavailable)

// Load opens the driver library at path, or Library if path is "", and initializes it. All
// errors are gpuipc.ErrUnavailable: there is no library, it lacks a function (which the
// error names), there is no device (cuInit), or the driver is older than MinDriverVersion.
// The library stays loaded until the process ends. Loading it again is cheap.
func Load(path string) (*API, error) {
	path = cmp.Or(path, Library)
	lib, err := open(path)
	switch {
	case err != nil && !Built:
		return nil, errkind.With(err, gpuipc.ErrUnavailable)
	case err != nil:
		return nil, errkind.With(fmt.Errorf("no GPU driver: %w", err), ErrNoLibrary)
	}
	a := new(API)
	for _, f := range a.table() {
		if *f.to, err = symbol(lib, f.name); err != nil {
			return nil, fmt.Errorf("driver: %s has no %s: %w: %w", path, f.name, gpuipc.ErrUnavailable, err)
		}
	}
	a.bind()
	if err := fail("cuInit", call(a.initialize, 0)); err != nil {
		return nil, fmt.Errorf("driver: %s: %w: %w", path, gpuipc.ErrUnavailable, err)
	}
	var v int32
	if err := fail("cuDriverGetVersion", call(a.driverVersion, uintptr(unsafe.Pointer(&v)))); err != nil {
		return nil, fmt.Errorf("driver: %s: %w: %w", path, gpuipc.ErrUnavailable, err)
	}
	if v < MinDriverVersion {
		return nil, fmt.Errorf("driver: %s serves CUDA %d.%d, needed is %d.%d or later: %w", path,
			v/1000, v%1000/10, MinDriverVersion/1000, MinDriverVersion%1000/10, gpuipc.ErrUnavailable)
	}
	a.version = int(v)
	return a, nil
}
