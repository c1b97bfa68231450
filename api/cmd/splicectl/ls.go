package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

// listing implements ls with its filters.
type listing struct {
	lister
	tenant     string
	profile    int
	prefix     string
	way        string
	connection uint64
	long       bool
}

// kind is one kind of listed object: its filters and its query.
type kind struct {
	filters []string
	columns []string
	ask     func(l *listing, ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error)
}

// kindNames are in the order of the help text.
var kindNames = []string{"segments", "checkpoints", "requests", "tenants", "leases", "pins", "pools", "connections", "profiles", "canaries"}

func kinds() map[string]kind {
	object := []string{"tenant", "profile", "long"}
	return map[string]kind{
		"segments":    {append([]string{"key-prefix"}, object...), segmentColumns, (*listing).segments},
		"checkpoints": {append([]string{"key-prefix"}, object...), checkpointColumns, (*listing).checkpoints},
		"requests":    {[]string{"tenant", "profile", "way"}, requestColumns, (*listing).requests},
		"tenants":     {[]string{"tenant"}, tenantColumns, (*listing).tenants},
		"leases":      {[]string{"tenant", "connection", "long"}, leaseColumns, (*listing).leases},
		"pins":        {[]string{"tenant", "long"}, pinColumns, (*listing).pins},
		"pools":       {nil, poolColumns, plain((*api.Client).Pools, poolView)},
		"connections": {[]string{"tenant"}, connectionColumns, (*listing).connections},
		"profiles":    {nil, profileColumns, plain((*api.Client).Profiles, profileView)},
		"canaries":    {[]string{"tenant"}, canaryColumns, (*listing).canaries},
	}
}

func lsCommand() cli.Command {
	return cli.Command{
		Name: "ls", Group: "look", Synopsis: "[flags] [" + strings.Join(kindNames, "|") + "]",
		Summary: "List segments, or things of another kind such as checkpoints, requests, tenants or leases",
		About: "With --sort, all rows are read and the first --limit of them in that order are shown. -o wide shows more\n" +
			"columns, and whole keys.",
		Examples: []string{"", "--tenant team-a --limit 20", "--sort=-bytes -n 10 -o wide", "checkpoints --json", "tenants", "requests -w",
			"leases --connection 3", "pools --members --admin http://10.0.0.1:9400"},
		Words: kindNames, Listing: true,
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var l listing
			l.flags(fs, 100)
			fs.StringVar(&l.tenant, "tenant", "", "only rows of this `tenant`")
			fs.IntVar(&l.profile, "profile", -1, "only segments, checkpoints or requests of this profile `id`")
			fs.StringVar(&l.prefix, "key-prefix", "", "only segments or checkpoints whose key begins with these hex `digits`")
			fs.StringVar(&l.way, "way", "", "only requests that were served in this `way`: "+strings.Join(ways, ", "))
			fs.Uint64Var(&l.connection, "connection", 0, "only leases of the connection with this `id`")
			fs.BoolVar(&l.long, "long", false, "print whole keys")
			return l.run
		},
	}
}

func (l *listing) run(ctx context.Context, c *cli.Call) error {
	if len(c.Args) > 1 {
		return cli.Usagef("give one kind, not %q", c.Args)
	}
	name := "segments"
	if len(c.Args) == 1 {
		name = c.Args[0]
	}
	k, ok := kinds()[name]
	if !ok {
		return cli.Usagef("cannot list %q", name)
	}
	for _, filter := range []string{"tenant", "profile", "key-prefix", "way", "connection", "long"} {
		if c.Flags.Changed(filter) && !slices.Contains(k.filters, filter) {
			return cli.Usagef("--%s is not for %s", filter, name)
		}
	}
	l.prefix = strings.ToLower(l.prefix)
	return l.lister.run(ctx, c, func(ctx context.Context, client *api.Client) (*show.Page, error) {
		page, err := k.ask(l, ctx, c, client)
		if err == nil && len(page.Rows) == 0 {
			err = l.known(ctx, client)
		}
		return page, err
	})
}

// known returns an error if a node does not have what the filters name. Without this check, the
// user would just see an empty listing.
func (l *listing) known(ctx context.Context, client *api.Client) error {
	if l.tenant != "" {
		if err := knownTenant(ctx, client, l.tenant); err != nil {
			return err
		}
	}
	if l.profile < 0 {
		return nil
	}
	_, err := profileByName(ctx, client, strconv.Itoa(l.profile))
	return err
}

// plain returns a query without filters.
func plain[T any](ask func(*api.Client, context.Context) ([]T, error), view func(*cli.Call) show.View[T]) func(*listing, context.Context, *cli.Call, *api.Client) (*show.Page, error) {
	return func(_ *listing, ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
		items, err := ask(client, ctx)
		return show.Of(items, false, view(c)), err
	}
}

func (l *listing) profileID() *uint32 {
	if l.profile < 0 {
		return nil
	}
	return new(uint32(l.profile))
}

func (l *listing) segments(ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
	q := api.SegmentQuery{Tenant: l.tenant, Profile: l.profileID(), Prefix: l.prefix, Limit: l.pageLimit()}
	items, more, err := take(client.Segments(ctx, q), l.read())
	return show.Of(items, more, segmentView(c, l.long)), err
}

func (l *listing) checkpoints(ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
	q := api.CheckpointQuery{Tenant: l.tenant, Profile: l.profileID(), Limit: l.pageLimit()}
	seq := client.Checkpoints(ctx, q)
	if l.prefix != "" { // nodes do not filter by prefix
		seq = func(yield func(api.Checkpoint, error) bool) {
			for p, err := range client.Checkpoints(ctx, q) {
				if (err != nil || strings.HasPrefix(p.Hash.String(), l.prefix)) && !yield(p, err) {
					return
				}
			}
		}
	}
	items, more, err := take(seq, l.read())
	return show.Of(items, more, checkpointView(c, l.long)), err
}

func (l *listing) requests(ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
	if l.way != "" && !slices.Contains(ways, l.way) {
		return nil, cli.Usagef("--way %q is none of %s", l.way, strings.Join(ways, ", "))
	}
	q := api.RequestQuery{Tenant: l.tenant, Profile: l.profileID(), Way: l.way, Limit: l.pageLimit()}
	items, err := client.Requests(ctx, q)
	return show.Of(items, false, requestView(c)), err
}

func (l *listing) leases(ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
	q := api.LeaseQuery{Tenant: l.tenant, Limit: l.pageLimit()}
	if c.Flags.Changed("connection") {
		q.Connection = &l.connection
	}
	items, more, err := take(client.Leases(ctx, q), l.read())
	return show.Of(items, more, leaseView(c, l.long)), err
}

func (l *listing) pins(ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
	items, err := client.Pins(ctx)
	items = slices.DeleteFunc(items, func(p api.Pin) bool { return l.tenant != "" && p.Tenant != l.tenant })
	return show.Of(items, false, pinView(c, l.long)), err
}

func (l *listing) connections(ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
	items, err := client.Connections(ctx)
	items = slices.DeleteFunc(items, func(n api.Connection) bool { return l.tenant != "" && !slices.Contains(n.Tenants, l.tenant) })
	return show.Of(items, false, connectionView(c)), err
}

func (l *listing) canaries(ctx context.Context, c *cli.Call, client *api.Client) (*show.Page, error) {
	items, err := client.Canaries(ctx)
	items = slices.DeleteFunc(items, func(r api.Canary) bool { return l.tenant != "" && r.Tenant != l.tenant })
	return show.Of(items, false, canaryView(c)), err
}

// knownTenant returns an error if a node has no tenant of that name.
func knownTenant(ctx context.Context, client *api.Client, name string) error {
	tenants, err := tenantsOf(ctx, client)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(tenants, func(t tenantRow) bool { return t.Tenant == name }) {
		return nil
	}
	return fmt.Errorf("no such tenant: %q; splicectl ls tenants lists them", name)
}

// columnsOf returns the names for --sort, for completion.
func columnsOf(command string, args []string) []string {
	switch command {
	case "ls":
		name := "segments"
		if len(args) > 0 {
			name = args[0]
		}
		return show.Names(kinds()[name].columns)
	case "usage":
		return show.Names(usageColumns)
	}
	return nil
}
