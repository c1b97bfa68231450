package ragdemo

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/spliced-kv/spliced/scripts/lab/refengine"
)

// embedded was made by scripts/lab/ragsample from MuSiQue, CC BY 4.0; see testdata/ATTRIBUTION.
//
//go:embed testdata/musique.json.zst
var embedded []byte

// Sample is a set of passages and requests over them.
type Sample struct {
	Source   string     `json:"source"`
	Passages []string   `json:"passages"`
	Requests []Question `json:"requests"`
}

// Question is one request: passages by index, in the order they are placed.
type Question struct {
	Text     string `json:"question"`
	Passages []int  `json:"passages"`
}

// maxSample bounds the decompressed sample.
const maxSample = 4 << 20

// Embedded returns the sample that ships with the program.
func Embedded() (*Sample, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSample))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	text, err := d.DecodeAll(embedded, nil)
	if err != nil {
		return nil, fmt.Errorf("embedded sample: %w", err)
	}
	s := new(Sample)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("embedded sample: %w", err)
	}
	return s, s.check()
}

func (s *Sample) check() error {
	for i, q := range s.Requests {
		for _, p := range q.Passages {
			if p < 0 || p >= len(s.Passages) {
				return fmt.Errorf("sample: request %d names passage %d of %d", i, p, len(s.Passages))
			}
		}
	}
	return nil
}

const system = "Answer the question from the passages below. Use only what they say, name the passage you " +
	"relied on, and say so when they do not hold the answer.\n\nPassages:\n"

// prompt is one request as token segments; a token is a byte.
type prompt struct {
	first    []uint32
	passages [][]uint32
	query    []uint32
}

func (s *Sample) prompt(i int) prompt {
	q := s.Requests[i]
	p := prompt{first: tokens(system), query: tokens("\n\nQuestion: " + q.Text + "\nAnswer:")}
	for _, n := range q.Passages {
		p.passages = append(p.passages, tokens(s.Passages[n]))
	}
	return p
}

// Request returns request i of the sample in the form that an engine serves. seam is the number
// of tokens to recompute on each side of a join.
func (s *Sample) Request(i, seam int) refengine.Request {
	p := s.prompt(i)
	return refengine.Request{First: p.first, Mid: p.passages, Query: p.query, Seam: seam}
}

func tokens(s string) []uint32 {
	out := make([]uint32, len(s))
	for i := range len(s) {
		out[i] = uint32(s[i])
	}
	return out
}

// whole returns the prompt's tokens and the ends of its segments.
func (p prompt) whole() (all []uint32, boundaries []int) {
	all = append(all, p.first...)
	boundaries = append(boundaries, len(all))
	for _, s := range p.passages {
		all = append(all, s...)
		boundaries = append(boundaries, len(all))
	}
	return append(all, p.query...), boundaries
}
