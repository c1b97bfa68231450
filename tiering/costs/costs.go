// Package costs learns the costs of computing, loading, composing and rotating for one
// profile. It begins with assumed values (priors) and adjusts them to the measurements of
// engines and of the store. Learned may be used concurrently. It has its own locks;
// predictions take none of them.
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

// Priors are the costs used until they are measured. A zero field stands for the guess of
// package cost.
type Priors struct {
	Prefill            cost.Prefill // of every profile
	DRAMBytesPerSecond float64      // rate at which an engine reads memory
	DiskBytesPerSecond float64      // rate at which the lower tier is read
}

// Learned is the cost model of one profile.
//
// Tenants report the times of prefills, walks and captures. These times determine the
// value of the objects of all tenants, so no tenant may decide alone. Each tenant has one
// vote, formed from the reports of its connections, and the median of the votes is used.
type Learned struct {
	// The values behind these pointers never change.
	latest atomic.Pointer[cost.Model]
	lone   atomic.Pointer[map[tier.TenantID]*cost.Model]

	mu      sync.Mutex               // held briefly
	model   *cost.Model              // links as measured; its prefill is the prior
	tasks   [cost.Tasks]cost.Prefill // agreed prices; zero for walks and captures until measured
	only    [cost.Tasks]loneClaim    // a writer holds the lock fitting as well
	samples int                      // number of measured prefills
	jobs    int                      // measured
	last    [cost.JobPublish + 1]confirmed

	// The lock fitting is taken before mu. It is held during a fit of samples, which takes some
	// milliseconds for a batch of the maximum size. Only callers with samples, and Forget, wait for
	// this lock.
	fitting sync.Mutex
	panels  [cost.Tasks]map[tier.TenantID]*cost.Panel
}

// confirmed records when the price of a job was last confirmed by a measurement.
type confirmed struct {
	lately bool // measured since the last Forget
	at     time.Time
}

// loneClaim is a price of walks or captures that is higher than the guess and that only
// one tenant has measured.
type loneClaim struct {
	tenant tier.TenantID
	price  cost.Prefill // zero = none
}

// forgetAfter is the time after which a measured price that is above its prior moves half
// of the way back to the prior. It does so again after the same time, until the price is
// measured again. A price that is too high would otherwise stay, since it prevents the
// jobs whose measurement would correct it.
const forgetAfter = time.Minute

// Forget moves high prices that were not measured recently back towards their priors. It
// is called from time to time.
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

// walksAfter is the time after which walks and captures that were measured as slower than the
// guess are forgotten, unless they are measured again. While such measurements count, nothing is
// spliced, and so nothing new is measured.
const walksAfter = 5 * time.Minute

// forgetWalks forgets the measured prices of walks and captures that are above the guess and were
// not measured recently. The caller holds the lock fitting.
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

// slower reports whether price a of walks or captures is higher than price b, for few
// tokens or for many: most of a walk's time may be fixed.
func slower(a, b cost.Prefill) bool {
	return a.Millis(0, fewRows) > b.Millis(0, fewRows) || a.Millis(0, claimTokens) > b.Millis(0, claimTokens)
}

// fewRows is the number of tokens of a small walk.
const fewRows = 64

// claimMost is the largest factor by which a prefill that only one of several tenants has
// measured may differ from the prior. It is large, since a prior may be a guess: it allows
// 1,250 to 320,000 tokens per second around the default.
const claimMost = 16

// claimTokens is the prompt length in tokens at which prices are compared.
const claimTokens = 4096

// New returns a model that consists of the priors. The identity of a profile does not
// include a model's width, so the model's shape has only bytes, no operations.
func New(p *profile.Profile, c Priors) *Learned {
	l := &Learned{
		model: cost.New(cost.Options{Shape: cost.FromProfile(p), Prefill: c.Prefill}),
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

// Model returns the current predictions, which must not be modified. It takes no lock.
func (l *Learned) Model() *cost.Model { return l.latest.Load() }

// For returns the model for requests of one tenant. It includes high prices of walks and
// captures that only this tenant has measured.
func (l *Learned) For(t tier.TenantID) *cost.Model {
	if m := (*l.lone.Load())[t]; m != nil {
		return m
	}
	return l.Model()
}

// publishLocked publishes the current prices as a new model.
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
			lone[only.tenant] = new(*m)
		}
		lone[only.tenant].SetTask(cost.Task(w), only.price)
	}
	l.latest.Store(m)
	l.lone.Store(&lone)
}

// Measured adds prefills, walks and captures measured by the engines of one tenant, and returns
// how many were plausible. The parameter alone is true if there is no other tenant.
func (l *Learned) Measured(from tier.TenantID, now time.Time, samples []cost.Sample, alone bool) int {
	l.fitting.Lock()
	defer l.fitting.Unlock()
	taken := 0
	for w := range cost.Tasks {
		taken += l.take(w, from, now, samples, alone)
	}
	return taken
}

// take adds the samples of one task. The caller holds the lock fitting.
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

// prior returns the price of a task until the task is measured: for a prefill the initial
// price, for other tasks a price derived from the current prefill.
func (l *Learned) prior(w cost.Task) cost.Prefill {
	if w != cost.TaskPrefill {
		return l.Model().Guess(w)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.model.Prefill()
}

// agree returns the price of a task on which the tenants agree; zero for walks and captures
// without measurements. A price of walks or captures that is above the guess, and that only one
// of several tenants has measured, applies to that tenant alone and is the second result. With
// such a price the other tenants would not splice, and so would never measure a different price.
// The caller holds the lock fitting.
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

// agreed returns the median of the tenants' measurements. If the number of measurements is even,
// the prior has a vote too, so that neither of two tenants decides alone. If only one of several
// tenants has a measurement, claimMost limits it.
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

// claimed returns a fit that is limited to a factor of claimMost around the prior.
func claimed(fit, prior cost.Prefill) cost.Prefill {
	ratio := fit.Millis(0, claimTokens) / prior.Millis(0, claimTokens)
	by := min(max(ratio, 1.0/claimMost), claimMost) / ratio
	if by == 1 {
		return fit
	}
	return cost.Prefill{Fixed: fit.Fixed * by, PerToken: fit.PerToken * by, PerTokenSquared: fit.PerTokenSquared * by}
}

// publishEvery is the number of jobs after which a new model is published. Before publishEvery
// jobs of one kind were measured, each job of this kind publishes one. A job takes so long that
// one allocation in 16 jobs does not matter.
const publishEvery = 16

// Did records a job: the number of bytes that it processed, and the time that it took.
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

// Holds records the total size in bytes of a published segment with a number of interior
// tokens, over all ranks. The size of packed segments depends on their content, so
// predictions use a moving mean.
func (l *Learned) Holds(bytes int64, interior int) {
	const weight = 1.0 / 8
	l.mu.Lock()
	defer l.mu.Unlock()
	shape := &l.model.Shape
	fixed := float64(max(bytes-shape.RowBytes(interior), 0))
	shape.SegmentBytes += int64(math.Round(weight * (fixed - float64(shape.SegmentBytes))))
	l.publishLocked()
}

// Snapshot has the costs that current predictions use.
type Snapshot struct {
	Prefill cost.Prefill
	Samples int          // prefills measured
	Walk    cost.Prefill // in rows as cost.WalkRows counts them
	Capture cost.Prefill
	Links   [cost.JobPublish + 1]cost.Link
	// Which of these costs are measured. A link counts as measured after one job, a
	// prefill once engines have moved it from its initial value, walks and captures once
	// engines have measured them.
	Measured                                       [cost.JobPublish + 1]bool
	PrefillMeasured, WalkMeasured, CaptureMeasured bool
}

// Prefill returns the predicted cost of computing tokens, and whether engines have moved
// it from its initial value.
func (l *Learned) Prefill() (predicted cost.Prefill, measured bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	prefill := l.tasks[cost.TaskPrefill]
	return prefill, prefill != l.model.Prefill()
}

// Snapshot returns the current costs.
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
