package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/contexts"
)

func contextCommand() cli.Command {
	return cli.Command{
		Name: "context", Group: "self",
		Summary: "Name daemons, to select one with --context or all with --all-contexts",
		About: "The names are kept in spliced/contexts.yaml in the user's configuration directory, or in the file that\n" +
			contexts.Environment + " names. The first of these selects the daemon to ask: --admin, --context,\n" +
			"SPLICED_ADMIN_SOCKET, the context in use, the socket of the daemon on this machine.",
		Examples: []string{"add prod-1 http://10.0.0.1:9400 --token-file ~/.spliced-token", "use prod-1", "ls", "rm prod-1"},
		Subs: []cli.Command{
			{
				Name: "ls", Synopsis: cli.FlagsOnly, Summary: "List the names of daemons", Examples: []string{"", "-o json"}, Listing: true,
				Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error { return listContexts },
			},
			{
				Name: "add", Synopsis: "[flags] NAME ADDRESS", Summary: "Add a name for a daemon, or change its address",
				Examples: []string{"local /run/spliced/admin/admin.sock", "prod-1 http://10.0.0.1:9400 --token-file token"},
				Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
					var token string
					fs.StringVar(&token, "token-file", "", "`file` with the bearer token for HTTP")
					return func(_ context.Context, c *cli.Call) error { return addContext(c, token) }
				},
			},
			{
				Name: "use", Synopsis: "[flags] NAME", Summary: "Select the daemon that commands ask by default", Examples: []string{"prod-1"},
				Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error { return useContext },
			},
			{
				Name: "rm", Synopsis: "[flags] NAME", Summary: "Remove the name of a daemon", Examples: []string{"prod-1"},
				Setup: func(*pflag.FlagSet) func(context.Context, *cli.Call) error { return removeContext },
			},
		},
	}
}

// contextNames returns the names for completion; none if they cannot be read.
func contextNames() []string {
	f, err := contexts.Load()
	if err != nil {
		return nil
	}
	var names []string
	for _, c := range f.Contexts {
		names = append(names, c.Name)
	}
	return names
}

func listContexts(_ context.Context, c *cli.Call) error {
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	return c.Page(show.Of(f.Contexts, false, show.View[contexts.Context]{
		Columns: []string{"NAME", "IN USE", "ADDRESS", "TOKEN FILE"},
		Row: func(n *contexts.Context) []any {
			inUse, token := "", "-"
			if n.Name == f.Current {
				inUse = "*"
			}
			if n.TokenFile != "" {
				token = n.TokenFile
			}
			return []any{n.Name, inUse, n.Admin, token}
		},
	}))
}

func addContext(c *cli.Call, token string) error {
	if len(c.Args) != 2 {
		return cli.Usagef("want a name and an address, got %q", c.Args)
	}
	n := contexts.Context{Name: c.Args[0], Admin: c.Args[1]}
	var err error
	if token != "" {
		if n.TokenFile, err = filepath.Abs(token); err != nil {
			return err
		}
	}
	t := target{timeout: requestTimeout}
	client, err := t.clientOf(n.Admin, n.TokenFile)
	if errors.Is(err, api.ErrInvalid) {
		return cli.UsageError{Text: err.Error()}
	}
	if err != nil {
		return err
	}
	client.Close()
	// Make the path independent of the working directory.
	if path, ok := socketPath(n.Admin); ok {
		if n.Admin, err = filepath.Abs(path); err != nil {
			return err
		}
	}
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	f.Put(n)
	return changed(c, f, n.Name, "is "+n.Admin)
}

func useContext(_ context.Context, c *cli.Call) error {
	if len(c.Args) != 1 {
		return cli.Usagef("want one name, got %q", c.Args)
	}
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	n, ok := f.Find(c.Args[0])
	if !ok {
		return api.NotFound("no context %q; splicectl context ls lists them", c.Args[0])
	}
	f.Current = n.Name
	return changed(c, f, n.Name, "is asked where no other one is named")
}

func removeContext(_ context.Context, c *cli.Call) error {
	if len(c.Args) != 1 {
		return cli.Usagef("want one name, got %q", c.Args)
	}
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	if !f.Remove(c.Args[0]) {
		return api.NotFound("no context %q; splicectl context ls lists them", c.Args[0])
	}
	return changed(c, f, c.Args[0], "is forgotten")
}

// changed saves the contexts, and reports the change.
func changed(c *cli.Call, f *contexts.File, name, what string) error {
	if err := f.Save(); err != nil {
		return err
	}
	if c.JSON {
		return c.Document(map[string]any{"name": name, "current": f.Current})
	}
	_, err := fmt.Fprintf(c.Stdout, "%s %s\n", terminal.Line(name), terminal.Line(what))
	return err
}
