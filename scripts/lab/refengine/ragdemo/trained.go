package ragdemo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// Trained is a model that was trained to answer, with questions outside its training set.
type Trained struct {
	Model     *refengine.Model[float32]
	Questions []Asked
	words     []string // by token id
	end       uint32   // token that ends an answer
}

// Asked is one question of a trained model's file.
type Asked struct {
	Segments [][]uint32 `json:"segments"` // instruction, passages, question
	Answer   []uint32   `json:"answer"`   // without its end token
	Kind     string     `json:"kind"`     // skill that the answer requires
	// Library is the answer of transformers with the same weights, in float32.
	Library []uint32 `json:"transformers"`
}

// Files in a trained model's directory, next to config.json.
const (
	weightsFile   = "model.safetensors"
	tokenizerFile = "tokenizer.json"
	questionsFile = "questions.jsonl"
)

// maxAnswer is the largest number of decoded tokens of an answer.
const maxAnswer = 6

// LoadTrained reads a model directory in the format of transformers, and the file
// questions.jsonl in it. The tokenizer's words are only needed for printing.
func LoadTrained(dir string, tolerance float64) (*Trained, error) {
	var failed []error
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		failed = append(failed, err)
		return b
	}
	config, weights, vocabulary, questions := read("config.json"), read(weightsFile), read(tokenizerFile), read(questionsFile)
	if err := errors.Join(failed...); err != nil {
		return nil, fmt.Errorf("trained model: %w", err)
	}
	t := &Trained{}
	for _, step := range []func() error{
		func() error { return t.readModel(filepath.Base(dir), config, weights, tolerance) },
		func() error { return t.readWords(vocabulary) },
		func() error { return t.readQuestions(questions) },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("trained model in %s: %w", dir, err)
		}
	}
	return t, nil
}

// storage returns the element types that engines use by default: states in F32, large parts in
// 16 bits.
func storage(tolerance float64) modelfile.Storage {
	return modelfile.Storage{State: profile.F32, Transition: profile.F16, Conv: profile.F32, KV: profile.BF16, Tolerance: tolerance}
}

func (t *Trained) readModel(name string, config, weights []byte, tolerance float64) error {
	c, err := modelfile.ConfigFromHF(name, config, storage(tolerance))
	if err != nil {
		return err
	}
	var extra struct {
		End uint32 `json:"eos_token_id"`
	}
	if err := profile.DecodeConfig(config, &extra); err != nil {
		return fmt.Errorf("eos_token_id: %w", err)
	}
	t.end = extra.End
	w, err := modelfile.Load(c, weights)
	if err != nil {
		return err
	}
	t.Model, err = refengine.New[float32](w)
	return err
}

// readWords reads a tokenizer of whole words.
func (t *Trained) readWords(file []byte) error {
	var tokenizer struct {
		Model struct {
			Vocab map[string]uint32 `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(file, &tokenizer); err != nil {
		return fmt.Errorf("%s: %w", tokenizerFile, err)
	}
	t.words = make([]string, t.Model.Config().Vocab)
	for word, id := range tokenizer.Model.Vocab {
		if int(id) >= len(t.words) {
			return fmt.Errorf("%s: word %q has id %d, the model knows %d", tokenizerFile, word, id, len(t.words))
		}
		t.words[id] = word
	}
	return nil
}

func (t *Trained) readQuestions(file []byte) error {
	lines := bufio.NewScanner(bytes.NewReader(file))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var q Asked
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return fmt.Errorf("%s, line %d: %w", questionsFile, len(t.Questions)+1, err)
		}
		if err := t.check(&q); err != nil {
			return fmt.Errorf("%s, line %d: %w", questionsFile, len(t.Questions)+1, err)
		}
		t.Questions = append(t.Questions, q)
	}
	return lines.Err()
}

func (t *Trained) check(q *Asked) error {
	if len(q.Segments) < 3 || len(q.Answer) == 0 || len(q.Answer) >= maxAnswer {
		return fmt.Errorf("%d segments and an answer of %d tokens", len(q.Segments), len(q.Answer))
	}
	for _, part := range slices.Concat(q.Segments, [][]uint32{q.Answer}) {
		for _, id := range part {
			if int(id) >= t.Model.Config().Vocab {
				return fmt.Errorf("token %d", id)
			}
		}
		if len(part) == 0 {
			return errors.New("an empty segment")
		}
	}
	return nil
}

// Text returns the words of token ids.
func (t *Trained) Text(ids []uint32) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(' ')
		}
		if int(id) < len(t.words) && t.words[id] != "" {
			b.WriteString(t.words[id])
		} else {
			fmt.Fprintf(&b, "<%d>", id)
		}
	}
	return b.String()
}

// Answer decodes greedily after a prompt until the answer ends. It advances the state.
func (t *Trained) Answer(st *refengine.State[float32], logits []float32) ([]uint32, error) {
	var out []uint32
	d := refengine.NewDecoder(t.Model, st, refengine.DecoderOptions{})
	defer d.Settle()
	for len(out) < maxAnswer {
		next := refengine.Greedy(logits)
		if next == t.end {
			break
		}
		out = append(out, next)
		var err error
		if logits, err = d.Prefill([]uint32{next}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// prompt returns a question as segments.
func (q *Asked) prompt() prompt {
	last := len(q.Segments) - 1
	return prompt{first: q.Segments[0], passages: q.Segments[1:last], query: q.Segments[last]}
}

// question returns the words of a question without its markup.
func (t *Trained) question(q *Asked) string {
	text := t.Text(q.Segments[len(q.Segments)-1])
	text = strings.TrimPrefix(text, "question : ")
	return strings.TrimSuffix(text, " answer :")
}
