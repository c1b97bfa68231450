// Package xquad contains lists of requests over the passages of XQuAD (English) as numbers,
// with which block tables are measured. Lengths are at four characters per token, rounded
// up. The text is not included.
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

// Zipf returns the same with passages whose popularity falls as 1/rank.
func Zipf() []Asked { return list(zipf) }

func list(text string) (out []Asked) {
	for _, n := range lines(text) {
		out = append(out, Asked{n[0], n[1:]})
	}
	return out
}

// lines reads lines of numbers; text after a # is a comment. The files are ours: a word
// that is no number panics.
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
