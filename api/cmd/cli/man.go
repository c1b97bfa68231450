package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// Man returns a hidden command that writes the manual pages of a program, for packages.
// Verbatim commands have none, since they belong to another program.
func Man(program func() *Program) Command {
	return Command{
		Name: "man", Synopsis: "DIR", Summary: "Write a manual page for each command to a directory", Hidden: true,
		Setup: func(*pflag.FlagSet) func(context.Context, *Call) error {
			return func(_ context.Context, c *Call) error {
				if len(c.Args) != 1 {
					return Usagef("want a directory")
				}
				if err := os.MkdirAll(c.Args[0], 0o755); err != nil {
					return err
				}
				p := program()
				return p.manual(p.Root(io.Discard, io.Discard), c.Args[0])
			}
		},
	}
}

// manual writes the page of a command and its subcommands.
func (p *Program) manual(cmd *cobra.Command, dir string) error {
	if cmd.HasParent() && !cmd.IsAvailableCommand() || cmd.DisableFlagParsing {
		return nil
	}
	for _, sub := range cmd.Commands() {
		if err := p.manual(sub, dir); err != nil {
			return err
		}
	}
	if p.Part && !cmd.HasParent() {
		return nil
	}
	var b bytes.Buffer
	header := &doc.GenManHeader{Title: strings.ToUpper(p.Name), Section: "1", Source: "spliced " + p.Version, Manual: "spliced"}
	if err := doc.GenMan(cmd, header, &b); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"), b.Bytes(), 0o644)
}
