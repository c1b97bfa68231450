package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/contexts"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/show"
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/terminal"
)

func contextCommand() command {
	return command{
		name: "context", group: "self",
		summary: "Give daemons names, to ask one by --context or all by --all-contexts",
		about: "They are kept in spliced/contexts.yaml among the user's settings, or in the file that " + contexts.Environment + " names.\n" +
			"What names a node comes in this order: --admin, --context, SPLICED_ADMIN_SOCKET, the context in use, the\n" +
			"socket of the daemon on this machine.",
		examples: []string{"add prod-1 http://10.0.0.1:9400 --token-file ~/.spliced-token", "use prod-1", "ls", "rm prod-1"},
		subs: []command{
			{
				name: "ls", synopsis: flagsOnly, summary: "List the names", examples: []string{"", "-o json"}, listing: true,
				setup: func(*pflag.FlagSet) func(context.Context, *call) error { return listContexts },
			},
			{
				name: "add", synopsis: "[flags] NAME ADDRESS", summary: "Add a name, or set it anew",
				examples: []string{"local /run/spliced/admin/admin.sock", "prod-1 http://10.0.0.1:9400 --token-file token"},
				setup: func(fs *pflag.FlagSet) func(context.Context, *call) error {
					var token string
					fs.StringVar(&token, "token-file", "", "`file` with the bearer token, over HTTP")
					return func(_ context.Context, c *call) error { return addContext(c, token) }
				},
			},
			{
				name: "use", synopsis: "[flags] NAME", summary: "Ask the daemon of this name where no other one is named", examples: []string{"prod-1"},
				setup: func(*pflag.FlagSet) func(context.Context, *call) error { return useContext },
			},
			{
				name: "rm", synopsis: "[flags] NAME", summary: "Forget a name", examples: []string{"prod-1"},
				setup: func(*pflag.FlagSet) func(context.Context, *call) error { return removeContext },
			},
		},
	}
}

// contextNames are for completion: none where they cannot be read.
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

func listContexts(_ context.Context, c *call) error {
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	return c.page(show.Of(f.Contexts, false, show.View[contexts.Context]{
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

func addContext(c *call, token string) error {
	if len(c.args) != 2 {
		return usagef("want a name and an address, got %q", c.args)
	}
	n := contexts.Context{Name: c.args[0], Admin: c.args[1]}
	var err error
	if token != "" {
		if n.TokenFile, err = filepath.Abs(token); err != nil {
			return err
		}
	}
	// A path means the same from wherever it is used.
	if path := strings.TrimPrefix(n.Admin, "unix:"); !strings.Contains(path, "://") && path != "" {
		if n.Admin, err = filepath.Abs(path); err != nil {
			return err
		}
	}
	t := target{timeout: requestTimeout}
	client, err := t.clientOf(n.Admin, n.TokenFile)
	if err != nil {
		return err
	}
	client.Close()
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	f.Put(n)
	return changed(c, f, n.Name, "is "+n.Admin)
}

func useContext(_ context.Context, c *call) error {
	if len(c.args) != 1 {
		return usagef("want one name, got %q", c.args)
	}
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	n, ok := f.Find(c.args[0])
	if !ok {
		return fmt.Errorf("no context %q; splicectl context ls lists them: %w", c.args[0], api.ErrNotFound)
	}
	f.Current = n.Name
	return changed(c, f, n.Name, "is asked where no other one is named")
}

func removeContext(_ context.Context, c *call) error {
	if len(c.args) != 1 {
		return usagef("want one name, got %q", c.args)
	}
	f, err := contexts.Load()
	if err != nil {
		return err
	}
	if !f.Remove(c.args[0]) {
		return fmt.Errorf("no context %q; splicectl context ls lists them: %w", c.args[0], api.ErrNotFound)
	}
	return changed(c, f, c.args[0], "is forgotten")
}

// changed keeps what was changed, and says so.
func changed(c *call, f *contexts.File, name, what string) error {
	if err := f.Save(); err != nil {
		return err
	}
	if c.json {
		return c.document(map[string]any{"name": name, "current": f.Current})
	}
	_, err := fmt.Fprintf(c.stdout, "%s %s\n", terminal.Line(name), terminal.Line(what))
	return err
}
