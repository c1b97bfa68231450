package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
)

type removal struct {
	target  target
	filter  api.RemovalQuery
	profile string
	all     bool
	yes     bool
}

func (r *removal) flags(fs *pflag.FlagSet) {
	r.target.flagsWith(fs, slowTimeout)
	fs.StringVar(&r.filter.Tenant, "tenant", "", "only objects of this `tenant`")
	fs.StringVar(&r.profile, "profile", "", "only objects of this profile: its `id`, or 0x and the first digits of its fingerprint")
	fs.BoolVar(&r.filter.Dry, "dry-run", false, "show what would be removed, and remove nothing")
	fs.BoolVarP(&r.yes, "yes", "y", false, "do not ask for confirmation on a terminal")
}

func rmCommand() cli.Command {
	return cli.Command{
		Name: "rm", Group: "change", Synopsis: "[flags] segments|checkpoints [KEY...]",
		Summary: "Evict segments or checkpoints, by key or by filter",
		About: "KEYs may be abbreviated to their first digits. Objects that are pinned, being filled, or extended by a checkpoint\n" +
			"that stays are kept, and their number is printed. Leased objects are not found any more, and are freed when engines\n" +
			"release them. Removing costs only time: engines recompute what they do not find.\n\n" +
			"Exit status 1: a named object does not exist, or is busy.",
		Examples: []string{"segments 9f86d081884c", "segments --tenant team-a --older-than 24h --dry-run", "checkpoints --profile 3", "segments --all -y"},
		Words:    []string{"segments", "checkpoints"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var r removal
			r.flags(fs)
			fs.StringVar(&r.filter.Prefix, "key-prefix", "", "only keys that begin with these hex `digits`")
			fs.Var((*period)(&r.filter.OlderThan), "older-than", "only objects not used for this `time`, such as 1h or 7d")
			fs.BoolVar(&r.all, "all", false, "remove all segments or all checkpoints")
			return r.run
		},
	}
}

func (r *removal) run(ctx context.Context, c *cli.Call) error {
	if len(c.Args) == 0 || c.Args[0] != "segments" && c.Args[0] != "checkpoints" {
		return cli.Usagef("want segments or checkpoints, and keys or filters")
	}
	if r.filter.OlderThan < 0 {
		return cli.Usagef("--older-than %v is negative", r.filter.OlderThan)
	}
	what, keys := c.Args[0], c.Args[1:]
	r.filter.Prefix = strings.ToLower(r.filter.Prefix)
	q := &r.filter
	narrow := q.Tenant != "" || q.Prefix != "" || q.OlderThan > 0 || r.profile != ""
	switch {
	case r.all && narrow:
		return cli.Usagef("--all excludes filters")
	case len(keys) > 0 && (narrow || r.all):
		return cli.Usagef("keys or filters, not both")
	case len(keys) == 0 && !narrow && !r.all:
		return cli.Usagef("give keys, a filter, or --all")
	}
	client, err := r.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if len(keys) > 0 {
		return r.byKey(ctx, c, client, what, keys)
	}
	if err := r.check(ctx, client); err != nil {
		return err
	}
	return r.byFilter(ctx, c, client, []string{what})
}

// check verifies that the filter names existing objects.
func (r *removal) check(ctx context.Context, client *api.Client) error {
	if r.profile != "" {
		id, err := profileByName(ctx, client, r.profile)
		if err != nil {
			return err
		}
		r.filter.Profile = &id
	}
	if r.filter.Tenant != "" {
		return knownTenant(ctx, client, r.filter.Tenant)
	}
	return nil
}

// removedKey is the document of one key.
type removedKey struct {
	Key    api.Digest `json:"key"`
	Object string     `json:"object"`
	DryRun bool       `json:"dry_run"`
	Error  string     `json:"error,omitempty"`
}

func (r *removal) byKey(ctx context.Context, c *cli.Call, client *api.Client, what string, keys []string) error {
	found := make([]api.Digest, len(keys))
	for i, digits := range keys { // all keys are resolved before the first object is removed
		key, err := r.find(ctx, client, what, strings.ToLower(digits))
		if err != nil {
			return err
		}
		found[i] = key
	}
	var failed error
	var done []removedKey
	for _, key := range found {
		one := removedKey{Key: key, Object: strings.TrimSuffix(what, "s"), DryRun: r.filter.Dry}
		var err error
		if what == "segments" {
			_, err = client.Remove(ctx, key, r.filter.Dry)
		} else {
			_, err = client.RemoveCheckpoint(ctx, api.CheckpointName{Hash: key}, r.filter.Dry)
		}
		if err != nil {
			one.Error, failed = whyKept(ctx, client, key, err), cli.ErrFailed
		}
		done = append(done, one)
	}
	if c.JSON {
		return errors.Join(failed, c.Document(map[string]any{"items": done}))
	}
	t := show.NewTable(c.Stdout)
	for _, d := range done {
		outcome := "removed"
		switch {
		case d.Error != "":
			outcome = d.Error
		case d.DryRun:
			outcome = "would be removed"
		}
		t.Row(d.Object, d.Key, outcome)
	}
	return errors.Join(failed, t.Flush())
}

// whyKept returns why an object was not removed.
func whyKept(ctx context.Context, client *api.Client, key api.Digest, err error) string {
	if errors.Is(err, api.ErrBusy) {
		pins, failed := client.Pins(ctx)
		if failed == nil && slices.ContainsFunc(pins, func(p api.Pin) bool { return p.Key == key }) {
			return "it is pinned: splicectl unpin " + shortKey(key)
		}
	}
	return err.Error()
}

// find returns the only key that begins with the given hex digits.
func (r *removal) find(ctx context.Context, client *api.Client, what, digits string) (api.Digest, error) {
	if what == "checkpoints" {
		p, err := findCheckpoint(ctx, client, digits)
		if err != nil {
			return api.Digest{}, err
		}
		return p.Hash, nil
	}
	return findSegment(ctx, client, digits)
}

// bulkRemoved is the document of a bulk removal.
type bulkRemoved struct {
	Segments    *api.Removed `json:"segments,omitempty"`
	Checkpoints *api.Removed `json:"checkpoints,omitempty"`
}

// byFilter removes the objects that match the filter. If a user can answer, it first shows what
// it would remove and asks for confirmation.
func (r *removal) byFilter(ctx context.Context, c *cli.Call, client *api.Client, what []string) error {
	if !r.filter.Dry && !r.yes && asks(c) {
		would, err := r.removeAll(ctx, client, what, true)
		if err == nil {
			err = would.print(c)
		}
		if err != nil {
			return err
		}
		if !ask(c, "Remove them?") {
			return errors.New("nothing was removed")
		}
	}
	done, err := r.removeAll(ctx, client, what, r.filter.Dry)
	if err != nil {
		return err
	}
	if c.JSON {
		return c.Document(done)
	}
	return done.print(c)
}

func (r *removal) removeAll(ctx context.Context, client *api.Client, what []string, dry bool) (out bulkRemoved, err error) {
	for _, w := range what {
		remove, into := client.RemoveSegments, &out.Segments
		if w == "checkpoints" {
			remove, into = client.RemoveCheckpoints, &out.Checkpoints
		}
		q := r.filter
		q.Dry = dry
		done, err := remove(ctx, q)
		if err != nil {
			return out, err
		}
		*into = &done
	}
	return out, nil
}

func (b *bulkRemoved) print(c *cli.Call) error {
	for _, r := range []struct {
		what string
		*api.Removed
	}{{"segments", b.Segments}, {"checkpoints", b.Checkpoints}} {
		if r.Removed == nil {
			continue
		}
		verb := "removed"
		if r.DryRun {
			verb = "would be removed"
		}
		fmt.Fprintf(c.Stdout, "%d of %d %s that match %s, %s; busy and kept: %d\n", r.Removed.Removed, r.Matched, r.what, verb, show.Bytes(r.Bytes), r.Busy)
	}
	return nil
}

func flushCommand() cli.Command {
	return cli.Command{
		Name: "flush", Group: "change", Synopsis: cli.FlagsOnly,
		Summary: "Evict all segments and checkpoints of a tenant, of a profile, or of all tenants and profiles",
		About: "Objects that are pinned, being filled, or extended by a checkpoint that stays are kept, and their number is\n" +
			"printed. Leased objects are not found any more, and are freed when engines release them. Use this command after\n" +
			"weights or kernels have changed without a change of the fingerprint.",
		Examples: []string{"--tenant team-a --dry-run", "--profile 3", "--tenant team-a --profile 0x9f86d081884c -y", "--all"},
		Setup: func(fs *pflag.FlagSet) func(context.Context, *cli.Call) error {
			var r removal
			r.flags(fs)
			fs.BoolVar(&r.all, "all", false, "remove the objects of all tenants and profiles")
			return func(ctx context.Context, c *cli.Call) error {
				switch {
				case r.filter.Tenant == "" && r.profile == "" && !r.all:
					return cli.Usagef("give --tenant, --profile or --all")
				case r.all && (r.filter.Tenant != "" || r.profile != ""):
					return cli.Usagef("--all excludes --tenant and --profile")
				}
				client, err := r.target.client()
				if err != nil {
					return err
				}
				defer client.Close()
				if err := r.check(ctx, client); err != nil {
					return err
				}
				return r.byFilter(ctx, c, client, []string{"segments", "checkpoints"})
			}
		},
	}
}

// profileByName returns the id of a registered profile, given as a number or as the first
// digits of its fingerprint.
func profileByName(ctx context.Context, client *api.Client, name string) (uint32, error) {
	digits, hex := strings.CutPrefix(strings.ToLower(name), "0x")
	if hex {
		if err := hexDigits(digits); err != nil {
			return 0, err
		}
	}
	profiles, err := client.Profiles(ctx)
	if err != nil {
		return 0, err
	}
	var found []uint32
	for i := range profiles {
		p := &profiles[i]
		if hex && strings.HasPrefix(p.Fingerprint.String(), digits) || !hex && fmt.Sprint(p.ID) == name {
			found = append(found, p.ID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return 0, api.NotFound("no engine has registered a profile %q since the start; splicectl ls profiles lists those registered", name)
	}
	return 0, fmt.Errorf("several profiles begin with %q: give more digits", name)
}
