package extent

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ErrSeal reports an extent that was not sealed with the key of this store.
var ErrSeal = fmt.Errorf("it has not the seal of this store: %w", tier.ErrCorrupt)

// Key seals the extents of one store. Without the key it is impossible to create or modify
// an extent so that its seal verifies. Digests alone do not prevent that: xxh3 has no key,
// and it is easy to find other bytes with the same digest.
//
// A seal is an HMAC-SHA-256 over the header, the manifest and a tag of each chunk. A tag
// is a universal hash of a chunk in three levels, each with its own secret: nh over
// blocks of 4 KiB, and polynomials (the GMAC of AES-GCM) over the hashes of a unit and
// over the tags of a chunk. Universal hashes are secure as long as they stay secret. Here
// only the HMAC uses them, so all can have the same nonce.
type Key struct {
	from          uint64
	secret        [32]byte
	blocks        *nh
	units, chunks cipher.AEAD
}

// Lengths in bytes: of a tag, of a seal, and of a unit, the part of a chunk that has
// its own tag.
const (
	TagBytes  = 16
	SealBytes = sha256.Size
	UnitBytes = 64 << 10 // a chunk has up to 16 units

	nonceBytes = 12
)

// NewKey returns the key for a secret. Extents with generations below the parameter from
// were written before the store had a key, and have no seal.
func NewKey(secret [32]byte, from uint64) *Key {
	k := &Key{from: from, secret: secret}
	k.blocks, k.units, k.chunks = newNH(k.derive("blocks")), k.polynomial("units"), k.polynomial("chunks")
	return k
}

// derive returns a secret for one purpose.
func (k *Key) derive(use string) (secret [32]byte) {
	m := hmac.New(sha256.New, k.secret[:])
	m.Write([]byte(use))
	m.Sum(secret[:0])
	return secret
}

// Binding returns a value that says to which store a key belongs. It does not reveal the key.
func (k *Key) Binding(id slab.StoreID) string {
	secret := k.derive("store")
	m := hmac.New(sha256.New, secret[:])
	m.Write(id[:])
	return hex.EncodeToString(m.Sum(nil)[:16])
}

func (k *Key) polynomial(use string) cipher.AEAD {
	secret := k.derive(use)
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic(err) // wrong key length
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}

var noNonce [nonceBytes]byte

// Tag appends the tag of a chunk to dst. The slices in runs are the chunk's bytes in
// memory; it does not matter where they are divided. Tag modifies the elements of runs, but
// not their bytes.
func (k *Key) Tag(dst []byte, runs [][]byte) []byte {
	tags := make([]byte, 0, ChunkBytes/UnitBytes*TagBytes)
	for {
		before := len(tags)
		if tags, runs = k.unit(tags, runs); len(tags) == before {
			return k.Join(dst, tags)
		}
	}
}

// Unit appends the tag of one unit of a chunk to dst, and modifies runs like Tag. Join
// appends the tag of a chunk, given the tags of its units in order. Calling Unit for all
// units and then Join has the same result as Tag.
func (k *Key) Unit(dst []byte, runs [][]byte) []byte {
	dst, _ = k.unit(dst, runs)
	return dst
}

// Join is documented at Unit.
func (k *Key) Join(dst, tags []byte) []byte { return k.chunks.Seal(dst, noNonce[:], nil, tags) }

// unit appends the tag of the first unit in runs, computed from the hashes of its blocks
// and its length, and returns the remaining runs. It appends nothing if runs are empty.
func (k *Key) unit(dst []byte, runs [][]byte) (tag []byte, rest [][]byte) {
	var scratch [nhBlock]byte
	sums := make([]byte, 0, UnitBytes/nhBlock*nhSum+8)
	n := 0
	for n < UnitBytes {
		var block []byte
		if block, runs = nextBlock(runs, &scratch); len(block) == 0 {
			break
		}
		sums = k.blocks.block(sums, block)
		n += len(block)
	}
	if n == 0 {
		return dst, nil
	}
	sums = binary.LittleEndian.AppendUint64(sums, uint64(n))
	return k.units.Seal(dst, noNonce[:], nil, sums), runs
}

// nextBlock returns the first block of runs: in place, or copied to scratch if it spans
// several runs. The result rest has the runs after this block.
func nextBlock(runs [][]byte, scratch *[nhBlock]byte) (block []byte, rest [][]byte) {
	for len(runs) > 0 && len(runs[0]) == 0 {
		runs = runs[1:]
	}
	if len(runs) == 0 {
		return nil, nil
	}
	if n := min(nhBlock, len(runs[0])); n == nhBlock || len(runs) == 1 {
		block, runs[0] = runs[0][:n], runs[0][n:]
		return block, runs
	}
	got := 0
	for got < nhBlock && len(runs) > 0 {
		n := copy(scratch[got:], runs[0])
		got += n
		if runs[0] = runs[0][n:]; len(runs[0]) == 0 {
			runs = runs[1:]
		}
	}
	return scratch[:got], runs
}

// seal returns the seal of an extent. header is the result of Header.unsealed, and tags
// are the tags of all chunks.
func (k *Key) seal(header, manifest, tags []byte) (sum [SealBytes]byte) {
	secret := k.derive("seal")
	m := hmac.New(sha256.New, secret[:])
	m.Write(header) // it has a fixed length, and contains the manifest's length
	m.Write(manifest)
	m.Write(tags)
	m.Sum(sum[:0])
	return sum
}

// Sign computes the seal of a header, which Append then writes. tags has the tags of all
// chunks in the order of their digests.
func (h *Header) Sign(k *Key, manifest, tags []byte) {
	h.describe(manifest)
	h.Sealed = true
	h.Seal = k.seal(h.unsealed(), manifest, tags)
}

// Seals reports whether extents of a generation must have a seal. Without a key (nil)
// none does.
func (k *Key) Seals(generation uint64) bool { return k != nil && generation >= k.from }

// Proven checks that the seal of a parsed header matches the stored manifest and the tags
// of all chunks; otherwise the error is ErrSeal. It returns nil if extents of this generation
// have no seal.
func (h *Header) Proven(k *Key, manifest, tags []byte) error {
	if !k.Seals(h.Generation) {
		return nil
	}
	want := k.seal(h.unsealed(), manifest, tags)
	if !h.Sealed || !hmac.Equal(want[:], h.Seal[:]) {
		return fmt.Errorf("%v of generation %d: %w", h.Name, h.Generation, ErrSeal)
	}
	return nil
}

// unsealed returns the part of a header that the seal covers: the fields before the seal,
// and the run table.
func (h *Header) unsealed() []byte {
	b := make([]byte, manifestOff)
	table := h.putTable(b)
	h.putFixed(b, table)
	clear(b[sealOff:fixedBytes])
	return b
}
