package plan

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Geometry is a registered profile and the layouts that follow from it: those of segments,
// checkpoints, rows and states. Each is computed once. All methods may be called concurrently.
type Geometry struct {
	*profile.Profile
	id    tier.ProfileID
	page  int64 // page size of the store's pools, in bytes
	parts *Parts

	ropes  []rope // distinct ropes of the profile
	ropeOf []int  // index into ropes of each layer; -1 = its keys are not rotated
}

// NewGeometry returns the geometry of a profile in a store with pages of pageBytes. The
// parameter parts is the store's cache of part maps.
func NewGeometry(p *profile.Profile, id tier.ProfileID, pageBytes int64, parts *Parts) *Geometry {
	g := &Geometry{Profile: p, id: id, page: pageBytes, parts: parts}
	g.ropes, g.ropeOf = distinctRopes(p)
	return g
}

// CheckRank checks the rank of a query.
func (g *Geometry) CheckRank(rank int) error {
	if rank < 0 || rank >= g.TPSize() {
		return fmt.Errorf("rank %d of %d: %w", rank, g.TPSize(), tier.ErrInvalid)
	}
	return nil
}

// linear returns the linear layers of a query: the given layer, or all for profile.AllLayers.
func (g *Geometry) linear(layer int) ([]int, error) {
	return pickLayers(g.LinearLayers(), layer, "linear")
}

// attention returns the attention layers of a query: the given layer, or all for
// profile.AllLayers.
func (g *Geometry) attention(layer int) ([]int, error) {
	return pickLayers(g.AttentionLayers(), layer, "attention")
}

func pickLayers(all []int, layer int, kind string) ([]int, error) {
	if layer == profile.AllLayers {
		return all, nil
	}
	if i := slices.Index(all, layer); i >= 0 {
		return all[i : i+1], nil
	}
	return nil, fmt.Errorf("layer %d is no %s layer: %w", layer, kind, tier.ErrInvalid)
}

// SegmentParts returns the layout of a segment with a number of interior tokens.
func (g *Geometry) SegmentParts(interior int) *PartMap {
	return g.partMap(partKey{profile: g.id, of: partsOfSegment, layer: profile.AllLayers, n: interior})
}

// PackedParts returns the layout of a segment that may have packed parts. If the parameter
// packed is empty, no part is packed. The error wraps profile.ErrInvalid.
func (g *Geometry) PackedParts(interior int, packed profile.Packed) (*PartMap, error) {
	if packed == "" {
		return g.SegmentParts(interior), nil
	}
	l, err := g.PackedLayout(interior, packed)
	if err != nil {
		return nil, err
	}
	return NewPartMap(l), nil
}

// CheckpointParts returns the layout of a checkpoint node with a number of rows.
func (g *Geometry) CheckpointParts(rows int) *PartMap {
	return g.partMap(partKey{profile: g.id, of: partsOfCheckpoint, layer: profile.AllLayers, n: rows})
}

// EdgeParts returns the layout of a checkpoint node of kind Rows.
func (g *Geometry) EdgeParts(rows int) *PartMap {
	return g.partMap(partKey{profile: g.id, of: partsOfEdge, layer: profile.AllLayers, n: rows})
}

// NodeParts returns the layout of a checkpoint node of a kind.
func (g *Geometry) NodeParts(kind tier.CheckpointKind, rows int) *PartMap {
	if kind == tier.Rows {
		return g.EdgeParts(rows)
	}
	return g.CheckpointParts(rows)
}

// rowsParts returns the layout of a number of rows of a layer or profile.AllLayers.
func (g *Geometry) rowsParts(layer, rows int) *PartMap {
	return g.partMap(partKey{profile: g.id, of: partsOfRows, layer: layer, n: rows})
}

// stateParts returns the layout of one state of a layer or profile.AllLayers.
func (g *Geometry) stateParts(layer int) *PartMap {
	return g.partMap(partKey{profile: g.id, of: partsOfState, layer: layer})
}

// seamParts returns the layout of T and S of a recomputed span, of a layer or profile.AllLayers.
func (g *Geometry) seamParts(layer int) *PartMap {
	return g.partMap(partKey{profile: g.id, of: partsOfSeam, layer: layer})
}

// bufferParts returns the layout of a number of rows of a buffer.
func (g *Geometry) bufferParts(rows int) *PartMap {
	return g.partMap(partKey{profile: g.id, of: partsOfBuffer, layer: profile.AllLayers, n: rows})
}

func (g *Geometry) partMap(key partKey) *PartMap {
	m := g.parts.find(key)
	if m == nil {
		m = g.compute(key)
		g.parts.keep(key, m)
	}
	return m
}

func (g *Geometry) compute(key partKey) *PartMap {
	switch key.of {
	case partsOfSegment:
		return NewPartMap(g.SegmentLayout(key.n))
	case partsOfCheckpoint:
		return NewPartMap(g.CheckpointLayout(key.n)).withStates(g.page)
	case partsOfEdge:
		return NewPartMap(g.EdgeLayout(key.n))
	case partsOfRows:
		return NewPartMap(g.RowsLayout(key.layer, key.n))
	case partsOfState:
		return NewPartMap(g.StatesLayout(key.layer, 0))
	case partsOfSeam:
		return NewPartMap(g.SeamLayout(key.layer))
	case partsOfBuffer:
		return NewPartMap(g.BufferLayout(key.n))
	}
	panic(fmt.Sprintf("plan: parts of kind %d", key.of))
}

// states is profile.StatesLayout, computed without a list of all parts. The field one is the
// layout of the parts of one state. The field times is the number of times that each part
// occurs: once for each seam and once for the final state. A list of all parts could be long,
// since a plan may have thousands of seams, and deep models hundreds of layers.
type states struct {
	one   *PartMap
	times int64
}

// statesBefore returns the layout of the states before each of a number of seams, and of
// the final state.
func (g *Geometry) statesBefore(layer, seams int) (states, error) {
	s := states{g.stateParts(layer), int64(seams) + 1}
	if s.one.Bytes > math.MaxInt64/s.times {
		return s, fmt.Errorf("states before %d seams of %d bytes each: %w", seams, s.one.Bytes, tier.ErrInvalid)
	}
	return s, nil
}

// bytes returns the size of all states in bytes.
func (s states) bytes() int64 { return s.one.Bytes * s.times }

// at returns offset and length of state number n of the i-th requested layer.
func (s states) at(i, n int) (off, length int64) {
	part, end := s.one.Parts[i], s.one.Bytes
	if i+1 < len(s.one.Parts) {
		end = s.one.Parts[i+1].Off
	}
	return part.Off*s.times + int64(n)*(end-part.Off), part.Len
}

// partsOf is the kind of object that parts are computed for.
type partsOf uint8

const (
	partsOfSegment    partsOf = iota // n = interior tokens
	partsOfCheckpoint                // n = rows
	partsOfRows                      // n = rows, of one layer or all
	partsOfState                     // one state of one layer or all
	partsOfSeam                      // of one layer or all
	partsOfBuffer                    // n = rows
	partsOfEdge                      // n = rows
)

type partKey struct {
	profile tier.ProfileID // never reused
	of      partsOf
	layer   int
	n       int
}

// Parts caches the part maps of all profiles of a store, since computing the part map of a deep
// model takes microseconds. When the cache is full, it drops arbitrary part maps: segments vary
// in size, but few sizes are in use at a time. All methods may be called concurrently.
type Parts struct {
	mu      sync.Mutex
	entries map[partKey]*PartMap
	parts   int
}

// maxCachedParts is the maximum number of parts in the cache. They take 5 MiB, and suffice
// for segments of 400 different lengths of a model with 60 layers (a guess).
const maxCachedParts = 64 << 10

// NewParts returns an empty cache.
func NewParts() *Parts { return &Parts{entries: map[partKey]*PartMap{}} }

func (c *Parts) find(key partKey) *PartMap {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[key]
}

func (c *Parts) keep(key partKey, m *PartMap) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.entries[key]; known {
		return
	}
	for k, old := range c.entries { // in random order
		if c.parts+len(m.Parts) <= maxCachedParts {
			break
		}
		delete(c.entries, k)
		c.parts -= len(old.Parts)
	}
	c.entries[key] = m
	c.parts += len(m.Parts)
}
