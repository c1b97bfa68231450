package cost

// Tier is a place of cached bytes. The numbers are part of the wire protocol.
type Tier uint8

// The tiers, fastest first. TierNone means that the tokens have to be computed.
const (
	TierNone Tier = 0
	TierHBM  Tier = 1
	TierDRAM Tier = 2
	TierDisk Tier = 3
	TierPeer Tier = 4
)

// String returns the name of the tier.
func (t Tier) String() string {
	switch t {
	case TierNone:
		return "none"
	case TierHBM:
		return "hbm"
	case TierDRAM:
		return "dram"
	case TierDisk:
		return "disk"
	case TierPeer:
		return "peer"
	}
	return "unknown"
}

// Job is a piece of work whose milliseconds grow with its bytes.
type Job uint8

// The jobs. The first ones load bytes from a tier to the place where an engine
// computes.
const (
	JobLoadHBM Job = iota
	JobLoadDRAM
	JobLoadDisk
	JobLoadPeer
	JobCompose // bytes of the transitions and end-states that are applied
	JobRotate  // bytes of the rows that are placed
	JobReplay  // bytes of the state and of the buffered rows that are read
	JobPublish // bytes that are captured, copied and checked

	jobs
)

// Link predicts one job: Fixed + PerByte·bytes, in milliseconds.
type Link struct {
	Fixed   float64
	PerByte float64
}

// Millis predicts the job over that many bytes.
func (l Link) Millis(bytes int64) float64 { return l.Fixed + l.PerByte*float64(max(bytes, 0)) }

// Bandwidth returns a link with the given bytes per second.
func Bandwidth(fixedMillis, bytesPerSecond float64) Link {
	return Link{Fixed: fixedMillis, PerByte: 1e3 / bytesPerSecond}
}

// DefaultLinks returns the links that are used until a job is measured. They are guesses
// for one socket and one NVMe disk. They are on the slow side, so that a tier that was not
// measured does not look profitable: a checkpoint in DRAM still beats a prefill, and a
// short one on disk does not.
func DefaultLinks() [jobs]Link {
	return [jobs]Link{
		JobLoadHBM:  Bandwidth(0.05, 200e9),
		JobLoadDRAM: Bandwidth(0.1, 8e9),
		JobLoadDisk: Bandwidth(1, 1e9),
		JobLoadPeer: Bandwidth(2, 1e9),
		JobCompose:  Bandwidth(0.1, 4e9),
		JobRotate:   Bandwidth(0.1, 8e9),
		JobReplay:   Bandwidth(0.1, 4e9),
		JobPublish:  Bandwidth(0.2, 2.5e9),
	}
}

// loadJob returns the job that loads bytes from a tier.
func loadJob(t Tier) (Job, bool) {
	switch t {
	case TierHBM:
		return JobLoadHBM, true
	case TierDRAM:
		return JobLoadDRAM, true
	case TierDisk:
		return JobLoadDisk, true
	case TierPeer:
		return JobLoadPeer, true
	}
	return 0, false
}

// Averages measures a link by exponentially weighted least squares of
// milliseconds over bytes, in constant memory. The zero value has no samples.
type Averages struct {
	samples int
	x, y    float64 // weighted means: bytes, milliseconds
	xx, xy  float64
	was     Link // the link before the first Forget; zero = none
}

// From the linkKeep-th sample on, a new sample has a weight of 1/linkKeep. A sample above
// linkCap times the prediction, even the first sample, is clamped to this limit, so that
// one stall does not make a tier look useless. This prediction is the maximum of what the
// current link and the link before Forget predict. So after Forget, one job is enough to
// find out that a slow link is still slow.
const (
	linkKeep  = 16
	linkKnown = 3 // samples after which the forgotten measurement has no weight
	linkCap   = 4.0
)

// Add adds one job of that many bytes and milliseconds. It ignores invalid values.
func (a *Averages) Add(prior Link, bytes int64, millis float64) {
	if bytes < 0 || !finitePositive(millis) {
		return
	}
	x, y := float64(bytes), millis
	if expected := max(a.Link(prior).Millis(bytes), a.was.Millis(bytes)); expected > 0 {
		y = min(y, linkCap*expected)
	}
	if a.samples = min(a.samples+1, linkKeep); a.samples >= linkKnown {
		a.was = Link{}
	}
	step := 1 / float64(a.samples)
	a.x += step * (x - a.x)
	a.y += step * (y - a.y)
	a.xx += step * (x*x - a.xx)
	a.xy += step * (x*y - a.xy)
}

// Link returns the measured link, or the prior if there are no samples. If the sizes do not
// differ enough to separate Fixed from PerByte, Link returns the prior, scaled to the mean
// of the samples.
func (a *Averages) Link(prior Link) Link {
	if a.samples == 0 {
		return prior
	}
	mean := Link{PerByte: a.y}
	if a.x > 0 {
		mean.PerByte = a.y / a.x
	}
	if expected := prior.Fixed + prior.PerByte*a.x; expected > 0 {
		by := a.y / expected
		mean = Link{Fixed: prior.Fixed * by, PerByte: prior.PerByte * by}
	}
	spread := a.xx - a.x*a.x
	if spread < 0.05*a.xx || a.samples < linkKnown {
		return mean
	}
	slope := (a.xy - a.x*a.y) / spread
	if fixed := a.y - slope*a.x; slope > 0 && fixed >= 0 {
		return Link{Fixed: fixed, PerByte: slope}
	} else if slope > 0 {
		return Link{PerByte: a.xy / a.xx}
	}
	return mean
}

// Forget moves the measured time of a job half way back to the prior, if it is above the
// prior. It also halves the number of samples, and drops the measurement if none is left.
// The predicted time decides whether a job is done again. A prediction that is too high
// would therefore never be corrected without Forget. A prediction that is too low is
// corrected when the job is done.
func (a *Averages) Forget(prior Link) {
	expected := prior.Fixed + prior.PerByte*a.x
	if a.y <= expected {
		return
	}
	if a.was == (Link{}) {
		a.was = a.Link(prior)
	}
	if a.samples /= 2; a.samples == 0 {
		*a = Averages{was: a.was}
		return
	}
	a.y += (expected - a.y) / 2
	a.xy += (prior.Fixed*a.x + prior.PerByte*a.xx - a.xy) / 2
}

// Samples returns the number of samples in the average.
func (a *Averages) Samples() int { return a.samples }
