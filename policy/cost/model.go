package cost

// Model is the cost model of one profile. It has one owner and is not safe for
// concurrent use.
type Model struct {
	Shape   Shape
	prefill *Fit
	tasks   [Tasks]Prefill // measured walks and captures; zero = none
	prior   [jobs]Link
	seen    [jobs]Averages
}

// Options configure a Model. The zero value starts with guesses.
type Options struct {
	Shape   Shape
	Prefill Prefill // prior, such as the value of a flag; zero = DefaultPrefill, scaled by the first sample
}

// New builds a model.
func New(o Options) *Model {
	return &Model{Shape: o.Shape, prefill: NewFit(o.Prefill), prior: DefaultLinks()}
}

// Measured adds a prefill that an engine timed. It returns false if the sample is invalid.
func (m *Model) Measured(s Sample) bool { return m.prefill.Add(s) }

// Prefill returns the current prediction for a prefill.
func (m *Model) Prefill() Prefill { return m.prefill.Prefill() }

// Did adds a measured job of that many bytes and milliseconds.
func (m *Model) Did(j Job, bytes int64, millis float64) {
	if j < jobs {
		m.seen[j].Add(m.prior[j], bytes, millis)
	}
}

// Seen returns the number of samples of a job.
func (m *Model) Seen(j Job) int {
	if j >= jobs {
		return 0
	}
	return m.seen[j].Samples()
}

// Forget moves a job's price towards its prior, as Averages.Forget does.
func (m *Model) Forget(j Job) {
	if j < jobs {
		m.seen[j].Forget(m.prior[j])
	}
}

// Link returns the current prediction of a job.
func (m *Model) Link(j Job) Link {
	if j >= jobs {
		return Link{}
	}
	return m.seen[j].Link(m.prior[j])
}

// SetLink replaces the prior of a job, for example by a probe at start.
func (m *Model) SetLink(j Job, l Link) {
	if j < jobs {
		m.prior[j] = l
	}
}

// LoadMillis returns the milliseconds to load bytes from a tier. It returns false for
// TierNone and unknown tiers.
func (m *Model) LoadMillis(t Tier, bytes int64) (float64, bool) {
	j, ok := loadJob(t)
	if !ok {
		return 0, false
	}
	return m.Link(j).Millis(bytes), true
}

// Held is an object in a tier, for Saved.
type Held struct {
	Begin, End int   // its tokens; a checkpoint begins at the end of its parent, a segment at 0
	Bytes      int64 // bytes that a hit loads
	In         Tier  // the tier that has it
	Below      Tier  // the next tier that has it or would get it; TierNone = it would be computed
}

// Saved returns the milliseconds that a hit saves by loading the object from the tier
// Held.In, compared with loading it from the tier Held.Below or computing it, whichever is
// faster. It is never negative.
func (m *Model) Saved(h Held) float64 {
	without := m.Prefill().Marginal(h.Begin, h.End)
	if below, ok := m.LoadMillis(h.Below, h.Bytes); ok {
		without = min(without, below)
	}
	with, ok := m.LoadMillis(h.In, h.Bytes)
	if !ok {
		return 0
	}
	return max(0, without-with)
}

// Density returns Saved per MiB of memory.
func (m *Model) Density(h Held) float64 { return PerMiB(m.Saved(h), h.Bytes) }

// PerMiB returns milliseconds per MiB, or 0 if bytes is 0 or less.
func PerMiB(millis float64, bytes int64) float64 {
	if bytes <= 0 {
		return 0
	}
	return millis / (float64(bytes) / (1 << 20))
}
