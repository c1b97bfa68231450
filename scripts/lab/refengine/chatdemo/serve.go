package chatdemo

import (
	"slices"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// answerTokens is the number of tokens generated for every prompt: enough to include the
// end of a block.
const answerTokens = 24

// outcome is the result of one prompt served in one way.
type outcome struct {
	ttft             time.Duration
	computed, reused int
	logits           []float32 // of the first generated token
	answer           []uint32
}

// engine serves prompts in one way. Wherever it resumes, its states and answers are bit for bit
// equal to those computed without a cache.
type engine struct {
	m     *refengine.Model[float32]
	store Store
	plan  planner
	took  []Sample // since the last report to the store
}

// planner implements a way: the positions at which to look for states, and to save them.
type planner interface {
	// lookAt returns the positions, ascending, at which to look for saved states.
	lookAt(all []uint32, cuts []int) []int
	// keepOf returns the positions, greater than from, at which to save states of a prompt.
	keepOf(e *engine, all []uint32, cuts []int, from int) ([]int, error)
	// keepBehind returns the positions at which to save states within the answer. The slice all has
	// the tokens of the prompt and of its answer, and answer is the number of tokens of the answer.
	// from is the position of the last saved state.
	keepBehind(e *engine, all []uint32, cuts []int, answer, from int) ([]int, error)
}

// teller is a store that receives reports on how prompts were served.
type teller interface {
	ServedPrefix(tokens, reused int, first time.Duration) error
}

// serve answers a prompt. Variant 0 starts the answer with the most likely token, variant 1 with
// the second most likely.
func (e *engine) serve(prompt []uint32, cuts []int, variant int) (*outcome, error) {
	out := &outcome{}
	began := time.Now()
	st, err := e.resume(prompt, cuts)
	if err != nil {
		return nil, err
	}
	out.reused = st.Tokens
	out.computed = len(prompt) - st.Tokens
	var kept []*State
	if st.Tokens > 0 {
		kept = append(kept, st.Clone()) // states that are saved later extend this one
	}
	keep, err := e.plan.keepOf(e, prompt, cuts, st.Tokens)
	if err != nil {
		return nil, err
	}
	for _, at := range keep {
		if at <= st.Tokens || at >= len(prompt) {
			continue
		}
		if _, err := e.prefill(st, prompt[st.Tokens:at]); err != nil {
			return nil, err
		}
		kept = append(kept, st.Clone())
	}
	if out.logits, err = e.prefill(st, prompt[st.Tokens:]); err != nil {
		return nil, err
	}
	out.ttft = time.Since(began)
	if t, ok := e.store.(teller); ok {
		if err := t.ServedPrefix(len(prompt), out.reused, out.ttft); err != nil {
			return nil, err
		}
	}
	if slices.Contains(keep, len(prompt)) {
		kept = append(kept, st.Clone())
	}
	return out, e.answer(out, st, prompt, cuts, variant, kept)
}

// resume loads the saved state with the most tokens, but leaves at least one token to compute.
func (e *engine) resume(prompt []uint32, cuts []int) (*State, error) {
	positions := e.plan.lookAt(prompt, cuts)
	for len(positions) > 0 && positions[len(positions)-1] >= len(prompt) {
		positions = positions[:len(positions)-1]
	}
	if len(positions) > 0 {
		if st, err := e.store.Load(prompt, positions); st != nil || err != nil {
			return st, err
		}
	}
	return e.m.NewState(), nil
}

func (e *engine) prefill(st *State, tokens []uint32) ([]float32, error) {
	from, began := st.Tokens, time.Now()
	logits, err := e.m.Prefill(st, tokens)
	e.took = append(e.took, Sample{Begin: from, End: from + len(tokens), Took: time.Since(began)})
	return logits, err
}

// answer generates an answer, and saves states of the prompt and the answer. The time to the
// first token, measured before, does not include that.
func (e *engine) answer(out *outcome, st *State, prompt []uint32, cuts []int, variant int, kept []*State) error {
	out.answer = append(out.answer, ranked(out.logits, variant))
	all := slices.Clone(prompt)
	var passed []*State // at block boundaries inside the answer
	for {
		all = append(all, out.answer[len(out.answer)-1])
		logits, err := e.m.Prefill(st, all[len(all)-1:])
		if err != nil {
			return err
		}
		if last := len(out.answer) == answerTokens; last || st.Tokens%adviseBlock == 0 {
			passed = append(passed, st.Clone())
			if last {
				break
			}
		}
		out.answer = append(out.answer, refengine.Greedy(logits))
	}
	from := 0
	if len(kept) > 0 {
		from = kept[len(kept)-1].Tokens
	}
	keep, err := e.plan.keepBehind(e, all, cuts, len(out.answer), from)
	if err != nil {
		return err
	}
	for _, s := range passed {
		if slices.Contains(keep, s.Tokens) {
			kept = append(kept, s)
		}
	}
	return e.keep(all, kept)
}

func (e *engine) keep(all []uint32, kept []*State) error {
	if e.store == nil || len(kept) == 0 {
		return nil
	}
	var positions []int
	for _, s := range kept {
		positions = append(positions, s.Tokens)
	}
	return e.store.Save(all, positions, kept)
}

// ranked returns the token with the n-th largest logit, counted from zero. Of tokens with equal
// logits, the lowest id comes first.
func ranked(logits []float32, n int) uint32 {
	order := make([]uint32, len(logits))
	for i := range order {
		order[i] = uint32(i)
	}
	slices.SortStableFunc(order, func(a, b uint32) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	return order[n%len(order)]
}

// whole computes everything and saves nothing.
type whole struct{}

func (whole) lookAt([]uint32, []int) []int { return nil }

func (whole) keepOf(*engine, []uint32, []int, int) ([]int, error)          { return nil, nil }
func (whole) keepBehind(*engine, []uint32, []int, int, int) ([]int, error) { return nil, nil }

// everyMessage saves a state at the end of every message, question and answer.
type everyMessage struct{}

func (everyMessage) lookAt(_ []uint32, cuts []int) []int { return cuts }

func (everyMessage) keepOf(_ *engine, all []uint32, cuts []int, from int) ([]int, error) {
	var out []int
	for _, c := range append(slices.Clone(cuts), len(all)) {
		if c > from {
			out = append(out, c)
		}
	}
	return out, nil
}

func (everyMessage) keepBehind(_ *engine, all []uint32, _ []int, _, _ int) ([]int, error) {
	return []int{len(all)}, nil
}

// everyBlock saves a state at the end of every block, as a block-based prefix cache does. Its
// value is the block size in tokens.
type everyBlock int

// blockTokens is the block size of everyBlock in this demo.
const blockTokens everyBlock = 64

func (b everyBlock) lookAt(all []uint32, _ []int) []int { return multiples(0, len(all), int(b)) }

func (b everyBlock) keepOf(_ *engine, all []uint32, _ []int, from int) ([]int, error) {
	return multiples(from, len(all), int(b)), nil
}

func (b everyBlock) keepBehind(_ *engine, all []uint32, _ []int, answer, _ int) ([]int, error) {
	return multiples(len(all)-answer, len(all), int(b)), nil
}

// multiples returns the multiples of block that are greater than from and at most end.
func multiples(from, end, block int) []int {
	var out []int
	for at := from - from%block + block; at <= end; at += block {
		out = append(out, at)
	}
	return out
}

// advised saves states where the store advises.
type advised struct{}

func (advised) lookAt(all []uint32, _ []int) []int { return multiples(0, len(all), adviseBlock) }

func (advised) keepOf(e *engine, all []uint32, cuts []int, from int) ([]int, error) {
	positions, _, err := e.store.Advise(all, from, 0, cuts, e.took)
	e.took = nil
	return positions, err
}

func (advised) keepBehind(e *engine, all []uint32, cuts []int, answer, from int) ([]int, error) {
	positions, _, err := e.store.Advise(all, from, answer, cuts, e.took)
	e.took = nil
	return positions, err
}
