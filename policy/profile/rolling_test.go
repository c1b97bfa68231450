package profile

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

func rolling(t *testing.T, salt string) RollingHash {
	t.Helper()
	p, err := New(hybrid())
	must(t, err)
	return p.RollingHash([]byte(salt))
}

func TestRollingHashOfARunIsItsPolynomial(t *testing.T) {
	r := rolling(t, "tenant")
	rng := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, 200)
	for i := range tokens {
		tokens[i] = rng.Uint32()
	}
	prime := big.NewInt(prime61)
	w := r.Window(r.Sums(nil, tokens), 7)
	for w.at < 190 {
		n := 1 + rng.IntN(w.Left())
		want := new(big.Int)
		for j := n - 1; j >= 0; j-- {
			want.Mul(want, new(big.Int).SetUint64(r.x))
			want.Add(want, big.NewInt(int64(tokens[w.at+j])))
			want.Mod(want, prime)
		}
		if got := w.run(n); got != want.Uint64() {
			t.Fatalf("run [%d, +%d) has hash %d, want %d", w.at, n, got, want)
		}
		w.Next()
	}
}

func TestSegmentHashIsWhatAWindowReadsInAPrompt(t *testing.T) {
	r := rolling(t, "tenant")
	tokens := testTokens(400)
	for _, s := range []SegmentSpec{
		FirstSpec(LeadTokens), {Role: RoleMid, Head: 8, Tail: 8, Tokens: 100}, {Role: RoleMid, Head: 4, Tail: 3, Tokens: 33},
		{Role: RoleMid, Head: 8, Tail: 8, Tokens: 100, Primer: PrimerID{7}},
	} {
		for _, at := range []int{0, 1, 150, 400 - s.Tokens} {
			h := r.Segment(s, tokens[at:at+s.Tokens])
			w := r.Window(r.Sums(nil, tokens), at)
			if h.Lead != w.Lead(s.Kind()) || h.Whole != w.Whole(s.Kind(), s.Tokens) {
				t.Fatalf("%+v at %d: %x, the prompt has %x and %x", s, at, h, w.Lead(s.Kind()), w.Whole(s.Kind(), s.Tokens))
			}
		}
	}
}

func TestSegmentHashTellsApart(t *testing.T) {
	tokens := testTokens(100)
	mid := SegmentSpec{Role: RoleMid, Head: 8, Tail: 8, Tokens: 100}
	edited := append([]uint32{}, tokens...)
	edited[99]++
	swapped := append([]uint32{}, tokens...)
	swapped[98], swapped[99] = swapped[99], swapped[98]
	zero := make([]uint32, 101)
	type named struct {
		name string
		hash SegmentHash
	}
	seen := []named{
		{"mid", rolling(t, "a").Segment(mid, tokens)},
		{"another salt", rolling(t, "b").Segment(mid, tokens)},
		{"first", rolling(t, "a").Segment(FirstSpec(100), tokens)},
		{"wider head", rolling(t, "a").Segment(SegmentSpec{Role: RoleMid, Head: 9, Tail: 8, Tokens: 100}, tokens)},
		{"wider tail", rolling(t, "a").Segment(SegmentSpec{Role: RoleMid, Head: 8, Tail: 9, Tokens: 100}, tokens)},
		{"primer", rolling(t, "a").Segment(SegmentSpec{Role: RoleMid, Head: 8, Tail: 8, Tokens: 100, Primer: PrimerID{1}}, tokens)},
		{"another primer", rolling(t, "a").Segment(SegmentSpec{Role: RoleMid, Head: 8, Tail: 8, Tokens: 100, Primer: PrimerID{2}}, tokens)},
		{"another last token", rolling(t, "a").Segment(mid, edited)},
		{"another order", rolling(t, "a").Segment(mid, swapped)},
		{"100 zeros", rolling(t, "a").Segment(mid, zero[:100])},
		{"101 zeros", rolling(t, "a").Segment(SegmentSpec{Role: RoleMid, Head: 8, Tail: 8, Tokens: 101}, zero)},
	}
	for i := range seen {
		for j := range i {
			if seen[i].hash.Whole == seen[j].hash.Whole {
				t.Errorf("%s and %s have the same hash", seen[i].name, seen[j].name)
			}
		}
	}
	if seen[0].hash.Lead != seen[7].hash.Lead {
		t.Error("an edit of the last token changes the lead")
	}
	if h := rolling(t, "a").Segment(FirstSpec(LeadTokens-1), tokens[:LeadTokens-1]); h != (SegmentHash{}) {
		t.Errorf("a segment shorter than a lead has hash %x", h)
	}
}
