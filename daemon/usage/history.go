package usage

import (
	"context"
	"sync"
	"time"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// Sample is one step of a chart: the increments of counters during the step, and the bytes in use
// at its end.
type Sample struct {
	At        time.Time // end of the step
	Requests  uint64
	Prompt    uint64
	Sources   [Froms]uint64
	Missed    [causes]uint64 // computed tokens, by Cause
	Saved     float64        // milliseconds
	First     float64        // milliseconds to the first token, summed over Timed requests
	Timed     uint64
	Evictions uint64
	Bytes     [tier.PlaceDisk + 1]int64 // bytes in use, by tier.Place
}

// add extends a step by the step that follows it.
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

// since returns the differences of the counters between an earlier reading and this one.
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

// Lengths of steps, and how many of them are kept: fine steps for six hours and coarse steps for
// seven days, about 1.2 MB.
const (
	FineStep   = 10 * time.Second
	fineSteps  = 6 * 3600 / 10
	CoarseStep = 5 * time.Minute
	coarseMost = 7 * 24 * 12
	perCoarse  = int(CoarseStep / FineStep)
)

// History keeps the steps since the start, for charts.
type History struct {
	read func() Sample // counters since the start

	mu struct {
		sync.Mutex
		last   Sample // latest reading
		fine   steps
		coarse steps
		open   Sample // coarse step that is not finished
		parts  int    // number of fine steps in open
	}
}

// steps is a ring that grows up to a limit.
type steps struct {
	list []Sample
	next int // index of the oldest step, once the ring is full
}

func (s *steps) add(v Sample, most int) {
	if len(s.list) < most {
		s.list = append(s.list, v)
		return
	}
	s.list[s.next] = v
	s.next = (s.next + 1) % most
}

// last returns copies of the newest steps, oldest first, no more than the given number.
func (s *steps) last(most int) []Sample {
	n := len(s.list)
	list := make([]Sample, 0, min(most, n)+1)
	for i := max(0, n-most); i < n; i++ {
		list = append(list, s.list[(s.next+i)%n])
	}
	return list
}

// NewHistory creates an empty history. The function read returns the counters since the start, with
// the time.
func NewHistory(read func() Sample) *History {
	h := &History{read: read}
	h.mu.last = read()
	return h
}

// Run records a step every FineStep until ctx ends.
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

// Fine returns the fine steps of the given time up to now, at most six hours, oldest first.
func (h *History) Fine(span time.Duration) []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.fine.last(int(span / FineStep))
}

// Coarse returns the coarse steps of the last seven days. The last step may be unfinished.
func (h *History) Coarse() []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.mu.coarse.last(coarseMost)
	if h.mu.parts > 0 {
		list = append(list, h.mu.open)
	}
	return list
}
