package tiering

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// CostPriors are what costs are predicted from until they are measured. Zero
// fields stand for the guesses of package cost.
type CostPriors struct {
	Prefill            cost.Prefill // of every profile
	DRAMBytesPerSecond float64      // at which an engine reads what lies in memory
	DiskBytesPerSecond float64      // at which the lower tier is read
}

// prices is the cost model of one profile. What it measures is guarded by locks of
// its own: mu for a moment, fitting while samples are fitted, some ms for as many as
// come at once. Predictions come from a copy that nobody changes, so that they can
// be had under the store's lock.
//
// How long a prefill takes is what tenants say, and it prices the objects of them
// all: each has a fit of its own, and what holds is the median of them.
type prices struct {
	latest atomic.Pointer[cost.Model]

	mu      sync.Mutex
	model   *cost.Model // of links; its prefill is the prior
	prefill cost.Prefill
	jobs    int // measured

	fitting sync.Mutex // taken before mu: nobody but who brings samples waits for a fit
	fits    map[tier.TenantID]*cost.Fit
}

// claimMost is how many times off the prior a prefill may be that one tenant of
// several has measured and no other. It is wide, since a prior may be a guess: from
// 1,250 to 320,000 tokens a second around the default.
const claimMost = 16

// claimTokens is the length of prompt by which fits are compared.
const claimTokens = 4096

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
	p.fits, p.prefill = map[tier.TenantID]*cost.Fit{}, p.model.Prefill()
	p.renewLocked()
}

// renewLocked publishes what was measured as the priors of a model of its own.
func (p *prices) renewLocked() {
	m := cost.New(cost.Options{Shape: p.model.Shape, Prefill: p.prefill})
	for j := cost.JobLoadHBM; j <= cost.JobPublish; j++ {
		m.SetLink(j, p.model.Link(j))
	}
	p.latest.Store(m)
}

// computed takes prefills that the engines of one tenant measured and answers how
// many of them made sense. alone: there is no other tenant.
func (p *prices) computed(from tier.TenantID, samples []cost.Sample, alone bool) int {
	p.fitting.Lock()
	defer p.fitting.Unlock()
	p.mu.Lock()
	prior := p.model.Prefill()
	p.mu.Unlock()
	fit := p.fits[from]
	if fit == nil {
		fit = cost.NewFit(prior)
	}
	taken := 0
	for _, s := range samples {
		if fit.Add(s) {
			taken++
		}
	}
	if taken > 0 {
		p.fits[from] = fit
		agreed := p.agreed(prior, alone)
		p.mu.Lock()
		p.prefill = agreed
		p.renewLocked()
		p.mu.Unlock()
	}
	return taken
}

// agreed is the median of what tenants have measured. The prior has a vote
// where their number is even, so that none of two decides; what one alone says is
// held to claimMost. The caller has fitting.
func (p *prices) agreed(prior cost.Prefill, alone bool) cost.Prefill {
	votes := make([]cost.Prefill, 0, len(p.fits)+1)
	for _, fit := range p.fits {
		votes = append(votes, fit.Prefill())
	}
	if len(votes) == 1 && !alone {
		return claimed(votes[0], prior)
	}
	if len(votes)%2 == 0 {
		votes = append(votes, prior)
	}
	slices.SortFunc(votes, func(a, b cost.Prefill) int { return cmp.Compare(a.Millis(0, claimTokens), b.Millis(0, claimTokens)) })
	return votes[len(votes)/2]
}

// claimed is a fit brought within claimMost of the prior.
func claimed(fit, prior cost.Prefill) cost.Prefill {
	ratio := fit.Millis(0, claimTokens) / prior.Millis(0, claimTokens)
	by := min(max(ratio, 1.0/claimMost), claimMost) / ratio
	if by == 1 {
		return fit
	}
	return cost.Prefill{Fixed: fit.Fixed * by, PerToken: fit.PerToken * by, PerTokenSquared: fit.PerTokenSquared * by}
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
	n := 0
	for _, fit := range p.fits {
		n += fit.Samples()
	}
	return n
}
