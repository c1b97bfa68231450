package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/pflag"
)

func versionCommand() command {
	return command{
		name: "version", group: "self", synopsis: flagsOnly,
		summary:  "Print what this program was built from",
		examples: []string{"", "--json"},
		setup: func(*pflag.FlagSet) func(context.Context, *call) error {
			return func(_ context.Context, c *call) error {
				if c.json {
					return c.document(map[string]string{
						"version": version, "commit": commit, "date": date,
						"go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
					})
				}
				fmt.Fprintf(c.stdout, "splicectl %s (commit %s of %s, %s %s/%s)\n",
					version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
				return nil
			}
		},
	}
}
