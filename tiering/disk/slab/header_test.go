package slab

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

var goldenHeader = header{number: 0x01020304, store: StoreID{0xA0, 15: 0xAF}, bytes: 1 << 30, granule: 64 << 10}

// TestHeaderBytesStayAsTheyAre: another layout needs another Version.
func TestHeaderBytesStayAsTheyAre(t *testing.T) {
	block := bytes.Repeat([]byte{0xEE}, BlockBytes)
	goldenHeader.put(block)
	const start = "53504c43534c4142" + "01000000" + "04030201" + "a00000000000000000000000000000af" + "0000004000000000" + "0000010000000000"
	if got := hex.EncodeToString(block[:48]); got != start {
		t.Errorf("header begins %s, want %s", got, start)
	}
	if !AllZero(block[48:sumOff]) {
		t.Error("the rest is not zeros")
	}
	const sum = "6ef36e99504dbb51"
	if got := hex.EncodeToString(block[sumOff:]); got != sum {
		t.Errorf("sum %s, want %s", got, sum)
	}
	h, err := parseHeader(block)
	if err != nil || h != goldenHeader {
		t.Errorf("%+v %v", h, err)
	}
}

// TestNoBitOfAHeaderMayFlip tries every one.
func TestNoBitOfAHeaderMayFlip(t *testing.T) {
	block := make([]byte, BlockBytes)
	goldenHeader.put(block)
	for bit := range BlockBytes * 8 {
		block[bit/8] ^= 1 << (bit % 8)
		if h, err := parseHeader(block); !errors.Is(err, ErrHeader) {
			t.Fatalf("bit %d: %+v %v", bit, h, err)
		}
		block[bit/8] ^= 1 << (bit % 8)
	}
}

func FuzzParseHeader(f *testing.F) {
	block := make([]byte, BlockBytes)
	f.Add(bytes.Clone(block))
	goldenHeader.put(block)
	f.Add(bytes.Clone(block))
	f.Add(block[:100])
	f.Fuzz(func(t *testing.T, block []byte) {
		h, err := parseHeader(block)
		if err != nil {
			return
		}
		again := make([]byte, BlockBytes)
		h.put(again)
		if got, err := parseHeader(again); err != nil || got != h {
			t.Errorf("%+v became %+v %v", h, got, err)
		}
	})
}

func TestFileNames(t *testing.T) {
	for name, want := range map[string]uint32{
		"000001.slab":     1,
		"999999.slab":     999_999,
		"1000000.slab":    1_000_000,
		"4294967295.slab": 1<<32 - 1,
		"4294967296.slab": 0,
		"000000.slab":     0,
		"1.slab":          0,
		"0000001.slab":    0,
		"+00001.slab":     0,
		"000001":          0,
		"000001.slab.tmp": 0,
		"":                0,
	} {
		if n, ok := fileNumber(name); n != want || ok != (want != 0) {
			t.Errorf("%q: %d %v", name, n, ok)
		}
	}
}
