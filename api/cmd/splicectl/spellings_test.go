package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
		{[]string{"demo", "-quiet=false", "-nope"}, []string{"demo", "--quiet=false", "--nope"}},
		{[]string{cobra.ShellCompRequestCmd, "ls", "-l"}, []string{cobra.ShellCompRequestCmd, "ls", "-l"}},
		{nil, nil},
	} {
		if got := normalise(newRoot(io.Discard, io.Discard), slices.Clone(r.in)); !slices.Equal(got, r.want) {
			t.Errorf("%q: %q, want %q", r.in, got, r.want)
		}
	}
}

// written is a call of splicectl in a text: what follows up to where a shell, Markdown or
// prose ends it.
var written = regexp.MustCompile("(?:^|[\\s/`(@])splicectl[\"']? +([a-z-][^`#|;&<>)\\n]*)")

// Every call that is written down anywhere can be read, with one dash or two.
func TestWhatIsWrittenDownIsStillRead(t *testing.T) {
	const root = "../../.."
	calls := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		if d.IsDir() {
			skip := []string{".git", "bin", "connector", "daemon", "tiering", "gpuipc", "policy", "api", "docs/papers"}
			if slices.Contains(skip, name) || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := d.Info(); err != nil || !info.Mode().IsRegular() || info.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !utf8.Valid(text) {
			return err
		}
		for _, found := range written.FindAllStringSubmatch(string(text), -1) {
			if readable(t, name, found[1]) {
				calls++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 80 {
		t.Errorf("only %d calls were found", calls)
	}
}

// readable looks whether the flags of a call are known; false = it is no call.
func readable(t *testing.T, file, line string) bool {
	t.Helper()
	args := strings.Fields(strings.NewReplacer("[", "", "]", "", "\\", "", ",\n", " ").Replace(line))
	for i := range args {
		args[i] = strings.TrimRight(args[i], ".:\"'")
	}
	root := newRoot(io.Discard, io.Discard)
	if len(args) == 0 || subcommand(root, args[0]) == nil && args[0] != "help" {
		return false
	}
	cmd, rest, err := root.Find(normalise(root, args))
	if err == nil {
		if err = cmd.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
			err = nil
		}
	}
	if err != nil {
		t.Errorf("%s: splicectl %s: %v", file, line, err)
	}
	return true
}
