package ragdemo

import (
	"errors"
	"fmt"

	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// workload is the requests of a run, and the model that serves them.
type workload struct {
	model    *refengine.Model[float32]
	source   string
	weights  string // description of the weights
	passages int    // distinct ones
	requests int
	prompt   func(i int) prompt
	trained  *Trained // nil: the model was not trained to answer
}

// workload returns the workload that the options select. m serves the sample; a trained
// model has its own questions.
func (o *Options) workload(m *refengine.Model[float32]) (*workload, error) {
	if o.Trained != nil {
		return o.Trained.workload()
	}
	s := o.Sample
	if s == nil {
		var err error
		if s, err = Embedded(); err != nil {
			return nil, err
		}
	}
	return &workload{
		model: m, source: s.Source, weights: "random: times, counts and errors are real, answers are not",
		passages: len(s.Passages), requests: len(s.Requests), prompt: s.prompt,
	}, nil
}

func (t *Trained) workload() (*workload, error) {
	if len(t.Questions) == 0 {
		return nil, errors.New("ragdemo: a trained model without questions")
	}
	distinct := map[string]bool{}
	for i := range t.Questions {
		for _, p := range t.Questions[i].prompt().passages {
			distinct[fmt.Sprint(p)] = true
		}
	}
	return &workload{
		model: t.Model, source: "made-up worlds that the model was not trained on", weights: "trained to answer from passages",
		passages: len(distinct), requests: len(t.Questions),
		prompt: func(i int) prompt { return t.Questions[i].prompt() }, trained: t,
	}, nil
}

// answer generates the model's answer to a prompt and advances the state. It returns
// nothing if the model was not trained to answer.
func (w *workload) answer(st *refengine.State[float32], logits []float32) ([]uint32, error) {
	if w.trained == nil {
		return nil, nil
	}
	return w.trained.Answer(st, logits)
}
