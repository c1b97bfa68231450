package daemon

import (
	"fmt"

	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/daemon/view"
)

// told is called after each request that an engine told of.
func (d *Daemon) told(r *usage.Request) {
	d.view.Served(r)
	if r.Who.Fingerprint.IsTrial() {
		return
	}
	reused := r.Sources[usage.Checkpoint] + r.Sources[usage.Segment]
	d.journal.Append(journal.Event{
		At: r.At, Kind: journal.Request, Profile: uint32(r.Who.Profile), Tokens: int(r.Tokens), Bytes: int64(min(r.Bytes, 1<<62)),
		Tenant: d.server.TenantName(r.Who.Tenant), Model: r.Who.Model, Client: r.Who.Client, Why: view.WayName(r.Way),
		Text: fmt.Sprintf("request %d: %d of %d tokens reused, some %.0f ms saved", r.Number, reused, r.Tokens, r.Saved),
	})
}
