package daemon

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/gpuipc/gpuipctest"
	"github.com/spliced-kv/spliced/policy/profile"
)

// withAdmin is a daemon with both admin listeners.
func withAdmin(t *testing.T, device gpuipc.Device) *running {
	t.Helper()
	c := testConfig(t)
	c.AdminSocket, c.HTTP = "", "127.0.0.1:0"
	return startDaemon(t, c, device)
}

func TestPeopleSeeWhatIsHeld(t *testing.T) {
	r := withAdmin(t, nil)
	p := testProfile(1)
	c := attach(t, r.Socket(), wire.TenantName{}, wire.TenantName{Name: "guarded", Token: "open sesame"})
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(d)
	lease := c.lease(d)
	c.keep(p, p.PrefixHashes(nil, 16, d.tokens, []int{64})[0], 64, wire.AcceptExact)
	pending := newDocument(p, nil, 2, 64, profile.RoleMid)
	if _, code := c.reserve(pending, 0); code != wire.OK {
		t.Fatal(code)
	}

	ctx := context.Background()
	tcp, err := api.NewClient("http://"+r.AdminAddr().String(), "")
	must(t, err)
	defer tcp.Close()
	trusted, err := api.NewClient("unix:"+api.SocketBeside(r.Socket()), "")
	must(t, err)
	defer trusted.Close()

	status, err := tcp.Status(ctx)
	if err != nil || !status.Ready || !status.Alive || status.BootEpoch != r.epoch || status.Socket != r.Socket() || len(status.Checks) == 0 {
		t.Errorf("status %+v, %v", status, err)
	}
	profiles, err := tcp.Profiles(ctx)
	if err != nil || len(profiles) != 1 || profiles[0].Segments != 1 || profiles[0].Checkpoints != 1 || profiles[0].Engines[0] != "raw test" ||
		profiles[0].RowBytes != 2*tokenBytes || profiles[0].StateBytes != p.SegmentLayout(0).Bytes {
		t.Errorf("profiles %+v, %v", profiles, err)
	}
	conns, err := tcp.Connections(ctx)
	if err != nil || len(conns) != 1 || conns[0].Client != "raw" || conns[0].Leases != 1 || conns[0].Reservations != 1 ||
		strings.Join(conns[0].Tenants, " ") != "default guarded" || conns[0].StagingBytes != int64(2*settings.MiB) || strings.Join(conns[0].Engines, ",") != "raw test" {
		t.Errorf("connections %+v, %v", conns, err)
	}
	pools, err := tcp.Pools(ctx)
	if err != nil || len(pools) != 2 || pools[0].Tier != "dram" || pools[0].LeasedBytes == 0 || pools[0].PendingBytes == 0 || len(pools[0].Tenants) != 2 {
		t.Errorf("pools %+v, %v", pools, err)
	}
	states := map[api.Digest]string{}
	for s, err := range tcp.Segments(ctx, api.SegmentQuery{Tenant: "default"}) {
		must(t, err)
		states[s.Key] = s.State + " " + s.Role + " " + s.Publisher
	}
	if len(states) != 2 || states[api.Digest(d.key)] != "published first raw" || states[api.Digest(pending.key)] != "pending mid raw" {
		t.Errorf("segments %v", states)
	}
	for _, none := range []api.SegmentQuery{{Tenant: "guarded"}, {Tenant: "nobody"}, {Profile: new(uint32)}} {
		for s := range tcp.Segments(ctx, none) {
			t.Errorf("%+v answers %v", none, s.Key)
		}
	}
	detail, err := tcp.Segment(ctx, api.Digest(d.key))
	if err != nil || len(detail.Parts) != len(d.layout.Parts) || detail.Parts[1].Kind != "s" || detail.Parts[1].DType != "f32" || detail.Extents < 1 {
		t.Errorf("segment %+v, %v", detail, err)
	}
	checkpoints := 0
	for cp, err := range tcp.Checkpoints(ctx, api.CheckpointQuery{}) {
		if err != nil || cp.Kind != "exact" || cp.Tokens != 64 || cp.Parent != nil {
			t.Errorf("checkpoint %+v, %v", cp, err)
		}
		checkpoints++
	}
	if checkpoints != 1 {
		t.Errorf("%d checkpoints", checkpoints)
	}

	// Mutations: on the socket of the owner only, and not while it is filled.
	if _, err := tcp.Remove(ctx, api.Digest(d.key), false); err == nil {
		t.Error("removed over TCP without a token")
	}
	if _, err := trusted.Remove(ctx, api.Digest(pending.key), false); err == nil {
		t.Error("removed while it is filled")
	}
	if _, err := trusted.Remove(ctx, api.Digest(d.key), false); err != nil {
		t.Error(err)
	}
	if m := c.match(d.key); m.Status[0] != wire.StatusMiss || m.Reason[0] != wire.ReasonRemoved {
		t.Errorf("after removal: %s", told(m))
	}
	if _, err := trusted.Segment(ctx, api.Digest(d.key)); err == nil {
		t.Error("a removed segment is still shown")
	}
	c.release(lease)
	counters, err := tcp.Counters(ctx)
	if err != nil || len(counters) < 20 {
		t.Errorf("%d counters, %v", len(counters), err)
	}
	c.close()
	r.atRest()
}

func TestMetricsAreNamedAsPrometheusWants(t *testing.T) {
	r := withAdmin(t, nil)
	p := testProfile(1)
	c := attach(t, r.Socket())
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.match(d.key)
	c.publish(d)
	c.match(d.key)
	r.wantMetrics(t,
		`spliced_lookup_tokens_total{result="dram"} 64`,
		`spliced_misses_total{reason="unknown"} 1`,
		`spliced_requests_total{code="ok",op="match"} 2`,
		`spliced_request_duration_seconds_count{op="match"} 2`,
		`spliced_engine_sessions 1`,
		`spliced_tier_capacity_bytes{pool="public",tier="dram"} 8.388608e+06`,
		`spliced_build_info{commit="",version="test"} 1`,
	)
}

// wantMetrics looks for problems of metrics' names, and for some lines.
func (r *running) wantMetrics(t *testing.T, lines ...string) {
	t.Helper()
	families, err := r.registry.Gather()
	must(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	must(t, err)
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	for _, line := range lines { // a request is counted once its answer is sent
		eventually(t, "there is a line "+line, func() bool { return strings.Contains(r.metricsText(t), line+"\n") })
	}
}

// A server that asks for protobuf gets native histograms, one that asks for OpenMetrics gets
// that, and all others the classic text.
func TestNativeHistogramsGoOutToWhoAsksForThem(t *testing.T) {
	r := withAdmin(t, nil)
	c := attach(t, r.Socket())
	p := testProfile(1)
	c.register(p)
	for i := range 3 {
		c.match(newDocument(p, nil, uint64(i), 64, profile.RoleFirst).key)
	}
	const protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	get := func(accept string) *http.Response {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.AdminAddr().String()+"/metrics", nil)
		must(t, err)
		q.Header.Set("Accept", accept)
		answer, err := http.DefaultClient.Do(q)
		must(t, err)
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	native := func() map[string]*dto.Histogram {
		answer := get(protobuf)
		found := map[string]*dto.Histogram{}
		for d := expfmt.NewDecoder(answer.Body, expfmt.ResponseFormat(answer.Header)); ; {
			var f dto.MetricFamily
			if err := d.Decode(&f); errors.Is(err, io.EOF) {
				return found
			} else if err != nil {
				t.Fatal(err)
			}
			for _, m := range f.Metric {
				if m.Histogram != nil && len(m.Histogram.PositiveSpan) > 0 {
					found[f.GetName()] = m.Histogram
				}
			}
		}
	}
	eventually(t, "lookups have native buckets under both names", func() bool {
		found := native()
		return found["spliced_lookup_duration_seconds"].GetSampleCount() == 3 && len(found["spliced_lookup_duration_seconds"].GetBucket()) > 10 &&
			found["spliced_request_duration_seconds"] != nil
	})
	for accept, want := range map[string]string{"application/openmetrics-text;version=1.0.0": "application/openmetrics-text", "text/plain": "text/plain"} {
		answer := get(accept)
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		if media := answer.Header.Get("Content-Type"); !strings.HasPrefix(media, want) || !strings.Contains(string(text), `spliced_request_duration_seconds_bucket{op="match",le=`) {
			t.Errorf("%s: %s of %d bytes", accept, media, len(text))
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// Cache trouble does not take the engine's pod out of service.
func TestReadinessIsAboutTheSocketAlone(t *testing.T) {
	device := gpuipctest.HostDevice(t, gpuipc.HostOptions{Workers: 1})
	r := withAdmin(t, device)
	c, err := api.NewClient("http://"+r.AdminAddr().String(), "")
	must(t, err)
	defer c.Close()
	ctx := context.Background()
	failed := errors.New("device failure")
	device.Fail(gpuipc.OpCopyDigests, 1, failed)
	raw := attach(t, r.Socket())
	p := testProfile(1)
	raw.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	id, _ := raw.reserve(d, 0)
	var reply wire.CommitReply
	raw.call(wire.OpCommit, raw.commitRequest(id, d.layout, d.bytes), &reply)
	if wire.Code(reply.Codes[0]) != wire.Unavailable || wire.Code(reply.Codes[1]) != wire.Gone {
		t.Errorf("commit on a failing device: %v", reply.Codes)
	}
	if h, err := c.Ready(ctx); err != nil || h.Status == "unavailable" {
		t.Errorf("readiness %+v, %v", h, err)
	}
	r.serving.Store(false)
	if h, err := c.Ready(ctx); err != nil || h.Status != "unavailable" {
		t.Errorf("readiness without a socket %+v, %v", h, err)
	}
	if r.server.Alive(time.Now().Add(time.Hour)) {
		t.Error("alive without a heartbeat for an hour")
	}
}
