package extent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func exampleManifest(coded bool) *Manifest {
	m := &Manifest{
		Tenant:    "tenant-a",
		Publisher: "engine 7",
		Created:   1700000000123456789,
		Spec:      profile.SegmentSpec{Role: profile.RoleMid, Head: 8, Tail: 8, Tokens: 100},
		Begin:     8,
		End:       92,
		Parent:    Name{Kind: 1, Key: [32]byte{9, 8, 7}},
		Tokens:    []uint32{1, 2, 3, 1 << 31},
		RankBytes: 3*ChunkBytes + 5,
		Digests:   [][]uint64{{1, 2, 3, 4}, {5, 6, 7, 1 << 63}},
	}
	for i := range m.Fingerprint {
		m.Fingerprint[i] = byte(255 - i)
	}
	if coded {
		m.Coded = true
		m.Parts = [][]Part{
			{{Codec: 0, Bytes: 17}, {Codec: 1, Bytes: 2 * ChunkBytes, Chunks: []uint32{100, 2000, 3}}},
			{{Codec: 0, Bytes: ChunkBytes}, {Codec: 1, Bytes: 5, Chunks: []uint32{4}}},
		}
		m.StoredDigests = []uint64{42, 43}
	}
	return m
}

func TestManifestGolden(t *testing.T) {
	for _, coded := range []bool{false, true} {
		t.Run(fmt.Sprintf("coded=%v", coded), func(t *testing.T) {
			m := exampleManifest(coded)
			content := m.append(nil)
			name := fmt.Sprintf("manifest-%v", coded)
			if want := golden(t, name+".bin", content); !bytes.Equal(content, want) {
				t.Fatalf("content of %d bytes differs from the golden one of %d", len(content), len(want))
			}
			stored, err := m.Encode(nil)
			must(t, err)
			// Another release of zstd may compress otherwise; what is stored has
			// to be read for ever.
			got, err := Decode(golden(t, name+".zst", stored))
			if err != nil || !reflect.DeepEqual(got, m) {
				t.Fatalf("%v, read %+v", err, got)
			}
		})
	}
}

func randomManifest(rng *rand.Rand) *Manifest {
	text := func() string {
		b := make([]byte, rng.IntN(30))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return string(b)
	}
	m := &Manifest{
		Tenant: text(), Publisher: text(), Created: int64(rng.Uint64()),
		Spec:      profile.SegmentSpec{Role: profile.Role(rng.IntN(3)), Head: rng.IntN(9), Tail: rng.IntN(9), Tokens: rng.IntN(profile.MaxTokens)},
		Begin:     rng.IntN(10),
		RankBytes: rng.Int64N(1 << 30),
		Parent:    Name{Kind: uint8(rng.IntN(3))},
	}
	m.End = m.Begin + rng.IntN(100)
	if rng.IntN(3) == 0 {
		m.Spec.Primer = profile.PrimerID{byte(rng.Uint32()), 1}
	}
	if rng.IntN(4) == 0 {
		m.Packed = profile.Packed(text() + "x")
	}
	for range rng.IntN(500) {
		m.Tokens = append(m.Tokens, rng.Uint32N(150000))
	}
	ranks, digests := 1+rng.IntN(8), rng.IntN(40)
	for range ranks {
		row := make([]uint64, digests)
		for i := range row {
			row[i] = rng.Uint64()
		}
		m.Digests = append(m.Digests, row)
	}
	if rng.IntN(2) == 0 {
		return m
	}
	m.Coded = true
	parts := rng.IntN(6)
	for range ranks {
		row := make([]Part, parts)
		for i := range row {
			row[i] = Part{Codec: uint8(rng.IntN(2)), Bytes: rng.Int64N(m.RankBytes/8 + 1)}
			if row[i].Codec != 0 {
				for range 1 + rng.IntN(5) {
					row[i].Chunks = append(row[i].Chunks, rng.Uint32N(1<<20))
				}
			}
		}
		m.Parts = append(m.Parts, row)
	}
	m.StoredDigests = make([]uint64, Chunks(m.PayloadBytes()))
	for i := range m.StoredDigests {
		m.StoredDigests[i] = rng.Uint64()
	}
	return m
}

func TestManifestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for i := range 1000 {
		m := randomManifest(rng)
		stored, err := m.Encode([]byte("before"))
		if err != nil {
			t.Fatalf("%d: %+v: %v", i, m, err)
		}
		got, err := Decode(stored[len("before"):])
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%d: %v, wrote %+v, read %+v", i, err, m, got)
		}
	}
}

// Every manifest that is cut short, or has a byte too many, is refused.
func TestManifestOfAnotherLengthIsRefused(t *testing.T) {
	packed := exampleManifest(true)
	packed.Packed = profile.PackedOf(0.5, 0.25, []int64{64, 1 << 20})
	primed, both := exampleManifest(true), *packed
	primed.Spec.Primer = profile.PrimerID{1, 2}
	both.Spec.Primer = profile.PrimerID{3, 4}
	for _, m := range []*Manifest{exampleManifest(false), exampleManifest(true), packed, primed, &both} {
		content := m.append(nil)
		for n := range content {
			if _, err := parse(content[:n]); !errors.Is(err, tier.ErrCorrupt) {
				t.Fatalf("%d bytes of %d: %v", n, len(content), err)
			}
		}
		if _, err := parse(append(content, 0)); !errors.Is(err, tier.ErrCorrupt) {
			t.Fatalf("one byte too many: %v", err)
		}
	}
}

// A release that knows no primers refuses a segment that has one, by its version.
func TestManifestsWithAPrimerHaveAVersionOfTheirOwn(t *testing.T) {
	m := exampleManifest(false)
	plain := m.append(nil)
	m.Spec.Primer = profile.PrimerID{5}
	if primed := m.append(nil); plain[0] != 1 || primed[0] != 3 || len(primed) != len(plain)+2+32 {
		t.Errorf("versions %d and %d, %d and %d bytes", plain[0], primed[0], len(plain), len(primed))
	}
	content := m.append(nil)
	copy(content[bytes.Index(content, m.Spec.Primer[:]):], make([]byte, 32))
	if _, err := parse(content); !errors.Is(err, tier.ErrCorrupt) {
		t.Errorf("a primer of zeros: %v", err)
	}
}

func TestManifestOfAnotherVersionIsRefusedByName(t *testing.T) {
	content := exampleManifest(false).append(nil)
	content[0] = 7
	if _, err := parse(content); !errors.Is(err, ErrVersion) || err.Error() != "manifest of version 7, want 1 to 3: extent: another version" {
		t.Fatal(err)
	}
}

func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	for what, spoil := range map[string]func(m *Manifest){
		"long tenant":          func(m *Manifest) { m.Tenant = string(make([]byte, MaxNameBytes+1)) },
		"long publisher":       func(m *Manifest) { m.Publisher = string(make([]byte, MaxNameBytes+1)) },
		"negative head":        func(m *Manifest) { m.Spec.Head = -1 },
		"too many spec tokens": func(m *Manifest) { m.Spec.Tokens = profile.MaxTokens + 1 },
		"begin after end":      func(m *Manifest) { m.Begin = m.End + 1 },
		"end too large":        func(m *Manifest) { m.End = profile.MaxTokens + 1 },
		"no ranks":             func(m *Manifest) { m.Digests = nil; m.Parts = nil },
		"too many ranks":       func(m *Manifest) { m.Digests = make([][]uint64, profile.MaxTPSize+1) },
		"uneven digests":       func(m *Manifest) { m.Digests[1] = m.Digests[1][:1] },
		"negative rank":        func(m *Manifest) { m.RankBytes = -1 },
		"rank of 1 PiB":        func(m *Manifest) { m.RankBytes = 1 << 50 },
		"parts but not coded":  func(m *Manifest) { m.Coded = false },
		"parts of one rank":    func(m *Manifest) { m.Parts = m.Parts[:1] },
		"uneven parts":         func(m *Manifest) { m.Parts[0] = m.Parts[0][:1] },
		"part too long":        func(m *Manifest) { m.Parts[0][0].Bytes = m.RankBytes },
		"negative part":        func(m *Manifest) { m.Parts[0][0].Bytes = -1 },
		"raw part with chunks": func(m *Manifest) { m.Parts[0][0].Chunks = []uint32{1} },
		"stored digest less":   func(m *Manifest) { m.StoredDigests = m.StoredDigests[:1] },
	} {
		t.Run(what, func(t *testing.T) {
			m := exampleManifest(true)
			spoil(m)
			if b, err := m.Encode([]byte("x")); !errors.Is(err, tier.ErrInvalid) || len(b) != 1 {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
		})
	}
}

// A frame that says that it is large, or is, does not make us allocate more than
// the bound.
func TestHostileFrameIsBounded(t *testing.T) {
	e, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true))
	must(t, err)
	defer e.Close()
	bomb := e.EncodeAll(make([]byte, MaxManifestBytes+1), nil)
	small := e.EncodeAll(exampleManifest(false).append(nil), nil)
	lie := bytes.Clone(bomb) // says a content of 1 GiB
	binary.LittleEndian.PutUint32(lie[5:], 1<<30)
	stream := func() []byte { // states no size
		var out bytes.Buffer
		w, _ := zstd.NewWriter(&out)
		w.Write(make([]byte, 10))
		w.Close()
		return out.Bytes()
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for what, b := range map[string][]byte{
		"a bomb":           bomb,
		"a lie":            lie,
		"no size":          stream,
		"two frames":       append(bytes.Clone(small), small...),
		"something behind": append(bytes.Clone(small), 0),
		"half a frame":     small[:len(small)/2],
		"nothing":          nil,
		"skippable":        {0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4},
	} {
		if _, err := Decode(b); !errors.Is(err, tier.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
		t.Errorf("%d bytes allocated for frames of a few", n)
	}
}

// The longest manifests that are allowed can be read again.
func TestLongestManifest(t *testing.T) {
	m := exampleManifest(false)
	m.Tokens = make([]uint32, profile.MaxTokens)
	for i := range m.Tokens {
		m.Tokens[i] = uint32(i) * 2654435761
	}
	stored, err := m.Encode(nil)
	if err != nil || len(stored) > MaxStoredManifestBytes {
		t.Fatalf("%d bytes, %v", len(stored), err)
	}
	got, err := Decode(stored)
	if err != nil || len(got.Tokens) != profile.MaxTokens || got.Tokens[12345] != m.Tokens[12345] {
		t.Fatal(err)
	}
}

func TestPayloadSizes(t *testing.T) {
	for _, c := range []struct {
		ranks     int
		rankBytes int64
		payload   int64
	}{{1, 1, 4096}, {1, 4096, 4096}, {2, 4097, 4 * 4096}, {3, 0, 0}} {
		if got := PayloadBytes(c.ranks, c.rankBytes); got != c.payload {
			t.Errorf("%d ranks of %d: %d bytes, want %d", c.ranks, c.rankBytes, got, c.payload)
		}
		if got := RankOffset(c.ranks, c.rankBytes); got != c.payload {
			t.Errorf("rank %d of %d begins at %d, want %d", c.ranks, c.rankBytes, got, c.payload)
		}
	}
	if n := exampleManifest(true).PayloadBytes(); n != Padded(17+2103+ChunkBytes+4) {
		t.Errorf("coded payload of %d bytes", n)
	}
	if HeaderBytes(1) != BlockBytes || HeaderBytes(BlockBytes-manifestOff) != BlockBytes || HeaderBytes(BlockBytes-manifestOff+1) != 2*BlockBytes {
		t.Error("a header is not as long as its blocks")
	}
	if n := Chunks(ChunkBytes + 1); n != 2 {
		t.Errorf("%d chunks", n)
	}
}
