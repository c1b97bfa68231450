package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api/cmd/cli"
)

func versionCommand() cli.Command {
	return cli.Command{
		Name: "version", Group: "self", Synopsis: cli.FlagsOnly,
		Summary:  "Print the version of this program",
		Examples: []string{"", "--json"},
		Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error {
			return func(_ context.Context, c *cli.Call) error {
				if c.JSON {
					return c.Document(map[string]string{
						"version": version, "commit": commit, "date": date,
						"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
					})
				}
				fmt.Fprintf(c.Stdout, "splicectl %s (commit %s of %s, %s %s/%s)\n",
					version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return nil
			}
		},
	}
}
