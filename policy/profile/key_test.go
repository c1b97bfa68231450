package profile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"testing"
)

func testTokens(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i*2654435761 + 7)
	}
	return out
}

// goldenKeys is read by every client that computes keys.
type goldenKeys struct {
	Canonical   string         `json:"canonical"`
	Fingerprint string         `json:"fingerprint"`
	Segments    []goldenKey    `json:"segments"`
	Prefixes    []goldenPrefix `json:"prefixes"`
}

type goldenKey struct {
	Salt         string   `json:"salt"` // hexadecimal
	Role         int      `json:"role"`
	Head         int      `json:"head"`
	Tail         int      `json:"tail"`
	PrimerTokens []uint32 `json:"primer_tokens,omitempty"`
	Primer       string   `json:"primer,omitempty"` // of these tokens
	Tokens       []uint32 `json:"tokens"`
	Key          string   `json:"key"`
}

type goldenPrefix struct {
	Salt        string   `json:"salt"`
	BlockTokens int      `json:"block_tokens"`
	Tokens      []uint32 `json:"tokens"`
	Positions   []int    `json:"positions"`
	Hashes      []string `json:"hashes"`
}

func TestGoldenVectorsHold(t *testing.T) {
	p, err := New(hybrid())
	must(t, err)
	fp := p.Fingerprint()
	g := goldenKeys{Canonical: hex.EncodeToString(p.Canonical()), Fingerprint: hex.EncodeToString(fp[:])}
	for _, salt := range []string{"", "tenant one"} {
		mid, ok := p.MidSpec(20, 8)
		if !ok {
			t.Fatal("20 tokens have no interior")
		}
		primed := mid
		primed.Primer = NewPrimerID(testTokens(5))
		for _, s := range []SegmentSpec{FirstSpec(3), mid, primed} {
			tokens := testTokens(s.Tokens)
			key := p.SegmentKey([]byte(salt), s, tokens)
			row := goldenKey{
				Salt: hex.EncodeToString([]byte(salt)), Role: int(s.Role), Head: s.Head, Tail: s.Tail, Tokens: tokens, Key: hex.EncodeToString(key[:]),
			}
			if s.Primer != (PrimerID{}) {
				row.PrimerTokens, row.Primer = testTokens(5), hex.EncodeToString(s.Primer[:])
			}
			g.Segments = append(g.Segments, row)
		}
		prefix := goldenPrefix{hex.EncodeToString([]byte(salt)), 4, testTokens(11), []int{0, 3, 4, 8, 11}, nil}
		for _, h := range p.PrefixHashes([]byte(salt), 4, prefix.Tokens, prefix.Positions) {
			prefix.Hashes = append(prefix.Hashes, hex.EncodeToString(h[:]))
		}
		g.Prefixes = append(g.Prefixes, prefix)
	}
	golden(t, "testdata/golden.json", g)
}

// The key is written out here a second time, in the plainest way.
func TestSegmentKeyIsTheHashItIsSaidToBe(t *testing.T) {
	p, err := New(hybrid())
	must(t, err)
	fp := p.Fingerprint()
	plain := append([]byte{}, fp[:]...)
	plain = append(plain, 3, 0, 0, 0, 'a', 'b', 'c', byte(RoleMid), 8, 0, 0, 0, 9, 0, 0, 0)
	tokens := testTokens(5000)
	for _, id := range tokens {
		plain = append(plain, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	if p.SegmentKey([]byte("abc"), SegmentSpec{Role: RoleMid, Head: 8, Tail: 9, Tokens: 5000}, tokens) != sha256.Sum256(plain) {
		t.Error("another hash")
	}
	primer := PrimerID(sha256.Sum256([]byte{1, 2, 0, 0}))
	if NewPrimerID([]uint32{0x201}) != primer {
		t.Error("another primer")
	}
	at := len(fp) + 4 + 3
	primed := slices.Clone(plain)
	primed[at] = 130
	primed = slices.Insert(primed, at+9, primer[:]...)
	if p.SegmentKey([]byte("abc"), SegmentSpec{RoleMid, 8, 9, 5000, primer}, tokens) != sha256.Sum256(primed) {
		t.Error("another hash after a primer")
	}
}

func TestPrefixHashDependsOnItsTokensOnly(t *testing.T) {
	p, err := New(hybrid())
	must(t, err)
	tokens := testTokens(100)
	var all []int
	for i := range 101 {
		all = append(all, i)
	}
	whole := p.PrefixHashes([]byte("s"), 16, tokens, all)
	seen := map[PrefixHash]bool{}
	for i, h := range whole {
		if seen[h] || h == (PrefixHash{}) {
			t.Fatalf("hash at %d names something else too", i)
		}
		seen[h] = true
		if alone := p.PrefixHashes([]byte("s"), 16, tokens[:i], []int{i}); alone[0] != h {
			t.Fatalf("hash at %d depends on what follows or on the other positions", i)
		}
	}
	if p.PrefixHashes([]byte("s"), 32, tokens, []int{64})[0] == whole[64] || p.PrefixHashes(nil, 16, tokens, []int{64})[0] == whole[64] {
		t.Error("hash does not depend on block size and salt")
	}
	for i, h := range p.PrefixHashes(nil, 16, tokens, []int{50, 20, 101}) {
		if (h == PrefixHash{}) != (i > 0) {
			t.Errorf("position %d of an unordered list: %x", i, h)
		}
	}
	if h := p.PrefixHashes(nil, 0, tokens, []int{5}); h[0] != (PrefixHash{}) {
		t.Error("a block of no tokens names something")
	}
}

func TestMidSegmentsNeedAnInterior(t *testing.T) {
	p, err := New(hybrid()) // convolution kernel 4
	must(t, err)
	for _, c := range []struct {
		tokens, w   int
		begin, kept int
		ok          bool
	}{
		{512, 8, 8, 496, true},
		{512, 0, 3, 509, true}, // the convolution still looks back three tokens
		{19, 8, 8, 3, true},
		{18, 8, 8, 2, false}, // two tokens cannot give a tail of three inputs
		{6, 0, 3, 3, true},
		{5, 0, 3, 2, false},
		{0, 0, 3, -3, false},
	} {
		s, ok := p.MidSpec(c.tokens, c.w)
		if begin, n := s.Interior(); ok != c.ok || begin != c.begin || n != c.kept {
			t.Errorf("%d tokens, w=%d: interior [%d, +%d), %v", c.tokens, c.w, begin, n, ok)
		}
	}
	for _, s := range []SegmentSpec{
		{RoleFirst, 1, 0, 10, PrimerID{}},
		{RoleFirst, 0, 1, 10, PrimerID{}},
		{RoleFirst, 0, 0, 0, PrimerID{}},
		{RoleFirst, 0, 0, MaxTokens + 1, PrimerID{}},
		{RoleMid, 2, 0, 100, PrimerID{}}, // convolution warm-up missing
		{RoleMid, 8, -1, 100, PrimerID{}},
		{0, 0, 0, 10, PrimerID{}},
		{3, 8, 8, 100, PrimerID{}},
		{RoleMid | primedRole, 8, 8, 100, PrimerID{}},
		{RoleFirst, 0, 0, 10, PrimerID{1}},
	} {
		if err := p.CheckSpec(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if err := p.CheckSpec(SegmentSpec{Role: RoleMid, Head: 4, Tail: 8, Tokens: 100}); err != nil {
		t.Errorf("a head narrower than the tail: %v", err)
	}
	if err := p.CheckSpec(FirstSpec(1)); err != nil {
		t.Errorf("a first segment of one token: %v", err)
	}
}

func TestKeysAndHashesAllocateTheSameForAnyLength(t *testing.T) {
	p, err := New(hybrid())
	must(t, err)
	for name, hash := range map[string]func(tokens []uint32){
		"segment key":   func(tokens []uint32) { p.SegmentKey(nil, FirstSpec(len(tokens)), tokens) },
		"prefix hashes": func(tokens []uint32) { p.PrefixHashes(nil, 16, tokens, []int{len(tokens)}) },
	} {
		count := func(n int) float64 {
			tokens := testTokens(n)
			return testing.AllocsPerRun(20, func() { hash(tokens) })
		}
		if short, long := count(16), count(100_000); long > short {
			t.Errorf("%s: %v allocations for 16 tokens, %v for 100,000", name, short, long)
		}
	}
}

func BenchmarkSegmentKey(b *testing.B) {
	p, err := New(hybrid())
	must(b, err)
	tokens := testTokens(2048)
	b.Run("tokens=2048", func(b *testing.B) {
		b.SetBytes(4 * 2048)
		b.ReportAllocs()
		for b.Loop() {
			p.SegmentKey(nil, FirstSpec(2048), tokens)
		}
	})
	plain := make([]byte, 4*2048)
	b.Run("limit=sha256", func(b *testing.B) {
		b.SetBytes(int64(len(plain)))
		for b.Loop() {
			sha256.Sum256(plain)
		}
	})
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
