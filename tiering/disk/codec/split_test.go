package codec

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

func TestPlane0IsTheExponent(t *testing.T) {
	for _, v := range []float32{1, -1.5, 0, 6e-30, -7e30, float32(math.Inf(-1))} {
		u := math.Float32bits(v)
		want := byte(u >> 23)
		p, b := planes{{9}, {9}, {9}, {9}}, binary.LittleEndian.AppendUint32(nil, u)
		splitGeneric(&p, b, kernel.F32)
		if p[0][0] != want || p[1][0] != byte(u>>15)&0xfe|byte(u>>31) || p[2][0] != b[1] || p[3][0] != b[0] {
			t.Errorf("%v (%#08x): planes %v", v, u, p)
		}
		p = planes{{9}, {9}}
		splitGeneric(&p, b[2:], kernel.BF16)
		if p[0][0] != want || p[1][0] != byte(u>>15)&0xfe|byte(u>>31) {
			t.Errorf("%v as BF16: planes %v", v, p)
		}
	}
}

// TestSplitAndJoinAgreeWithPlainGo on all lengths, with all alignments of what is
// read and written.
func TestSplitAndJoinAgreeWithPlainGo(t *testing.T) {
	r := rng(t)
	for _, dt := range dtypes {
		for n := range 151 {
			if n == 150 {
				n = 65_549 // of many vectors and a rest
			}
			for off := range 4 {
				all := make([]byte, n*dt.Size()+off)
				noise(r, all)
				src := all[off:]
				want, _ := scratchPlanes(t, n, dt)
				splitGeneric(&want, src, dt)
				got, inside := scratchPlanes(t, n, dt)
				split(&got, src, dt)
				inside()
				for i := range want {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("%s, %d numbers: plane %d is %x, want %x", dtypeName(dt), n, i, got[i], want[i])
					}
				}
				for name, f := range map[string]func([]byte, *planes, kernel.DType){"generic": joinGeneric, "fast": join} {
					back, inside := guarded(t, off+len(src))
					f(back[off:], &want, dt)
					inside()
					if !bytes.Equal(back[off:], src) {
						t.Fatalf("%s join of %s, %d numbers: %x, want %x", name, dtypeName(dt), n, back[off:], src)
					}
				}
			}
		}
	}
}

// scratchPlanes are planes of n bytes at odd addresses between guard bytes.
func scratchPlanes(t testing.TB, n int, dt kernel.DType) (p planes, inside func()) {
	var checks [maxPlanes]func()
	for i := range dt.Size() {
		p[i], checks[i] = guarded(t, n)
	}
	return p, func() {
		t.Helper()
		for _, check := range checks[:dt.Size()] {
			check()
		}
	}
}
