package gpuipc

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Mapping is a client's view of a region of another process. It stays valid
// when that process dies: the memory exists as long as it is mapped.
type Mapping struct {
	mem []byte
}

// Map maps the region of h. Map takes over h.File, even if it fails. If writable is false,
// writing to the bytes faults. A ClientReads region cannot be mapped writable. Map returns
// ErrInvalid for memory that could shrink under the mapping.
func Map(h Handle, writable bool) (*Mapping, error) {
	if h.File == nil {
		return nil, fmt.Errorf("map: no descriptor: %w", ErrInvalid)
	}
	defer h.File.Close() // the mapping keeps the memory
	if err := checkFixed(h.File, h.Bytes); err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	mem, err := mapShared(h.File, h.Bytes, prot)
	switch {
	case err == nil:
		_ = unix.Madvise(mem, unix.MADV_DONTDUMP)
		return &Mapping{mem: mem}, nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("map: %w; the region is for reading only: %w", err, ErrInvalid)
	}
	return nil, regionError("map", h.Bytes, err)
}

// Bytes returns the whole region, valid until Close.
func (m *Mapping) Bytes() []byte { return m.mem }

// Close unmaps the region. Bytes must not be used after that. A second Close returns
// ErrInvalid.
func (m *Mapping) Close() error {
	if m.mem == nil {
		return fmt.Errorf("close mapping: closed already: %w", ErrInvalid)
	}
	mem := m.mem
	m.mem = nil
	return unix.Munmap(mem)
}
