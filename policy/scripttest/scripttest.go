// Package scripttest runs test scripts. A script is a text file. Each line that starts with
// > is a command with arguments of the form name=value, and the lines below it are its
// expected output.
package scripttest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/spliced-kv/spliced/policy/goldentest"
)

// Run runs testdata/*.txt and compares the output of their commands. For each script it
// calls the function start, which returns a function that executes the script's commands.
func Run(t *testing.T, start func(t *testing.T) func(command []string, a Values) string) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			answer := start(t)
			var got strings.Builder
			for line := range strings.Lines(string(text)) {
				switch {
				case strings.HasPrefix(line, "> "):
					command := strings.Fields(line)[1:]
					got.WriteString(line + answer(command, valuesOf(command[1:])))
				case line == "\n" || strings.HasPrefix(line, "#"):
					got.WriteString(line)
				}
			}
			goldentest.File(t, file, []byte(got.String()), "says now\n"+got.String())
		})
	}
}

// Values are the arguments of a command.
type Values map[string]string

func valuesOf(words []string) Values {
	a := Values{}
	for _, w := range words {
		if name, value, ok := strings.Cut(w, "="); ok {
			a[name] = value
		}
	}
	return a
}

// Number returns an argument, 0 if it is missing.
func (a Values) Number(name string) float64 {
	v, _ := strconv.ParseFloat(a[name], 64)
	return v
}

// Int returns an argument, 0 if it is missing.
func (a Values) Int(name string) int { return int(a.Number(name)) }

// Ints returns a comma-separated list.
func (a Values) Ints(name string) (all []int) {
	for word := range strings.SplitSeq(a[name], ",") {
		if n, err := strconv.Atoi(word); err == nil {
			all = append(all, n)
		}
	}
	return all
}
