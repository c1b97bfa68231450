package cuda

import (
	"errors"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// vmmChunk is one physical allocation of CUDA's virtual memory management.
type vmmChunk struct {
	allocation driver.Allocation
	bytes      int64
}

// mapChunks maps allocations one after the other, so that the device can read and write
// them. After an error nothing is mapped.
func (d *device) mapChunks(chunks []vmmChunk) (driver.DevicePtr, error) {
	total := int64(0)
	for _, c := range chunks {
		total += c.bytes
	}
	base, err := d.api.AddressReserve(total)
	if err != nil {
		return 0, err
	}
	at := base
	for i, c := range chunks {
		if err := d.api.MemMap(at, c.bytes, c.allocation); err != nil {
			return 0, errors.Join(err, d.unmap(base, total, chunks[:i]))
		}
		at += driver.DevicePtr(c.bytes)
	}
	if err := d.api.MemSetAccess(base, total, d.id); err != nil {
		return 0, errors.Join(err, d.unmap(base, total, chunks))
	}
	return base, nil
}

// unmapChunks undoes mapChunks. No work may use the memory any more.
func (d *device) unmapChunks(base driver.DevicePtr, chunks []vmmChunk) error {
	total := int64(0)
	for _, c := range chunks {
		total += c.bytes
	}
	return d.unmap(base, total, chunks)
}

// unmap unmaps chunks from an address reservation of total bytes, and frees the
// reservation.
func (d *device) unmap(base driver.DevicePtr, total int64, mapped []vmmChunk) error {
	var errs []error
	at := base
	for _, c := range mapped {
		errs = append(errs, d.api.MemUnmap(at, c.bytes))
		at += driver.DevicePtr(c.bytes)
	}
	errs = append(errs, d.api.AddressFree(base, total))
	return errors.Join(errs...)
}

// releaseChunks releases our references to allocations. Mappings and descriptors keep
// their own references.
func (d *device) releaseChunks(chunks []vmmChunk) {
	for _, c := range chunks {
		_ = d.api.MemRelease(c.allocation) // fails only on a lost device
	}
}
