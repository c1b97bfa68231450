package machine

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// PageAligned returns n bytes of page-aligned memory for direct transfers, of the same kind as
// an arena and full of noise. Unmap frees it.
func PageAligned(n int64) ([]byte, error) {
	fd, err := unix.MemfdCreate("spliced-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, n); err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	b, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	Noise(b, 1)
	return b, nil
}

// Unmap frees memory returned by PageAligned.
func Unmap(b []byte) error { return unix.Munmap(b) }

// Noise fills b with bytes that do not compress.
func Noise(b []byte, seed uint64) {
	rng := rand.NewPCG(seed, 0x5eed)
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, rng.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(rng.Uint64())
	}
}
