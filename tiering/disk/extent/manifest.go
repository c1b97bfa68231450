package extent

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/policy/profile"
)

// Bounds of a manifest, in addition to those of package profile. They are far above any
// use (guesses).
const (
	MaxNameBytes = 1 << 10 // of a tenant's or publisher's name
	MaxDigests   = 1 << 20 // of all ranks together; they cover 1 TiB
	MaxParts     = 1 << 18 // of all ranks together
	MaxChunks    = 1 << 22 // stored chunks of all parts together
)

// Manifest describes an entry.
type Manifest struct {
	Fingerprint profile.Fingerprint
	Tenant      string
	Publisher   string
	Created     int64               // nanoseconds since 1970
	Spec        profile.SegmentSpec // segments
	Begin, End  int                 // token range: a segment's interior, or a checkpoint's stored rows
	Parent      Name                // checkpoints: the checkpoint that this one extends; zero = none
	Tokens      []uint32            // segments: token ids
	Packed      profile.Packed      // segments: layout of their packed parts

	RankBytes int64      // bytes of each rank, as in memory
	Digests   [][]uint64 // by rank, the same number each: xxh3 of each chunk of each part, as published

	Coded         bool
	Parts         [][]Part // coded: by rank, the same number each
	StoredDigests []uint64 // coded: xxh3 of each MiB of the payload
}

// Part is one part of one rank in a coded payload.
type Part struct {
	Codec  uint8    // 0 = unchanged bytes
	Bytes  int64    // size in memory
	Chunks []uint32 // stored bytes of each chunk; none with codec 0
}

// StoredBytes returns the size of the part in the payload.
func (p *Part) StoredBytes() int64 {
	if p.Codec == 0 {
		return p.Bytes
	}
	var n int64
	for _, c := range p.Chunks {
		n += int64(c)
	}
	return n
}

// PayloadBytes returns the length of the payload that the manifest describes.
func (m *Manifest) PayloadBytes() int64 {
	if !m.Coded {
		return PayloadBytes(len(m.Digests), m.RankBytes)
	}
	var n int64
	for _, rank := range m.Parts {
		for i := range rank {
			n += rank[i].StoredBytes()
		}
	}
	return Padded(n)
}

// check returns why a manifest is invalid; nil = it is valid.
func (m *Manifest) check() error {
	in := func(n, most int) bool { return n >= 0 && n <= most }
	switch {
	case len(m.Tenant) > MaxNameBytes || len(m.Publisher) > MaxNameBytes:
		return fmt.Errorf("names of %d and %d bytes", len(m.Tenant), len(m.Publisher))
	case !in(m.Spec.Head, profile.MaxTokens) || !in(m.Spec.Tail, profile.MaxTokens) || !in(m.Spec.Tokens, profile.MaxTokens):
		return fmt.Errorf("spec %+v", m.Spec)
	case !in(m.End, profile.MaxTokens) || !in(m.Begin, m.End):
		return fmt.Errorf("tokens [%d, %d)", m.Begin, m.End)
	case len(m.Packed) > profile.MaxPackedBytes:
		return fmt.Errorf("packed parts of %d bytes", len(m.Packed))
	case len(m.Tokens) > profile.MaxTokens:
		return fmt.Errorf("%d token ids", len(m.Tokens))
	case !in(len(m.Digests)-1, profile.MaxTPSize-1):
		return fmt.Errorf("%d ranks", len(m.Digests))
	case m.RankBytes < 0 || m.RankBytes > MaxPayloadBytes/profile.MaxTPSize:
		return fmt.Errorf("%d bytes a rank", m.RankBytes)
	}
	if err := sameLength(m.Digests, MaxDigests); err != nil {
		return fmt.Errorf("digests: %w", err)
	}
	return m.checkCoded()
}

func (m *Manifest) checkCoded() error {
	if !m.Coded {
		if m.Parts != nil || m.StoredDigests != nil {
			return errors.New("parts of a payload that is not coded")
		}
		return nil
	}
	if len(m.Parts) != len(m.Digests) {
		return fmt.Errorf("parts of %d ranks of %d", len(m.Parts), len(m.Digests))
	}
	if err := sameLength(m.Parts, MaxParts); err != nil {
		return fmt.Errorf("parts: %w", err)
	}
	chunks := 0
	for _, rank := range m.Parts {
		var bytes int64
		for i := range rank {
			p := &rank[i]
			if p.Bytes < 0 || p.Bytes > m.RankBytes-bytes {
				return fmt.Errorf("parts of more than %d bytes", m.RankBytes)
			}
			if p.Codec == 0 && len(p.Chunks) > 0 {
				return fmt.Errorf("%d chunks without a codec", len(p.Chunks))
			}
			bytes += p.Bytes
			chunks += len(p.Chunks)
		}
	}
	if chunks > MaxChunks {
		return fmt.Errorf("%d chunks", chunks)
	}
	payload := m.PayloadBytes()
	if payload > MaxPayloadBytes || len(m.StoredDigests) != Chunks(payload) {
		return fmt.Errorf("%d digests of a payload of %d bytes", len(m.StoredDigests), payload)
	}
	return nil
}

func sameLength[T any](rows [][]T, most int) error {
	for _, r := range rows {
		if len(r) != len(rows[0]) {
			return fmt.Errorf("%d in one rank, %d in another", len(rows[0]), len(r))
		}
	}
	if n := len(rows) * len(rows[0]); n > most {
		return fmt.Errorf("%d, at most %d", n, most)
	}
	return nil
}
