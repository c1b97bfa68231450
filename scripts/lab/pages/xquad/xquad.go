// Package xquad contains lists of requests over the passages of XQuAD (English), for
// measurements of block tables. It has only the numbers and lengths of passages and questions,
// not their text. Lengths are in tokens, at four characters per token, rounded up.
package xquad

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

// Asked is a request: the tokens of its question, and its passages in the order of the
// prompt.
type Asked struct {
	Question int
	Passages []int
}

// Tokens added to each request in the measurements.
const (
	SystemTokens = 48
	OutputTokens = 32
)

//go:embed lengths.txt
var lengths string

//go:embed uniform.txt
var uniform string

//go:embed zipf.txt
var zipf string

// Passages returns the tokens of the 240 passages, and of the questions on each.
func Passages() (tokens []int, questions [][]int) {
	for _, n := range lines(lengths) {
		tokens, questions = append(tokens, n[0]), append(questions, n[1:])
	}
	return tokens, questions
}

// Uniform returns 300 requests of 11 distinct passages each, all equally likely.
func Uniform() []Asked { return list(uniform) }

// Zipf returns 300 requests of 11 distinct passages each, where the popularity of a passage is
// proportional to 1/rank.
func Zipf() []Asked { return list(zipf) }

func list(text string) (out []Asked) {
	for _, n := range lines(text) {
		out = append(out, Asked{n[0], n[1:]})
	}
	return out
}

// lines reads lines of numbers; text after a # is a comment. It panics on a word that is not a
// number, because the files are part of this package.
func lines(text string) (out [][]int) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		var numbers []int
		for _, word := range strings.Fields(line) {
			n, err := strconv.Atoi(word)
			if err != nil {
				panic(fmt.Sprintf("xquad: %v", err))
			}
			numbers = append(numbers, n)
		}
		if len(numbers) > 0 {
			out = append(out, numbers)
		}
	}
	return out
}
