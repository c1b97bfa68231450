package codec

import (
	"bytes"
	"encoding/binary"
	"flag"
	"math/bits"
	"os"
	"path/filepath"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

var update = flag.Bool("update", false, "write the golden streams again")

// goldenRaw is made of integers only, so that it is the same everywhere: exponents
// that halve in number with each step, other bits at random, one chunk of noise.
func goldenRaw(n int, dt kernel.DType) []byte {
	b := make([]byte, n)
	state := uint32(dt)
	for i := range b {
		state = state*1664525 + 1013904223
		b[i] = byte(state >> 24)
		top := i%dt.Size() == dt.Size()-1
		if top && i/4096 != 1 {
			b[i] = b[i]&0x80 | byte(0x40-bits.LeadingZeros16(uint16(state>>8))&15)
		}
	}
	return b
}

// TestStreamsWrittenBeforeCanStillBeRead guards the format, not the encoder, which
// may find smaller streams.
func TestStreamsWrittenBeforeCanStillBeRead(t *testing.T) {
	for _, dt := range dtypes {
		file := filepath.Join("testdata", dtypeName(dt)+".stream")
		raw := goldenRaw(3*4096+701, dt)
		if *update {
			stream, err := Encode(nil, raw, dt, Options{Chunk: 4096})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, stream, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		stream, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Inspect(stream)
		if err != nil || s.Chunks != 4 || s.Unsplit != 1 || s.DType != dt || binary.LittleEndian.Uint64(stream[8:]) != uint64(len(raw)) {
			t.Fatalf("%s: %+v, %v", file, s, err)
		}
		back := make([]byte, len(raw))
		if err := Decode(back, stream, dt, Options{}); err != nil || !bytes.Equal(back, raw) {
			t.Errorf("%s: other bytes, %v", file, err)
		}
	}
}
