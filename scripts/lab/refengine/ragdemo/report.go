package ragdemo

import (
	"math"
	"slices"
	"time"
)

// Report is the result of a run. Means are over requests.
type Report struct {
	Model    string     `json:"model"`
	Weights  string     `json:"weights"`
	Source   string     `json:"source"`
	Requests int        `json:"requests"`
	Passages int        `json:"passages"`
	Seam     int        `json:"seam_tokens"`
	Cold     string     `json:"cold_means"`
	Split    string     `json:"split_means"`
	Seconds  float64    `json:"seconds"`
	Ways     []Way      `json:"ways"`
	Answers  []Answered `json:"answers,omitempty"` // of a trained model
	Example  string     `json:"example,omitempty"` // the first prompt of a trained model, in words
	Restart  *Restart   `json:"restart,omitempty"` // if the store was killed during the run
	Sentence string     `json:"sentence"`
}

// Way is one way to serve the requests. Cold has the results of the cold requests, and Warm
// those of the warm requests. The same requests are cold in every way.
type Way struct {
	Name      string `json:"name"`
	Cold      Group  `json:"cold"`
	Warm      Group  `json:"warm"`
	HeldBytes int64  `json:"held_bytes"` // bytes in the daemon for this way, at the end of the run
}

// Group is the results of one way for the cold or the warm requests.
type Group struct {
	Requests        int     `json:"requests"`
	PromptTokens    int     `json:"prompt_tokens"`
	ComputedTokens  int     `json:"computed_tokens"`
	TokenHitRate    float64 `json:"token_hit_rate"` // prompt tokens that were not computed for this request
	TTFTp50         float64 `json:"ttft_p50_ms"`
	TTFTp95         float64 `json:"ttft_p95_ms"`
	OverFull        float64 `json:"speedup_over_full_p50"`
	OverPrefix      float64 `json:"speedup_over_prefix_p50"`
	First           Error   `json:"state_error_first_linear_layer"`
	Deepest         Error   `json:"state_error_deepest_linear_layer"`
	NextTokenAgrees float64 `json:"next_token_agreement"` // share of requests; with random weights it says nothing about quality
	Right           int     `json:"answers_right,omitempty"`
	Same            int     `json:"answers_as_full_recompute,omitempty"`
}

// Error is the mean distance between the state after the prompt and the state of full recompute.
type Error struct {
	Relative float64 `json:"relative"` // Frobenius
	Degrees  float64 `json:"degrees"`
}

// Descriptions of cold and warm requests.
const (
	coldMeans  = "a segment (system prompt or passage) was not in the daemon's pool when the request came"
	splitMeans = "warm: all of them were; cold and warm are the same requests in every way"
)

// deviation is the distance of one state from the state of full recompute.
type deviation struct{ relative, degrees float64 }

func deviate(got, want []float32) deviation {
	var dd, gg, ww, gw float64
	for i, w := range want {
		g, w := float64(got[i]), float64(w)
		dd += (g - w) * (g - w)
		gg += g * g
		ww += w * w
		gw += g * w
	}
	if gg == 0 || ww == 0 {
		return deviation{math.Sqrt(dd), 0}
	}
	// The angle is computed from its sine, the part of got that is orthogonal to want. With the
	// cosine, angles below 1e-4 degrees would be lost to rounding.
	across := math.Sqrt(max(0, gg-gw*gw/ww))
	return deviation{math.Sqrt(dd / ww), math.Atan2(across, gw/math.Sqrt(ww)) * 180 / math.Pi}
}

func (r *runner) report(took time.Duration) (*Report, error) {
	segments, checkpoints, err := r.store.HeldBytes()
	if err != nil {
		return nil, err
	}
	out := &Report{
		Model:   r.m.Config().Name + ", " + describe(r.m.Profile()),
		Weights: r.load.weights,
		Source:  r.load.source, Requests: r.opt.Requests, Passages: r.load.passages, Seam: r.opt.Seam,
		Cold: coldMeans, Split: splitMeans, Seconds: took.Seconds(),
	}
	held := map[string]int64{WayPrefix: checkpoints, WaySpliced: segments, WayAdded: segments}
	for _, name := range ways {
		out.Ways = append(out.Ways, Way{
			Name: name, Cold: r.group(name, true), Warm: r.group(name, false), HeldBytes: held[name],
		})
	}
	out.compareWays()
	r.answers(out)
	if out.Restart = r.restart; r.restart != nil {
		r.restart.After = r.store.(Durable).Hits().minus(r.restart.Before)
	}
	out.Sentence = out.say()
	return out, nil
}

func (r *runner) group(way string, cold bool) Group {
	var g Group
	var ttft []float64
	reused := 0
	for i, o := range r.done[way] {
		if r.cold[i] != cold {
			continue
		}
		g.Requests++
		g.PromptTokens += r.tokens[i]
		g.ComputedTokens += o.computed
		reused += o.reused
		ttft = append(ttft, float64(o.ttft)/float64(time.Millisecond))
		g.First.add(o.first)
		g.Deepest.add(o.deepest)
		if o.agrees {
			g.NextTokenAgrees++
		}
		if o.right {
			g.Right++
		}
		if o.same {
			g.Same++
		}
	}
	if g.Requests == 0 {
		return g
	}
	n := float64(g.Requests)
	g.TokenHitRate = float64(reused) / float64(g.PromptTokens)
	g.TTFTp50, g.TTFTp95 = percentile(ttft, 0.5), percentile(ttft, 0.95)
	g.First.divide(n)
	g.Deepest.divide(n)
	g.NextTokenAgrees /= n
	return g
}

func (e *Error) add(d deviation) {
	e.Relative += d.relative
	e.Degrees += d.degrees
}

func (e *Error) divide(n float64) {
	e.Relative /= n
	e.Degrees /= n
}

// percentile interpolates linearly between the sorted values.
func percentile(x []float64, p float64) float64 {
	x = slices.Sorted(slices.Values(x))
	at := p * float64(len(x)-1)
	i := int(at)
	if i+1 >= len(x) {
		return x[len(x)-1]
	}
	return x[i] + (at-float64(i))*(x[i+1]-x[i])
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

func (r *Report) compareWays() {
	full, prefix := *r.Way(WayFull), *r.Way(WayPrefix)
	for i := range r.Ways {
		w := &r.Ways[i]
		w.Cold.OverFull, w.Cold.OverPrefix = ratio(full.Cold, w.Cold), ratio(prefix.Cold, w.Cold)
		w.Warm.OverFull, w.Warm.OverPrefix = ratio(full.Warm, w.Warm), ratio(prefix.Warm, w.Warm)
	}
}

func ratio(other, g Group) float64 {
	if g.TTFTp50 == 0 {
		return 0
	}
	return other.TTFTp50 / g.TTFTp50
}
