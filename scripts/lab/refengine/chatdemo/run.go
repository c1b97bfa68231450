package chatdemo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/connector"
)

// The ways, by their names in reports.
const (
	WayWhole   = "no cache"
	WayBlock   = "every 64 tokens"
	WayEvery   = "every message"
	WayAdvised = "advised"
)

var ways = []string{WayWhole, WayBlock, WayEvery, WayAdvised}

// Options configures a run. The zero value runs the whole script that ships with the
// program.
type Options struct {
	Steps  int     // number of steps; 0 = all
	Script *Script // nil = the one that ships with the program
	// Progress, when set, is called before each prompt in each way.
	Progress func(Progress)
}

// Progress describes the next prompt.
type Progress struct {
	Done, Total int // prompts, once for each way
	Step        int // index
	Way         string
}

// RunClient runs the demo against the daemon that client is attached to. Each way stores
// its states under its own model name.
func RunClient(ctx context.Context, client *connector.Client, o Options) (*Report, error) {
	return run(ctx, o, func(way string) (*engine, error) {
		m, err := model("demo-chat " + way)
		if err != nil || way == WayWhole {
			return &engine{m: m, plan: whole{}}, err
		}
		s, err := newStore(ctx, client, m)
		if err != nil {
			return nil, err
		}
		return &engine{m: m, store: s, plan: map[string]planner{WayBlock: blockTokens, WayEvery: everyMessage{}, WayAdvised: advised{}}[way]}, nil
	})
}

type runner struct {
	engines map[string]*engine
	done    map[string][]served
	steps   int
	total   int
	o       Options
}

// served is the part of the outcome of a step, in one way, that the report needs.
type served struct {
	kind             Kind
	ttft             time.Duration
	prompt           int
	computed, reused int
	same             bool // logits and answer equal those of the first way, bit for bit
}

func run(ctx context.Context, o Options, start func(way string) (*engine, error)) (*Report, error) {
	s := o.Script
	if s == nil {
		s = Shipped()
	}
	if o.Steps <= 0 || o.Steps > len(s.Steps) {
		o.Steps = len(s.Steps)
	}
	r := &runner{engines: map[string]*engine{}, done: map[string][]served{}, total: o.Steps * len(ways), o: o}
	for _, way := range ways {
		e, err := start(way)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way, err)
		}
		r.engines[way] = e
	}
	began := time.Now()
	if err := r.warmUp(s); err != nil {
		return nil, err
	}
	chats := map[string]*chat{}
	for i, step := range s.Steps[:o.Steps] {
		c, err := s.apply(chats, step)
		if err != nil {
			return nil, err
		}
		answer, err := r.step(ctx, i, step.Kind, c)
		if err != nil {
			return nil, fmt.Errorf("step %d, %s of %s: %w", i+1, step.Kind, step.Chat, err)
		}
		c.messages = append(c.messages, message{tokens: answer, answer: true})
	}
	return r.report(s, len(chats), time.Since(began)), nil
}

// warmUp lets the allocator and the tables grow before anything is timed.
func (r *runner) warmUp(s *Script) error {
	m := r.engines[WayWhole].m
	_, err := m.Prefill(m.NewState(), tokens(s.Systems[0]))
	runtime.GC()
	return err
}

// step serves one prompt in every way, one way after another, so that changes in the machine's
// speed affect all ways equally. It returns the answer.
func (r *runner) step(ctx context.Context, i int, kind Kind, c *chat) ([]uint32, error) {
	prompt, cuts := c.prompt()
	var truth *outcome
	for _, way := range ways {
		if r.o.Progress != nil {
			r.o.Progress(Progress{r.steps, r.total, i, way})
		}
		r.steps++
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		out, err := r.engines[way].serve(prompt, cuts, c.variants)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", way, err)
		}
		if truth == nil {
			truth = out
		}
		r.done[way] = append(r.done[way], served{
			kind: kind, ttft: out.ttft, prompt: len(prompt), computed: out.computed, reused: out.reused,
			same: slices.Equal(out.answer, truth.answer) && slices.EqualFunc(out.logits, truth.logits, sameBits),
		})
	}
	return truth.answer, nil
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// ErrChanged means that an answer differs from the answer without a cache.
var ErrChanged = errors.New("chatdemo: reuse changed an answer")
