package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/api"
)

// peerChecks are the checks of a cluster: name, findings, remedy, and the text if all is well.
var peerChecks = []struct {
	name   string
	kinds  []string
	remedy string
	well   string
}{
	{
		"peers reached", []string{api.FoundUnreachable, api.FoundAlone, api.FoundFailing},
		"check the networks and firewalls between the nodes: gossip needs UDP and TCP, the peers' port TCP, both in both directions", "all members answer",
	},
	{"peers usable", []string{api.FoundUnusable}, "give all nodes the same cluster-keyring or cluster-secret, the same TLS, and releases of one protocol", "nodes have one secret and one protocol"},
	{"peers' clocks", []string{api.FoundClock}, "let the nodes keep time by NTP: certificates are valid for a time", "apart by less than a second"},
	{"peers' versions", []string{api.FoundVersion}, "finish the upgrade of the cluster", "one version"},
	{"cluster keys", []string{api.FoundKeys}, "see cluster-keyring and the cluster-tls settings", "gossip is encrypted, the peers' port has a certificate"},
}

// checkPeers asks the daemon about its cluster. It returns no check if the daemon is not in a
// cluster. A failure is a warning, since engines still get hits on this node.
func checkPeers(ctx context.Context, v *visit) []Check {
	if v.options.Admin == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	c, err := v.options.Admin.Cluster(ctx)
	var p *api.Problem
	switch {
	case errors.Is(err, api.ErrUnavailable), errors.As(err, &p) && p.Status == http.StatusNotFound:
		return nil // the check of the admin address reports it; an older daemon has no cluster
	case err != nil:
		return []Check{warn("peers", "see the daemon's log", "%v", err)}
	}
	return peersOf(&c, time.Now())
}

func peersOf(c *api.Cluster, now time.Time) (checks []Check) {
	if !c.Enabled {
		return nil
	}
	found := c.Findings(now)
	for _, k := range peerChecks {
		ours := slices.DeleteFunc(slices.Clone(found), func(f api.Finding) bool { return !slices.Contains(k.kinds, f.Kind) })
		if len(ours) == 0 {
			checks = append(checks, ok(k.name, "%s", k.well))
			continue
		}
		checks = append(checks, warn(k.name, k.remedy, "%s", someOf(ours)))
	}
	checks[0].Detail += fmt.Sprintf(" (cluster %s, %d members)", c.Name, len(c.Members))
	return checks
}

// someOf formats the first findings in one line.
func someOf(found []api.Finding) string {
	const most = 4
	text := ""
	for i, f := range found {
		switch {
		case i == most:
			return fmt.Sprintf("%s; and %d more", text, len(found)-most)
		case i > 0:
			text += "; "
		}
		if f.Member != "" {
			text += f.Member + ": "
		}
		text += f.Text
	}
	return text
}
