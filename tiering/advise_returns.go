package tiering

import (
	"encoding/binary"
	"hash/maphash"
)

// origin is a kind of thing that is stored in the hope that it is asked for again.
type origin uint8

const (
	originNone     origin = iota
	originBranch          // of a checkpoint: where prompts part
	originPrompt          // its last token, before an answer
	originAnswer          // its last token, with an answer
	originBoundary        // named by the application
	originPlaced
	originSegment
	origins
)

// originOf is the origin of a checkpoint.
func originOf(w Why, output int) origin {
	switch {
	case w == WhyBranch:
		return originBranch
	case w == WhyBoundary:
		return originBoundary
	case w == WhyPlaced:
		return originPlaced
	case output > 0:
		return originAnswer
	}
	return originPrompt
}

// returns learns which share of an origin comes back. What was advised counts, not
// what was stored: an origin that is refused can so become worth storing again.
type returns struct{ ended, back float64 }

// returnsMemory is how many advised ones are remembered, and returnsPrior how many
// are made up at the beginning, of which one came back. Guesses: answers are often
// continued, prompts without theirs seldom repeated, and what lies in the middle
// of a prompt is seldom where others end. After 40 answers that nobody continued
// one more is not worth a publication that takes a fortieth of computing it.
const returnsMemory = 512.0

var returnsPrior = [origins]float64{
	originBranch: 4, originPrompt: 16, originAnswer: 8, originBoundary: 4, originPlaced: 32, originSegment: 8,
}

func (r *returns) advised() {
	r.ended *= 1 - 1/returnsMemory
	r.back *= 1 - 1/returnsMemory
	r.ended++
}

func (r *returns) came() { r.back = min(r.back+1, r.ended) }

// share is the part of an origin that is expected back.
func (r *returns) share(o origin) float64 { return (r.back + 1) / (r.ended + returnsPrior[o]) }

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
