package ragdemo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// modelDir makes a trained model's directory of the engine's golden model, whose
// answers are whatever its random weights say.
func modelDir(t *testing.T, questions ...string) string {
	t.Helper()
	dir := t.TempDir()
	vocab := map[string]int{}
	for i := range 250 {
		vocab[fmt.Sprint("word", i)] = i
	}
	tokenizer, err := json.Marshal(map[string]any{"model": map[string]any{"vocab": vocab}})
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{tokenizerFile: tokenizer, questionsFile: []byte(strings.Join(questions, "\n") + "\n")}
	for _, name := range []string{"config.json", weightsFile} {
		if files[name], err = os.ReadFile(filepath.Join("..", "testdata", "qwen35", name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// line is a question over passages of 30 tokens that begin with their numbers.
func line(answer []uint32, passages ...uint32) string {
	q := Asked{Segments: [][]uint32{{1, 2, 3, 4}}, Answer: answer, Kind: "one"}
	for _, p := range passages {
		var s []uint32
		for i := range uint32(30) {
			s = append(s, (p*31+i*7)%250)
		}
		q.Segments = append(q.Segments, s)
	}
	q.Segments = append(q.Segments, []uint32{5, 6, 7})
	b, err := json.Marshal(q)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestTrainedModelAnswersItsQuestions(t *testing.T) {
	first, err := LoadTrained(modelDir(t, line([]uint32{9}, 1, 2)), 0)
	if err != nil {
		t.Fatal(err)
	}
	all, _ := first.Questions[0].prompt().whole()
	st := first.Model.NewState()
	logits, err := first.Model.Prefill(st, all)
	if err != nil {
		t.Fatal(err)
	}
	said, err := first.Answer(st, logits)
	if err != nil || len(said) != maxAnswer {
		t.Fatalf("%v, %v", said, err)
	}
	// The first question wants what the model says, the others something else.
	trained, err := LoadTrained(modelDir(t, line(said[:maxAnswer-1], 1, 2), line([]uint32{9}, 2, 1), line([]uint32{9}, 1, 2)), 0)
	if err != nil {
		t.Fatal(err)
	}
	trained.end = said[maxAnswer-1]
	trained.Questions[0].Answer = said[:slices.Index(said, trained.end)]
	r, err := Run(t.Context(), nil, newInMemory(trained.Model), Options{Trained: trained})
	if err != nil {
		t.Fatal(err)
	}
	full, prefix := r.Way(WayFull), r.Way(WayPrefix)
	if full.Cold.Right != 1 || full.Warm.Right != 0 || full.Cold.Same != 1 || full.Warm.Same != 2 {
		t.Errorf("full recompute: %+v, %+v", full.Cold, full.Warm)
	}
	if prefix.Cold.Right != 1 || prefix.Warm.Same != 2 {
		t.Errorf("prefix caching: %+v, %+v", prefix.Cold, prefix.Warm)
	}
	if r.Passages != 2 || len(r.Answers) != 3 || !r.Answers[0].Cold || r.Answers[1].Cold || !r.Answers[0].Ways[0].Right || r.Answers[1].Ways[0].Right {
		t.Errorf("%d passages, %+v", r.Passages, r.Answers)
	}
	var text strings.Builder
	if err := r.Print(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"word1 word2 word3 word4\n", "wanted word9", "1 of 1", "0 of 2", "Of 3 questions it answers 1 right when all is computed"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), "random") {
		t.Errorf("the weights are not random:\n%s", &text)
	}
	for _, l := range strings.Split(text.String(), "\n") {
		if l != r.Sentence && len([]rune(l)) > columns {
			t.Errorf("line of %d columns: %s", len([]rune(l)), l)
		}
	}
}

func TestBadTrainedModelsAreRefused(t *testing.T) {
	if _, err := LoadTrained(t.TempDir(), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty directory: %v", err)
	}
	for name, bad := range map[string]string{
		"no JSON": "{", "no passage": `{"segments":[[1],[2]],"answer":[3]}`, "an empty segment": `{"segments":[[1],[],[2]],"answer":[3]}`,
		"a token beyond the vocabulary": `{"segments":[[1],[256],[2]],"answer":[3]}`, "no answer": `{"segments":[[1],[2],[3]]}`,
	} {
		if _, err := LoadTrained(modelDir(t, line([]uint32{9}, 1), bad), 0); err == nil || !strings.Contains(err.Error(), "line 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// trainedDir is the repository's trained model.
const trainedDir = "../../../tinyhybrid/model"

func loadTrained(t *testing.T) *Trained {
	t.Helper()
	trained, err := LoadTrained(trainedDir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the trained model is not here:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return trained
}

// The engine answers as transformers does with the same weights: all of it in
// float32, so that not even a close call goes the other way.
func TestTrainedModelAnswersAsTransformersDoes(t *testing.T) {
	trained := loadTrained(t)
	questions := trained.Questions
	if testing.Short() {
		questions = questions[:min(5, len(questions))]
	}
	right := 0
	for i := range questions {
		q := &questions[i]
		all, _ := q.prompt().whole()
		st := trained.Model.NewState()
		logits, err := trained.Model.Prefill(st, all)
		if err != nil {
			t.Fatal(err)
		}
		said, err := trained.Answer(st, logits)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(said, q.Library) {
			t.Errorf("question %d, %q: %q, transformers says %q", i, trained.question(q), trained.Text(said), trained.Text(q.Library))
		}
		if slices.Equal(said, q.Answer) {
			right++
		}
	}
	t.Logf("%d of %d answers are right", right, len(questions))
}

// Spliced with a seam of 8 the model loses next to nothing on questions that it
// never saw; what is reused is held in the types of the default storage.
func TestTrainedModelSplicedAnswersAsWell(t *testing.T) {
	if testing.Short() {
		t.Skip("all questions in four ways")
	}
	trained := loadTrained(t)
	r, err := Run(t.Context(), nil, newInMemory(trained.Model), Options{Trained: trained, Requests: 50, Seam: 8})
	if err != nil {
		t.Fatal(err)
	}
	n := r.Requests
	right := func(way string) int { return r.Way(way).Cold.Right + r.Way(way).Warm.Right }
	same := r.Way(WaySpliced).Cold.Same + r.Way(WaySpliced).Warm.Same
	t.Logf("right: %d with full recompute, %d spliced, %d with added states; spliced says the same in %d of %d",
		right(WayFull), right(WaySpliced), right(WayAdded), same, n)
	if right(WayPrefix) != right(WayFull) {
		t.Errorf("prefix caching: %d right, full recompute %d", right(WayPrefix), right(WayFull))
	}
	// One point of accuracy is a matter of thousands of questions (see the fidelity
	// report); of some dozens, chance alone moves two.
	if right(WaySpliced) < right(WayFull)-2 || same < n*9/10 {
		t.Errorf("spliced: %d right of %d, full recompute %d; the same answer in %d", right(WaySpliced), n, right(WayFull), same)
	}
}
