package bench

import (
	"context"
	"errors"
	"fmt"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"io"
	"maps"
	"slices"
	"time"
)

// Options selects the suite, its sections and the programs to use.
type Options struct {
	Suite    string // one of SuiteNames
	Daemon   string // path of spliced; empty = found next to this program or in PATH
	Commit   string
	Only     []string  // names of sections; empty = all
	Dir      string    // on the disk that disk suites measure; empty = the directory of temporary files
	Torture  string    // path of a report of torture runs to show; empty = none
	Progress io.Writer // one line per section; nil = none
}

// suite is a set of sections and a scale of their numbers of rounds.
type suite struct {
	effort   float64
	sections func() []section
}

// suites returns all suites. The smoke suites run one round of each row, to check that all rows
// appear.
func suites() map[string]suite {
	return map[string]suite{
		"smoke": {0, nodeSections}, "quick": {1, nodeSections}, "full": {5, nodeSections},
		"scale": {1, scaleSections}, "scale-smoke": {0, scaleSections},
		"disk": {1, diskSections}, "disk-smoke": {0, diskSections}, "pebble": {1, pebbleSections},
		"parallel": {1, parallelSections}, "parallel-smoke": {0, parallelSections},
		"pages": {1, pagesSections}, "pages-smoke": {0, pagesSections},
		"decode": {1, decodeSections}, "decode-smoke": {0, decodeSections},
	}
}

// SuiteNames returns the valid values of Options.Suite.
func SuiteNames() []string { return slices.Sorted(maps.Keys(suites())) }

// section measures related rows.
type section struct {
	name string
	run  func(context.Context, *session) error
}

func nodeSections() []section {
	return []section{
		{"lookup", lookupRows}, {"transfer", transferRows}, {"compose", composeRows}, {"rotate", rotateRows},
		{"kill", killRow}, {"restart", restartRow}, {"start", startRows},
	}
}

// session collects the rows of one run.
type session struct {
	options Options
	effort  float64
	report  *Report
}

func (s *session) add(rows ...Row) { s.report.Rows = append(s.report.Rows, rows...) }

func (s *session) skip(name, reason string) {
	s.report.Skipped = append(s.report.Skipped, Skip{Name: name, Reason: reason})
}

// skipOnce is skip for a requirement that several sections have: it adds one Skip only.
func (s *session) skipOnce(name, reason string) {
	for _, known := range s.report.Skipped {
		if known.Name == name {
			return
		}
	}
	s.skip(name, reason)
}

// rounds scales a number of rounds to the suite.
func (s *session) rounds(n int) int { return max(1, int(float64(n)*s.effort)) }

func (s *session) progress(format string, a ...any) {
	if s.options.Progress != nil {
		fmt.Fprintf(s.options.Progress, format+"\n", a...)
	}
}

// Run measures a suite. If sections fail, the report lacks their rows but is valid for the other
// sections, and Run returns it together with all their errors.
func Run(ctx context.Context, o Options) (*Report, error) {
	suite, known := suites()[o.Suite]
	if !known {
		return nil, fmt.Errorf("no suite %q", o.Suite)
	}
	s := &session{options: o, effort: suite.effort, report: &Report{
		Machine: machine.Describe(), Commit: o.Commit, Date: time.Now().UTC().Truncate(time.Second), Suite: o.Suite,
		Rows: []Row{}, Skipped: []Skip{},
	}}
	var failed []error
	for _, part := range suite.sections() {
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

// SectionNames returns the valid values of Options.Only for a suite, in order.
func SectionNames(suite string) []string {
	var names []string
	for _, s := range suites()[suite].sections() {
		names = append(names, s.name)
	}
	return names
}
