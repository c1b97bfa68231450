package driver

import "unsafe"

// These are values in the driver's structs (cuda.h). This package creates only one kind of
// memory: pinned, on one device, shared as a POSIX descriptor.
const (
	memPinned         = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	memDescriptor     = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	memOnDevice       = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	memReadWrite      = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	granularityWanted = 1 // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
)

// memLocation is CUmemLocation.
type memLocation struct {
	kind int32
	id   int32
}

// memProperties is CUmemAllocationProp.
type memProperties struct {
	kind     int32
	handles  int32
	location memLocation
	win32    uintptr
	flags    [8]byte
}

// memAccess is CUmemAccessDesc.
type memAccess struct {
	location memLocation
	flags    int32
}

func propertiesOn(d Device) memProperties {
	return memProperties{
		kind: memPinned, handles: memDescriptor,
		location: memLocation{kind: memOnDevice, id: int32(d)},
	}
}

// Granularity returns the unit of sizes and addresses for MemCreate and AddressReserve, in
// bytes. All devices so far have 2 MiB.
func (a *API) Granularity(d Device) (int64, error) {
	prop := propertiesOn(d)
	var n uint64
	r := call(a.memGetGranularity, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&prop)), granularityWanted)
	return int64(n), fail("cuMemGetAllocationGranularity", r)
}

// MemCreate allocates physical memory of a device, which ExportFD can share. It has no
// address before MemMap. It exists until MemRelease was called and all mappings and
// descriptors are gone, in all processes.
func (a *API) MemCreate(size int64, d Device) (Allocation, error) {
	prop := propertiesOn(d)
	var m Allocation
	r := call(a.memCreate, uintptr(unsafe.Pointer(&m)), uintptr(size), uintptr(unsafe.Pointer(&prop)), 0)
	return m, fail("cuMemCreate", r)
}

// MemRelease releases the handle that MemCreate or ImportFD returned. Mappings stay.
func (a *API) MemRelease(m Allocation) error {
	return fail("cuMemRelease", call(a.memRelease, uintptr(m)))
}

// AddressReserve reserves a run of unmapped addresses.
func (a *API) AddressReserve(size int64) (DevicePtr, error) {
	var p DevicePtr
	r := call(a.memAddressReserve, uintptr(unsafe.Pointer(&p)), uintptr(size), 0, 0, 0)
	return p, fail("cuMemAddressReserve", r)
}

// AddressFree frees addresses of AddressReserve. No memory may be mapped there.
func (a *API) AddressFree(p DevicePtr, size int64) error {
	return fail("cuMemAddressFree", call(a.memAddressFree, uintptr(p), uintptr(size)))
}

// MemMap maps all of m, which has size bytes, at p. The memory must not be accessed before
// MemSetAccess.
func (a *API) MemMap(p DevicePtr, size int64, m Allocation) error {
	return fail("cuMemMap", call(a.memMap, uintptr(p), uintptr(size), 0, uintptr(m), 0))
}

// MemUnmap undoes MemMap. It does not wait for running work on the memory.
func (a *API) MemUnmap(p DevicePtr, size int64) error {
	return fail("cuMemUnmap", call(a.memUnmap, uintptr(p), uintptr(size)))
}

// MemSetAccess lets the device read and write mapped addresses.
func (a *API) MemSetAccess(p DevicePtr, size int64, d Device) error {
	desc := memAccess{location: memLocation{kind: memOnDevice, id: int32(d)}, flags: memReadWrite}
	r := call(a.memSetAccess, uintptr(p), uintptr(size), uintptr(unsafe.Pointer(&desc)), 1)
	return fail("cuMemSetAccess", r)
}

// ExportFD returns a new descriptor of m, which the caller closes.
func (a *API) ExportFD(m Allocation) (int, error) {
	fd := int32(-1)
	r := call(a.memExport, uintptr(unsafe.Pointer(&fd)), uintptr(m), memDescriptor, 0)
	return int(fd), fail("cuMemExportToShareableHandle", r)
}

// ImportFD imports the memory of a descriptor that ExportFD made. The caller keeps the
// descriptor and closes it.
func (a *API) ImportFD(fd int) (Allocation, error) {
	var m Allocation
	// The descriptor is passed as the value of a void*, not through a pointer.
	r := call(a.memImport, uintptr(unsafe.Pointer(&m)), uintptr(fd), memDescriptor)
	return m, fail("cuMemImportFromShareableHandle", r)
}
