package plan

import (
	"cmp"
	"slices"
	"sort"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// PartMap is a profile.Layout that finds parts by layer and kind, and counts their
// chunks. It does not change.
type PartMap struct {
	profile.Layout
	// FirstChunk[i] is the number of chunks before part i; one more entry for all.
	FirstChunk []int

	// Of a checkpoint, as offsets into a share.
	StatePages []gpuipc.Extent // whole pages without rows: what stripping the states gives back
	StateEdges []gpuipc.Extent // states and convolution tails on the other pages
}

// NewPartMap indexes a layout.
func NewPartMap(l profile.Layout) *PartMap {
	l.Parts = slices.Clone(l.Parts) // without the room that a builder leaves: maps are kept
	m := &PartMap{Layout: l, FirstChunk: make([]int, len(l.Parts)+1)}
	for i := range l.Parts {
		m.FirstChunk[i+1] = m.FirstChunk[i] + gpuipc.Chunks(l.Parts[i].Len)
	}
	return m
}

// Part finds the part of a layer and kind.
func (m *PartMap) Part(layer int, kind profile.PartKind) (profile.Part, bool) {
	i, ok := m.Index(layer, kind)
	if !ok {
		return profile.Part{}, false
	}
	return m.Parts[i], true
}

// Index is the number of that part.
func (m *PartMap) Index(layer int, kind profile.PartKind) (i int, ok bool) {
	return sort.Find(len(m.Parts), func(i int) int { // layouts are in this order
		return cmp.Or(cmp.Compare(layer, m.Parts[i].Layer), cmp.Compare(kind, m.Parts[i].Kind))
	})
}

// Chunks is the number of chunks of all parts.
func (m *PartMap) Chunks() int { return m.FirstChunk[len(m.Parts)] }

// IsRows tells the rows of attention layers, which what extends a checkpoint
// needs, from states and convolution tails, which it does not.
func IsRows(kind profile.PartKind) bool { return kind == profile.PartK || kind == profile.PartV }

// withStates finds the pages of a checkpoint's share that hold nothing but states
// and convolution tails, and what of these lies on other pages.
func (m *PartMap) withStates(page int64) *PartMap {
	at := int64(0) // first page that may be one
	until := func(end int64) {
		if at < end {
			m.StatePages = append(m.StatePages, gpuipc.Extent{Off: at * page, Len: min(end*page, m.Bytes) - at*page})
		}
	}
	for i := range m.Parts {
		if p := &m.Parts[i]; IsRows(p.Kind) && p.Len > 0 {
			until(p.Off / page)
			at = max(at, (p.Off+p.Len-1)/page+1)
		}
	}
	until((m.Bytes + page - 1) / page)
	m.withEdges()
	return m
}

// withEdges finds the states and convolution tails beside the state pages.
func (m *PartMap) withEdges() {
	pages := m.StatePages
	for i := range m.Parts {
		if IsRows(m.Parts[i].Kind) {
			continue
		}
		at, end := m.Parts[i].Off, m.Parts[i].Off+m.Parts[i].Len
		for at < end {
			for len(pages) > 0 && pages[0].Off+pages[0].Len <= at {
				pages = pages[1:]
			}
			next := end
			if len(pages) > 0 {
				next = min(end, max(at, pages[0].Off))
			}
			if at < next {
				m.StateEdges = append(m.StateEdges, gpuipc.Extent{Off: at, Len: next - at})
			}
			if at = next; at < end {
				at = pages[0].Off + pages[0].Len
			}
		}
	}
}
