package codec

import (
	"encoding/binary"
	"math/bits"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// planes holds the planes of a chunk. There is one for each byte of an element, and all
// have the same length.
type planes [maxPlanes][]byte

// splitGeneric writes len(p[0]) numbers of src into planes.
func splitGeneric(p *planes, src []byte, dt kernel.DType) {
	p0, p1 := p[0], p[1][:len(p[0])]
	if dt != kernel.F32 {
		src = src[:2*len(p0)]
		for i := range p0 {
			v := bits.RotateLeft16(binary.LittleEndian.Uint16(src[2*i:]), 1)
			p0[i], p1[i] = byte(v>>8), byte(v)
		}
		return
	}
	p2, p3 := p[2][:len(p0)], p[3][:len(p0)]
	src = src[:4*len(p0)]
	for i := range p0 {
		v := binary.LittleEndian.Uint32(src[4*i:])
		top := bits.RotateLeft16(uint16(v>>16), 1)
		p0[i], p1[i], p2[i], p3[i] = byte(top>>8), byte(top), byte(v>>8), byte(v)
	}
}

// joinGeneric writes the len(p[0]) numbers of planes to dst.
func joinGeneric(dst []byte, p *planes, dt kernel.DType) {
	p0, p1 := p[0], p[1][:len(p[0])]
	if dt != kernel.F32 {
		dst = dst[:2*len(p0)]
		for i := range p0 {
			v := uint16(p0[i])<<8 | uint16(p1[i])
			binary.LittleEndian.PutUint16(dst[2*i:], bits.RotateLeft16(v, -1))
		}
		return
	}
	p2, p3 := p[2][:len(p0)], p[3][:len(p0)]
	dst = dst[:4*len(p0)]
	for i := range p0 {
		top := bits.RotateLeft16(uint16(p0[i])<<8|uint16(p1[i]), -1)
		binary.LittleEndian.PutUint32(dst[4*i:], uint32(top)<<16|uint32(p2[i])<<8|uint32(p3[i]))
	}
}
