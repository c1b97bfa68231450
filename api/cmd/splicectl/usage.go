package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

func usageCommand() cli.Command {
	return cli.Command{
		Name: "usage", Group: "look", Synopsis: cli.FlagsOnly, Listing: true,
		Summary: "Show tokens served, the token hit ratio and the time saved, by tenant and model",
		About: "HIT is the share of reused tokens among those that the engine's own cache did not have; ALL is the share of\n" +
			"the whole prompt, including the engine's cache. MISSED shows why tokens were computed. The totals survive\n" +
			"restarts if the node has a disk tier.",
		Examples: []string{"", "--tenant team-a", "--sort=-saved", "-o json"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var l lister
			var tenant string
			l.flags(fs, 0)
			fs.StringVar(&tenant, "tenant", "", "only rows of this `tenant`")
			return func(ctx context.Context, c *cli.Call) error {
				return l.run(ctx, c, func(ctx context.Context, client *api.Client) (*show.Page, error) {
					return usagePage(ctx, client, tenant)
				})
			}
		},
	}
}

func usagePage(ctx context.Context, client *api.Client, tenant string) (*show.Page, error) {
	items, err := client.Usage(ctx)
	if err != nil {
		return nil, err
	}
	if tenant != "" {
		items = slices.DeleteFunc(items, func(u api.Usage) bool { return u.Tenant != tenant })
		if len(items) == 0 {
			if err := knownTenant(ctx, client, tenant); err != nil {
				return nil, err
			}
		}
	}
	return show.Of(items, false, usageView), nil
}

var usageColumns = []string{"TENANT", "MODEL", "PROFILE", "REQUESTS", "PROMPT", "HIT", "ALL", "SAVED", "MISSED", "+ENGINE", "+PREFIX", "+REUSED", "+COMPUTED", "+SEAM", "+GUESSED", "+UNVERIFIED"}

var usageView = show.View[api.Usage]{Columns: usageColumns, Row: func(u *api.Usage) []any {
	return []any{u.Tenant, u.Model, u.Profile, show.Count(u.Requests), show.Count(u.Prompt), hits(u), allHits(u), show.LongMillis(u.Saved), missedText(u.Missed, 3),
		show.Count(u.Engine), show.Count(u.Prefix), show.Count(u.Reused), show.Count(u.Computed), show.Count(u.Seam), show.LongMillis(u.SavedGuess), show.Count(u.Unverified)}
}}

// hits returns the token hit ratio among the tokens that the engine's own cache did not have.
func hits(u *api.Usage) show.Share {
	return show.ShareOf(float64(u.Prefix+u.Reused), float64(u.Prompt)-float64(u.Engine))
}

// allHits returns the share of all prompt tokens that either the daemon or the engine's own cache
// had.
func allHits(u *api.Usage) show.Share {
	return show.ShareOf(float64(u.Engine+u.Prefix+u.Reused), float64(u.Prompt))
}

func requestHits(r *api.Request) show.Share {
	return show.ShareOf(float64(r.Prefix+r.Reused), float64(r.Prompt)-float64(r.Engine))
}

// missedText formats the main reasons of misses, those with the most tokens first.
func missedText(missed map[string]uint64, most int) string {
	names := slices.SortedFunc(maps.Keys(missed), func(a, b string) int {
		switch {
		case missed[a] > missed[b]:
			return -1
		case missed[a] < missed[b]:
			return 1
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, name := range names {
		if missed[name] == 0 {
			break
		}
		if len(parts) == most {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, fmt.Sprintf("%s %s", name, show.Count(missed[name])))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}
