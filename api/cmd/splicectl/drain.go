package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

func drainCommand() cli.Command {
	return cli.Command{
		Name: "drain", Group: "change", Synopsis: cli.FlagsOnly,
		Summary:  "Make a node refuse new clients and fills, and report itself not ready",
		About:    "Use it before stopping a node. Engines continue without the node, and compute what it would have provided.",
		Examples: []string{"--dry-run", "-y", "--undo"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			var undo, dry, yes bool
			t.flags(fs)
			fs.BoolVar(&undo, "undo", false, "accept clients and fills again")
			fs.BoolVar(&dry, "dry-run", false, "check whether the change is possible, and change nothing")
			fs.BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation on a terminal")
			return func(ctx context.Context, c *cli.Call) error {
				client, err := t.client()
				if err != nil {
					return err
				}
				defer client.Close()
				if !undo && !dry && !yes && asks(c) && !ask(c, "Engines will find nothing on this node any more. Drain it?") {
					return errors.New("nothing was changed")
				}
				done, err := client.Drain(ctx, undo, dry)
				if err != nil {
					return err
				}
				if c.JSON {
					return c.Document(done)
				}
				return printDrained(c, &done)
			}
		},
	}
}

func printDrained(c *cli.Call, d *api.Drained) error {
	text := "The node drains"
	switch {
	case d.DryRun && d.Draining:
		text = "Nothing was changed; the node would drain"
	case d.DryRun:
		text = "Nothing was changed; the node would not drain"
	case !d.Draining:
		text = "The node does not drain"
	}
	_, err := fmt.Fprintf(c.Stdout, "%s: %d connections, with %d leases.\n", text, d.Connections, d.Leases)
	return err
}

// asks reports whether the user can be asked for confirmation: standard input is a terminal, and
// the output is not a document for programs.
func asks(c *cli.Call) bool { return !c.JSON && terminal.Is(os.Stdin) }

// ask asks a question and reports whether the answer is yes.
func ask(c *cli.Call, question string) bool {
	fmt.Fprintf(c.Stderr, "%s [y/N] ", question)
	return agreed(os.Stdin)
}

func agreed(in io.Reader) bool {
	line, _ := bufio.NewReader(io.LimitReader(in, 100)).ReadString('\n')
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}
