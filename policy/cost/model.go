package cost

// Model is the cost model of one profile: what it measured, and what follows.
// It has one owner; nothing in it may be called at once.
type Model struct {
	Shape   Shape
	prefill *Fit
	tasks   [Tasks]Prefill // measured of walks and captures; zero = not yet
	prior   [jobs]Link
	seen    [jobs]Averages
}

// Options start a Model. The zero value measures from guesses.
type Options struct {
	Shape          Shape
	Prefill        Prefill // prior, such as a flag gives it; zero = from the shape and FLOPsPerSecond
	FLOPsPerSecond float64 // of the device, for a prior; 0 = DefaultPrefill, scaled by the first sample
}

// New builds a model.
func New(o Options) *Model {
	prior := o.Prefill
	if prior.IsZero() {
		prior = PriorFromFLOPs(o.Shape, o.FLOPsPerSecond, DefaultPrefill.Fixed)
	}
	return &Model{Shape: o.Shape, prefill: NewFit(prior), prior: DefaultLinks()}
}

// Measured takes a prefill that an engine timed; false = it makes no sense.
func (m *Model) Measured(s Sample) bool { return m.prefill.Add(s) }

// Prefill is the present prediction of computing.
func (m *Model) Prefill() Prefill { return m.prefill.Prefill() }

// PrefillSamples is how many prefills were measured.
func (m *Model) PrefillSamples() int { return m.prefill.Samples() }

// Did takes a job of that many bytes that took that many milliseconds.
func (m *Model) Did(j Job, bytes int64, millis float64) {
	if j < jobs {
		m.seen[j].Add(m.prior[j], bytes, millis)
	}
}

// Seen is how many jobs of a kind are remembered.
func (m *Model) Seen(j Job) int {
	if j >= jobs {
		return 0
	}
	return m.seen[j].Samples()
}

// Forget moves a job's price towards its prior, as Averages.Forget.
func (m *Model) Forget(j Job) {
	if j < jobs {
		m.seen[j].Forget(m.prior[j])
	}
}

// Link is the present prediction of a job.
func (m *Model) Link(j Job) Link {
	if j >= jobs {
		return Link{}
	}
	return m.seen[j].Link(m.prior[j])
}

// SetLink replaces the prior of a job, such as by a probe at start.
func (m *Model) SetLink(j Job, l Link) {
	if j < jobs {
		m.prior[j] = l
	}
}

// LoadMillis is what it takes to bring bytes from a tier; false for TierNone.
func (m *Model) LoadMillis(t Tier, bytes int64) (float64, bool) {
	j, ok := loadJob(t)
	if !ok {
		return 0, false
	}
	return m.Link(j).Millis(bytes), true
}

// Held is an object in a tier, as Saved values it.
type Held struct {
	Begin, End int   // its tokens; a checkpoint's begin is that of what it extends, a segment's is 0
	Bytes      int64 // brought on a hit
	In         Tier  // where it would lie
	Below      Tier  // where it lies as well or would go; TierNone = it has to be computed again
}

// Saved is how many milliseconds a hit saves by finding the object in tier In:
// against bringing it from Below or computing it, whichever is faster. It is
// never negative.
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

// Density is Saved for each MiB of memory.
func (m *Model) Density(h Held) float64 { return PerMiB(m.Saved(h), h.Bytes) }

// PerMiB is milliseconds over bytes, for each MiB; 0 where there are none.
func PerMiB(millis float64, bytes int64) float64 {
	if bytes <= 0 {
		return 0
	}
	return millis / (float64(bytes) / (1 << 20))
}
