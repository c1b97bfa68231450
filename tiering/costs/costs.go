// Package costs learns what computing, loading, composing and rotating take for one
// profile: priors first, then what engines and the store have measured. Learned may
// be used by many at once and has locks of its own; predictions take none of them.
package costs

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// Priors are what costs are predicted from until they are measured. Zero fields
// stand for the guesses of package cost.
type Priors struct {
	Prefill            cost.Prefill // of every profile
	DRAMBytesPerSecond float64      // at which an engine reads what lies in memory
	DiskBytesPerSecond float64      // at which the lower tier is read
}

// Learned is the cost model of one profile.
//
// How long prefills, walks and captures take is what tenants say, and it prices the objects
// of them all: each tenant has one vote, agreed on by its connections, and the median is used.
type Learned struct {
	// What these point to never changes.
	latest atomic.Pointer[cost.Model]
	lone   atomic.Pointer[map[tier.TenantID]*cost.Model]

	mu      sync.Mutex               // held for a moment
	model   *cost.Model              // of links; its prefill is the prior
	tasks   [cost.Tasks]cost.Prefill // agreed on; of walks and captures zero until measured
	only    [cost.Tasks]loneClaim    // written with fitting held, too
	samples int                      // prefills measured
	jobs    int                      // measured
	last    [cost.JobPublish + 1]confirmed

	// fitting is taken before mu and held while samples are fitted, some ms for as
	// many as come at once: only those who bring samples wait for it.
	fitting sync.Mutex
	panels  [cost.Tasks]map[tier.TenantID]*cost.Panel
}

// confirmed says when the price of a job was last known to be right.
type confirmed struct {
	lately bool // measured since Forget looked
	at     time.Time
}

// loneClaim is what one tenant alone has measured of walks or captures, slower than the guess.
type loneClaim struct {
	tenant tier.TenantID
	price  cost.Prefill // zero = there is none
}

// forgetAfter is how long a measured price that is above its prior lasts without being
// measured again: then, and each time as long, it moves half of the way back. One that is
// too high has what it prices not done, and would never be corrected.
const forgetAfter = time.Minute

// Forget has high prices fade that were not measured lately. It is called now and then.
func (l *Learned) Forget(now time.Time) {
	l.fitting.Lock()
	defer l.fitting.Unlock()
	faded := l.forgetWalks(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	for j := range l.last {
		last, job := &l.last[j], cost.Job(j)
		if last.lately || last.at.IsZero() {
			*last = confirmed{at: now}
			continue
		}
		if l.model.Seen(job) == 0 || now.Sub(last.at) < forgetAfter {
			continue
		}
		l.model.Forget(job)
		last.at, faded = now, true
	}
	if faded {
		l.publishLocked()
	}
}

// walksAfter is how long walks and captures last that were measured to be slower than the guess
// and are not measured again: while they are, nothing is spliced, and nothing is measured.
const walksAfter = 5 * time.Minute

// forgetWalks forgets walks and captures that are slower than the guess and that nobody has
// measured lately. The caller holds fitting.
func (l *Learned) forgetWalks(now time.Time) (forgotten bool) {
	for _, w := range []cost.Task{cost.TaskWalk, cost.TaskCapture} {
		measured, _ := l.Model().Task(w)
		if only := l.only[w].price; !only.IsZero() {
			measured = only
		}
		prior, known := l.prior(w), len(l.panels[w])
		if !slower(measured, prior) {
			continue
		}
		silent := func(_ tier.TenantID, p *cost.Panel) bool { return now.Sub(p.Latest()) >= walksAfter }
		maps.DeleteFunc(l.panels[w], silent)
		if len(l.panels[w]) == known {
			continue
		}
		price, only := l.agree(w, prior, false)
		l.mu.Lock()
		l.tasks[w], l.only[w], forgotten = price, only, true
		l.mu.Unlock()
	}
	return forgotten
}

// slower reports whether a walk or capture takes longer than another one, if it has few rows or
// many: most of a walk may be a fixed time.
func slower(a, b cost.Prefill) bool {
	return a.Millis(0, fewRows) > b.Millis(0, fewRows) || a.Millis(0, claimTokens) > b.Millis(0, claimTokens)
}

// fewRows is the size of a small walk.
const fewRows = 64

// claimMost is how many times off the prior a prefill may be that one tenant of
// several has measured and no other. It is wide, since a prior may be a guess: from
// 1,250 to 320,000 tokens a second around the default.
const claimMost = 16

// claimTokens is the length of prompt by which fits are compared.
const claimTokens = 4096

// New begins with priors. An identity does not say how wide a model is, so its
// shape counts bytes only.
func New(p *profile.Profile, c Priors) *Learned {
	l := &Learned{
		model: cost.New(cost.Options{Shape: cost.FromProfile(p, cost.Widths{}), Prefill: c.Prefill}),
	}
	for w := range l.panels {
		l.panels[w] = map[tier.TenantID]*cost.Panel{}
	}
	if c.DRAMBytesPerSecond > 0 {
		l.model.SetLink(cost.JobLoadDRAM, cost.Bandwidth(l.model.Link(cost.JobLoadDRAM).Fixed, c.DRAMBytesPerSecond))
	}
	if c.DiskBytesPerSecond > 0 {
		l.model.SetLink(cost.JobLoadDisk, cost.Bandwidth(l.model.Link(cost.JobLoadDisk).Fixed, c.DiskBytesPerSecond))
	}
	l.tasks[cost.TaskPrefill] = l.model.Prefill()
	l.publishLocked()
	return l
}

// Model is the present predictions. It is read only: nothing may be measured with
// it. It takes no lock.
func (l *Learned) Model() *cost.Model { return l.latest.Load() }

// For is Model as it is for the requests of one tenant: slow walks and captures that no other
// tenant has measured are in it for that tenant only.
func (l *Learned) For(t tier.TenantID) *cost.Model {
	if m := (*l.lone.Load())[t]; m != nil {
		return m
	}
	return l.Model()
}

// publishLocked publishes what was measured as the priors of a model of its own.
func (l *Learned) publishLocked() {
	m := cost.New(cost.Options{Shape: l.model.Shape, Prefill: l.tasks[cost.TaskPrefill]})
	m.SetTask(cost.TaskWalk, l.tasks[cost.TaskWalk])
	m.SetTask(cost.TaskCapture, l.tasks[cost.TaskCapture])
	for j := cost.JobLoadHBM; j <= cost.JobPublish; j++ {
		m.SetLink(j, l.model.Link(j))
	}
	var lone map[tier.TenantID]*cost.Model
	for w, only := range l.only {
		if only.price.IsZero() {
			continue
		}
		if lone == nil {
			lone = map[tier.TenantID]*cost.Model{}
		}
		if lone[only.tenant] == nil {
			own := *m
			lone[only.tenant] = &own
		}
		lone[only.tenant].SetTask(cost.Task(w), only.price)
	}
	l.latest.Store(m)
	l.lone.Store(&lone)
}

// Measured takes prefills, walks and captures that the engines of one tenant measured, and
// returns how many of them made sense. alone: there is no other tenant.
func (l *Learned) Measured(from tier.TenantID, now time.Time, samples []cost.Sample, alone bool) int {
	l.fitting.Lock()
	defer l.fitting.Unlock()
	taken := 0
	for w := range cost.Tasks {
		taken += l.take(w, from, now, samples, alone)
	}
	return taken
}

// take takes the samples of one task. The caller holds fitting.
func (l *Learned) take(w cost.Task, from tier.TenantID, now time.Time, samples []cost.Sample, alone bool) int {
	if !slices.ContainsFunc(samples, func(s cost.Sample) bool { return s.Task == w }) {
		return 0
	}
	prior, panel := l.prior(w), l.panels[w][from]
	if panel == nil {
		panel = cost.NewPanel(prior, cost.PrefillFloor(l.Model().Shape))
	}
	taken := 0
	for _, s := range samples {
		if s.Task == w && panel.Add(now, s) {
			taken++
		}
	}
	if taken == 0 {
		return 0
	}
	l.panels[w][from] = panel
	price, only := l.agree(w, prior, alone)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks[w], l.only[w] = price, only
	if w == cost.TaskPrefill {
		l.samples += taken
	}
	l.publishLocked()
	return taken
}

// prior is what a task is taken for until it is measured: of a prefill where the
// model began, of the others by what a prefill takes now.
func (l *Learned) prior(w cost.Task) cost.Prefill {
	if w != cost.TaskPrefill {
		return l.Model().Guess(w)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.model.Prefill()
}

// agree returns what tenants agree on for a task, zero for walks and captures that nobody has
// measured. Those that one of several tenants has measured to be slower than the guess are
// in force for that tenant alone: by them the others would not splice, and would never
// measure anything else. The caller holds fitting.
func (l *Learned) agree(w cost.Task, prior cost.Prefill, alone bool) (price cost.Prefill, only loneClaim) {
	panels := l.panels[w]
	if w == cost.TaskPrefill || alone || len(panels) > 1 {
		return agreed(panels, prior, alone), loneClaim{}
	}
	for t, p := range panels {
		if measured := p.Prefill(); slower(measured, prior) {
			return cost.Prefill{}, loneClaim{t, measured}
		}
		return agreed(panels, prior, false), loneClaim{}
	}
	return cost.Prefill{}, loneClaim{}
}

// agreed is the median of what tenants have measured. The prior has a vote
// where their number is even, so that none of two decides; what one alone says is
// held to claimMost.
func agreed(panels map[tier.TenantID]*cost.Panel, prior cost.Prefill, alone bool) cost.Prefill {
	votes := make([]cost.Prefill, 0, len(panels)+1)
	for _, panel := range panels {
		votes = append(votes, panel.Prefill())
	}
	if len(votes) == 1 && !alone {
		return claimed(votes[0], prior)
	}
	return cost.Median(votes, prior)
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

// publishEvery is how many jobs go by between two copies, once as many of a kind are
// known: a job takes long enough that one more allocation in 16 does not show.
const publishEvery = 16

// Did takes a job of that many bytes.
func (l *Learned) Did(j cost.Job, bytes int64, took time.Duration) {
	if bytes <= 0 || took <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.model.Did(j, bytes, took.Seconds()*1e3)
	if int(j) < len(l.last) {
		l.last[j].lately = true
	}
	if l.jobs++; l.model.Seen(j) < publishEvery || l.jobs%publishEvery == 0 {
		l.publishLocked()
	}
}

// Holds takes what a published segment of so many interior tokens takes on all ranks. Where
// segments are packed, that follows from what is in them, and is the mean of the last ones.
func (l *Learned) Holds(bytes int64, interior int) {
	const weight = 1.0 / 8
	l.mu.Lock()
	defer l.mu.Unlock()
	shape := &l.model.Shape
	fixed := float64(max(bytes-shape.RowBytes(interior), 0))
	shape.SegmentBytes += int64(math.Round(weight * (fixed - float64(shape.SegmentBytes))))
	l.publishLocked()
}

// Snapshot is what predictions are made from now.
type Snapshot struct {
	Prefill cost.Prefill
	Samples int          // prefills measured
	Walk    cost.Prefill // over cost.WalkRows
	Capture cost.Prefill
	Links   [cost.JobPublish + 1]cost.Link
	// What of these is no guess any more: links of which a job was measured, the prefill once
	// engines have moved it from where it began, walks and captures that engines have measured.
	Measured                                       [cost.JobPublish + 1]bool
	PrefillMeasured, WalkMeasured, CaptureMeasured bool
}

// Prefill is the present prediction of computing, and whether engines have moved it from
// where it began.
func (l *Learned) Prefill() (predicted cost.Prefill, measured bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	prefill := l.tasks[cost.TaskPrefill]
	return prefill, prefill != l.model.Prefill()
}

// Snapshot answers the present costs.
func (l *Learned) Snapshot() Snapshot {
	m := l.Model()
	s := Snapshot{Prefill: m.Prefill()}
	s.Walk, s.WalkMeasured = m.Task(cost.TaskWalk)
	s.Capture, s.CaptureMeasured = m.Task(cost.TaskCapture)
	for j := range s.Links {
		s.Links[j] = m.Link(cost.Job(j))
	}
	l.mu.Lock()
	s.Samples = l.samples
	s.PrefillMeasured = l.tasks[cost.TaskPrefill] != l.model.Prefill()
	for j := range s.Measured {
		s.Measured[j] = l.model.Seen(cost.Job(j)) > 0
	}
	l.mu.Unlock()
	return s
}
