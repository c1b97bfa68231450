package advise

import (
	"encoding/binary"
	"hash/maphash"
)

// sightings counts how often a content was seen, for the last few thousand of
// them: two generations of a map, so that what was not seen for long falls out
// without a list. Guarded by the advisor's lock.
type sightings struct{ young, old map[uint64]uint32 }

// sightingsMost is the bound of a generation: some 1.5 MB.
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

// contentIDs names runs of token ids of one scope. Its seed is of this process and
// never told: a tenant who could make two contents of one name, or know another's,
// would learn from advice what others serve.
type contentIDs struct{ seed maphash.Seed }

// id names a content. Those that collide take each other's count, which makes an
// advice worse and nothing wrong.
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
