package tiering

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
)

// CostPriors are what costs are predicted from until they are measured. Zero
// fields stand for the guesses of package cost.
type CostPriors struct {
	Prefill            cost.Prefill // of every profile
	DRAMBytesPerSecond float64      // at which an engine reads what lies in memory
	DiskBytesPerSecond float64      // at which the lower tier is read
}

// prices is the cost model of one profile. What it measures is guarded by a lock
// of its own, under which it may solve for some 100 µs; predictions come from a
// copy that nobody changes, so that they can be had under the store's lock.
type prices struct {
	latest atomic.Pointer[cost.Model]

	mu    sync.Mutex
	model *cost.Model
	jobs  int // measured
}

// now is the present predictions. They are read only: nothing may be measured
// with what now returns.
func (p *prices) now() *cost.Model { return p.latest.Load() }

// open begins with priors. An identity does not say how wide a model is, so its
// shape counts bytes only.
func (p *prices) open(of *profile.Profile, c CostPriors) {
	p.model = cost.New(cost.Options{Shape: cost.FromProfile(of, cost.Widths{}), Prefill: c.Prefill})
	if c.DRAMBytesPerSecond > 0 {
		p.model.SetLink(cost.JobLoadDRAM, cost.Bandwidth(p.model.Link(cost.JobLoadDRAM).Fixed, c.DRAMBytesPerSecond))
	}
	if c.DiskBytesPerSecond > 0 {
		p.model.SetLink(cost.JobLoadDisk, cost.Bandwidth(p.model.Link(cost.JobLoadDisk).Fixed, c.DiskBytesPerSecond))
	}
	p.renewLocked()
}

// renewLocked publishes what was measured as the priors of a model of its own.
func (p *prices) renewLocked() {
	m := cost.New(cost.Options{Shape: p.model.Shape, Prefill: p.model.Prefill()})
	for j := cost.JobLoadHBM; j <= cost.JobPublish; j++ {
		m.SetLink(j, p.model.Link(j))
	}
	p.latest.Store(m)
}

// computed takes prefills that an engine measured and answers how many of them
// made sense.
func (p *prices) computed(samples []cost.Sample) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := 0
	for _, s := range samples {
		if p.model.Measured(s) {
			taken++
		}
	}
	if taken > 0 {
		p.renewLocked()
	}
	return taken
}

// renewEvery is how many jobs go by between two copies: a job takes long enough
// that one more allocation in 16 does not show.
const renewEvery = 16

// did takes a job of that many bytes.
func (p *prices) did(j cost.Job, bytes int64, took time.Duration) {
	if bytes <= 0 || took <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.model.Did(j, bytes, millis(took))
	if p.jobs++; p.jobs <= renewEvery || p.jobs%renewEvery == 0 {
		p.renewLocked()
	}
}

// composed takes the time that all linear layers of a plan's segments took on one
// rank; the others compute theirs beside it.
func (h *heldPlan) composed(took time.Duration) {
	p := &h.profile.prices
	segments := int64(0)
	for i := range h.spans {
		if h.spans[i].object != nil {
			segments++
		}
	}
	p.did(cost.JobCompose, segments*p.now().Shape.SegmentTotalBytes(0), took)
}

// rotated takes the time that the rows of a plan's segments took.
func (h *heldPlan) rotated(took time.Duration) {
	p := &h.profile.prices
	p.did(cost.JobRotate, p.now().Shape.RowBytes(h.rows), took)
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// prefillSamples is how many prefills were measured.
func (p *prices) prefillSamples() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.model.PrefillSamples()
}
