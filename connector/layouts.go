package connector

import (
	"sync"

	"github.com/spliced-kv/spliced/policy/profile"
)

// layouts caches segment layouts by number of interior tokens. A model with many layers has
// hundreds of parts, and an engine uses few lengths.
type layouts struct {
	mu struct {
		sync.Mutex
		known map[int]profile.Layout
	}
}

// maxLayouts bounds the cache, which is cleared when it is full (a guess).
const maxLayouts = 256

// The method of returns the layout of a segment with n interior tokens. Its parts are shared and
// must not be changed.
func (l *layouts) of(p *profile.Profile, n int) profile.Layout {
	l.mu.Lock()
	layout, ok := l.mu.known[n]
	l.mu.Unlock()
	if ok {
		return layout
	}
	layout = p.SegmentLayout(n)
	l.mu.Lock()
	if len(l.mu.known) >= maxLayouts || l.mu.known == nil {
		l.mu.known = map[int]profile.Layout{}
	}
	l.mu.known[n] = layout
	l.mu.Unlock()
	return layout
}
