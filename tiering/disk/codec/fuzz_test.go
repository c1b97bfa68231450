package codec

import (
	"bytes"
	"errors"
	"testing"

	"github.com/spliced-kv/spliced/gpuipc/kernel"
)

// maxFuzzBytes bounds what one input may stand for, so that a run tries many.
const maxFuzzBytes = 1 << 20

func FuzzDecode(f *testing.F) {
	for _, dt := range dtypes {
		for _, in := range inputs {
			for _, n := range []int{0, 5, 700, 9000} {
				stream, err := Encode(nil, in.make(rng(f), n, dt), dt, Options{Chunk: 4096})
				if err != nil {
					f.Fatal(err)
				}
				f.Add(stream)
			}
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		s, err := Inspect(stream)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			if err := Decode(make([]byte, 100), stream, kernel.BF16, Options{}); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("decoded what is no stream: %v", err)
			}
			return
		}
		if s.Raw > maxFuzzBytes {
			return
		}
		one, inside := guarded(t, int(s.Raw))
		errOne := Decode(one, stream, s.DType, Options{})
		inside()
		two := make([]byte, s.Raw)
		errTwo := Decode(two, stream, s.DType, Options{Workers: 2})
		if (errOne == nil) != (errTwo == nil) || errOne != nil && !errors.Is(errOne, ErrCorrupt) {
			t.Fatalf("one worker: %v; two: %v", errOne, errTwo)
		}
		if errOne == nil && !bytes.Equal(one, two) {
			t.Fatal("one worker and two decode other bytes")
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	for _, dt := range dtypes {
		for _, in := range inputs {
			for _, n := range []int{0, 1, 6, 300, 5000} {
				f.Add(in.make(rng(f), n, dt), byte(dt), byte(n))
			}
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, dt, options byte) {
		o := Options{Workers: int(options & 3), Chunk: int(options>>2+1) * chunkUnit}
		roundTrip(t, raw, dtypes[int(dt)%len(dtypes)], o)
	})
}
