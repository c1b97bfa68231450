package extent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// A tag is that of the bytes, however they lie, and no two of these have the same.
func TestTagDoesNotDependOnRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	key, other := NewKey([32]byte{1}, 1), NewKey([32]byte{2}, 1)
	seen := map[string]int{}
	for _, n := range []int{0, 1, 4096, UnitBytes - 1, UnitBytes, UnitBytes + 1, 5*UnitBytes + 777, ChunkBytes} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		want := key.Tag(nil, [][]byte{b})
		for range 20 {
			var runs [][]byte
			for rest := b; len(rest) > 0; {
				k := 1 + rng.IntN(min(len(rest), 1<<(1+rng.IntN(20))))
				runs, rest = append(runs, rest[:k]), rest[k:]
			}
			if got := key.Tag(nil, runs); !bytes.Equal(got, want) {
				t.Fatalf("%d bytes in %d runs have another tag", n, len(runs))
			}
		}
		var units []byte
		for at := 0; at < n; at += UnitBytes {
			units = key.Unit(units, [][]byte{b[at:min(at+UnitBytes, n)]})
		}
		if got := key.Join(nil, units); !bytes.Equal(got, want) {
			t.Fatalf("%d bytes unit by unit have another tag", n)
		}
		seen[string(want)]++
		seen[string(other.Tag(nil, [][]byte{b}))]++
		for range min(n, 50) {
			i := rng.IntN(n)
			b[i] ^= 1 << rng.IntN(8)
			seen[string(key.Tag(nil, [][]byte{b}))]++
		}
		if n >= 2*UnitBytes { // units in another order
			swapped := append(bytes.Clone(b[UnitBytes:2*UnitBytes]), b[:UnitBytes]...)
			seen[string(key.Tag(nil, [][]byte{swapped, b[2*UnitBytes:]}))]++
		}
	}
	for _, times := range seen {
		if times > 1 {
			t.Fatalf("%d different chunks have one tag", times)
		}
	}
}

// Whatever of a header, its runs, its manifest or a tag is another, is of another key,
// or has no seal, is not proven, although every checksum is right.
func TestSealProvesAll(t *testing.T) {
	key := NewKey([32]byte{7}, 5)
	manifest, tags := []byte("a manifest"), bytes.Repeat([]byte{3}, 2*TagBytes)
	good := exampleHeader()
	good.Generation = 5
	good.Sign(key, manifest, tags)
	prove := func(h Header, k *Key, manifest, tags []byte) error {
		b, err := h.Append(nil, manifest)
		must(t, err)
		got, err := Parse(b)
		must(t, err)
		return got.Proven(k, manifest, tags)
	}
	must(t, prove(good, key, manifest, tags))
	for what, forge := range map[string]func(h *Header){
		"key":        func(h *Header) { h.Key[9]++ },
		"kind":       func(h *Header) { h.Kind++ },
		"generation": func(h *Header) { h.Generation++ },
		"payload":    func(h *Header) { h.PayloadBytes -= BlockBytes },
		"coded":      func(h *Header) { h.Coded = !h.Coded },
		"runs":       func(h *Header) { h.Runs[0].Slab++ },
		"seal":       func(h *Header) { h.Seal[31]++ },
		"no seal":    func(h *Header) { h.Sealed, h.Seal = false, [SealBytes]byte{} },
	} {
		h := good
		h.Runs = append(h.Runs[:0:0], good.Runs...)
		forge(&h)
		if err := prove(h, key, manifest, tags); !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("%s forged: %v", what, err)
		}
	}
	if err := prove(good, key, []byte("b manifest"), tags); !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("manifest forged: %v", err)
	}
	if err := prove(good, key, manifest, tags[:TagBytes]); !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("a tag less: %v", err)
	}
	if err := prove(good, NewKey([32]byte{8}, 5), manifest, tags); !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("of another store: %v", err)
	}
	before := exampleHeader()
	before.Generation = 4
	if err := prove(before, key, manifest, nil); err != nil {
		t.Errorf("from before there was a key: %v", err)
	}
}

// The hash of a block is that of its definition, word by word.
func TestBlockHashAgreesWithItsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	k := newNH([32]byte{1})
	for range 300 {
		b := make([]byte, rng.IntN(nhBlock+1))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		padded := make([]byte, nhBlock)
		copy(padded, b)
		sum := new(big.Int)
		for i := 0; i < (len(b)+nhLine-1)/nhLine*nhLine; i += 16 {
			x := binary.LittleEndian.Uint64(padded[i:]) + k[i/8]
			y := binary.LittleEndian.Uint64(padded[i+8:]) + k[i/8+1]
			sum.Add(sum, new(big.Int).Mul(new(big.Int).SetUint64(x), new(big.Int).SetUint64(y)))
		}
		var want [nhSum]byte
		sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 128)).FillBytes(want[:])
		slices.Reverse(want[:])
		if got := k.block(nil, b); !bytes.Equal(got, want[:]) {
			t.Fatalf("%d bytes: %x, not %x", len(b), got, want)
		}
	}
}
