package main

import (
	"io"
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/clitest"
)

func TestOldSpellingsAreReadAsNewOnes(t *testing.T) {
	for _, r := range []struct{ in, want []string }{
		{[]string{"ls", "-limit", "20"}, []string{"ls", "--limit", "20"}},
		{[]string{"ls", "-limit=20", "-json"}, []string{"ls", "--limit=20", "--json"}},
		{[]string{"ls", "-n", "5", "-o", "json"}, []string{"ls", "-n", "5", "-o", "json"}},
		{[]string{"ls", "-n5", "-ojson", "-w"}, []string{"ls", "-n5", "-ojson", "-w"}},
		{[]string{"ls", "--sort", "-bytes", "-long"}, []string{"ls", "--sort", "-bytes", "--long"}},
		{[]string{"ls", "-help"}, []string{"ls", "--help"}},
		{[]string{"-help"}, []string{"--help"}},
		{[]string{"help", "ls"}, []string{"ls", "--help"}},
		{[]string{"help"}, []string{"--help"}},
		{[]string{"nope", "-h"}, []string{"nope"}},
		{[]string{"-version"}, []string{"version"}},
		{[]string{"profile", "off", "ab", "-why", "-tenant", "-tenant", "a"}, []string{"profile", "off", "ab", "--why", "-tenant", "--tenant", "a"}},
		{[]string{"disk", "check", "-deep", "--", "-dir"}, []string{"disk", "check", "--deep", "--", "-dir"}},
		{[]string{"profile", "-", "-json"}, []string{"profile", "-", "--json"}},
		{[]string{"config", "set", "-dry-run", "log_level=debug"}, []string{"config", "set", "--dry-run", "log_level=debug"}},
		{[]string{"ls", "-long=false", "-void"}, []string{"ls", "--long=false", "--void"}},
		{[]string{"demo", "-quiet=false", "-nope", "ls", "-h"}, []string{"demo", "-quiet=false", "-nope", "ls", "-h"}},
		{[]string{"help", "demo"}, []string{"demo", "--help"}},
		{[]string{cobra.ShellCompRequestCmd, "ls", "-l"}, []string{cobra.ShellCompRequestCmd, "ls", "-l"}},
		{nil, nil},
	} {
		if got := cli.Normalise(program().Root(io.Discard, io.Discard), slices.Clone(r.in)); !slices.Equal(got, r.want) {
			t.Errorf("%q: %q, want %q", r.in, got, r.want)
		}
	}
}

// Every call that is written down anywhere can be read, with one dash or two.
func TestWhatIsWrittenDownIsStillRead(t *testing.T) {
	if calls := clitest.Written(t, "../../..", program()); calls < 80 {
		t.Errorf("only %d calls were found", calls)
	}
}
