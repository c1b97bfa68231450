package tiering

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

// profileState is a registered profile with what is worth computing once.
type profileState struct {
	*profile.Profile
	id    ProfileID
	ranks int
	model string
	turns []turnSpec // the distinct ropes of the profile
	rope  []int      // layer -> index into turns, -1 = keys are not turned

	layouts layoutCache

	// Guarded by the store's lock.
	uses        int // AddProfile without ReleaseProfile
	segments    int // published
	checkpoints int
}

// turnSpec is one rope: what a turn by some distance is computed from.
type turnSpec struct {
	dims        int
	interleaved bool
	invFreq     []float64
}

func (a turnSpec) equal(b turnSpec) bool {
	return a.dims == b.dims && a.interleaved == b.interleaved && slices.Equal(a.invFreq, b.invFreq)
}

// AddProfile registers a profile and counts one use of it; the same identity
// gets the same id while it is registered. When too many are, one that has
// neither uses nor objects is forgotten for it; ErrBusy when there is none. Ids
// are never reused.
func (s *Store) AddProfile(p *profile.Profile) (ProfileID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := *s.profiles.Load()
	for _, ps := range known {
		if ps.Fingerprint() == p.Fingerprint() {
			ps.uses++
			return ps.id, nil
		}
	}
	next := slices.Clone(known)
	if len(next) >= s.cfg.MaxProfiles {
		i := slices.IndexFunc(next, s.forgettableLocked)
		if i < 0 {
			return 0, fmt.Errorf("profile %q: %d are registered and in use: %w", p.Identity().Model, len(next), ErrBusy)
		}
		next = slices.Delete(next, i, i+1)
	}
	s.lastProfile++
	ps := newProfileState(p, s.lastProfile)
	ps.uses = 1
	next = append(next, ps)
	s.profiles.Store(&next)
	return ps.id, nil
}

// ReleaseProfile ends one use that AddProfile began. The profile stays known,
// and its objects stay, until its place is wanted.
func (s *Store) ReleaseProfile(id ProfileID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ps, err := s.profile(id)
	if err != nil || ps.uses <= 0 {
		panic(fmt.Sprintf("tiering: release of profile %d, which is not in use", id))
	}
	ps.uses--
}

// forgettableLocked walks all objects, removed ones with leases included; it is
// asked only when the table of profiles is full.
func (s *Store) forgettableLocked(ps *profileState) bool {
	if ps.uses > 0 || ps.segments > 0 || ps.checkpoints > 0 {
		return false
	}
	return !slices.ContainsFunc(s.objects.places, func(o *object) bool { return o != nil && o.profile == ps })
}

// Profile answers a registered profile.
func (s *Store) Profile(id ProfileID) (*profile.Profile, bool) {
	ps, err := s.profile(id)
	if err != nil {
		return nil, false
	}
	return ps.Profile, true
}

func (s *Store) profile(id ProfileID) (*profileState, error) {
	known := *s.profiles.Load() // in order of ids
	at, ok := slices.BinarySearchFunc(known, id, func(ps *profileState, id ProfileID) int { return cmp.Compare(ps.id, id) })
	if !ok {
		return nil, fmt.Errorf("profile %d is not registered: %w", id, ErrInvalid)
	}
	return known[at], nil
}

func newProfileState(p *profile.Profile, id ProfileID) *profileState {
	ps := &profileState{Profile: p, id: id, ranks: p.TPSize(), model: p.Identity().Model, rope: make([]int, p.Layers())}
	for i := range ps.rope {
		ps.rope[i] = -1
		rope := p.Rope(i)
		if rope.Dims == 0 {
			continue
		}
		spec := turnSpec{dims: rope.Dims, interleaved: rope.Interleaved, invFreq: p.InvFreq(i)}
		at := slices.IndexFunc(ps.turns, spec.equal)
		if at < 0 {
			at = len(ps.turns)
			ps.turns = append(ps.turns, spec)
		}
		ps.rope[i] = at
	}
	ps.layouts.entries = map[layoutKey]*layout{}
	return ps
}

// checkRank is the check of every query that names a rank.
func (p *profileState) checkRank(rank int) error {
	if rank < 0 || rank >= p.ranks {
		return fmt.Errorf("rank %d of %d: %w", rank, p.ranks, ErrInvalid)
	}
	return nil
}

// linearLayers is the layers that a query for layer composes.
func (p *profileState) linearLayers(layer int) ([]int, error) {
	return pickLayers(p.LinearLayers(), layer, "linear")
}

// attentionLayers is the layers that a query for layer rotates.
func (p *profileState) attentionLayers(layer int) ([]int, error) {
	return pickLayers(p.AttentionLayers(), layer, "attention")
}

func pickLayers(all []int, layer int, kind string) ([]int, error) {
	if layer == AllLayers {
		return all, nil
	}
	if i := slices.Index(all, layer); i >= 0 {
		return all[i : i+1], nil
	}
	return nil, fmt.Errorf("layer %d is no %s layer: %w", layer, kind, ErrInvalid)
}

// layout is a profile.Layout that answers by layer and kind, and counts chunks.
type layout struct {
	profile.Layout
	at    map[partName]int
	first []int // first[i] is the number of chunks before part i; one more entry for all
}

type partName struct {
	layer int
	kind  profile.PartKind
}

func newLayout(l profile.Layout) *layout {
	out := &layout{Layout: l, at: make(map[partName]int, len(l.Parts)), first: make([]int, len(l.Parts)+1)}
	for i, part := range l.Parts {
		name := partName{part.Layer, part.Kind}
		if _, taken := out.at[name]; !taken {
			out.at[name] = i
		}
		out.first[i+1] = out.first[i] + gpuipc.Chunks(part.Len)
	}
	return out
}

// part finds the (first) part of a layer and kind.
func (l *layout) part(layer int, kind profile.PartKind) (profile.Part, bool) {
	i, ok := l.at[partName{layer, kind}]
	if !ok {
		return profile.Part{}, false
	}
	return l.Parts[i], true
}

// chunks is the number of chunks of all parts.
func (l *layout) chunks() int { return l.first[len(l.Parts)] }

// The layouts that a profile is asked for.
type layoutOf uint8

const (
	ofSegment    layoutOf = iota // n = interior tokens
	ofCheckpoint                 // n = rows
	ofStates                     // n = seams, of one layer or all
	ofRows                       // n = rows, of one layer or all
	ofSeam                       // of one layer or all
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
}

const maxCachedLayouts = 512

func (p *profileState) layout(of layoutOf, layer, n int) *layout {
	key := layoutKey{of, layer, n}
	c := &p.layouts
	c.mu.Lock()
	l := c.entries[key]
	c.mu.Unlock()
	if l != nil {
		return l
	}
	l = newLayout(p.computeLayout(key))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) >= maxCachedLayouts {
		clear(c.entries)
	}
	c.entries[key] = l
	return l
}

func (p *profileState) computeLayout(key layoutKey) profile.Layout {
	switch key.of {
	case ofSegment:
		return p.SegmentLayout(key.n)
	case ofCheckpoint:
		return p.CheckpointLayout(key.n)
	case ofStates:
		return p.StatesLayout(key.layer, key.n)
	case ofRows:
		return p.RowsLayout(key.layer, key.n)
	case ofSeam:
		return p.SeamLayout(key.layer)
	}
	panic(fmt.Sprintf("tiering: layout of kind %d", key.of))
}
