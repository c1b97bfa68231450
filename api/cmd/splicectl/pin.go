package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

// pinTTL is the default duration of a pin.
const pinTTL = 10 * time.Minute

type pinFlags struct {
	target target
	ttl    period
	dry    bool
}

func pinCommand() cli.Command {
	return cli.Command{
		Name: "pin", Group: "change", Synopsis: "[flags] KEY...",
		Summary: "Keep segments or checkpoints from being evicted, for a time",
		About: "KEYs may be abbreviated to their first digits. A pin counts towards its tenant's quota, and all pins together\n" +
			"take at most half a pool. Pinning again resets the time; splicectl ls pins lists them.",
		Examples: []string{"9f86d081884c", "9f86d081884c --ttl 2h", "9f86 a3c1 --dry-run"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f pinFlags
			f.target.flagsWith(fs, slowTimeout) // it may have to be read from disk
			f.ttl = period(pinTTL)
			fs.Var(&f.ttl, "ttl", "`time` after which the pin ends, such as 10m or 7d; at most 7d")
			fs.BoolVar(&f.dry, "dry-run", false, "check whether the objects can be pinned, and pin nothing")
			return func(ctx context.Context, c *cli.Call) error {
				if f.ttl <= 0 {
					return cli.Usagef("--ttl %v is not above 0", &f.ttl)
				}
				return f.each(ctx, c, f.pin)
			}
		},
	}
}

func unpinCommand() cli.Command {
	return cli.Command{
		Name: "unpin", Group: "change", Synopsis: "[flags] KEY...",
		Summary:  "Unpin segments or checkpoints, so that they can be evicted",
		Examples: []string{"9f86d081884c"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var f pinFlags
			f.target.flags(fs)
			fs.BoolVar(&f.dry, "dry-run", false, "check which objects would be unpinned, and change nothing")
			return func(ctx context.Context, c *cli.Call) error { return f.each(ctx, c, f.unpin) }
		},
	}
}

// pinned is the document of one key.
type pinned struct {
	Key    api.Digest `json:"key"`
	DryRun bool       `json:"dry_run"`
	Pins   []api.Pin  `json:"pins"` // several if several objects have the key
	Error  string     `json:"error,omitempty"`

	outcome string
}

// period is a flag whose value is a time, also in days.
type period time.Duration

func (p *period) String() string {
	if *p == 0 {
		return "0" // which help texts do not show as a default
	}
	return time.Duration(*p).String()
}

// Type returns the name of a value in help texts.
func (p *period) Type() string { return "duration" }

// Set parses a value.
func (p *period) Set(text string) error {
	d, err := api.ParsePeriod(text)
	*p = period(d)
	return err
}

func (f *pinFlags) each(ctx context.Context, c *cli.Call, do func(context.Context, *cli.Call, *api.Client, *pinned, string) error) error {
	if len(c.Args) == 0 {
		return cli.Usagef("want keys, or the first digits of them")
	}
	client, err := f.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	var failed error
	var done []pinned
	for _, digits := range c.Args {
		one := pinned{DryRun: f.dry, Pins: []api.Pin{}}
		if err := do(ctx, c, client, &one, strings.ToLower(digits)); err != nil {
			if len(c.Args) == 1 {
				return err
			}
			one.Error, one.outcome, failed = err.Error(), digits+": "+err.Error(), cli.ErrFailed
		}
		done = append(done, one)
	}
	if c.JSON {
		return errors.Join(failed, c.Document(map[string]any{"items": done}))
	}
	t := show.NewTable(c.Stdout)
	for _, d := range done {
		t.Row(d.outcome)
	}
	return errors.Join(failed, t.Flush())
}

func (f *pinFlags) pin(ctx context.Context, c *cli.Call, client *api.Client, one *pinned, digits string) error {
	found, err := find(ctx, client, digits)
	if err != nil {
		return err
	}
	one.Key = found.key()
	done, err := client.Pin(ctx, api.PinQuery{Key: one.Key, TTL: time.Duration(f.ttl), Dry: f.dry})
	if err != nil {
		return err
	}
	one.Pins = done.Pins
	var bytes int64
	tenants := map[string]bool{}
	for _, p := range done.Pins {
		bytes += p.Bytes
		tenants[p.Tenant] = true
	}
	verb := "is"
	if f.dry {
		verb = "could be"
	}
	one.outcome = fmt.Sprintf("%s %s pinned for %s, %s of tenant %s", keyOf(c, one.Key, false), verb, show.Long(time.Duration(f.ttl)), show.Bytes(bytes), strings.Join(slices.Sorted(maps.Keys(tenants)), ", "))
	return nil
}

func (f *pinFlags) unpin(ctx context.Context, c *cli.Call, client *api.Client, one *pinned, digits string) error {
	pins, err := client.Pins(ctx)
	if err != nil {
		return err
	}
	keys := make([]api.Digest, len(pins))
	for i := range pins {
		keys[i] = pins[i].Key
	}
	one.Key, err = onlyKey(keys, digits, "pins", api.NotFound("no pinned object begins with %q; splicectl ls pins lists them", digits))
	if err != nil {
		return err
	}
	done, err := client.Unpin(ctx, one.Key, f.dry)
	if err != nil {
		return err
	}
	one.Pins = done.Pins
	one.outcome = keyOf(c, one.Key, false) + " is not pinned any more"
	if f.dry {
		one.outcome = keyOf(c, one.Key, false) + " would not be pinned any more"
	}
	return nil
}
