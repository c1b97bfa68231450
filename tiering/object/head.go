package object

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/payload"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The block at the start of an object, little-endian:
//
//	 0   8  magic "SPLXOBJ\n"
//	 8   4  format version, 1
//	12   4  bytes of the extent header after the block, a multiple of 4096
//	16   8  bytes of the whole object
//	24  16  tag, as in its name
//	40  32  HMAC-SHA-256 over bytes 0 to 39 and the extent header
//	72   8  xxh3 of bytes 0 to 71
//	80      zero
const (
	magic      = "SPLXOBJ\n"
	version    = 1
	macOff     = 40
	sumOff     = macOff + sha256.Size
	blockUsed  = sumOff + 8
	blockBytes = extent.BlockBytes

	// maxHeaderBytes is the most bytes of an extent header in the bucket. The header of
	// an object with a million token ids and 32 GiB of states is smaller. Objects with
	// larger headers are not stored.
	maxHeaderBytes = 8 << 20
	// maxObjectBytes is the largest PUT of S3.
	maxObjectBytes = 5 << 30
)

// head has the lengths in an object's block.
type head struct {
	headerBytes int
	objectBytes int64
}

// bytes returns the length of block and extent header together.
func (h *head) bytes() int64 { return blockBytes + int64(h.headerBytes) }

func (k *keys) mac(block, header []byte) []byte {
	m := hmac.New(sha256.New, k.head[:])
	m.Write(block[:macOff])
	m.Write(header)
	return m.Sum(nil)
}

// putHead returns block and extent header of an object. It sets the runs, lengths and
// seal of x; all other fields must be set.
func (k *keys) putHead(t tag, x *extent.Header, manifest, tags []byte) ([]byte, error) {
	headerBytes := extent.HeaderBytes(len(manifest))
	total := blockBytes + int64(headerBytes) + x.PayloadBytes
	if headerBytes > maxHeaderBytes || total > maxObjectBytes {
		return nil, fmt.Errorf("header of %d bytes, %d in all: %w", headerBytes, total, tier.ErrInvalid)
	}
	x.Runs = []slab.Run{wholeRun(headerBytes, x.PayloadBytes)}
	x.Sign(k.seal, manifest, tags)
	b, err := x.Append(make([]byte, blockBytes, blockBytes+headerBytes), manifest)
	if err != nil {
		return nil, err
	}
	k.sign(t, b, total)
	return b, nil
}

// sign fills the block at the start of b, which has the extent header after the block.
func (k *keys) sign(t tag, b []byte, total int64) {
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], uint32(len(b)-blockBytes))
	le.PutUint64(b[16:], uint64(total))
	copy(b[24:], t[:])
	copy(b[macOff:], k.mac(b, b[blockBytes:]))
	le.PutUint64(b[sumOff:], xxh3.Hash(b[:sumOff]))
}

// wholeRun returns the single run of an object's extent.
func wholeRun(headerBytes int, payloadBytes int64) slab.Run {
	return slab.Run{Len: int64(headerBytes) + payloadBytes}
}

// parseBlock parses an object's first block. The HMAC is not verified yet, so callers may
// use only the lengths, whose bounds are checked. tier.ErrCorrupt means that b is not a
// block of tag t in an object of objectBytes bytes.
func parseBlock(b []byte, t tag, objectBytes int64) (h head, err error) {
	le := binary.LittleEndian
	switch {
	case len(b) < blockBytes:
		return h, fmt.Errorf("object of %d bytes: %w", len(b), tier.ErrCorrupt)
	case string(b[:8]) != magic || le.Uint32(b[8:]) != version:
		return h, fmt.Errorf("object begins with %x: %w", b[:12], tier.ErrCorrupt)
	case xxh3.Hash(b[:sumOff]) != le.Uint64(b[sumOff:]):
		return h, fmt.Errorf("block has another checksum: %w", tier.ErrCorrupt)
	case tag(b[24:40]) != t:
		return h, fmt.Errorf("object of another name: %w", tier.ErrCorrupt)
	}
	for _, c := range b[blockUsed:blockBytes] {
		if c != 0 {
			return h, fmt.Errorf("block goes on after its end: %w", tier.ErrCorrupt)
		}
	}
	n, total := le.Uint32(b[12:]), le.Uint64(b[16:])
	switch {
	case n < extent.BlockBytes || n > maxHeaderBytes || n%extent.BlockBytes != 0:
		return h, fmt.Errorf("extent header of %d bytes: %w", n, tier.ErrCorrupt)
	case total < blockBytes+uint64(n) || total > maxObjectBytes || int64(total) != objectBytes:
		return h, fmt.Errorf("object of %d bytes, its block says %d: %w", objectBytes, total, tier.ErrCorrupt)
	}
	return head{int(n), int64(total)}, nil
}

// parseHead parses block and extent header of a requested object, and checks everything
// that can be checked without the payload. tier.ErrCorrupt means that no node of this
// cluster would have written this object.
func (k *keys) parseHead(b []byte, h head, t tag, w *tier.Want, p *profile.Profile) (*catalog.Row, error) {
	if !hmac.Equal(k.mac(b, b[blockBytes:h.bytes()]), b[macOff:sumOff]) {
		return nil, fmt.Errorf("description has not the HMAC of this cluster: %w", tier.ErrCorrupt)
	}
	run := wholeRun(h.headerBytes, h.objectBytes-h.bytes())
	x, err := payload.ReadExtent(memory(b[blockBytes:h.bytes()]), []slab.Run{run})
	if err != nil {
		return nil, err
	}
	if len(x.Runs) != 1 || x.Runs[0] != run || x.HeaderBytes != h.headerBytes || x.PayloadBytes != h.objectBytes-h.bytes() {
		return nil, fmt.Errorf("extent of %d and %d bytes in %v: %w", x.HeaderBytes, x.PayloadBytes, x.Runs, tier.ErrCorrupt)
	}
	if err := k.fits(x, w, p); err != nil {
		return nil, fmt.Errorf("%w: %w", err, tier.ErrCorrupt)
	}
	m := x.Manifest
	return &catalog.Row{
		Name: x.Name, Generation: x.Generation, Runs: x.Runs, HeaderBytes: x.HeaderBytes, PayloadBytes: x.PayloadBytes, Coded: x.Coded,
		Fingerprint: m.Fingerprint, Spec: m.Spec, Packed: m.Packed, Begin: m.Begin, End: m.End, Parent: m.Parent, Ranks: len(m.Digests), RankBytes: m.RankBytes,
		Created: m.Created, ManifestSum: x.ManifestSum,
	}, nil
}

// fits returns an error if an extent is not what was requested, or has a shape that the
// profile does not allow. payload.Read verifies its bytes later.
func (k *keys) fits(x *payload.Extent, w *tier.Want, p *profile.Profile) error {
	m := x.Manifest
	if x.Name != extentName(w.Name) || m.Fingerprint != w.Fingerprint || m.Tenant != k.tenants[w.Tenant].label {
		return fmt.Errorf("%v of profile %x and tenant %q", x.Name, m.Fingerprint[:8], m.Tenant)
	}
	if w.Kind == 0 {
		if err := fitsSegment(m, w, p, k.tenants[w.Tenant].Salt); err != nil {
			return err
		}
	} else if m.Spec != (profile.SegmentSpec{}) || len(m.Tokens) != 0 || m.Begin < 0 || m.Begin >= m.End || m.End > profile.MaxTokens ||
		m.Begin > 0 != (m.Parent != extent.Name{}) {
		return fmt.Errorf("checkpoint of tokens %d to %d", m.Begin, m.End)
	}
	l, err := tier.LayoutOf(p, w.Kind, m.End-m.Begin, m.Packed)
	if err != nil {
		return err
	}
	digests := 0
	for i := range l.Parts {
		digests += extent.Chunks(l.Parts[i].Len)
	}
	if len(m.Digests) != p.TPSize() || m.RankBytes != l.Bytes {
		return fmt.Errorf("%d ranks of %d bytes, its profile has %d of %d", len(m.Digests), m.RankBytes, p.TPSize(), l.Bytes)
	}
	for i, d := range m.Digests {
		if len(d) != digests {
			return fmt.Errorf("%d digests of rank %d, not %d", len(d), i, digests)
		}
	}
	return nil
}

func fitsSegment(m *extent.Manifest, w *tier.Want, p *profile.Profile, salt []byte) error {
	if err := p.CheckSpec(m.Spec); err != nil {
		return err
	}
	begin, n := m.Spec.Interior()
	if m.Begin != begin || m.End != begin+n || m.Parent != (extent.Name{}) || len(m.Tokens) != m.Spec.Tokens {
		return fmt.Errorf("segment of tokens %d to %d of %d, its geometry is %+v", m.Begin, m.End, len(m.Tokens), m.Spec)
	}
	if p.SegmentKey(salt, m.Spec, m.Tokens) != profile.SegmentKey(w.Key) {
		return fmt.Errorf("token ids are not those of the key")
	}
	return nil
}

// memory is a payload.Source that reads from a byte slice.
type memory []byte

func (m memory) Read(_ []slab.Run, off int64, bufs [][]byte) error {
	for _, b := range bufs {
		if off < 0 || off+int64(len(b)) > int64(len(m)) {
			return fmt.Errorf("bytes %d to %d of %d: %w", off, off+int64(len(b)), len(m), tier.ErrInvalid)
		}
		off += int64(copy(b, m[off:]))
	}
	return nil
}

func extentName(n tier.Name) extent.Name { return extent.Name{Kind: uint8(n.Kind), Key: n.Key} }

func tierName(n extent.Name) tier.Name {
	return tier.Name{Kind: tier.CheckpointKind(n.Kind), Key: n.Key}
}
