package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

func configCommand() cli.Command {
	return cli.Command{
		Name: "config", Group: "change",
		Summary: "Show a node's configuration, and change settings while the node runs",
		About: "Get shows the settings, without secrets. Set changes log_level, budgets, quotas and canary_share until the node\n" +
			"restarts; after that its flags and file apply again. Reload makes it reread the files of keys and tokens.",
		Examples: []string{"get", "get log_level", "set log_level=debug", "set quotas.team-a.quota_bytes=10GiB --dry-run", "reload"},
		Subs:     []cli.Command{configGetCommand(), configSetCommand(), configReloadCommand()},
	}
}

func configGetCommand() cli.Command {
	return cli.Command{
		Name: "get", Synopsis: "[flags] [NAME]",
		Summary:  "Show all settings or one",
		Examples: []string{"", "log_level", "quotas.team-a", "-o yaml"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			t.flags(fs)
			return func(ctx context.Context, c *cli.Call) error {
				if len(c.Args) > 1 {
					return cli.Usagef("one setting at a time, not %q", c.Args)
				}
				client, err := t.client()
				if err != nil {
					return err
				}
				defer client.Close()
				set, _, err := client.Config(ctx)
				if err != nil {
					return err
				}
				return printConfig(c, &set, c.Args)
			}
		},
	}
}

// printConfig prints all settings, or the named one.
func printConfig(c *cli.Call, config *api.Config, name []string) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	var set any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // a float64 cannot represent the bytes of large pools
	if err := d.Decode(&set); err != nil {
		return err
	}
	if len(name) == 1 {
		for _, key := range settingPath(name[0]) {
			object, ok := set.(map[string]any)
			if ok {
				set, ok = object[key]
			}
			if !ok {
				hint := "splicectl config get lists them"
				if start := strings.ReplaceAll(name[0], "_", "-"); config.Settings[start] != "" {
					hint = "did you mean settings." + start + "?"
				}
				return fmt.Errorf("unknown setting %q; %s", name[0], hint)
			}
		}
	}
	if c.JSON {
		return c.Document(set)
	}
	if _, object := set.(map[string]any); !object {
		t := show.NewTable(c.Stdout)
		t.Row(settingText(strings.Join(name, ""), set))
		return t.Flush()
	}
	t := show.NewTable(c.Stdout, "SETTING", "VALUE")
	settingRows(t, "", set)
	return t.Flush()
}

func settingRows(t *show.Table, name string, value any) {
	object, ok := value.(map[string]any)
	switch {
	case value == nil:
		return
	case !ok:
		t.Row(name, settingText(name, value))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		full := key
		if name != "" {
			full = name + "." + key
		}
		settingRows(t, full, object[key])
	}
}

func settingText(name string, value any) string {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil && strings.HasSuffix(name, "_bytes") && n >= 1024 {
			return fmt.Sprintf("%d (%s)", n, show.Bytes(n))
		}
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = settingText("", v[i])
		}
		return strings.Join(parts, ", ")
	case map[string]any:
		text, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	return fmt.Sprint(value)
}

func configSetCommand() cli.Command {
	return cli.Command{
		Name: "set", Synopsis: "[flags] NAME=VALUE...",
		Summary: "Change settings while the node runs",
		About: "Names of nested settings have dots, as in quotas.team-a.quota_bytes. Values are numbers, words, sizes such as 10GiB for\n" +
			"names that end in _bytes, and null, which removes a setting. Either all settings change or none; none change if\n" +
			"the configuration was changed by someone else meanwhile.",
		Examples: []string{"log_level=debug", "quotas.team-a.quota_bytes=10GiB quotas.team-b.quota_bytes=0", "public_bytes=300GB --dry-run"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			var dry bool
			t.flags(fs)
			fs.BoolVar(&dry, "dry-run", false, "show the new settings, and change nothing")
			return func(ctx context.Context, c *cli.Call) error { return configSet(ctx, c, &t, dry) }
		},
	}
}

func configSet(ctx context.Context, c *cli.Call, t *target, dry bool) error {
	patch, err := patchOf(c.Args)
	if err != nil {
		return err
	}
	client, err := t.client()
	if err != nil {
		return err
	}
	defer client.Close()
	_, version, err := client.Config(ctx)
	if err != nil {
		return err
	}
	set, err := client.ChangeConfig(ctx, version, patch, dry)
	if err != nil {
		return err
	}
	if !c.JSON {
		if dry {
			fmt.Fprintln(c.Stdout, "nothing was changed; it would be")
		}
		set.Settings = nil // settings of the start cannot change
	}
	return printConfig(c, &set, nil)
}

// patchOf converts NAME=VALUE to a merge patch.
func patchOf(args []string) (json.RawMessage, error) {
	if len(args) == 0 {
		return nil, cli.Usagef("want NAME=VALUE")
	}
	patch := map[string]any{}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		path := settingPath(name)
		if !ok {
			return nil, cli.Usagef("%s has no value: want %s=VALUE", name, name)
		}
		if slices.Contains(path, "") {
			return nil, cli.Usagef("%q is not NAME=VALUE", arg)
		}
		value, err := settingValue(name, text)
		if err != nil {
			return nil, err
		}
		at := patch
		for _, key := range path[:len(path)-1] {
			next, ok := at[key].(map[string]any)
			if !ok {
				if _, twice := at[key]; twice {
					return nil, cli.Usagef("%q and something inside of it are both set", name)
				}
				next = map[string]any{}
				at[key] = next
			}
			at = next
		}
		last := path[len(path)-1]
		if _, twice := at[last]; twice {
			return nil, cli.Usagef("%q is set twice", name)
		}
		at[last] = value
	}
	return json.Marshal(patch)
}

// settingPath splits a name at its dots. The name of a tenant may contain dots, too. So all parts
// after "quotas." are the tenant's name, except a last part that ends with "_bytes".
func settingPath(name string) []string {
	of, rest, below := strings.Cut(name, ".")
	if !below || of != "quotas" {
		return strings.Split(name, ".")
	}
	at := strings.LastIndexByte(rest, '.')
	if at < 0 || !strings.HasSuffix(rest, "_bytes") {
		return []string{of, rest}
	}
	return []string{of, rest[:at], rest[at+1:]}
}

func settingValue(name, text string) (any, error) {
	if strings.HasSuffix(name, "_bytes") && text != "null" {
		n, err := sizeOf(text)
		if err != nil {
			return nil, cli.Usagef("%s: %v", name, err)
		}
		return n, nil
	}
	if !json.Valid([]byte(text)) || strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[") {
		return text, nil
	}
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	err := d.Decode(&v)
	return v, err
}

// sizeOf parses 10GiB, 300GB or plain bytes.
func sizeOf(text string) (int64, error) {
	bytes, ok := cli.Bytes(text)
	if !ok {
		return 0, fmt.Errorf("%q is not a size such as 10GiB or 300GB", text)
	}
	return int64(bytes), nil
}

func configReloadCommand() cli.Command {
	return cli.Command{
		Name: "reload", Synopsis: cli.FlagsOnly,
		Summary:  "Make the node reread the files of keys and tokens",
		Examples: []string{"", "--dry-run"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var t target
			var dry bool
			t.flags(fs)
			fs.BoolVar(&dry, "dry-run", false, "read and check the files, but keep using the old keys and tokens")
			return func(ctx context.Context, c *cli.Call) error {
				client, err := t.client()
				if err != nil {
					return err
				}
				defer client.Close()
				done, err := client.Reload(ctx, dry)
				if err != nil {
					return err
				}
				if c.JSON {
					return c.Document(done)
				}
				return printReloaded(c, &done)
			}
		},
	}
}

func printReloaded(c *cli.Call, r *api.Reloaded) error {
	if len(r.Read) == 0 {
		_, err := fmt.Fprintln(c.Stdout, "No setting names a file that could be read again.")
		return err
	}
	t := show.NewTable(c.Stdout, "READ FROM ITS FILE", "")
	for _, name := range r.Read {
		what := "as before"
		switch changed := slices.Contains(r.Changed, name); {
		case changed && r.DryRun:
			what = "would change"
		case changed:
			what = "changed"
		}
		t.Row(name, what)
	}
	return t.Flush()
}
