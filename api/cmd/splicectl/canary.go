package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/api/cmd/cli"
	"github.com/spliced-kv/spliced/api/cmd/cli/show"
	"github.com/spliced-kv/spliced/api/cmd/cli/terminal"
)

// switching implements profile on and profile off.
type switching struct {
	target target
	tenant string
	why    string
	dry    bool
}

func (s *switching) run(ctx context.Context, c *cli.Call) error {
	if len(c.Args) != 2 {
		return cli.Usagef("want the fingerprint of a profile, or its first digits, after %q", c.Args[0])
	}
	client, err := s.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	q := api.SwitchQuery{Tenant: s.tenant, Off: c.Args[0] == "off", Why: s.why, Dry: s.dry}
	if q.Profile, err = findProfile(ctx, client, strings.ToLower(c.Args[1])); err != nil {
		return err
	}
	done, err := client.SwitchProfile(ctx, q)
	if err != nil {
		return err
	}
	if c.JSON {
		return c.Document(done)
	}
	if done.DryRun {
		fmt.Fprintln(c.Stdout, "nothing was changed; it is about")
	}
	if len(done.Canaries) == 0 { // a profile has no row before its first report or switch
		whose := "all tenants"
		if q.Tenant != "" {
			whose = "tenant " + terminal.Line(q.Tenant)
		}
		_, err := fmt.Fprintf(c.Stdout, "profile %s of %s, on which no engine has reported yet.\n", shortKey(q.Profile), whose)
		return err
	}
	return c.Page(show.Of(done.Canaries, false, canaryView(c)))
}

// findProfile returns the fingerprint that begins with the given hex digits, among those of
// registered profiles and of profiles with reports. A whole fingerprint may also be of a profile
// that only objects on disk have. It returns an error if none or several begin with the digits.
func findProfile(ctx context.Context, client *api.Client, digits string) (api.Digest, error) {
	var whole api.Digest
	if whole.UnmarshalText([]byte(digits)) == nil {
		return whole, nil
	}
	var keys []api.Digest
	reported, err := client.Canaries(ctx)
	if err != nil {
		return api.Digest{}, err
	}
	for i := range reported {
		keys = append(keys, reported[i].Profile)
	}
	registered, err := client.Profiles(ctx)
	if err != nil {
		return api.Digest{}, err
	}
	for i := range registered {
		keys = append(keys, registered[i].Fingerprint)
	}
	return onlyKey(keys, digits, "profiles", api.NotFound("no engine has registered a profile that begins with %q since the start; splicectl ls profiles lists those registered. For one that only objects on disk have, give the whole fingerprint", digits))
}
