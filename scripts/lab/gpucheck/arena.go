package gpucheck

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// side selects where a job runs.
type side int

const (
	onHost side = iota
	onGPU
)

// arena is a region of host memory and one of device memory with the same contents.
type arena struct {
	c       *check
	regions [2]gpuipc.Region
	used    int64
}

// tensor is a run of bytes at the same offset in both regions of an arena.
type tensor struct {
	a      *arena
	off, n int64
}

func (c *check) arena(bytes int64) (*arena, error) {
	a := &arena{c: c}
	var err error
	spec := gpuipc.RegionSpec{Name: "gpu-check", Bytes: bytes, Access: gpuipc.ClientWrites}
	if a.regions[onHost], err = c.host.NewRegion(spec); err != nil {
		return nil, err
	}
	if a.regions[onGPU], err = c.gpu.NewRegion(spec); err != nil {
		_ = a.regions[onHost].Close()
		return nil, err
	}
	return a, nil
}

func (a *arena) close() error {
	if err := a.regions[onGPU].Close(); err != nil {
		return err
	}
	return a.regions[onHost].Close()
}

func (a *arena) device(s side) gpuipc.Device {
	if s == onGPU {
		return a.c.gpu
	}
	return a.c.host
}

// room returns n uninitialized bytes on both sides, for results.
func (a *arena) room(n int64) tensor {
	t := tensor{a: a, off: a.used, n: n}
	a.used = (a.used + n + 255) / 256 * 256
	return t
}

// put writes the same bytes on both sides.
func (a *arena) put(b []byte) (tensor, error) {
	t := a.room(int64(len(b)))
	for s := range a.regions {
		if err := a.device(side(s)).Store(a.c.ctx, t.ref(side(s)), b); err != nil {
			return t, err
		}
	}
	return t, nil
}

func (t tensor) ref(s side) gpuipc.Ref {
	if t.a == nil {
		return gpuipc.Ref{}
	}
	return gpuipc.Ref{Region: t.a.regions[s], Extents: []gpuipc.Extent{{Off: t.off, Len: t.n}}}
}

func (t tensor) load(s side) ([]byte, error) {
	b := make([]byte, t.n)
	return b, t.a.device(s).Load(t.a.c.ctx, b, t.ref(s))
}

// random returns n numbers around zero of one type.
func (c *check) random(n int, typ gpuipc.DType, scale float64) []byte {
	var b []byte
	for range n {
		v := float32(c.rng.NormFloat64() * scale)
		switch typ {
		case kernel.F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		case kernel.BF16:
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(v)>>16))
		case kernel.F16:
			b = binary.LittleEndian.AppendUint16(b, half(v))
		}
	}
	return b
}

// half truncates a number of moderate size to 16 bits; rounding is not needed.
func half(v float32) uint16 {
	bits := math.Float32bits(v)
	e := int(bits>>23&0xff) - 127 + 15
	if e <= 0 {
		return uint16(bits >> 31 << 15)
	}
	return uint16(bits>>31<<15) | uint16(min(e, 30))<<10 | uint16(bits>>13&0x3ff)
}

// number returns element i of one type.
func element(b []byte, i int, typ gpuipc.DType) float64 {
	switch typ {
	case kernel.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	case kernel.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
	}
	h := binary.LittleEndian.Uint16(b[2*i:])
	v := math.Ldexp(1+float64(h&0x3ff)/1024, int(h>>10&31)-15)
	if h>>10&31 == 0 {
		v = math.Ldexp(float64(h&0x3ff), -24)
	}
	if h>>15 == 1 {
		v = -v
	}
	return v
}

// relative returns the root mean square of a-b divided by the root mean square of b.
func relative(a, b []float64) float64 {
	var d, n float64
	for i := range b {
		d += (a[i] - b[i]) * (a[i] - b[i])
		n += b[i] * b[i]
	}
	return math.Sqrt(d / n)
}

// sameBytes compares the contents of both sides.
func (t tensor) sameBytes() error {
	h, err := t.load(onHost)
	if err != nil {
		return err
	}
	g, err := t.load(onGPU)
	if err != nil {
		return err
	}
	wrong, first := 0, -1
	for i := range h {
		if h[i] != g[i] {
			if wrong++; first < 0 {
				first = i
			}
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d bytes differ, the first at %d", wrong, len(h), first)
	}
	return nil
}
