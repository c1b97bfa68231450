package extent

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/spliced-kv/spliced/tiering/disk/slab"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// ErrVersion reports a header or manifest of another version. Any other input that cannot be
// decoded is tier.ErrCorrupt. A header or manifest that cannot be encoded is tier.ErrInvalid.
var ErrVersion = errors.New("extent: another version")

// Sizes that are part of the format.
const (
	Version    = 2       // with a seal; extents without one have version 1
	BlockBytes = 4096    // unit of headers and payloads
	ChunkBytes = 1 << 20 // bytes covered by one digest
	MaxRuns    = 64

	// MaxHeaderBytes is the length of a header with the largest possible manifest.
	MaxHeaderBytes = (manifestOff + MaxStoredManifestBytes + BlockBytes - 1) / BlockBytes * BlockBytes
	// MaxPayloadBytes is far above any use (a guess); it keeps sums from overflowing.
	MaxPayloadBytes = 1 << 44
)

const (
	magic       = "SPLXTNT\n"
	fixedBytes  = 128
	sealOff     = 88
	sumOff      = fixedBytes - 8
	runBytes    = 12
	tableBytes  = MaxRuns * runBytes
	manifestOff = fixedBytes + tableBytes

	flagCoded = 1
)

// Name identifies an entry by its kind (0 = segment) and key.
type Name struct {
	Kind uint8
	Key  [32]byte
}

func (n Name) String() string { return fmt.Sprintf("%d/%x", n.Kind, n.Key[:8]) }

// Header is the content of a header, without the manifest.
type Header struct {
	Name
	Generation   uint64 // number of the write, never 0
	Coded        bool
	HeaderBytes  int // as the function HeaderBytes returns it for the manifest
	PayloadBytes int64
	Runs         []slab.Run // whole blocks; together at least header and payload

	Sealed bool // by Sign
	Seal   [SealBytes]byte

	// Set by Sign and Append.
	ManifestBytes int
	ManifestSum   uint64
}

// HeaderBytes returns the length of a header whose stored manifest has some length, in bytes.
func HeaderBytes(manifestBytes int) int {
	return int(Padded(int64(manifestOff + manifestBytes)))
}

// Append appends the header's blocks, which include the manifest, to dst. The parameter
// manifest is the result of Manifest.Encode.
func (h *Header) Append(dst, manifest []byte) ([]byte, error) {
	h.describe(manifest)
	if err := h.check(); err != nil {
		return dst, fmt.Errorf("%v: %s: %w", h.Name, err, tier.ErrInvalid)
	}
	start := len(dst)
	dst = append(dst, make([]byte, h.HeaderBytes)...)
	b := dst[start:]
	h.putFixed(b, h.putTable(b))
	copy(b[manifestOff:], manifest)
	return dst, nil
}

// describe sets the fields of a header that depend on its manifest.
func (h *Header) describe(manifest []byte) {
	h.HeaderBytes = HeaderBytes(len(manifest))
	h.ManifestBytes = len(manifest)
	h.ManifestSum = xxh3.Hash(manifest)
}

// putTable writes the run table into a header and returns its checksum.
func (h *Header) putTable(b []byte) (sum uint64) {
	table := b[fixedBytes:manifestOff]
	for i, r := range h.Runs {
		AppendRun(table[i*runBytes:i*runBytes], r)
	}
	return xxh3.Hash(table)
}

func (h *Header) version() uint32 {
	if h.Sealed {
		return Version
	}
	return 1
}

func (h *Header) putFixed(b []byte, tableSum uint64) {
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint32(b[8:], h.version())
	le.PutUint32(b[12:], uint32(h.HeaderBytes))
	le.PutUint64(b[16:], h.Generation)
	copy(b[24:], h.Key[:])
	b[56] = h.Kind
	if h.Coded {
		b[57] = flagCoded
	}
	le.PutUint16(b[58:], uint16(len(h.Runs)))
	le.PutUint32(b[60:], uint32(h.ManifestBytes))
	le.PutUint64(b[64:], h.ManifestSum)
	le.PutUint64(b[72:], uint64(h.PayloadBytes))
	le.PutUint64(b[80:], tableSum)
	copy(b[sealOff:], h.Seal[:])
	le.PutUint64(b[sumOff:], xxh3.Hash(b[:sumOff]))
}

// Parse parses a header. It needs only the first block, without most of the manifest. The
// result shares no memory with b.
func Parse(b []byte) (Header, error) {
	var h Header
	if err := checkFixed(b); err != nil {
		return h, err
	}
	le := binary.LittleEndian
	h.HeaderBytes = int(le.Uint32(b[12:]))
	h.Generation = le.Uint64(b[16:])
	copy(h.Key[:], b[24:])
	h.Kind = b[56]
	h.Coded = b[57] == flagCoded
	runs := int(le.Uint16(b[58:]))
	h.ManifestBytes = int(le.Uint32(b[60:]))
	h.ManifestSum = le.Uint64(b[64:])
	h.PayloadBytes = int64(le.Uint64(b[72:]))
	h.Sealed = le.Uint32(b[8:]) == Version
	copy(h.Seal[:], b[sealOff:])
	if runs > MaxRuns {
		return h, fmt.Errorf("header of %v: %d runs: %w", h.Name, runs, tier.ErrCorrupt)
	}
	table := b[fixedBytes:manifestOff]
	if sum := xxh3.Hash(table); sum != le.Uint64(b[80:]) {
		return h, fmt.Errorf("header of %v: run table has checksum %016x, not %016x: %w", h.Name, sum, le.Uint64(b[80:]), tier.ErrCorrupt)
	}
	h.Runs = make([]slab.Run, runs)
	for i := range h.Runs {
		h.Runs[i] = Run(table[i*runBytes:])
	}
	if !slab.AllZero(table[runs*runBytes:]) {
		return h, fmt.Errorf("header of %v: run table goes on after its end: %w", h.Name, tier.ErrCorrupt)
	}
	if err := h.check(); err != nil {
		return h, fmt.Errorf("header of %v: %s: %w", h.Name, err, tier.ErrCorrupt)
	}
	return h, nil
}

// checkFixed verifies the fixed part.
func checkFixed(b []byte) error {
	if len(b) < BlockBytes {
		return fmt.Errorf("header of %d bytes: %w", len(b), tier.ErrCorrupt)
	}
	le := binary.LittleEndian
	if string(b[:8]) != magic {
		return fmt.Errorf("header begins with %x: %w", b[:8], tier.ErrCorrupt)
	}
	// The version is checked first, because another version may have the checksum in
	// another place.
	v := le.Uint32(b[8:])
	if v != 1 && v != Version {
		return fmt.Errorf("header of version %d, want 1 to %d: %w", v, Version, ErrVersion)
	}
	if sum := xxh3.Hash(b[:sumOff]); sum != le.Uint64(b[sumOff:]) {
		return fmt.Errorf("header has checksum %016x, not %016x: %w", sum, le.Uint64(b[sumOff:]), tier.ErrCorrupt)
	}
	if b[57]&^flagCoded != 0 || v == 1 && !slab.AllZero(b[sealOff:sumOff]) {
		return fmt.Errorf("header with flags %#x or what follows not zero: %w", b[57], tier.ErrCorrupt)
	}
	return nil
}

// check returns why a header is invalid; nil = it is valid.
func (h *Header) check() error {
	switch {
	case h.Generation == 0:
		return errors.New("generation 0")
	case h.ManifestBytes < 1 || h.ManifestBytes > MaxStoredManifestBytes:
		return fmt.Errorf("manifest of %d bytes", h.ManifestBytes)
	case h.HeaderBytes != HeaderBytes(h.ManifestBytes):
		return fmt.Errorf("%d bytes for a manifest of %d", h.HeaderBytes, h.ManifestBytes)
	case h.PayloadBytes < 0 || h.PayloadBytes > MaxPayloadBytes || h.PayloadBytes%BlockBytes != 0:
		return fmt.Errorf("payload of %d bytes", h.PayloadBytes)
	}
	room, err := checkRuns(h.Runs)
	if err != nil {
		return err
	}
	if need := int64(h.HeaderBytes) + h.PayloadBytes; room < need {
		return fmt.Errorf("%d bytes in runs of %d", need, room)
	}
	return nil
}

// Manifest returns the stored manifest in the blocks b of a header, as a part of b.
func (h *Header) Manifest(b []byte) ([]byte, error) {
	if len(b) < h.HeaderBytes {
		return nil, fmt.Errorf("header of %v: %d bytes of %d: %w", h.Name, len(b), h.HeaderBytes, tier.ErrCorrupt)
	}
	end := manifestOff + h.ManifestBytes
	m := b[manifestOff:end:end]
	if sum := xxh3.Hash(m); sum != h.ManifestSum {
		return nil, fmt.Errorf("manifest of %v has checksum %016x, not %016x: %w", h.Name, sum, h.ManifestSum, tier.ErrCorrupt)
	}
	if !slab.AllZero(b[end:h.HeaderBytes]) {
		return nil, fmt.Errorf("header of %v: bytes between manifest and payload: %w", h.Name, tier.ErrCorrupt)
	}
	return m, nil
}
