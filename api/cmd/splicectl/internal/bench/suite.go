package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// Options say what to measure and with which programs.
type Options struct {
	Suite    string // one of SuiteNames
	Daemon   string // path of spliced; empty = found beside this program or in PATH
	Commit   string
	Only     []string  // names of sections; empty = all
	Progress io.Writer // one line a section; nil = none
}

// suites are the known ones, with how many rounds they take of what quick takes.
// Smoke takes one of each, to see that every row comes.
func suites() map[string]float64 { return map[string]float64{"smoke": 0, "quick": 1, "full": 5} }

// SuiteNames lists what Options.Suite can name.
func SuiteNames() []string { return slices.Sorted(maps.Keys(suites())) }

// section measures rows that belong together.
type section struct {
	name string
	run  func(context.Context, *session) error
}

func sections() []section {
	return []section{
		{"lookup", lookupRows}, {"transfer", transferRows}, {"compose", composeRows}, {"rotate", rotateRows},
		{"kill", killRow}, {"restart", restartRow}, {"start", startRows},
	}
}

// session gathers the rows of one run.
type session struct {
	options Options
	effort  float64
	report  *Report
}

func (s *session) add(rows ...Row) { s.report.Rows = append(s.report.Rows, rows...) }

func (s *session) skip(name, reason string) {
	s.report.Skipped = append(s.report.Skipped, Skip{Name: name, Reason: reason})
}

// rounds scales a number of rounds to the suite.
func (s *session) rounds(n int) int { return max(1, int(float64(n)*s.effort)) }

func (s *session) progress(format string, a ...any) {
	if s.options.Progress != nil {
		fmt.Fprintf(s.options.Progress, format+"\n", a...)
	}
}

// Run measures a suite. A section that fails leaves its rows out; the report is
// good for the others, and the errors of all are returned with it.
func Run(ctx context.Context, o Options) (*Report, error) {
	effort, known := suites()[o.Suite]
	if !known {
		return nil, fmt.Errorf("no suite %q", o.Suite)
	}
	s := &session{options: o, effort: effort, report: &Report{
		Machine: Machine(), Commit: o.Commit, Date: time.Now().UTC().Truncate(time.Second), Suite: o.Suite,
		Rows: []Row{}, Skipped: []Skip{},
	}}
	var failed []error
	for _, part := range sections() {
		if !s.wanted(part.name) {
			continue
		}
		begin := time.Now()
		if err := part.run(ctx, s); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", part.name, err))
		}
		s.progress("%-8s %.1f s", part.name, time.Since(begin).Seconds())
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return s.report, errors.Join(failed...)
}

func (s *session) wanted(name string) bool {
	return len(s.options.Only) == 0 || slices.Contains(s.options.Only, name)
}

// SectionNames lists what Options.Only can name, in order.
func SectionNames() []string {
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
	}
	return names
}
