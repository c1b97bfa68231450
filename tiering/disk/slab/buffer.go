package slab

import (
	"fmt"
	"unsafe"
)

// AlignedBuffer returns n zero bytes at an address that File accepts. The garbage
// collector frees them. The capacity is n rounded up to whole blocks.
func AlignedBuffer(n int) []byte {
	whole := (n + BlockBytes - 1) &^ (BlockBytes - 1)
	b := make([]byte, whole+BlockBytes)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (BlockBytes - 1))
	return b[skip : skip+n : skip+whole]
}

// Buffers is a pool of aligned buffers of one size, for staging. It keeps a limited
// number of idle buffers. If none is idle, Get allocates one; Put drops a buffer if
// enough are idle. So the number of concurrent users bounds the memory.
type Buffers struct {
	bytes int
	idle  chan []byte
}

// NewBuffers returns an empty pool of buffers, each of the given size in bytes. The
// parameter keep is the most idle buffers that the pool keeps.
func NewBuffers(bytes, keep int) *Buffers {
	if bytes <= 0 || bytes%BlockBytes != 0 || keep < 0 {
		panic(fmt.Sprintf("slab: %d buffers of %d bytes", keep, bytes))
	}
	return &Buffers{bytes: bytes, idle: make(chan []byte, keep)}
}

// Get returns a buffer with undefined contents. It never waits.
func (p *Buffers) Get() []byte {
	select {
	case b := <-p.idle:
		return b
	default:
		return AlignedBuffer(p.bytes)
	}
}

// Put returns a buffer from Get to the pool. The buffer may have been shortened at its
// end; the next Get returns it in full length.
func (p *Buffers) Put(b []byte) {
	if cap(b) < p.bytes {
		panic(fmt.Sprintf("slab: buffer of %d bytes put among those of %d", cap(b), p.bytes))
	}
	select {
	case p.idle <- b[:p.bytes]:
	default:
	}
}
