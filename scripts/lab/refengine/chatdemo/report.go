package chatdemo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Report is the result of a run.
type Report struct {
	Model    string  `json:"model"`
	Chats    int     `json:"chats"`
	Prompts  int     `json:"prompts"`
	Answers  int     `json:"answer_tokens"` // tokens per answer
	Seconds  float64 `json:"seconds"`
	Ways     []Way   `json:"ways"`
	Sentence string  `json:"sentence"`
}

// Way is one way to serve all prompts.
type Way struct {
	Name             string  `json:"name"`
	PromptTokens     int     `json:"prompt_tokens"`
	ComputedTokens   int     `json:"computed_tokens"`
	ReusedTokens     int     `json:"reused_tokens"`
	TTFTp50          float64 `json:"ttft_p50_ms"`
	TTFTp95          float64 `json:"ttft_p95_ms"`
	CheckpointsSaved int     `json:"checkpoints_saved"`
	CheckpointBytes  int64   `json:"checkpoint_bytes"`
	SameAnswers      int     `json:"same_answers"` // number of answers that are bit for bit equal to those without a cache
	Kinds            []Group `json:"kinds"`
}

// Group is one kind of prompts in one way.
type Group struct {
	Kind         Kind    `json:"kind"`
	Prompts      int     `json:"prompts"`
	TokenHitRate float64 `json:"token_hit_rate"`
	TTFTp50      float64 `json:"ttft_p50_ms"`
}

func (r *runner) report(s *Script, chats int, took time.Duration) *Report {
	p := r.engines[WayWhole].m.Profile()
	out := &Report{
		Model: fmt.Sprintf("%d layers (%d linear, %d full attention), random weights", p.Layers(), len(p.LinearLayers()), len(p.AttentionLayers())),
		Chats: chats, Prompts: len(r.done[WayWhole]), Answers: answerTokens, Seconds: took.Seconds(),
	}
	for _, name := range ways {
		out.Ways = append(out.Ways, r.way(name))
	}
	out.Sentence = out.say()
	return out
}

func (r *runner) way(name string) Way {
	w := Way{Name: name}
	var all []time.Duration
	for _, d := range r.done[name] {
		w.PromptTokens += d.prompt
		w.ComputedTokens += d.computed
		w.ReusedTokens += d.reused
		if d.same {
			w.SameAnswers++
		}
		all = append(all, d.ttft)
	}
	w.TTFTp50, w.TTFTp95 = quantile(all, 0.5), quantile(all, 0.95)
	if s := r.engines[name].store; s != nil {
		w.CheckpointsSaved, w.CheckpointBytes = s.Kept()
	}
	for _, kind := range kinds {
		g := Group{Kind: kind}
		var times []time.Duration
		tokens, reused := 0, 0
		for _, d := range r.done[name] {
			if d.kind == kind {
				times = append(times, d.ttft)
				tokens += d.prompt
				reused += d.reused
			}
		}
		if g.Prompts = len(times); g.Prompts > 0 {
			g.TokenHitRate, g.TTFTp50 = float64(reused)/float64(tokens), quantile(times, 0.5)
			w.Kinds = append(w.Kinds, g)
		}
	}
	return w
}

// quantile returns a quantile of times by nearest rank, in milliseconds.
func quantile(times []time.Duration, q float64) float64 {
	sorted := slices.Clone(times)
	slices.Sort(sorted)
	i := int(q*float64(len(sorted))+0.999999) - 1
	return float64(sorted[min(max(i, 0), len(sorted)-1)].Microseconds()) / 1e3
}

// Way returns a way by name.
func (r *Report) Way(name string) *Way {
	for i := range r.Ways {
		if r.Ways[i].Name == name {
			return &r.Ways[i]
		}
	}
	return nil
}

// Failed returns ErrChanged if an answer differs from the answer without a cache.
func (r *Report) Failed() error {
	for _, w := range r.Ways {
		if w.SameAnswers != r.Prompts {
			return fmt.Errorf("%s: %d of %d answers as without a cache: %w", w.Name, w.SameAnswers, r.Prompts, ErrChanged)
		}
	}
	return nil
}

func (r *Report) say() string {
	none, block, advised := r.Way(WayWhole), r.Way(WayBlock), r.Way(WayAdvised)
	answers := "all answers are bit for bit those without a cache"
	if r.Failed() != nil {
		answers = "NOT all answers are those without a cache"
	}
	return fmt.Sprintf("With states where the daemon advises, %.1f %% of the tokens were computed and the first token came %.1fx sooner, "+
		"with %.0f %% of the states that a state every %d tokens takes; %s.",
		100*float64(advised.ComputedTokens)/float64(advised.PromptTokens), none.TTFTp50/advised.TTFTp50,
		100*float64(advised.CheckpointsSaved)/float64(max(block.CheckpointsSaved, 1)), blockTokens, answers)
}

// Print writes the report as text, at most 110 columns wide except for its last line.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d prompts of %d conversations: turns, tool results, forks, answers generated again\nmodel %s; answers of %d tokens\n\n",
		r.Prompts, r.Chats, r.Model, r.Answers)
	line := func(name string, cell func(w *Way) string) {
		fmt.Fprintf(&b, "%-40s", name)
		for i := range r.Ways {
			fmt.Fprintf(&b, "%17s", cell(&r.Ways[i]))
		}
		b.WriteByte('\n')
	}
	line(fmt.Sprintf("%d prompts, %d tokens", r.Prompts, r.Ways[0].PromptTokens), func(w *Way) string { return w.Name })
	line("tokens computed", func(w *Way) string { return fmt.Sprint(w.ComputedTokens) })
	line("tokens reused", func(w *Way) string {
		return fmt.Sprintf("%.1f %%", 100*float64(w.ReusedTokens)/float64(w.PromptTokens))
	})
	line("TTFT p50, ms", func(w *Way) string { return fmt.Sprintf("%.1f", w.TTFTp50) })
	line("TTFT p95, ms", func(w *Way) string { return fmt.Sprintf("%.1f", w.TTFTp95) })
	for i := range r.Ways[0].Kinds {
		g := r.Ways[0].Kinds[i]
		line(fmt.Sprintf("  %d x %s: reused, TTFT p50", g.Prompts, g.Kind), func(w *Way) string {
			return fmt.Sprintf("%.0f %% %5.1f", 100*w.Kinds[i].TokenHitRate, w.Kinds[i].TTFTp50)
		})
	}
	line("states saved", func(w *Way) string { return fmt.Sprint(w.CheckpointsSaved) })
	line("bytes saved, MiB", func(w *Way) string { return fmt.Sprintf("%.1f", float64(w.CheckpointBytes)/(1<<20)) })
	line("answers as without a cache, bit for bit", func(w *Way) string { return fmt.Sprintf("%d of %d", w.SameAnswers, r.Prompts) })
	fmt.Fprintf(&b, "\n%s\n", r.Sentence)
	_, err := io.WriteString(w, b.String())
	return err
}
