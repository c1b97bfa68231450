// Command ragsample draws the demo's sample of RAG requests from MuSiQue
// questions with retrieved passages:
//
//	go run ./ragsample musique150.jsonl[.zst] refengine/ragdemo/testdata/musique.json.zst
//
// The input is JSON lines with "question" and "ctxs" (a list of passages), as in
// inputs/musique_s.json of github.com/YaoJiayi/CacheBlend. The output depends only on the input
// and on the constants below.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	passages     = 48  // distinct passages, one per question
	passageBytes = 512 // each is cut to this
	requests     = 64
	perRequest   = 10
	exponent     = 1.0 // of the Zipf law over passages
	seed         = 3
)

type record struct {
	Question string   `json:"question"`
	Passages []string `json:"ctxs"`
}

type request struct {
	Question string `json:"question"`
	Passages []int  `json:"passages"`
}

type sample struct {
	Source   string    `json:"source"`
	Passages []string  `json:"passages"`
	Requests []request `json:"requests"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: ragsample INPUT.jsonl[.zst] OUTPUT.json.zst")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "ragsample:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	records, err := read(in)
	if err != nil {
		return err
	}
	s, questions, err := pick(records)
	if err != nil {
		return err
	}
	s.Requests = draw(questions)
	return write(out, s)
}

func read(path string) ([]record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := io.Reader(bufio.NewReader(f))
	if strings.HasSuffix(path, ".zst") {
		z, err := zstd.NewReader(r)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	}
	var list []record
	for d := json.NewDecoder(r); ; {
		var rec record
		if err := d.Decode(&rec); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s, record %d: %w", path, len(list), err)
		}
		list = append(list, rec)
	}
}

// pick takes the first passage of each question until it has enough passages. It cuts a passage
// to its first passageBytes bytes, which must be plain ASCII so that no character is split.
func pick(records []record) (sample, []string, error) {
	s := sample{Source: "MuSiQue (Trivedi et al. 2022, CC BY 4.0), cut to 512 bytes; see ATTRIBUTION"}
	var questions []string
	seen := map[string]bool{}
	for _, r := range records {
		if len(questions) == passages {
			break
		}
		if len(r.Passages) == 0 || len(r.Passages[0]) < passageBytes {
			continue
		}
		text := r.Passages[0][:passageBytes]
		if seen[text] || strings.ContainsFunc(text, func(c rune) bool { return c > 126 }) {
			continue
		}
		seen[text] = true
		s.Passages = append(s.Passages, text)
		questions = append(questions, r.Question)
	}
	if len(questions) < passages {
		return s, nil, fmt.Errorf("only %d of %d passages found", len(questions), passages)
	}
	return s, questions, nil
}

// draw returns the requests. The passages of a request are distinct and in the order in which
// they were drawn; the passage of rank i has the weight 1/i. The question is about the passage
// that earlier requests asked about least.
func draw(questions []string) []request {
	rng := rand.New(rand.NewPCG(seed, 0))
	asked := make([]int, len(questions))
	var out []request
	for range requests {
		weights := make([]float64, len(questions))
		total := 0.0
		for i := range weights {
			weights[i] = math.Pow(float64(i+1), -exponent)
			total += weights[i]
		}
		var r request
		for range perRequest {
			at, i := rng.Float64()*total, 0
			for ; i < len(weights)-1 && at >= weights[i]; i++ {
				at -= weights[i]
			}
			for weights[i] == 0 { // because of rounding, i may lie after the last passage with a weight
				i--
			}
			total -= weights[i]
			weights[i] = 0
			r.Passages = append(r.Passages, i)
		}
		best := r.Passages[0]
		for _, i := range r.Passages {
			if asked[i] < asked[best] {
				best = i
			}
		}
		asked[best]++
		r.Question = questions[best]
		out = append(out, r)
	}
	return out
}

func write(path string, s sample) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
