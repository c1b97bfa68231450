package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
)

// switching is profile on and profile off.
type switching struct {
	target target
	tenant string
	why    string
	dry    bool
}

func (s *switching) run(ctx context.Context, c *call) error {
	if len(c.args) != 2 {
		return usagef("want the fingerprint of a profile, or its first digits, after %q", c.args[0])
	}
	client, err := s.target.client()
	if err != nil {
		return err
	}
	defer client.Close()
	q := api.SwitchQuery{Tenant: s.tenant, Off: c.args[0] == "off", Why: s.why, Dry: s.dry}
	if q.Profile, err = findProfile(ctx, client, strings.ToLower(c.args[1])); err != nil {
		return err
	}
	done, err := client.SwitchProfile(ctx, q)
	if err != nil {
		return err
	}
	if c.json {
		return printJSON(c.stdout, done)
	}
	if done.DryRun {
		fmt.Fprintln(c.stdout, "nothing was changed; it is about")
	}
	t := newTable(c.stdout)
	canaryTable(t, done.Canaries)
	return t.flush()
}

// findProfile looks for the only profile whose fingerprint begins with digits, among
// those that were reported on and those that are registered.
func findProfile(ctx context.Context, client *api.Client, digits string) (api.Digest, error) {
	found := map[api.Digest]bool{}
	reported, err := client.Canaries(ctx)
	if err != nil {
		return api.Digest{}, err
	}
	for _, r := range reported {
		found[r.Profile] = true
	}
	registered, err := client.Profiles(ctx)
	if err != nil {
		return api.Digest{}, err
	}
	for _, p := range registered {
		found[p.Fingerprint] = true
	}
	var only *api.Digest
	for key := range found {
		if !strings.HasPrefix(key.String(), digits) {
			continue
		}
		if only != nil {
			return api.Digest{}, fmt.Errorf("several profiles begin with %q: give more digits", digits)
		}
		only = &key
	}
	if only == nil {
		return api.Digest{}, fmt.Errorf("no profile begins with %q; splicectl ls profiles lists them: %w", digits, api.ErrNotFound)
	}
	return *only, nil
}

func canaryTable(t *table, items []api.Canary) {
	now := time.Now()
	t.row("PROFILE", "SPLICING", "COMPARED", "FAILED", "WORST", "BOUND", "REPORTED", "TENANT", "MODEL", "WHY")
	for _, r := range items {
		state, worst, reported := "on", "not a number", "-"
		if r.Off {
			state = "off"
			if r.Since != nil {
				state += " for " + ageText(*r.Since, now)
			}
		}
		if r.Worst != nil {
			worst = fmt.Sprintf("%.3g", *r.Worst)
		}
		if r.Reported != nil {
			reported = ageText(*r.Reported, now) + " ago"
		}
		t.row(shortKey(r.Profile), state, r.Compared, r.Failed, worst, fmt.Sprintf("%.3g", r.Bound), reported, r.Tenant, r.Model, r.Why)
	}
}
