package usage

import (
	"time"

	"github.com/spliced-kv/spliced/policy/cost"
)

// By says which measurements an estimate of the saved time is based on.
type By uint8

const (
	ByGuess   By = iota // no measurement
	ByPrefill           // prefills that engines have timed
	ByFirst             // times to the first token of prompts that other processes computed in full
	ByOwn               // the same of the reporting process only, not confirmed by others
)

// String is the name in listings.
func (b By) String() string { return [...]string{"guess", "prefill", "ttft", "own"}[b] }

// firsts learns from reports how long engines take to the first token if they compute the prompt in
// full. It learns for at most firstsMost tenants and profiles; for any further ones, predictions
// are used.
type firsts struct{ of map[Key]*cost.Panel }

const (
	firstsMost = 32 // each takes about 100 KB at most
	// firstsLeast is the number of fully computed prompts that an estimate needs; a guess.
	firstsLeast = 8
)

// saved estimates the time that a request saved. It also learns from requests that reused nothing.
func (f *firsts) saved(r *Request, predicted *Prediction) {
	panel := f.of[r.Who.Key]
	if r.First > 0 && r.Sources[Checkpoint]+r.Sources[Segment] == 0 && r.Wait == 0 && r.Sources[Computed] > 0 {
		if panel == nil && len(f.of) < firstsMost {
			if panel = cost.NewPanel(predicted.Prefill, cost.Prefill{}); f.of == nil {
				f.of = map[Key]*cost.Panel{}
			}
			f.of[r.Who.Key] = panel
		}
		if panel != nil {
			panel.Add(r.At, cost.Sample{
				Begin: int(r.Sources[Engine]), End: int(r.Tokens), Millis: float64(r.First) / float64(time.Millisecond), Source: r.Who.Source,
			})
		}
	}
	reused := r.Sources[Checkpoint]+r.Sources[Segment] > 0
	if panel != nil && r.First > 0 && reused && panel.Samples() >= firstsLeast {
		by, n := panel.Others(r.Who.Source)
		if r.By = ByFirst; n < firstsLeast {
			r.By, by = ByOwn, panel.Prefill()
		}
		r.Saved = by.Millis(int(r.Sources[Engine]), int(r.Tokens)) - float64(r.First)/float64(time.Millisecond)
		return
	}
	if predicted.Measured {
		r.By = ByPrefill
	}
	// Time saved = the time to compute all that the engine did not have, minus the time to compute what
	// it did compute, minus the wait. The computed tokens are priced as the prompt's last tokens, which
	// attend to the most tokens.
	all := predicted.Marginal(int(r.Sources[Engine]), int(r.Tokens))
	rest := predicted.Marginal(int(uint64(r.Tokens)-r.Sources[Computed]), int(r.Tokens))
	r.Saved = all - rest - float64(r.Wait)/float64(time.Millisecond)
}
