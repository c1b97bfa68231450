package daemon

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spliced-kv/spliced/daemon/journal"
	"github.com/spliced-kv/spliced/daemon/spans"
	"github.com/spliced-kv/spliced/daemon/usage"
	"github.com/spliced-kv/spliced/daemon/view"
)

// told is called for each request that an engine has reported.
func (d *Daemon) told(r *usage.Request) {
	d.view.Served(r)
	if r.Who.Fingerprint.IsTrial() {
		return
	}
	if d.spans != nil {
		d.spans.Served(r, view.WayName(r.Way), d.server.TenantName(r.Who.Tenant))
	}
	reused := r.Sources[usage.Checkpoint] + r.Sources[usage.Segment]
	unverified := ""
	if r.Unverified {
		unverified = ", unverified"
	}
	d.journal.Append(journal.Event{
		At: r.At, Kind: journal.Request, Profile: uint32(r.Who.Profile), Tokens: int(r.Tokens), Bytes: int64(min(r.Bytes, 1<<62)),
		Tenant: d.server.TenantName(r.Who.Tenant), Model: r.Who.Model, Client: r.Who.Client, Why: view.WayName(r.Way),
		Text: fmt.Sprintf("request %d: %d of %d tokens reused, some %.0f ms saved%s", r.Number, reused, r.Tokens, r.Saved, unverified),
	})
}

// openSpans starts exporting spans. Headers, such as the collector's access key, come from the
// environment, as OpenTelemetry specifies.
func (d *Daemon) openSpans() error {
	headers, err := spans.ParseHeaders(cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS"), os.Getenv("OTEL_EXPORTER_OTLP_HEADERS")))
	if err != nil {
		d.log.Warn().Err(err).Msg("spans are exported without the headers of OTEL_EXPORTER_OTLP_HEADERS")
	}
	made, err := spans.New(spans.Config{Endpoint: d.config.OTLPEndpoint, Headers: headers, Node: d.config.Node, Version: d.build.Version, Log: d.log})
	if err != nil {
		return err
	}
	made.Start()
	d.spans = made
	return nil
}

// closeSpans exports the spans that wait. If the collector does not answer, it takes DrainTimeout.
func (d *Daemon) closeSpans() {
	if d.spans == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.config.DrainTimeout)
	defer cancel()
	if err := d.spans.Close(ctx); err != nil {
		d.log.Warn().Err(err).Msg("the last spans were not exported")
	}
}
