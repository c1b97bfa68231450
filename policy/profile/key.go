package profile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
)

// HeadExclusion returns the number of leading tokens that are excluded from the interior of a
// RoleMid segment. That is the seam width w, but at least the lookback of the convolutions (HYPIC
// §4.2-4.3).
func (p *Profile) HeadExclusion(w int) int { return max(w, p.headMin) }

// FirstSpec returns the geometry of a segment at the start of a prompt, which is stored whole.
func FirstSpec(tokens int) SegmentSpec { return SegmentSpec{Role: RoleFirst, Tokens: tokens} }

// MayPack reports whether segments of the spec are packed if their profile has a tolerance.
// Segments at the start of a prompt are not packed: states computed from them are stored as exact
// checkpoints.
func (s SegmentSpec) MayPack() bool { return s.Role != RoleFirst }

// MidSpec returns the geometry of a segment that is not at the start of a prompt, for seams of w
// tokens. It returns false if the segment is too short: its interior must have a token and all
// inputs of the convolution tail.
func (p *Profile) MidSpec(tokens, w int) (SegmentSpec, bool) {
	s := SegmentSpec{Role: RoleMid, Head: p.HeadExclusion(w), Tail: w, Tokens: tokens}
	return s, p.CheckSpec(s) == nil
}

// Interior returns the stored part of the segment: its first token and its number of tokens.
func (s SegmentSpec) Interior() (begin, count int) {
	return s.Head, s.Tokens - s.Head - s.Tail
}

// Left returns the geometry of the left piece of a segment that is computed in two pieces. The piece
// has the tokens before the index cut, and the segment's role, head and primer, but no tail.
func (s SegmentSpec) Left(cut int) SegmentSpec {
	return SegmentSpec{Role: s.Role, Head: s.Head, Tokens: cut, Primer: s.Primer}
}

// CheckSpec returns an error if segments of this geometry cannot be stored.
func (p *Profile) CheckSpec(s SegmentSpec) error {
	var low int
	switch {
	case s.Role == RoleFirst && s.Primer != PrimerID{}:
		return fmt.Errorf("first segment after primer %x: only others have one: %w", s.Primer[:8], ErrInvalid)
	case s.Tokens < 1 || s.Tokens > MaxTokens:
		return fmt.Errorf("segment of %d tokens, want 1 to %d: %w", s.Tokens, MaxTokens, ErrInvalid)
	case s.Role == RoleFirst:
		if s.Head != 0 || s.Tail != 0 {
			return fmt.Errorf("first segment with %d and %d tokens excluded: %w", s.Head, s.Tail, ErrInvalid)
		}
		low = 1
	case s.Role == RoleMid:
		if s.Tail < 0 || s.Head < p.headMin || s.Head > MaxTokens || s.Tail > MaxTokens {
			return fmt.Errorf("segment with %d head and %d tail tokens excluded, want a head of at least %d: %w",
				s.Head, s.Tail, p.headMin, ErrInvalid)
		}
		low = max(1, p.headMin)
	default:
		return fmt.Errorf("segment role %d is unknown: %w", s.Role, ErrInvalid)
	}
	if _, n := s.Interior(); n < low {
		return fmt.Errorf("segment of %d tokens has an interior of %d, want at least %d: %w", s.Tokens, n, low, ErrInvalid)
	}
	return nil
}

// NewPrimerID returns the id of the primer with these token ids.
func NewPrimerID(tokens []uint32) PrimerID {
	h := newTokenHash()
	h.tokens(tokens)
	return h.sum()
}

// primedRole is the bit of a key's role that announces a primer.
const primedRole = 1 << 7

// SegmentKey returns the key of a segment: SHA-256 over
//
//	fingerprint | u32 length of the tenant's salt | salt | u8 role | u32 head | u32 tail | token ids as u32
//
// all little-endian. With a primer, bit 7 of the role is set and the 32 bytes of its id
// precede the token ids. len(tokens) must be s.Tokens, and CheckSpec must accept s.
//
// Invariant: no two segments have the same input. After fingerprint and salt, whose lengths are
// known, the role is 1 or 2 without a primer and 130 with one. All fields after the role have a
// fixed length, except the token ids, which come last.
func (p *Profile) SegmentKey(salt []byte, s SegmentSpec, tokens []uint32) SegmentKey {
	h := newTokenHash()
	h.buf = append(h.buf, p.fingerprint[:]...)
	h.buf = binary.LittleEndian.AppendUint32(h.buf, uint32(len(salt)))
	h.write(salt)
	role := byte(s.Role)
	if s.Primer != (PrimerID{}) {
		role |= primedRole
	}
	h.buf = append(h.buf, role)
	h.buf = binary.LittleEndian.AppendUint32(h.buf, uint32(s.Head))
	h.buf = binary.LittleEndian.AppendUint32(h.buf, uint32(s.Tail))
	if role&primedRole != 0 {
		h.buf = append(h.buf, s.Primer[:]...)
	}
	h.tokens(tokens)
	return h.sum()
}

// PrefixHashes returns the hashes of the leading tokens of a prompt, up to each of
// the given ascending positions, in one pass:
//
//	H(0)   = SHA-256("spliced prefix\0" | fingerprint | u32 salt length | salt | u32 blockTokens)
//	H(i+1) = SHA-256(H(i) | token ids of block i)
//	hash of the first p tokens = SHA-256(H(p/blockTokens) | ids after the last whole block | u32 p)
//
// Positions out of order or past the end get the zero hash, which matches nothing.
func (p *Profile) PrefixHashes(salt []byte, blockTokens int, tokens []uint32, positions []int) []PrefixHash {
	out := make([]PrefixHash, len(positions))
	if blockTokens < 1 || blockTokens > MaxTokens {
		return out
	}
	h := newTokenHash()
	h.write([]byte("spliced prefix\x00"))
	h.write(p.fingerprint[:])
	h.buf = binary.LittleEndian.AppendUint32(h.buf, uint32(len(salt)))
	h.write(salt)
	h.buf = binary.LittleEndian.AppendUint32(h.buf, uint32(blockTokens))
	chain, done := h.sum(), 0
	last := -1
	for i, pos := range positions {
		if pos <= last || pos > len(tokens) {
			continue
		}
		last = pos
		for done+blockTokens <= pos {
			h.chain(&chain)
			h.tokens(tokens[done : done+blockTokens])
			chain = h.sum()
			done += blockTokens
		}
		h.chain(&chain)
		h.tokens(tokens[done:pos])
		h.buf = binary.LittleEndian.AppendUint32(h.buf, uint32(pos))
		out[i] = PrefixHash(h.sum())
	}
	return out
}

// tokenHash feeds SHA-256 through one buffer, so that the memory it allocates does not depend on
// the number of tokens.
type tokenHash struct {
	sha    hash.Hash
	buf    []byte
	digest [32]byte // a field, because a local variable of sum would be allocated on the heap in each call
}

// tokenHashBuffer is the size of the buffer in bytes.
const tokenHashBuffer = 4096

func newTokenHash() *tokenHash {
	return &tokenHash{sha: sha256.New(), buf: make([]byte, 0, tokenHashBuffer)}
}

func (h *tokenHash) write(b []byte) {
	h.flush()
	h.sha.Write(b)
}

func (h *tokenHash) flush() {
	h.sha.Write(h.buf)
	h.buf = h.buf[:0]
}

func (h *tokenHash) tokens(ids []uint32) {
	for _, id := range ids {
		if cap(h.buf)-len(h.buf) < 4 {
			h.flush()
		}
		h.buf = binary.LittleEndian.AppendUint32(h.buf, id)
	}
}

func (h *tokenHash) sum() [32]byte {
	h.flush()
	h.sha.Sum(h.digest[:0])
	return h.digest
}

// chain starts a new hash whose first input is sum.
func (h *tokenHash) chain(sum *[32]byte) {
	h.sha.Reset()
	h.buf = append(h.buf[:0], sum[:]...)
}
