package kernels

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/spliced-kv/spliced/gpuipc"
)

// words appends little-endian numbers to an argument block or to tables.
type words []byte

func (w *words) u64(v ...uint64) {
	for _, x := range v {
		*w = binary.LittleEndian.AppendUint64(*w, x)
	}
}

func (w *words) u32(v ...uint32) {
	for _, x := range v {
		*w = binary.LittleEndian.AppendUint32(*w, x)
	}
}

func (w *words) f32(v ...float32) {
	for _, x := range v {
		*w = binary.LittleEndian.AppendUint32(*w, math.Float32bits(x))
	}
}

// put overwrites bytes from an offset on.
func (w *words) put(at int, b words) { copy((*w)[at:], b) }

// align appends zeros up to a multiple of n bytes and returns the offset of the next byte.
func (w *words) align(n int) uint32 {
	for len(*w)%n != 0 {
		*w = append(*w, 0)
	}
	return uint32(len(*w))
}

// rowAngles appends the cosines, then the sines of all rows, [rows, Dims/2] each. It computes
// them in float64, as the host device does.
func (w *words) rowAngles(p *gpuipc.RowRotation, rows int) {
	half := p.Dims / 2
	cos, sin := make([]float32, 0, rows*half), make([]float32, 0, rows*half)
	for r := range rows {
		position := float64(p.Position + r)
		for _, f := range p.InvFreq {
			s, c := math.Sincos(position * f)
			cos, sin = append(cos, float32(c)), append(sin, float32(s))
		}
	}
	w.f32(cos...)
	w.f32(sin...)
}

// addresses adds up an address. over is set if the address does not fit 63 bits.
type addresses struct {
	at   uint64
	over bool
}

func (a *addresses) add(n, stride uint64) {
	high, low := bits.Mul64(n, stride)
	sum, carry := bits.Add64(a.at, low, 0)
	a.at = sum
	a.over = a.over || high|carry != 0 || sum > math.MaxInt64
}
