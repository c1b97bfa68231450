package codec

import (
	"bytes"
	"testing"
)

func TestStreamsAreTheSameWithoutVectors(t *testing.T) {
	if !useAVX2 {
		t.Skip("this processor has no AVX2")
	}
	defer func() { useAVX2 = true }()
	for _, dt := range dtypes {
		raw := keys(rng(t), 200_001, dt)
		var streams [2][]byte
		for i := range streams {
			useAVX2 = i == 0
			streams[i] = roundTrip(t, raw, dt, Options{})
		}
		if !bytes.Equal(streams[0], streams[1]) {
			t.Errorf("%s: the streams differ", dtypeName(dt))
		}
		if err := Decode(make([]byte, len(raw)), streams[0], dt, Options{}); err != nil {
			t.Errorf("%s: vectors wrote what plain Go refuses: %v", dtypeName(dt), err)
		}
	}
}
