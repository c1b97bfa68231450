package index

import (
	"fmt"
	"runtime"
	"syscall"
)

// memory is the memory of a block's entries. If it is large, it is mapped and not on Go's
// heap: the heap may grow to twice its live size before it is collected, and an index can
// be most of a daemon's memory.
type memory struct {
	mapped  []byte
	cleanup runtime.Cleanup
}

// minMapped is the size in bytes from which memory is mapped, in pages of 4 KiB.
const minMapped = 16 << 10

// allocate returns an empty slice with capacity for at least n bytes. The slice is valid
// until the method free is called, or until nothing refers to block b any more.
func (m *memory) allocate(b *block, n int) []byte {
	if n < minMapped {
		return make([]byte, 0, n)
	}
	const page = 4096
	mapped, err := syscall.Mmap(-1, 0, (n+page-1)/page*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return make([]byte, 0, n) // e.g. too many mappings; the heap may have room
	}
	m.mapped = mapped
	m.cleanup = runtime.AddCleanup(b, unmap, mapped)
	return mapped[:0]
}

// free frees mapped memory. No reader may hold the block, now or later.
func (m *memory) free() {
	if m.mapped != nil {
		m.cleanup.Stop()
		unmap(m.mapped)
		m.mapped = nil
	}
}

func unmap(mapped []byte) {
	if err := syscall.Munmap(mapped); err != nil {
		panic(fmt.Sprintf("index: unmap %d bytes: %v", len(mapped), err))
	}
}
