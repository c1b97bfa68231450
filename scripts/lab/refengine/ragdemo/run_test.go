package ragdemo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// inMemory is a Store in this process.
type inMemory struct {
	*refengine.Memory
	refengine.MemoryPrefixes
}

func newInMemory(m *refengine.Model[float32]) inMemory {
	return inMemory{refengine.NewMemory(m.Profile()), refengine.MemoryPrefixes{}}
}

func (s inMemory) HeldBytes() (segments, checkpoints int64, err error) {
	return s.Memory.HeldBytes(), int64(len(s.MemoryPrefixes)), nil
}

func TestSampleIsLargeEnough(t *testing.T) {
	s, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Passages) < 40 || len(s.Requests) < 60 || len(embedded) > 60<<10 {
		t.Errorf("%d passages, %d requests in %d bytes", len(s.Passages), len(s.Requests), len(embedded))
	}
	distinct := map[string]bool{}
	for i, p := range s.Passages {
		distinct[p] = true
		if len(p) != 512 {
			t.Errorf("passage %d has %d bytes", i, len(p))
		}
	}
	uses := make([]int, len(s.Passages))
	for i, q := range s.Requests {
		seen := map[int]bool{}
		for _, p := range q.Passages {
			seen[p] = true
			uses[p]++
		}
		if len(seen) != 10 || !strings.HasSuffix(q.Text, "?") {
			t.Errorf("request %d: %d distinct passages, question %q", i, len(seen), q.Text)
		}
	}
	if len(distinct) != len(s.Passages) {
		t.Errorf("%d distinct passages of %d", len(distinct), len(s.Passages))
	}
	// Zipf: the first ten of 48 ranks are drawn far more often than the last ten.
	var head, tail int
	for i := range 10 {
		head += uses[i]
		tail += uses[len(uses)-1-i]
	}
	if head < 5*tail {
		t.Errorf("first ten passages used %d times, last ten %d", head, tail)
	}
}

const (
	passage      = 100
	passageShort = 40 // one goroutine computes all of it
)

// shortPassage is how many tokens passages of the short sample have.
func shortPassage() int {
	if testing.Short() {
		return passageShort
	}
	return passage
}

// short is the sample with shorter passages and requests; the last two requests
// find all their passages.
func short(t *testing.T) *Sample {
	t.Helper()
	s, err := Embedded()
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range s.Passages {
		s.Passages[i] = p[:shortPassage()]
	}
	s.Requests = []Question{
		{"Who?", []int{0, 1, 2}}, {"What?", []int{3, 1}}, {"Where?", []int{2, 0, 1}}, {"When?", []int{0, 1, 3}},
	}
	return s
}

func TestRunInMemory(t *testing.T) {
	m, err := Model(1)
	if err != nil {
		t.Fatal(err)
	}
	s := short(t)
	var steps []Progress
	store := newInMemory(m)
	r, err := Run(context.Background(), m, store, Options{Sample: s, Progress: func(p Progress) { steps = append(steps, p) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) != 16 || steps[15].Done != 15 || steps[15].Total != 16 {
		t.Errorf("progress ended at %+v", steps[len(steps)-1])
	}
	full, prefix, spliced, added := r.Way(WayFull), r.Way(WayPrefix), r.Way(WaySpliced), r.Way(WayAdded)
	if full.Cold.Requests != 2 || full.Warm.Requests != 2 || added.Warm.Requests != 2 {
		t.Errorf("%d cold and %d warm requests", full.Cold.Requests, full.Warm.Requests)
	}
	if full.Warm.ComputedTokens != full.Warm.PromptTokens || full.Warm.TokenHitRate != 0 {
		t.Errorf("full recompute: %+v", full.Warm)
	}
	if prefix.Warm.First != (Error{}) || prefix.Warm.Deepest != (Error{}) || prefix.Warm.NextTokenAgrees != 1 {
		t.Errorf("prefix caching is not exact: %+v", prefix.Warm)
	}
	// The third request shares only the system prompt, the fourth also passages 0
	// and 1 with the first: these tokens are known.
	if want := 2*len(system) + 2*shortPassage(); int(math.Round(prefix.Warm.TokenHitRate*float64(prefix.Warm.PromptTokens))) != want {
		t.Errorf("prefix caching reused %.1f tokens, want %d", prefix.Warm.TokenHitRate*float64(prefix.Warm.PromptTokens), want)
	}
	if want := 2*len(system) + 6*(shortPassage()-16); int(math.Round(spliced.Warm.TokenHitRate*float64(spliced.Warm.PromptTokens))) != want {
		t.Errorf("spliced reused %.1f tokens, want %d", spliced.Warm.TokenHitRate*float64(spliced.Warm.PromptTokens), want)
	}
	if spliced.Warm.ComputedTokens != spliced.Warm.PromptTokens-2*len(system)-6*(shortPassage()-16) {
		t.Errorf("spliced computed %d tokens", spliced.Warm.ComputedTokens)
	}
	if e := spliced.Warm.First.Relative; !(e > 0 && e < 2e-4) {
		t.Errorf("spliced: first layer off by %g", e)
	}
	if e := added.Warm.First.Relative; e < 0.1 {
		t.Errorf("naive addition: first layer only off by %g", e)
	}
	if spliced.HeldBytes != store.Memory.HeldBytes() || full.HeldBytes != 0 {
		t.Errorf("held bytes: %d and %d", full.HeldBytes, spliced.HeldBytes)
	}
	var text bytes.Buffer
	if err := r.Print(&text); err != nil || !strings.Contains(text.String(), r.Sentence) {
		t.Errorf("%v\n%s", err, text.String())
	}
	for _, line := range strings.Split(text.String(), "\n") {
		if line != r.Sentence && len([]rune(line)) > 110 {
			t.Errorf("line of %d columns: %s", len([]rune(line)), line)
		}
	}
	if b, err := json.Marshal(r); err != nil || !bytes.Contains(b, []byte(`"ttft_p50_ms"`)) {
		t.Errorf("%s, %v", b, err)
	}
	if testing.Verbose() {
		io.Copy(t.Output(), &text)
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	m, err := Model(1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	store := newInMemory(m)
	_, err = Run(ctx, m, store, Options{Sample: short(t), Progress: func(p Progress) {
		if p.Way == WayPrefix {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDeviation(t *testing.T) {
	d := deviate([]float32{1, 0}, []float32{0, 2})
	if math.Abs(d.degrees-90) > 1e-9 || math.Abs(d.relative-math.Sqrt(5)/2) > 1e-9 {
		t.Errorf("%+v", d)
	}
	if d := deviate([]float32{3, 4}, []float32{3, 4}); d != (deviation{}) {
		t.Errorf("equal states: %+v", d)
	}
}

func TestPercentile(t *testing.T) {
	x := []float64{4, 1, 3, 2}
	for p, want := range map[float64]float64{0: 1, 0.5: 2.5, 1: 4, 0.95: 3.85} {
		if got := percentile(x, p); math.Abs(got-want) > 1e-12 {
			t.Errorf("percentile %g is %g, want %g", p, got, want)
		}
	}
}
