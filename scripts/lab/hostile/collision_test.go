package hostile

import (
	"context"
	"crypto/sha256"
	le "encoding/binary"
	"math/big"
	"slices"
	"testing"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// Two segments whose rolling hash is the same, though they begin with other tokens, are
// published and evicted. Who has a tenant's salt can make them: the hash is a polynomial
// at a point that follows from it.
func TestHostileSegmentsWithOneHashAreTwo(t *testing.T) {
	v := start(t, bounds{}, "-eviction=lru")
	n := v.neighbour()
	p := modelNamed("attacker")
	m := registered(t, v.client(connector.Options{Name: "attacker"}), p, connector.Binding{})
	salt, ok := m.Salt()
	if !ok {
		t.Fatal("no salt")
	}
	keys := make([]profile.SegmentKey, 2)
	tokens := collide(t, p, salt)
	felt := n.during(func() {
		for i := range keys {
			q := newSegment(len(tokens[i]))
			q.Tokens = tokens[i]
			if _, err := m.Put(context.Background(), q); err != nil {
				t.Fatal(err)
			}
			keys[i], _ = m.SegmentKey(q.Spec, q.Tokens)
		}
		for puts := 0; v.running() && holds(m, keys) > 0; puts++ {
			if puts == 2000 {
				t.Fatal("they are not evicted")
			}
			if err := patiently(func() error { _, err := put(m, 4096); return err }); err != nil {
				t.Fatal(err)
			}
		}
	})
	v.mustRun()
	report(t, "two segments with the same rolling hash and other first tokens, evicted", "two segments", felt)
}

// holds is how many of the segments the daemon holds.
func holds(m *connector.Model, keys []profile.SegmentKey) (n int) {
	var found connector.Found
	if err := m.Match(context.Background(), &connector.MatchQuery{Keys: keys}, &found); err != nil {
		return 0
	}
	for _, s := range found.Segments {
		if s.Hit() {
			n++
		}
	}
	return n
}

// collide makes two runs of tokens with the same hash. They differ in token 0 by u and in
// the last by w, where u + w·x^n is 0: the extended Euclidean algorithm finds such numbers
// of half the bits of the prime.
func collide(t *testing.T, p *profile.Profile, salt []byte) (runs [2][]uint32) {
	t.Helper()
	const n = 2 * profile.LeadTokens
	h := sha256.New()
	h.Write([]byte("spliced rolling\x00"))
	fingerprint := p.Fingerprint()
	h.Write(fingerprint[:])
	le.Write(h, le.LittleEndian, uint32(len(salt)))
	h.Write(salt)
	const prime = 1<<61 - 1
	x := new(big.Int).SetUint64(2 + le.LittleEndian.Uint64(h.Sum(nil))%(prime-3))
	power := x.Exp(x, big.NewInt(n-1), big.NewInt(prime))
	a, b, s, w := big.NewInt(prime), power, big.NewInt(0), big.NewInt(1)
	for b.BitLen() > 31 {
		q := new(big.Int).Div(a, b)
		a, b = b, new(big.Int).Sub(a, new(big.Int).Mul(q, b))
		s, w = w, new(big.Int).Sub(s, new(big.Int).Mul(q, w))
	}
	runs[0] = newSegment(n).Tokens
	runs[0][0], runs[0][n-1] = 1<<31, 1<<31
	runs[1] = slices.Clone(runs[0])
	runs[1][0] = uint32(1<<31 - b.Int64())
	runs[1][n-1] = uint32(1<<31 + w.Int64())
	of := func(i int) profile.SegmentHash { return p.RollingHash(salt).Segment(profile.FirstSpec(n), runs[i]) }
	if of(0).Whole != of(1).Whole || of(0).Lead == of(1).Lead {
		t.Fatalf("the runs have hashes %x and %x: the hash is another one than this test knows", of(0), of(1))
	}
	return runs
}
