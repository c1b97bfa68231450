package extent

import (
	"bytes"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

var update = flag.Bool("update", false, "write the golden files anew")

func exampleHeader() Header {
	h := Header{
		Name:         Name{Kind: 2},
		Generation:   0x0102030405060708,
		PayloadBytes: 5 * BlockBytes,
		Runs:         []slab.Run{{Slab: 1, Off: 16 * BlockBytes, Len: 4 * BlockBytes}, {Slab: 7, Off: BlockBytes, Len: 3 * BlockBytes}},
	}
	for i := range h.Key {
		h.Key[i] = byte(i)
	}
	return h
}

// golden compares b with a file of testdata, or writes it.
func golden(t *testing.T, name string, b []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.WriteFile(path, b, 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	return want
}

func TestHeaderGolden(t *testing.T) {
	h := exampleHeader()
	b, err := h.Append(nil, []byte("a manifest as it is stored"))
	must(t, err)
	want := golden(t, "header.bin", b)
	if !bytes.Equal(b, want) {
		t.Fatalf("%d bytes differ from the golden header of %d", len(b), len(want))
	}
	got, err := Parse(want)
	must(t, err)
	if !reflect.DeepEqual(got, h) {
		t.Fatalf("golden header reads as %+v, want %+v", got, h)
	}
	m, err := got.Manifest(want)
	if err != nil || string(m) != "a manifest as it is stored" {
		t.Fatalf("manifest %q, %v", m, err)
	}
}

func randomHeader(rng *rand.Rand) (Header, []byte) {
	h := Header{
		Name:       Name{Kind: uint8(rng.Uint32())},
		Generation: rng.Uint64() | 1,
		Coded:      rng.IntN(2) == 1,
	}
	for i := range h.Key {
		h.Key[i] = byte(rng.Uint32())
	}
	manifest := make([]byte, 1+rng.IntN(3*BlockBytes))
	for i := range manifest {
		manifest[i] = byte(rng.Uint32())
	}
	room := int64(0)
	for range 1 + rng.IntN(MaxRuns) {
		r := slab.Run{Slab: rng.Uint32(), Off: int64(rng.Uint32()) * BlockBytes, Len: int64(4+rng.Uint32N(1000)) * BlockBytes}
		h.Runs = append(h.Runs, r)
		room += r.Len
	}
	h.PayloadBytes = (room - int64(HeaderBytes(len(manifest)))) / BlockBytes / int64(1+rng.IntN(3)) * BlockBytes
	return h, manifest
}

func TestHeaderRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		h, manifest := randomHeader(rng)
		prefix := []byte("before")
		b, err := h.Append(prefix, manifest)
		if err != nil {
			t.Fatalf("%+v: %v", h, err)
		}
		b = b[len(prefix):]
		if len(b) != HeaderBytes(len(manifest)) {
			t.Fatalf("%d bytes, HeaderBytes says %d", len(b), HeaderBytes(len(manifest)))
		}
		got, err := Parse(b[:BlockBytes])
		must(t, err)
		if !reflect.DeepEqual(got, h) {
			t.Fatalf("wrote %+v, read %+v", h, got)
		}
		m, err := got.Manifest(b)
		if err != nil || !bytes.Equal(m, manifest) {
			t.Fatalf("manifest of %d bytes came back with %d, %v", len(manifest), len(m), err)
		}
	}
}

// Whatever single bit turns, either the header or its manifest is refused.
func TestEveryBitFlipIsFound(t *testing.T) {
	h := exampleHeader()
	good, err := h.Append(nil, bytes.Repeat([]byte("manifest "), 40))
	must(t, err)
	b := make([]byte, len(good))
	for bit := range len(good) * 8 {
		copy(b, good)
		b[bit/8] ^= 1 << (bit % 8)
		got, err := Parse(b)
		if err == nil {
			_, err = got.Manifest(b)
		}
		if !errors.Is(err, tier.ErrCorrupt) && !errors.Is(err, ErrVersion) {
			t.Fatalf("bit %d of byte %d: %v", bit%8, bit/8, err)
		}
	}
}

func TestTornHeaderIsFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	manifest := make([]byte, 3*BlockBytes)
	for i := range manifest {
		manifest[i] = byte(rng.Uint32())
	}
	old, now := exampleHeader(), exampleHeader()
	now.Generation++
	old.Runs[0].Len, now.Runs = 1<<20, []slab.Run{{Slab: 3, Off: 0, Len: 1 << 20}}
	a, errA := old.Append(nil, manifest)
	manifest[5]++
	manifest[2*BlockBytes]++
	b, errB := now.Append(nil, manifest)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	const sector = 512
	for cut := sector; cut < len(b); cut += sector {
		torn := append(bytes.Clone(b[:cut]), a[cut:]...)
		got, err := Parse(torn)
		if err == nil {
			_, err = got.Manifest(torn)
		}
		if whole := bytes.Equal(torn, b); whole != (err == nil) {
			t.Fatalf("torn at %d: %v, whole %v", cut, err, whole)
		}
		if err != nil && !errors.Is(err, tier.ErrCorrupt) {
			t.Fatalf("torn at %d: %v", cut, err)
		}
	}
	if _, err := Parse(make([]byte, BlockBytes)); !errors.Is(err, tier.ErrCorrupt) {
		t.Fatalf("a block of zeros: %v", err)
	}
}

// Lengths that lie are refused even when every checksum is right.
func TestHeaderRefusesLies(t *testing.T) {
	for _, c := range []struct {
		what string
		lie  func(b []byte)
		want error
	}{
		{"another version", func(b []byte) { b[8] = 3 }, ErrVersion},
		{"header shorter than its manifest", func(b []byte) { b[61] = 0x40 }, tier.ErrCorrupt},
		{"header of half a block", func(b []byte) { b[13] = 0x08 }, tier.ErrCorrupt},
		{"header of 4 GiB", func(b []byte) { copy(b[12:], "\x00\xf0\xff\xff") }, tier.ErrCorrupt},
		{"manifest of 4 GiB", func(b []byte) { copy(b[60:], "\xff\xff\xff\xff") }, tier.ErrCorrupt},
		{"no manifest", func(b []byte) { copy(b[60:], "\x00\x00\x00\x00") }, tier.ErrCorrupt},
		{"generation 0", func(b []byte) { clear(b[16:24]) }, tier.ErrCorrupt},
		{"flag not known", func(b []byte) { b[57] = 2 }, tier.ErrCorrupt},
		{"no runs", func(b []byte) { b[58] = 0 }, tier.ErrCorrupt},
		{"65 runs", func(b []byte) { b[58] = 65 }, tier.ErrCorrupt},
		{"65535 runs", func(b []byte) { b[58], b[59] = 0xff, 0xff }, tier.ErrCorrupt},
		{"fewer runs than the table holds", func(b []byte) { b[58] = 1 }, tier.ErrCorrupt},
		{"payload of half a block", func(b []byte) { b[72] = 1 }, tier.ErrCorrupt},
		{"payload longer than the runs", func(b []byte) { b[74] = 1 }, tier.ErrCorrupt},
		{"negative payload", func(b []byte) { b[79] = 0x80 }, tier.ErrCorrupt},
		{"empty run", func(b []byte) { clear(b[fixedBytes+8 : fixedBytes+12]) }, tier.ErrCorrupt},
		{"bytes after the fields", func(b []byte) { b[90] = 1 }, tier.ErrCorrupt},
		{"a run behind the last", func(b []byte) { b[manifestOff-1] = 1 }, tier.ErrCorrupt},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := exampleHeader()
			b, err := h.Append(nil, []byte("manifest"))
			must(t, err)
			c.lie(b)
			reseal(b)
			if got, err := Parse(b); !errors.Is(err, c.want) {
				t.Fatalf("%v with %+v, want %v", err, got, c.want)
			}
		})
	}
}

// reseal makes the checksums of a header right again.
func reseal(b []byte) {
	put := func(off int, sum uint64) {
		for i := range 8 {
			b[off+i] = byte(sum >> (8 * i))
		}
	}
	put(80, xxh3.Hash(b[fixedBytes:manifestOff]))
	put(sumOff, xxh3.Hash(b[:sumOff]))
}

func TestAppendRefusesWhatParseWould(t *testing.T) {
	for what, spoil := range map[string]func(h *Header){
		"generation 0":    func(h *Header) { h.Generation = 0 },
		"no runs":         func(h *Header) { h.Runs = nil },
		"too many runs":   func(h *Header) { h.Runs = make([]slab.Run, MaxRuns+1) },
		"odd run":         func(h *Header) { h.Runs[0].Off++ },
		"run of 32 TiB":   func(h *Header) { h.Runs[0].Len = 1 << 45 },
		"negative run":    func(h *Header) { h.Runs[0].Off = -BlockBytes },
		"runs too short":  func(h *Header) { h.PayloadBytes = 7 * BlockBytes },
		"odd payload":     func(h *Header) { h.PayloadBytes-- },
		"no room at all":  func(h *Header) { h.Runs = h.Runs[:1]; h.Runs[0].Len = BlockBytes },
		"payload of 2^50": func(h *Header) { h.PayloadBytes = 1 << 50 },
	} {
		t.Run(what, func(t *testing.T) {
			h := exampleHeader()
			spoil(&h)
			if b, err := h.Append([]byte("x"), []byte("manifest")); !errors.Is(err, tier.ErrInvalid) || len(b) != 1 {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
		})
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
