package plan

import (
	"cmp"
	"slices"
	"sort"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// PartMap is a profile.Layout whose parts can be looked up by layer and kind. It also
// counts the chunks of its parts. It is immutable.
type PartMap struct {
	profile.Layout
	// FirstChunk[i] is the number of chunks before part i. The last entry is the number of
	// all chunks.
	FirstChunk []int

	// For a checkpoint: byte ranges of a share, as offsets into it.
	StatePages []gpuipc.Extent // whole pages without rows, which stripping frees
	StateEdges []gpuipc.Extent // states and convolution tails on the other pages
}

// NewPartMap returns the map of a layout.
func NewPartMap(l profile.Layout) *PartMap {
	l.Parts = slices.Clone(l.Parts) // drops the builder's spare capacity, since maps are cached
	m := &PartMap{Layout: l, FirstChunk: make([]int, len(l.Parts)+1)}
	for i := range l.Parts {
		m.FirstChunk[i+1] = m.FirstChunk[i] + gpuipc.Chunks(l.Parts[i].Len)
	}
	return m
}

// Part returns the part of a layer and kind; false if there is none.
func (m *PartMap) Part(layer int, kind profile.PartKind) (profile.Part, bool) {
	i, ok := m.Index(layer, kind)
	if !ok {
		return profile.Part{}, false
	}
	return m.Parts[i], true
}

// Index returns the index in Parts of the part of a layer and kind.
func (m *PartMap) Index(layer int, kind profile.PartKind) (i int, ok bool) {
	return sort.Find(len(m.Parts), func(i int) int { // parts are sorted like this
		return cmp.Or(cmp.Compare(layer, m.Parts[i].Layer), cmp.Compare(kind, m.Parts[i].Kind))
	})
}

// Chunks returns the total number of chunks.
func (m *PartMap) Chunks() int { return m.FirstChunk[len(m.Parts)] }

// IsRows reports whether a part has rows of attention layers, which the descendants of a
// checkpoint need. They do not need the other parts, states and convolution tails.
func IsRows(kind profile.PartKind) bool { return kind == profile.PartK || kind == profile.PartV }

// withStates sets StatePages and StateEdges, for pages of the given size, and returns m.
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

// withEdges sets StateEdges: the states and convolution tails outside the state pages.
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
