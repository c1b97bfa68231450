package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
)

// storeRemedies are the remedies for failed steps of a probe.
var storeRemedies = map[string]string{
	"list":      "check object-endpoint, object-bucket, object-credentials and object-ca, the network to the server, and the right to list the bucket (s3:ListBucket)",
	"write":     "give the credentials the right to write below the prefix (s3:PutObject), or set object-write to none",
	"overwrite": "use a server with conditional writes (If-None-Match), or expect nodes to write some objects twice",
	"read":      "give the credentials the right to read below the prefix (s3:GetObject)",
	"range":     "use a server that answers ranges",
	"delete":    "give the credentials the right to delete below the prefix (s3:DeleteObject), without which nothing old is deleted",
}

const (
	storeTimeout  = 30 * time.Second // the node takes at most 20
	maxStoreClock = 60.0             // seconds; beyond 15 minutes S3 refuses requests
)

// checkObjectStore makes the daemon test its object store. It returns no check if the daemon has
// none. A failure is a warning, since engines still get hits on the node.
func checkObjectStore(ctx context.Context, v *visit) []Check {
	if v.options.Admin == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	p, err := v.options.Admin.ProbeObjectStore(ctx)
	var told *api.Problem
	switch {
	case errors.Is(err, api.ErrUnavailable), errors.As(err, &told) && told.Status == http.StatusNotFound:
		return nil // other checks report it, as in checkPeers
	case errors.As(err, &told) && (told.Status == http.StatusUnauthorized || told.Status == http.StatusForbidden):
		return []Check{warn("object store", "call the admin socket, or give a token", "it was not tested: %v", err)}
	case err != nil:
		return []Check{warn("object store", "see the daemon's log", "%v", err)}
	}
	return storeOf(&p)
}

func storeOf(p *api.ObjectProbe) []Check {
	if !p.Enabled {
		return nil
	}
	at := fmt.Sprintf("%s in %s", p.Bucket, p.Endpoint)
	var did []string
	var checks []Check
	for _, step := range p.Steps {
		if step.Error != "" {
			checks = append(checks, warn("object store", storeRemedies[step.Name], "%s: %s fails: %s", at, step.Name, step.Error))
			continue
		}
		did = append(did, fmt.Sprintf("%s %.0f ms", step.Name, step.Seconds*1e3))
	}
	if len(checks) == 0 {
		checks = append(checks, ok("object store", "%s: %s", at, strings.Join(did, ", ")))
	}
	if math.Abs(p.ClockAhead) > maxStoreClock {
		checks = append(checks, warn("object store's clock", "let node and server keep time by NTP: beyond 15 minutes requests are refused",
			"it is %.0f s ahead of the node's", p.ClockAhead))
	}
	return checks
}
