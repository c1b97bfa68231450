package cost

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Panel learns a Prefill from samples of several sources, such as engines. Each source has a Fit
// and one vote, however many samples it sends. The prediction is the median of the votes, so that
// no source outvotes the others. The prior votes too if the number of sources is even, so that
// neither of two sources decides alone.
//
// Invariant: it has at most panelSources fits.
type Panel struct {
	prior, floor Prefill
	voters       map[uint64]*voter
	now          time.Time // of the latest sample
}

type voter struct {
	fit   *Fit
	heard time.Time // time of the source's latest sample
}

const (
	// panelSources bounds the sources. A new source replaces the source that was silent longest.
	// The bound is a guess, above the number of engines of a node.
	panelSources = 16
	// panelMemory bounds the silence after which a source loses its vote. A source falls silent, for
	// example, when its engine restarts, because the engine then has a new connection and is a new
	// source.
	panelMemory = 10 * time.Minute
	// panelTokens is the prompt length in tokens at which votes are compared.
	panelTokens = 4096
)

// NewPanel returns a panel with a prior; the zero Prefill means DefaultPrefill. Panel.Add refuses
// samples faster than the prediction floor.
func NewPanel(prior, floor Prefill) *Panel {
	return &Panel{prior: prior, floor: floor, voters: map[uint64]*voter{}}
}

// Add adds a sample as Fit.Add does. It also returns false for a sample faster than the floor.
func (p *Panel) Add(now time.Time, s Sample) bool {
	if s.End > s.Begin && s.Millis < p.floor.Millis(s.Begin, s.End) {
		return false
	}
	v := p.voters[s.Source]
	if v == nil {
		v = &voter{fit: NewFit(p.prior)}
	}
	if !v.fit.Add(s) {
		return false
	}
	if len(p.voters) >= panelSources && p.voters[s.Source] == nil {
		oldest := slices.MinFunc(slices.Sorted(maps.Keys(p.voters)), func(a, b uint64) int {
			return p.voters[a].heard.Compare(p.voters[b].heard)
		})
		delete(p.voters, oldest)
	}
	p.voters[s.Source] = v
	v.heard, p.now = now, now
	return true
}

// Latest returns the time of the latest sample of any source.
func (p *Panel) Latest() time.Time { return p.now }

// Samples returns the number of samples of all present sources.
func (p *Panel) Samples() (n int) {
	for _, v := range p.voters {
		if p.present(v) {
			n += v.fit.Samples()
		}
	}
	return n
}

// Others returns the prediction of all sources except one, and the number of their samples.
func (p *Panel) Others(source uint64) (Prefill, int) {
	others := *p
	others.voters = maps.Clone(p.voters)
	delete(others.voters, source)
	return others.Prefill(), others.Samples()
}

// present reports whether a source has a vote: its latest sample is at most panelMemory older than
// the latest sample of all.
func (p *Panel) present(v *voter) bool { return p.now.Sub(v.heard) <= panelMemory }

func (p *Panel) votes() (votes []Prefill) {
	for _, id := range slices.Sorted(maps.Keys(p.voters)) {
		if v := p.voters[id]; p.present(v) {
			votes = append(votes, v.fit.Prefill())
		}
	}
	return votes
}

// Prefill returns the current prediction, which is the prior if no source has a vote.
func (p *Panel) Prefill() Prefill {
	base := NewFit(p.prior).base()
	votes := p.votes()
	if len(votes) == 0 {
		return base
	}
	return Median(votes, base)
}

// Median returns the middle one of a list of predictions, ordered by their time for a prompt of
// panelTokens tokens. If the length of the list is even, the prior is added to it.
func Median(list []Prefill, prior Prefill) Prefill {
	if len(list)%2 == 0 {
		list = append(slices.Clip(list), prior)
	}
	slices.SortFunc(list, func(a, b Prefill) int { return cmp.Compare(a.Millis(0, panelTokens), b.Millis(0, panelTokens)) })
	return list[len(list)/2]
}

// PrefillFloor returns times that no current computer can beat: the launch of some kernels, and for
// each token the time to move its rows at several times the bandwidth of any accelerator's memory.
func PrefillFloor(s Shape) Prefill {
	const (
		launch        = 0.02 // milliseconds
		token         = 1e-5 // milliseconds: 100 million tokens a second
		bytesPerMilli = 50e9 // 50 TB/s
	)
	return Prefill{Fixed: launch, PerToken: token + float64(s.KVBytes+s.DeltaBytes)/bytesPerMilli}
}
