package cuda

import (
	"errors"

	"github.com/spliced-kv/spliced/gpuipc/cuda/driver"
)

// vmmChunk is one physical allocation.
type vmmChunk struct {
	allocation driver.Allocation
	bytes      int64
}

// mapChunks maps allocations one behind the other, for reading and writing by the
// device. After an error nothing is mapped.
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

// unmapChunks undoes mapChunks. Nothing runs on the memory.
func (d *device) unmapChunks(base driver.DevicePtr, chunks []vmmChunk) error {
	total := int64(0)
	for _, c := range chunks {
		total += c.bytes
	}
	return d.unmap(base, total, chunks)
}

// unmap takes the chunks that are mapped out of a reservation of total bytes and
// gives it back.
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

// releaseChunks drops our hold on allocations; mappings and descriptors keep
// theirs.
func (d *device) releaseChunks(chunks []vmmChunk) {
	for _, c := range chunks {
		_ = d.api.MemRelease(c.allocation) // fails on a lost device only
	}
}
