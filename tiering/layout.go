package tiering

import (
	"cmp"
	"fmt"
	"math"
	"sort"
	"sync"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// layout is a profile.Layout that answers by layer and kind, and counts chunks.
type layout struct {
	profile.Layout
	first  []int           // first[i] is the number of chunks before part i; one more entry for all
	states []gpuipc.Extent // of a checkpoint: the whole pages that hold no rows, as offsets into a share
	edges  []gpuipc.Extent // of a checkpoint: states and convolution tails on the other pages
}

func newLayout(l profile.Layout) *layout {
	out := &layout{Layout: l, first: make([]int, len(l.Parts)+1)}
	for i := range l.Parts {
		out.first[i+1] = out.first[i] + gpuipc.Chunks(l.Parts[i].Len)
	}
	return out
}

// part finds the part of a layer and kind; parts are in this order.
func (l *layout) part(layer int, kind profile.PartKind) (profile.Part, bool) {
	i, ok := l.find(layer, kind)
	if !ok {
		return profile.Part{}, false
	}
	return l.Parts[i], true
}

func (l *layout) find(layer int, kind profile.PartKind) (i int, ok bool) {
	return sort.Find(len(l.Parts), func(i int) int {
		return cmp.Or(cmp.Compare(layer, l.Parts[i].Layer), cmp.Compare(kind, l.Parts[i].Kind))
	})
}

// withStates finds the pages of a checkpoint's share that hold nothing but states
// and convolution tails: what it gives back when it is thinned.
func (l *layout) withStates(page int64) *layout {
	at := int64(0) // first page that may be one
	until := func(end int64) {
		if at < end {
			l.states = append(l.states, gpuipc.Extent{Off: at * page, Len: min(end*page, l.Bytes) - at*page})
		}
	}
	for i := range l.Parts {
		if p := &l.Parts[i]; isRows(p.Kind) && p.Len > 0 {
			until(p.Off / page)
			at = max(at, (p.Off+p.Len-1)/page+1)
		}
	}
	until((l.Bytes + page - 1) / page)
	l.withEdges()
	return l
}

// withEdges finds what thinning leaves of states and convolution tails.
func (l *layout) withEdges() {
	runs := l.states
	for i := range l.Parts {
		if isRows(l.Parts[i].Kind) {
			continue
		}
		at, end := l.Parts[i].Off, l.Parts[i].Off+l.Parts[i].Len
		for at < end {
			for len(runs) > 0 && runs[0].Off+runs[0].Len <= at {
				runs = runs[1:]
			}
			next := end
			if len(runs) > 0 {
				next = min(end, max(at, runs[0].Off))
			}
			if at < next {
				l.edges = append(l.edges, gpuipc.Extent{Off: at, Len: next - at})
			}
			if at = next; at < end {
				at = runs[0].Off + runs[0].Len
			}
		}
	}
}

// isRows tells the rows of attention layers, which what extends a checkpoint
// needs, from states and convolution tails, which it does not.
func isRows(kind profile.PartKind) bool { return kind == profile.PartK || kind == profile.PartV }

// chunks is the number of chunks of all parts.
func (l *layout) chunks() int { return l.first[len(l.Parts)] }

// The layouts that a profile is asked for.
type layoutOf uint8

const (
	ofSegment    layoutOf = iota // n = interior tokens
	ofCheckpoint                 // n = rows
	ofRows                       // n = rows, of one layer or all
	ofState                      // one state of one layer or all
	ofSeam                       // of one layer or all
	ofBuffer                     // n = rows
)

type layoutKey struct {
	of    layoutOf
	layer int
	n     int
}

// layoutCache keeps computed layouts, since a deep model's takes some
// microseconds. When full it starts again: sizes of segments vary, but those in
// use at one time are few.
type layoutCache struct {
	mu      sync.Mutex
	entries map[layoutKey]*layout
	parts   int
}

// maxCachedParts bounds the cache: 6 MiB a profile, the segments of 400 lengths
// of a model with 60 layers (a guess).
const maxCachedParts = 64 << 10

func (c *layoutCache) reset() {
	c.entries, c.parts = map[layoutKey]*layout{}, 0
}

func (c *layoutCache) find(key layoutKey) *layout {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[key]
}

func (c *layoutCache) keep(key layoutKey, l *layout) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.entries[key]; known {
		return
	}
	if c.parts+len(l.Parts) > maxCachedParts {
		c.reset()
	}
	c.entries[key] = l
	c.parts += len(l.Parts)
}

func (p *profileState) layout(of layoutOf, layer, n int) *layout {
	key := layoutKey{of, layer, n}
	l := p.layouts.find(key)
	if l == nil {
		l = newLayout(p.computeLayout(key))
		if of == ofCheckpoint {
			l = l.withStates(p.page)
		}
		p.layouts.keep(key, l)
	}
	return l
}

func (p *profileState) computeLayout(key layoutKey) profile.Layout {
	switch key.of {
	case ofSegment:
		return p.SegmentLayout(key.n)
	case ofCheckpoint:
		return p.CheckpointLayout(key.n)
	case ofRows:
		return p.RowsLayout(key.layer, key.n)
	case ofState:
		return p.StatesLayout(key.layer, 0)
	case ofSeam:
		return p.SeamLayout(key.layer)
	case ofBuffer:
		return p.BufferLayout(key.n)
	}
	panic(fmt.Sprintf("tiering: layout of kind %d", key.of))
}

// statesLayout is profile.StatesLayout by arithmetic: its parts are those of one
// state, each as often as there are seams and once more. A plan may have
// thousands of seams, and deep models hundreds of layers.
type statesLayout struct {
	one   *layout
	times int64
}

func (p *profileState) statesLayout(layer, seams int) (statesLayout, error) {
	l := statesLayout{p.layout(ofState, layer, 0), int64(seams) + 1}
	if l.one.Bytes > math.MaxInt64/l.times {
		return l, fmt.Errorf("states before %d seams of %d bytes each: %w", seams, l.one.Bytes, tier.ErrInvalid)
	}
	return l, nil
}

func (l statesLayout) bytes() int64 { return l.one.Bytes * l.times }

// at is where state number n of the i-th layer asked for lies.
func (l statesLayout) at(i, n int) (off, length int64) {
	part, end := l.one.Parts[i], l.one.Bytes
	if i+1 < len(l.one.Parts) {
		end = l.one.Parts[i+1].Off
	}
	return part.Off*l.times + int64(n)*(end-part.Off), part.Len
}
