package extent

import (
	"encoding/binary"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// The version of a manifest depends on its content. Version 2 is for a segment with packed
// parts: a string after the token ids gives their layout. Version 3 is for a segment with
// a primer: its 32 bytes follow that string, which is empty if no parts are packed.
const (
	manifestVersion = 1
	manifestPacked  = 2
	manifestPrimed  = 3
)

func (m *Manifest) version() uint16 {
	switch {
	case m.Spec.Primer != profile.PrimerID{}:
		return manifestPrimed
	case m.Packed != "":
		return manifestPacked
	}
	return manifestVersion
}

// Encode appends the manifest to dst in its stored form, compressed.
func (m *Manifest) Encode(dst []byte) ([]byte, error) {
	if err := m.check(); err != nil {
		return dst, fmt.Errorf("manifest: %s: %w", err, tier.ErrInvalid)
	}
	content := m.append(nil)
	if len(content) > MaxManifestBytes {
		return dst, fmt.Errorf("manifest of %d bytes, at most %d: %w", len(content), MaxManifestBytes, tier.ErrInvalid)
	}
	return compress(dst, content), nil
}

// append appends the uncompressed content of a manifest, which the caller has checked.
func (m *Manifest) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, m.version())
	b = append(b, m.Fingerprint[:]...)
	b = appendString(b, m.Tenant)
	b = appendString(b, m.Publisher)
	b = le.AppendUint64(b, uint64(m.Created))
	b = append(b, byte(m.Spec.Role))
	for _, n := range [...]int{m.Spec.Head, m.Spec.Tail, m.Spec.Tokens, m.Begin, m.End} {
		b = le.AppendUint32(b, uint32(n))
	}
	b = append(b, m.Parent.Kind)
	b = append(b, m.Parent.Key[:]...)
	b = appendUint32s(b, m.Tokens)
	if m.version() >= manifestPacked {
		b = appendString(b, string(m.Packed))
	}
	if m.version() == manifestPrimed {
		b = append(b, m.Spec.Primer[:]...)
	}
	b = le.AppendUint32(b, uint32(len(m.Digests)))
	b = le.AppendUint64(b, uint64(m.RankBytes))
	b = le.AppendUint32(b, uint32(len(m.Digests[0])))
	for _, rank := range m.Digests {
		for _, d := range rank {
			b = le.AppendUint64(b, d)
		}
	}
	return m.appendCoded(b)
}

func (m *Manifest) appendCoded(b []byte) []byte {
	if !m.Coded {
		return append(b, 0)
	}
	le := binary.LittleEndian
	b = append(b, 1)
	b = le.AppendUint32(b, uint32(len(m.Parts[0])))
	for _, rank := range m.Parts {
		for i := range rank {
			b = append(b, rank[i].Codec)
			b = le.AppendUint64(b, uint64(rank[i].Bytes))
			b = appendUint32s(b, rank[i].Chunks)
		}
	}
	b = le.AppendUint32(b, uint32(len(m.StoredDigests)))
	for _, d := range m.StoredDigests {
		b = le.AppendUint64(b, d)
	}
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendUint32s(b []byte, v []uint32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(v)))
	for _, n := range v {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

// Decode parses a stored manifest. It shares no memory with b.
func Decode(b []byte) (*Manifest, error) {
	content, err := decompress(b)
	if err != nil {
		return nil, err
	}
	return parse(content)
}

// parse parses the content of a manifest.
func parse(content []byte) (*Manifest, error) {
	r := &reader{b: content}
	v := r.u16()
	if (v < manifestVersion || v > manifestPrimed) && !r.short {
		return nil, fmt.Errorf("manifest of version %d, want %d to %d: %w", v, manifestVersion, manifestPrimed, ErrVersion)
	}
	m := &Manifest{}
	copy(m.Fingerprint[:], r.take(len(m.Fingerprint)))
	m.Tenant = r.str()
	m.Publisher = r.str()
	m.Created = int64(r.u64())
	m.Spec.Role = profile.Role(r.u8())
	for _, n := range [...]*int{&m.Spec.Head, &m.Spec.Tail, &m.Spec.Tokens, &m.Begin, &m.End} {
		*n = int(r.u32())
	}
	m.Parent.Kind = r.u8()
	copy(m.Parent.Key[:], r.take(len(m.Parent.Key)))
	m.Tokens = r.u32s()
	if v >= manifestPacked {
		m.Packed = profile.Packed(r.str())
	}
	if v == manifestPrimed {
		copy(m.Spec.Primer[:], r.take(len(m.Spec.Primer)))
	}
	r.odd = r.odd || m.version() != v
	ranks := int(r.u32())
	m.RankBytes = int64(r.u64())
	m.Digests = r.digestRows(ranks, int(r.u32()))
	r.coded(m, ranks)
	switch {
	case r.short:
		return nil, fmt.Errorf("manifest of %d bytes ends too early: %w", len(content), tier.ErrCorrupt)
	case r.odd || len(r.b) > 0:
		return nil, fmt.Errorf("manifest of %d bytes, %d of them left over: %w", len(content), len(r.b), tier.ErrCorrupt)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest: %s: %w", err, tier.ErrCorrupt)
	}
	return m, nil
}

// coded parses the fields that only coded payloads have.
func (r *reader) coded(m *Manifest, ranks int) {
	switch r.u8() {
	case 0:
		return
	case 1:
		m.Coded = true
	default:
		r.odd = true
		return
	}
	const leastBytes = 1 + 8 + 4 // smallest size of a part
	n := int(r.u32())
	if !r.has(ranks, n, leastBytes) {
		return
	}
	m.Parts = make([][]Part, ranks)
	for i := range m.Parts {
		m.Parts[i] = make([]Part, n)
		for j := range m.Parts[i] {
			m.Parts[i][j] = Part{Codec: r.u8(), Bytes: int64(r.u64()), Chunks: r.u32s()}
		}
	}
	if rows := r.digestRows(1, int(r.u32())); rows != nil {
		m.StoredDigests = rows[0]
	}
}

// reader reads numbers from the front of b. At the end of b it returns zeros and sets the
// field short.
type reader struct {
	b     []byte
	short bool
	odd   bool // a value was found that no writer writes
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.short = nil, true
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) number(n int) uint64 {
	var v uint64
	for i, c := range r.take(n) {
		v |= uint64(c) << (8 * i)
	}
	return v
}

func (r *reader) u8() uint8   { return uint8(r.number(1)) }
func (r *reader) u16() uint16 { return uint16(r.number(2)) }
func (r *reader) u32() uint32 { return uint32(r.number(4)) }
func (r *reader) u64() uint64 { return r.number(8) }
func (r *reader) str() string { return string(r.take(int(r.u16()))) }

// The method has reports whether the input has rows x n more items; the size of an item is
// given in bytes. If the input has fewer, the method sets the field short. It is called
// before a count is used, so that no count causes an allocation larger than the input.
func (r *reader) has(rows, n, bytes int) bool {
	if rows < 1 || rows > profile.MaxTPSize || n > len(r.b)/bytes/rows {
		r.b, r.short = nil, true
	}
	return !r.short
}

func (r *reader) u32s() []uint32 {
	n := int(r.u32())
	if n == 0 || !r.has(1, n, 4) {
		return nil
	}
	out := make([]uint32, n)
	b := r.take(4 * n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	return out
}

func (r *reader) digestRows(rows, n int) [][]uint64 {
	if !r.has(rows, n, 8) {
		return nil
	}
	out := make([][]uint64, rows)
	for i := range out {
		out[i] = make([]uint64, n)
		b := r.take(8 * n)
		for j := range out[i] {
			out[i][j] = binary.LittleEndian.Uint64(b[8*j:])
		}
	}
	return out
}
