package extent

import (
	"errors"
	"fmt"
	"math"

	"github.com/spliced-kv/spliced/policy/coding"
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

// fields lists the fields of the uncompressed content. A caller that writes has checked the manifest.
func (m *Manifest) fields(c *coding.Cursor) {
	v := m.version()
	if coding.U16(c, &v); (v < manifestVersion || v > manifestPrimed) && c.Err() == nil {
		c.Fail("manifest of version %d, want %d to %d: %w", v, manifestVersion, manifestPrimed, ErrVersion)
	}
	c.Raw(m.Fingerprint[:])
	coding.Text(c, &m.Tenant, 2, math.MaxUint16)
	coding.Text(c, &m.Publisher, 2, math.MaxUint16)
	coding.U64(c, &m.Created)
	coding.U8(c, &m.Spec.Role)
	coding.U32(c, &m.Spec.Head, &m.Spec.Tail, &m.Spec.Tokens, &m.Begin, &m.End)
	coding.U8(c, &m.Parent.Kind)
	c.Raw(m.Parent.Key[:])
	c.U32s(&m.Tokens, math.MaxInt32)
	if v >= manifestPacked {
		coding.Text(c, &m.Packed, 2, math.MaxUint16)
	}
	if v == manifestPrimed {
		c.Raw(m.Spec.Primer[:])
	}
	if m.version() != v {
		c.Fail("version %d without what it adds", v)
	}
	ranks := len(m.Digests)
	coding.U32(c, &ranks)
	coding.U64(c, &m.RankBytes)
	if c.Reading() && (ranks < 1 || ranks > profile.MaxTPSize) {
		c.Fail("%d ranks", ranks)
		return
	}
	c.Rows(&m.Digests, ranks)
	if c.Flag(&m.Coded); m.Coded {
		m.coded(c, ranks)
	}
}

// coded lists the fields that only coded payloads have.
func (m *Manifest) coded(c *coding.Cursor, ranks int) {
	const leastBytes = 1 + 8 + 4 // smallest size of a part
	if c.Reading() {
		m.Parts = make([][]Part, ranks)
	}
	n := c.Len(len(m.Parts[0]), 4, ranks*leastBytes, math.MaxInt32)
	for i := range m.Parts {
		if c.Reading() {
			m.Parts[i] = make([]Part, n)
		}
		for j := range m.Parts[i] {
			p := &m.Parts[i][j]
			coding.U8(c, &p.Codec)
			coding.U64(c, &p.Bytes)
			c.U32s(&p.Chunks, math.MaxInt32)
		}
	}
	stored := [][]uint64{m.StoredDigests}
	if c.Rows(&stored, 1); c.Reading() {
		m.StoredDigests = stored[0]
	}
}

// append appends the uncompressed content of a manifest, which the caller has checked.
func (m *Manifest) append(b []byte) []byte {
	c := coding.Writer(b)
	m.fields(&c)
	return c.Bytes()
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
	c, m := coding.Reader(content), &Manifest{}
	m.fields(&c)
	if err := c.End(); errors.Is(err, ErrVersion) {
		return nil, err
	} else if err != nil {
		return nil, fmt.Errorf("manifest of %d bytes: %w: %w", len(content), err, tier.ErrCorrupt)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest: %s: %w", err, tier.ErrCorrupt)
	}
	return m, nil
}
