package advise

import (
	"encoding/binary"
	"hash/maphash"
)

// sightings counts how often recent contents were seen. It has two generations of a map.
// The older one is dropped when the younger one is full, and with it contents that were
// not seen for long. Guarded by the advisor's lock.
type sightings struct{ young, old map[uint64]uint32 }

// sightingsMost is the maximum number of contents of a generation, about 1.5 MB.
const sightingsMost = 1 << 15

func (s *sightings) count(content uint64) uint32 {
	if n, ok := s.young[content]; ok {
		return n
	}
	return s.old[content]
}

func (s *sightings) add(content uint64) {
	n := s.count(content)
	if s.young == nil || len(s.young) >= sightingsMost {
		s.old, s.young = s.young, make(map[uint64]uint32)
	}
	if n < 1<<32-1 {
		n++
	}
	s.young[content] = n
}

// contentIDs hashes runs of token ids of one scope. Its seed belongs to this process and
// is never revealed. A tenant that could construct collisions could otherwise learn from
// advice which contents others serve.
type contentIDs struct{ seed maphash.Seed }

// id returns the hash of a content. Contents that collide share a count, which makes advice
// worse but breaks nothing.
func (c contentIDs) id(of scopeKey, tokens []uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(c.seed)
	var piece [1 << 10]byte
	b := binary.LittleEndian.AppendUint32(piece[:0], uint32(of.profile))
	b = binary.LittleEndian.AppendUint32(b, uint32(of.tenant))
	for _, id := range tokens {
		if len(b) == len(piece) {
			h.Write(b)
			b = piece[:0]
		}
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	h.Write(b)
	return h.Sum64()
}
