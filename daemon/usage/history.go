package usage

import (
	"context"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Sample is what a chart shows of one step. Counters are what was added in it, bytes what
// was in use at its end.
type Sample struct {
	At        time.Time // the step's end
	Requests  uint64
	Prompt    uint64
	Sources   [Froms]uint64
	Missed    [causes]uint64 // computed tokens by Cause
	Saved     float64        // milliseconds
	First     float64        // milliseconds to first tokens, of Timed requests
	Timed     uint64
	Evictions uint64
	Bytes     [tier.PlaceDisk + 1]int64 // by tier.Place
}

// add adds a later step.
func (s *Sample) add(o *Sample) {
	s.At, s.Bytes = o.At, o.Bytes
	s.Requests += o.Requests
	s.Prompt += o.Prompt
	add(s.Sources[:], o.Sources[:])
	add(s.Missed[:], o.Missed[:])
	s.Saved += o.Saved
	s.First, s.Timed = s.First+o.First, s.Timed+o.Timed
	s.Evictions += o.Evictions
}

// since is what was added from an earlier reading of the counters to this one.
func (s *Sample) since(o *Sample) Sample {
	d := *s
	d.Requests -= o.Requests
	d.Prompt -= o.Prompt
	for i := range d.Sources {
		d.Sources[i] -= o.Sources[i]
	}
	for i := range d.Missed {
		d.Missed[i] -= o.Missed[i]
	}
	d.Saved -= o.Saved
	d.First, d.Timed = d.First-o.First, d.Timed-o.Timed
	d.Evictions -= o.Evictions
	return d
}

// Steps of a history, and how many are kept: six hours and seven days, some 1.2 MB.
const (
	FineStep   = 10 * time.Second
	fineSteps  = 6 * 3600 / 10
	CoarseStep = 5 * time.Minute
	coarseMost = 7 * 24 * 12
	perCoarse  = int(CoarseStep / FineStep)
)

// History keeps steps for charts, of this start.
type History struct {
	read func() Sample // counters since the start

	mu struct {
		sync.Mutex
		last   Sample // as read
		fine   steps
		coarse steps
		open   Sample // of the coarse step that has not ended
		parts  int    // fine steps in it
	}
}

// steps is a ring that grows up to its bound.
type steps struct {
	list []Sample
	next int // the oldest, once the ring is full
}

func (s *steps) add(v Sample, most int) {
	if len(s.list) < most {
		s.list = append(s.list, v)
		return
	}
	s.list[s.next] = v
	s.next = (s.next + 1) % most
}

// last copies up to so many of the newest steps, the oldest first.
func (s *steps) last(most int) []Sample {
	n := len(s.list)
	list := make([]Sample, 0, min(most, n)+1)
	for i := max(0, n-most); i < n; i++ {
		list = append(list, s.list[(s.next+i)%n])
	}
	return list
}

// NewHistory makes an empty one. read answers counters since the start, and the time.
func NewHistory(read func() Sample) *History {
	h := &History{read: read}
	h.mu.last = read()
	return h
}

// Run takes a step every FineStep until ctx ends.
func (h *History) Run(ctx context.Context) error {
	tick := time.NewTicker(FineStep)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.step()
		case <-ctx.Done():
			return nil
		}
	}
}

func (h *History) step() {
	now := h.read()
	h.mu.Lock()
	defer h.mu.Unlock()
	d := now.since(&h.mu.last)
	h.mu.last = now
	h.mu.fine.add(d, fineSteps)
	h.mu.open.add(&d)
	if h.mu.parts++; h.mu.parts == perCoarse {
		h.mu.coarse.add(h.mu.open, coarseMost)
		h.mu.open, h.mu.parts = Sample{}, 0
	}
}

// Fine answers the steps of a time up to now, of six hours at most, the oldest first.
func (h *History) Fine(span time.Duration) []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.fine.last(int(span / FineStep))
}

// Coarse answers those of the last seven days; the last one may not have ended.
func (h *History) Coarse() []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.mu.coarse.last(coarseMost)
	if h.mu.parts > 0 {
		list = append(list, h.mu.open)
	}
	return list
}
