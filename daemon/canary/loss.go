package canary

import (
	"math"
	"slices"

	"github.com/spliced-kv/spliced/connector/wire"
)

// leastCompared is the smallest number of comparisons for which a loss is expected. With fewer, one
// changed token would move the estimate by about 2 points or more. A guess.
const leastCompared = 50

// Way is a way of splicing. Losses are counted for each.
type Way struct {
	Primed    bool // segments were captured after the primer, if their place has one
	Refreshed bool // the last segments are computed in context
}

// ways lists all ways in the order of the protocol.
var ways = [wire.LossWays]Way{{}, {Primed: true}, {Refreshed: true}, {Primed: true, Refreshed: true}}

// Counts counts requests that were spliced and also computed in full (Compared), and those among
// them whose first token differed (Changed).
type Counts struct{ Compared, Changed uint64 }

// Loss has the counts of one way.
type Loss struct {
	Way
	Canary  Counts // since the daemon's start
	Offline Counts // of the last report that measured this way
}

// Expected returns the expected loss: the share of requests whose first token changes, by the rule
// of succession over all comparisons. With fewer than leastCompared comparisons, it returns -1.
func (l *Loss) Expected() float64 {
	compared := l.Canary.Compared + l.Offline.Compared
	if compared < leastCompared {
		return -1
	}
	return float64(l.Canary.Changed+l.Offline.Changed+1) / float64(compared+2)
}

// Losses has the counts of all ways, in the order of the protocol.
type Losses [wire.LossWays]Loss

// Known returns the ways that have counts.
func (l *Losses) Known() (list []Loss) {
	for i, way := range ways {
		if l[i].Canary.Compared+l[i].Offline.Compared > 0 {
			l[i].Way = way
			list = append(list, l[i])
		}
	}
	return list
}

func (l *Losses) expected(way Way) float64 {
	return l[slices.Index(ways[:], way)].Expected()
}

// add counts the losses of a valid report.
func (l *Losses) add(m *wire.ReportLosses) {
	for i := range m.Compared {
		counts := Counts{uint64(m.Compared[i]), uint64(m.Changed[i])}
		switch {
		case m.Offline == 0:
			l[i].Canary.Compared += counts.Compared
			l[i].Canary.Changed += counts.Changed
		case counts.Compared > 0: // 0 = not measured: the counts of an earlier report stay
			l[i].Offline = counts
		}
	}
}

// Limit returns how a request with the given number of segments may be spliced, and the expected
// losses. A request that accepts any loss is spliced as it asked, even if the loss is unknown.
func (c *Canary) Limit(of Key, m *wire.AdviseLimit, segments int) wire.AdviseLoss {
	var losses Losses
	c.mu.Lock()
	if r := c.mu.rows[of]; r != nil {
		losses = r.Losses
	}
	c.mu.Unlock()
	asked, refreshed := Way{m.Primed == 1, m.Refreshed == 1}, Way{m.Primed == 1, true}
	out := wire.AdviseLoss{Present: true, Asked: losses.expected(asked), Refreshed: losses.expected(refreshed)}
	within := func(loss float64) bool { return loss >= 0 && loss <= m.MaxLoss }
	switch {
	case m.MaxLoss >= 1 || within(out.Asked):
		out.Splicing = wire.SplicingAsked
	case segments > 1 && asked != refreshed && within(out.Refreshed):
		out.Splicing = wire.SplicingRefreshed
	default:
		out.Splicing = wire.SplicingNone
	}
	return out
}

// ValidLoss reports whether v is a share from 0 to 1.
func ValidLoss(v float64) bool { return !math.IsNaN(v) && v >= 0 && v <= 1 }
