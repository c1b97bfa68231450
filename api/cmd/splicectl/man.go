package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

//go:generate go test . -run Reference -update

// manCommand writes manual pages, for packages.
func manCommand() command {
	return command{
		name: "man", synopsis: "DIR", summary: "Write a manual page of each command to a directory", hidden: true,
		setup: func(*pflag.FlagSet) func(context.Context, *call) error {
			return func(_ context.Context, c *call) error {
				if len(c.args) != 1 {
					return usagef("want a directory")
				}
				if err := os.MkdirAll(c.args[0], 0o755); err != nil {
					return err
				}
				root := newRoot(io.Discard, io.Discard)
				return doc.GenManTree(root, &doc.GenManHeader{Title: "SPLICECTL", Section: "1", Source: "spliced " + version, Manual: "spliced"}, c.args[0])
			}
		},
	}
}

// reference is docs/splicectl.md: every command, on one page.
func reference() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("# splicectl\n\nEvery command with its flags. This page is written by `make generate`; `splicectl COMMAND -h` says the same, and `make man`\n" +
		"writes manual pages. `splicectl completion bash`, `zsh` and `fish` print what completes commands, flags and names of daemons.\n")
	root := newRoot(io.Discard, io.Discard)
	root.DisableAutoGenTag = true
	err := pages(&b, root)
	return b.Bytes(), err
}

func pages(w *bytes.Buffer, cmd *cobra.Command) error {
	if !cmd.IsAvailableCommand() && cmd.HasParent() {
		return nil
	}
	var one bytes.Buffer
	// Links go to the headings of this page.
	link := func(name string) string {
		return "#" + strings.ReplaceAll(strings.TrimSuffix(name, ".md"), "_", "-")
	}
	if err := doc.GenMarkdownCustom(cmd, &one, link); err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s", strings.TrimRight(one.String(), "\n")+"\n")
	for _, sub := range cmd.Commands() {
		if err := pages(w, sub); err != nil {
			return err
		}
	}
	return nil
}
