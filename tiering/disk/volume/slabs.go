package volume

import (
	"errors"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// Slabs lists the slabs in use.
func (v *Volume) Slabs() []slab.SlabInfo { return v.set.Slabs() }

// Refused lists the slab files that are not used, and why.
func (v *Volume) Refused() []slab.Refusal { return v.set.Refused() }

// AddSlab adds the space of a slab, all of it free, and returns how many of its bytes
// entries can use. The first granule holds the header.
func (v *Volume) AddSlab(s slab.SlabInfo) (usable int64) {
	v.Space.AddSlab(s.Number, s.Bytes)
	return v.CountSlab(s)
}

// CountSlab is AddSlab for a slab whose space is in v.Space already.
func (v *Volume) CountSlab(s slab.SlabInfo) (usable int64) {
	v.slabBytes.Add(s.Bytes)
	granule := v.Format.Granule
	return s.Bytes/granule*granule - granule
}

// ForgetSpace makes all space of all slabs free again.
func (v *Volume) ForgetSpace() {
	v.Space = slab.NewSpace(v.Format.Granule)
	v.slabBytes.Store(0)
	for _, s := range v.set.Slabs() {
		v.AddSlab(s)
	}
}

// SlabBytes returns the total file size of the added slabs.
func (v *Volume) SlabBytes() int64 { return v.slabBytes.Load() }

// FileSystemFree returns the bytes available on the file system of the slabs.
func (v *Volume) FileSystemFree() (int64, error) { return v.set.Free() }

// Grow creates a slab. The caller adds it with AddSlab, or adds its space and calls CountSlab.
func (v *Volume) Grow() (slab.SlabInfo, error) { return v.set.Grow() }

// RestoreSlab adopts a refused slab whose header is damaged.
func (v *Volume) RestoreSlab(n uint32) (slab.SlabInfo, error) { return v.set.Restore(n) }

// AdoptSlab is RestoreSlab without a change of the file. The result damaged reports whether
// WriteHeader has to follow.
func (v *Volume) AdoptSlab(n uint32) (damaged bool, err error) { return v.set.Adopt(n) }

// WriteHeader writes the header of a slab in use.
func (v *Volume) WriteHeader(n uint32) error { return v.set.WriteHeader(n) }

// RemoveSlab deletes a slab file.
func (v *Volume) RemoveSlab(n uint32) error { return v.set.Remove(n) }

// Read fills buffers from an entry's runs. The first byte comes from offset off in the
// runs.
func (v *Volume) Read(runs []slab.Run, off int64, bufs [][]byte) error {
	defer v.Reads.Begin()()
	return v.set.Read(runs, off, bufs)
}

// Write writes buffers to an entry's runs, from their start.
func (v *Volume) Write(runs []slab.Run, bufs [][]byte) error {
	defer v.Writes.Begin()()
	return v.set.Write(runs, 0, bufs)
}

// SyncNames syncs the folders of slabs and profiles, and with them the names of their files.
func (v *Volume) SyncNames() error {
	return errors.Join(v.slabs.Sync(), syncDir(v.index, v.path(profileDir)))
}
