package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

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
