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
	"github.com/spliced-kv/spliced/api/cmd/splicectl/internal/show"
)

// pinTTL is how long a pin lasts unless it is said.
const pinTTL = 10 * time.Minute

type pinFlags struct {
	target target
	ttl    time.Duration
	dry    bool
}

func pinCommand() command {
	return command{
		name: "pin", group: "change", synopsis: "[flags] KEY...",
		summary: "Keep segments or checkpoints from being evicted, for a time",
		about: "KEYs may be the first digits of one. A pin counts in its tenant's quota, and all pins together take at most\n" +
			"half a pool. Pinning again sets the time anew; splicectl ls pins lists them.",
		examples: []string{"9f86d081884c", "9f86d081884c --ttl 2h", "9f86 a3c1 --dry-run"},
		setup: func(fs *pflag.FlagSet) func(context.Context, *call) error {
			var f pinFlags
			f.target.flagsWith(fs, slowTimeout) // it may have to be read from disk
			fs.DurationVar(&f.ttl, "ttl", pinTTL, "`time` after which the pin is gone")
			fs.BoolVar(&f.dry, "dry-run", false, "say whether it could be, and pin nothing")
			return func(ctx context.Context, c *call) error {
				if f.ttl <= 0 {
					return usagef("--ttl %v is not above 0", f.ttl)
				}
				return f.each(ctx, c, f.pin)
			}
		},
	}
}

func unpinCommand() command {
	return command{
		name: "unpin", group: "change", synopsis: "[flags] KEY...",
		summary:  "Let what was pinned be evicted again",
		examples: []string{"9f86d081884c"},
		setup: func(fs *pflag.FlagSet) func(context.Context, *call) error {
			var f pinFlags
			f.target.flags(fs)
			fs.BoolVar(&f.dry, "dry-run", false, "change nothing")
			return func(ctx context.Context, c *call) error { return f.each(ctx, c, f.unpin) }
		},
	}
}

// pinned is the document of one key.
type pinned struct {
	Key    api.Digest `json:"key"`
	DryRun bool       `json:"dry_run"`
	Pins   []api.Pin  `json:"pins"` // several where several objects have the key
	Error  string     `json:"error,omitempty"`

	outcome string
}

func (f *pinFlags) each(ctx context.Context, c *call, do func(context.Context, *call, *api.Client, *pinned, string) error) error {
	if len(c.args) == 0 {
		return usagef("want keys, or the first digits of them")
	}
	client, err := f.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	var failed error
	var done []pinned
	for _, digits := range c.args {
		one := pinned{DryRun: f.dry, Pins: []api.Pin{}}
		if err := do(ctx, c, client, &one, strings.ToLower(digits)); err != nil {
			if len(c.args) == 1 {
				return err
			}
			one.Error, one.outcome, failed = err.Error(), digits+": "+err.Error(), errFailed
		}
		done = append(done, one)
	}
	if c.json {
		return errors.Join(failed, c.document(map[string]any{"items": done}))
	}
	t := show.NewTable(c.stdout)
	for _, d := range done {
		t.Row(d.outcome)
	}
	return errors.Join(failed, t.Flush())
}

func (f *pinFlags) pin(ctx context.Context, c *call, client *api.Client, one *pinned, digits string) error {
	found, err := find(ctx, client, digits)
	if err != nil {
		return err
	}
	one.Key = found.key()
	done, err := client.Pin(ctx, api.PinQuery{Key: one.Key, TTL: f.ttl, Dry: f.dry})
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
	one.outcome = fmt.Sprintf("%s %s pinned for %s, %s of tenant %s", c.keyOf(one.Key, false), verb, show.Long(f.ttl), show.Bytes(bytes), strings.Join(slices.Sorted(maps.Keys(tenants)), ", "))
	return nil
}

func (f *pinFlags) unpin(ctx context.Context, c *call, client *api.Client, one *pinned, digits string) error {
	pins, err := client.Pins(ctx)
	if err != nil {
		return err
	}
	keys := make([]api.Digest, len(pins))
	for i := range pins {
		keys[i] = pins[i].Key
	}
	one.Key, err = onlyKey(keys, digits, "pins", fmt.Errorf("nothing that begins with %q is pinned; splicectl ls pins lists them: %w", digits, api.ErrNotFound))
	if err != nil {
		return err
	}
	done, err := client.Unpin(ctx, one.Key, f.dry)
	if err != nil {
		return err
	}
	one.Pins = done.Pins
	one.outcome = c.keyOf(one.Key, false) + " is not pinned any more"
	if f.dry {
		one.outcome = c.keyOf(one.Key, false) + " would not be pinned any more"
	}
	return nil
}
