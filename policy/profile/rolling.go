package profile

import (
	"encoding/binary"
	"math/bits"
)

// LeadTokens is how many leading tokens a segment is found by inside a prompt. Shorter
// segments are found by their key only. A guess: few texts that differ share as many
// tokens by chance, and segments as short save next to nothing.
const LeadTokens = 32

// SegmentHash is what a segment is recognised by inside a prompt: rolling hashes of its
// first LeadTokens tokens and of all, each together with role, head, tail and primer, and Whole
// with the length as well. Equal hashes are a guess, which SegmentKey settles. The zero
// value is none: of a segment that is too short.
type SegmentHash struct{ Lead, Whole uint64 }

// RollingHash hashes runs of tokens such that those of all runs of a prompt follow from
// one pass over it: of tokens t from position i on, the sum of t(i+j) · x^j modulo
// 2^61-1 (Karp and Rabin 1987). Where x is drawn at random, two runs of n tokens that
// differ have the same hash with a chance of n in 2^61. It is drawn by SHA-256 from
// fingerprint and salt, as keys are: who has not the salt learns nothing from a hash.
type RollingHash struct{ x, inverse uint64 }

const prime61 = 1<<61 - 1

// RollingHash is that of a tenant's segments of this profile.
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

// Segment hashes the tokens of a segment, s.Tokens of them.
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

// Sums makes the one pass: dst has len(tokens)+1 elements afterwards, in its memory if
// that suffices.
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

// Window is a position of a prompt, from which the hashes of runs are read.
type Window struct {
	sums    []uint64
	at      int
	scale   uint64 // x^-at
	inverse uint64
}

// Window stands at a position of the prompt that sums were made of.
func (r RollingHash) Window(sums []uint64, at int) Window {
	return Window{sums, at, power61(r.inverse, uint64(at)), r.inverse}
}

// Next moves on by one token.
func (w *Window) Next() {
	w.at++
	w.scale = mul61(w.scale, w.inverse)
}

// Left is how many tokens there are from here on.
func (w *Window) Left() int { return len(w.sums) - 1 - w.at }

// Lead is the SegmentHash.Lead of a segment that begins here, with at least LeadTokens
// tokens left.
func (w *Window) Lead(k SegmentKind) uint64 { return k.lead(w.run(LeadTokens)) }

// Whole is the SegmentHash.Whole of a segment of n tokens, at most those that are left.
func (w *Window) Whole(k SegmentKind, n int) uint64 { return k.whole(w.run(n), n) }

func (w *Window) run(n int) uint64 {
	return mul61(add61(w.sums[w.at+n], prime61-w.sums[w.at]), w.scale)
}

// SegmentKind stands for role, head, tail and primer in a SegmentHash.
type SegmentKind uint64

// Kind returns that of segments with this role, head, tail and primer.
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

// scramble is a bijection whose results differ in half of the bits (the end of
// MurmurHash3). It sends 0 to 0.
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
