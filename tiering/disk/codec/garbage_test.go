package codec

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// TestBrokenStreamsAreErrorsOrOtherBytes: a flipped bit may decode to other
// numbers, since the stream holds no checksum. It must do no more harm than that.
func TestBrokenStreamsAreErrorsOrOtherBytes(t *testing.T) {
	r := rng(t)
	for _, dt := range dtypes {
		for _, in := range inputs {
			good := roundTrip(t, in.make(r, 20001, dt), dt, Options{Chunk: 8192})
			for range 500 {
				bad := slices.Clone(good)
				switch r.IntN(4) {
				case 0:
					bad = bad[:r.IntN(len(bad))]
				case 1:
					noise(r, bad[r.IntN(len(bad)):])
				default: // the header and the table, or anywhere
					bad[r.IntN([]int{28, len(bad)}[r.IntN(2)])] ^= 1 << r.IntN(8)
				}
				dst, inside := guarded(t, 20001)
				if err := Decode(dst, bad, dt, Options{Workers: 1 + r.IntN(2)}); err != nil && !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				inside()
			}
		}
	}
}

func TestStreamsCutShortOrWithMoreBehindAreRefused(t *testing.T) {
	for _, in := range inputs {
		raw := in.make(rng(t), 9001, kernel.F32)
		good := roundTrip(t, raw, kernel.F32, Options{Chunk: 4096})
		for n := range len(good) {
			if err := Decode(make([]byte, 9001), good[:n:n], kernel.F32, Options{}); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: %d of %d bytes: %v", in.name, n, len(good), err)
			}
		}
		if err := Decode(make([]byte, 9001), append(good, 0), kernel.F32, Options{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: a byte behind: %v", in.name, err)
		}
	}
}

func TestHeadersThatLieAreRefused(t *testing.T) {
	good := roundTrip(t, keys(rng(t), 10000, kernel.BF16), kernel.BF16, Options{Chunk: 4096})
	le := binary.LittleEndian
	for name, breakIt := range map[string]func(b []byte){
		"magic":               func(b []byte) { b[3] = '2' },
		"type":                func(b []byte) { b[4] = 0 },
		"type of other size":  func(b []byte) { b[4] = byte(kernel.F32) },
		"reserved":            func(b []byte) { b[5] = 1 },
		"no chunk":            func(b []byte) { le.PutUint16(b[6:], 0) },
		"huge chunk":          func(b []byte) { le.PutUint16(b[6:], 65) },
		"other chunk":         func(b []byte) { le.PutUint16(b[6:], 2) },
		"less raw":            func(b []byte) { le.PutUint64(b[8:], 9998) },
		"more raw":            func(b []byte) { le.PutUint64(b[8:], 12289) },
		"raw below zero":      func(b []byte) { le.PutUint64(b[8:], 1<<63) },
		"raw beyond all":      func(b []byte) { le.PutUint64(b[8:], ^uint64(0)) },
		"longer first chunk":  func(b []byte) { b[16]++ },
		"shorter first chunk": func(b []byte) { b[16]-- },
		"chunk beyond stream": func(b []byte) { b[18] = 0xff },
		"form 3":              func(b []byte) { b[19] |= 3 },
		"other plane coded":   func(b []byte) { b[19] |= 1 << 2 },
		"plane that is none":  func(b []byte) { b[19] |= 2 << 4 },
		"not coded":           func(b []byte) { b[19] = 0 },
		"one exponent":        func(b []byte) { b[19] = 2 },
	} {
		bad := slices.Clone(good)
		breakIt(bad)
		if err := Decode(make([]byte, 10000), bad, kernel.BF16, Options{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: decoded with %v", name, err)
		}
		if _, err := Inspect(bad); name != "less raw" && name != "type of other size" && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: inspected with %v", name, err)
		}
	}
}
