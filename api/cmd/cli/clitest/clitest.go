// Package clitest contains what tests of our command lines share: the reference page of all
// commands, and a check of calls in documents.
package clitest

import (
	"bytes"
	"errors"
	"fmt"
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
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
)

// Reference writes a page in Markdown about all commands of the program p. The parameter elsewhere
// is the page of another program. Links to it replace the text of Verbatim commands, which belong
// to that program. If p is a Part, links to the main command lead there too.
func Reference(w *bytes.Buffer, p *cli.Program, elsewhere string) error {
	root := p.Root(io.Discard, io.Discard)
	if !p.Part {
		return reference(w, p, root, elsewhere)
	}
	for _, sub := range root.Commands() {
		if err := reference(w, p, sub, elsewhere); err != nil {
			return err
		}
	}
	return nil
}

func reference(w *bytes.Buffer, p *cli.Program, cmd *cobra.Command, elsewhere string) error {
	if cmd.HasParent() && !cmd.IsAvailableCommand() {
		return nil
	}
	if cmd.DisableFlagParsing {
		heading := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		fmt.Fprintf(w, "\n## %s\n\n%s\n\nFlags and examples: [%s](%s#%s)\n", cmd.CommandPath(), cmd.Short, elsewhere, elsewhere, heading)
		return nil
	}
	var one bytes.Buffer
	// Links go to the headings of this page, or of the main program's page if this is a Part.
	link := func(name string) string {
		heading := "#" + strings.ReplaceAll(strings.TrimSuffix(name, ".md"), "_", "-")
		if name == p.Name+".md" && p.Part {
			return elsewhere + heading
		}
		return heading
	}
	if err := doc.GenMarkdownCustom(cmd, &one, link); err != nil {
		return err
	}
	text := one.String()
	if p.Part { // the page of a Part links to the other one above its first command
		text, _, _ = strings.Cut(text, "### SEE ALSO")
	}
	fmt.Fprintf(w, "\n%s\n", strings.TrimRight(text, "\n"))
	for _, sub := range cmd.Commands() {
		if err := reference(w, p, sub, elsewhere); err != nil {
			return err
		}
	}
	return nil
}

// call matches a call of splicectl in a text, up to where a shell, Markdown or prose ends the call.
// The group of the expression is the text after the name splicectl.
var call = regexp.MustCompile("(?:^|[\\s/`(@])splicectl[\"']? +([a-z-][^`#|;&<>)\\n]*)")

// Written checks all calls of p's commands that occur in the files below root. It reports each call
// that p cannot parse as a test error, and returns the number of calls that p can parse. It does
// not check the flags of Verbatim commands.
func Written(t *testing.T, root string, p *cli.Program) (calls int) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root+"/")
		if d.IsDir() {
			skip := []string{".git", "bin", "connector", "daemon", "tiering", "gpuipc", "policy", "api", "scripts/lab", "docs/results"}
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
		for _, found := range call.FindAllStringSubmatch(string(text), -1) {
			if readable(t, p.Root(io.Discard, io.Discard), name, found[1]) {
				calls++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// readable checks whether the flags of a call are known; false = not a call.
func readable(t *testing.T, root *cobra.Command, file, line string) bool {
	t.Helper()
	args := strings.Fields(strings.NewReplacer("[", "", "]", "", "\\", "", ",\n", " ").Replace(line))
	for i := range args {
		args[i] = strings.TrimRight(args[i], ".:\"'")
	}
	if len(args) == 0 {
		return false
	}
	name := args[0]
	if name == "help" && len(args) > 1 {
		name = args[1]
	}
	if cli.Subcommand(root, name) == nil {
		return false
	}
	cmd, rest, err := root.Find(cli.Normalise(root, args))
	if err == nil && !cmd.DisableFlagParsing {
		if err = cmd.ParseFlags(rest); errors.Is(err, pflag.ErrHelp) {
			err = nil
		}
	}
	if err != nil {
		t.Errorf("%s: splicectl %s: %v", file, line, err)
	}
	return true
}
