package plan

import (
	"cmp"
	"slices"
	"sort"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// PartMap is a profile.Layout whose parts can be looked up by (layer, kind), together with
// the cumulative chunk counts of its parts. It is immutable.
type PartMap struct {
	profile.Layout
	// FirstChunk[i] is the number of chunks before part i; the last entry is the total.
	FirstChunk []int

	// For a checkpoint, as offsets into a share.
	StatePages []gpuipc.Extent // whole pages without rows, freed by stripping the states
	StateEdges []gpuipc.Extent // states and convolution tails on the other pages
}

// NewPartMap returns the map of a layout.
func NewPartMap(l profile.Layout) *PartMap {
	l.Parts = slices.Clone(l.Parts) // without the builder's spare capacity, since maps are cached
	m := &PartMap{Layout: l, FirstChunk: make([]int, len(l.Parts)+1)}
	for i := range l.Parts {
		m.FirstChunk[i+1] = m.FirstChunk[i] + gpuipc.Chunks(l.Parts[i].Len)
	}
	return m
}

// Part returns the part of a layer and kind.
func (m *PartMap) Part(layer int, kind profile.PartKind) (profile.Part, bool) {
	i, ok := m.Index(layer, kind)
	if !ok {
		return profile.Part{}, false
	}
	return m.Parts[i], true
}

// Index returns the index of that part.
func (m *PartMap) Index(layer int, kind profile.PartKind) (i int, ok bool) {
	return sort.Find(len(m.Parts), func(i int) int { // layouts have this order
		return cmp.Or(cmp.Compare(layer, m.Parts[i].Layer), cmp.Compare(kind, m.Parts[i].Kind))
	})
}

// Chunks returns the total number of chunks.
func (m *PartMap) Chunks() int { return m.FirstChunk[len(m.Parts)] }

// IsRows reports whether a part has rows of attention layers, which descendants of a
// checkpoint need, as opposed to states and convolution tails, which they do not.
func IsRows(kind profile.PartKind) bool { return kind == profile.PartK || kind == profile.PartV }

// withStates finds the pages of a checkpoint's share that contain only states and
// convolution tails, and the states and tails on other pages.
func (m *PartMap) withStates(page int64) *PartMap {
	at := int64(0) // first candidate page
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

// withEdges finds the states and convolution tails outside the state pages.
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
