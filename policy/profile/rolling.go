package profile

import (
	"encoding/binary"
	"math/bits"
)

// LeadTokens is the number of leading tokens by which a segment is found in a prompt.
// Shorter segments are found by their key only. The number is a guess: different texts
// rarely have the same 32 tokens by chance, and reuse of shorter segments saves almost
// nothing.
const LeadTokens = 32

// SegmentHash identifies a segment in a prompt by two rolling hashes. Lead is computed from
// the segment's first LeadTokens tokens, and Whole from all its tokens and their number.
// Both include role, head, tail and primer. Equal hashes are only a hint, which SegmentKey
// confirms. A segment that is too short has the zero value.
type SegmentHash struct{ Lead, Whole uint64 }

// RollingHash hashes runs of consecutive tokens. One pass over a prompt gives the hashes of
// all its runs. The hash of the tokens t from position i on is the sum of t(i+j) · x^j
// modulo 2^61-1 (Karp and Rabin 1987). For random x, two different runs of n tokens have
// the same hash with probability n/2^61. x is derived by SHA-256 from fingerprint and salt,
// as keys are, so a hash reveals nothing without the salt.
type RollingHash struct{ x, inverse uint64 }

const prime61 = 1<<61 - 1

// RollingHash returns the hash function of a tenant's segments of this profile.
func (p *Profile) RollingHash(salt []byte) RollingHash {
	h := newTokenHash()
	h.write([]byte("spliced rolling\x00"))
	h.write(p.fingerprint[:])
	h.buf = binary.LittleEndian.AppendUint32(h.buf, uint32(len(salt)))
	h.write(salt)
	sum := h.sum()
	x := 2 + binary.LittleEndian.Uint64(sum[:])%(prime61-3)
	return RollingHash{x, power61(x, prime61-2)} // Fermat: x^(p-2) is 1/x
}

// Segment returns the hash of a segment. It returns the zero value if the number of tokens
// is not s.Tokens or is below LeadTokens.
func (r RollingHash) Segment(s SegmentSpec, tokens []uint32) SegmentHash {
	if len(tokens) < LeadTokens || len(tokens) != s.Tokens {
		return SegmentHash{}
	}
	var sum, lead uint64
	scale := uint64(1)
	for i, t := range tokens {
		if i == LeadTokens {
			lead = sum
		}
		sum = add61(sum, mul61(uint64(t), scale))
		scale = mul61(scale, r.x)
	}
	if len(tokens) == LeadTokens {
		lead = sum
	}
	k := s.Kind()
	return SegmentHash{k.lead(lead), k.whole(sum, s.Tokens)}
}

// Sums computes the prefix sums of the hash over a prompt. The result has len(tokens)+1
// elements, and uses the memory of dst if dst is large enough.
func (r RollingHash) Sums(dst []uint64, tokens []uint32) []uint64 {
	if cap(dst) < len(tokens)+1 {
		dst = make([]uint64, len(tokens)+1)
	}
	dst = dst[:len(tokens)+1]
	var sum uint64
	scale := uint64(1)
	for i, t := range tokens {
		dst[i] = sum
		sum = add61(sum, mul61(uint64(t), scale))
		scale = mul61(scale, r.x)
	}
	dst[len(tokens)] = sum
	return dst
}

// Window is a position in a prompt. It gives the hashes of the runs that start there.
type Window struct {
	sums    []uint64
	at      int
	scale   uint64 // x^-at
	inverse uint64 // 1/x
}

// Window returns a window at a position of the prompt with these sums.
func (r RollingHash) Window(sums []uint64, at int) Window {
	return Window{sums, at, power61(r.inverse, uint64(at)), r.inverse}
}

// Next advances by one token.
func (w *Window) Next() {
	w.at++
	w.scale = mul61(w.scale, w.inverse)
}

// Left returns the number of tokens from the window's position to the end of the prompt.
func (w *Window) Left() int { return len(w.sums) - 1 - w.at }

// Lead returns the SegmentHash.Lead of a segment that starts at the window's position.
// Window.Left must be at least LeadTokens.
func (w *Window) Lead(k SegmentKind) uint64 { return k.lead(w.run(LeadTokens)) }

// Whole returns the SegmentHash.Whole of a segment of n tokens that starts at the window's
// position. Window.Left must be at least n.
func (w *Window) Whole(k SegmentKind, n int) uint64 { return k.whole(w.run(n), n) }

func (w *Window) run(n int) uint64 {
	return mul61(add61(w.sums[w.at+n], prime61-w.sums[w.at]), w.scale)
}

// SegmentKind stands for role, head, tail and primer in a SegmentHash.
type SegmentKind uint64

// Kind returns the kind of segments with this role, head, tail and primer.
func (s SegmentSpec) Kind() SegmentKind {
	k := scramble(uint64(s.Role)<<56 ^ uint64(s.Head)<<28 ^ uint64(s.Tail))
	if s.Primer != (PrimerID{}) {
		k = scramble(k ^ binary.LittleEndian.Uint64(s.Primer[:]))
	}
	return SegmentKind(k)
}

func (k SegmentKind) lead(run uint64) uint64 { return scramble(run ^ uint64(k)) }

func (k SegmentKind) whole(run uint64, n int) uint64 {
	return scramble(run ^ uint64(k) ^ scramble(uint64(n)))
}

// scramble is a bijection that flips half of the bits on average. It is the last step of
// MurmurHash3. It maps 0 to 0.
func scramble(v uint64) uint64 {
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	v ^= v >> 33
	v *= 0xc4ceb9fe1a85ec53
	return v ^ v>>33
}

func add61(a, b uint64) uint64 {
	if a += b; a >= prime61 {
		a -= prime61
	}
	return a
}

func mul61(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return add61(lo&prime61, hi<<3|lo>>61)
}

func power61(x, n uint64) uint64 {
	out := uint64(1)
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			out = mul61(out, x)
		}
		x = mul61(x, x)
	}
	return out
}
