package view

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/daemon/cluster"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/peer"
	"github.com/spliced-kv/spliced/tiering/stats"
)

// clusterOnly tells /metrics what is of the cluster.
type clusterOnly struct{ *metrics }

func (c clusterOnly) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

func (c clusterOnly) Collect(ch chan<- prometheus.Metric) {
	var stored stats.Counters
	if c.o.Cluster != nil {
		c.tell(&stored, ch) // no series of a part is one of the store's
	}
	c.eachOfCluster(func(s any) { c.tell(s, ch) })
}

func gather(t *testing.T, v *View) map[string]*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(clusterOnly{newMetrics(v.exporter)})
	list, err := r.Gather()
	must(t, err)
	problems, err := promlint.NewWithMetricFamilies(list).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	families := map[string]*dto.MetricFamily{}
	for _, f := range list {
		families[f.GetName()] = f
	}
	return families
}

// valueOf the series that has these values of labels.
func valueOf(t *testing.T, families map[string]*dto.MetricFamily, name, labels string) float64 {
	t.Helper()
	for _, m := range families[name].GetMetric() {
		var has []string
		for _, l := range m.Label {
			has = append(has, l.GetValue())
		}
		if missing := slices.DeleteFunc(strings.Fields(labels), func(l string) bool { return slices.Contains(has, l) }); len(missing) == 0 {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Errorf("no %s of %q", name, labels)
	return -1
}

func TestMetricsOfACluster(t *testing.T) {
	now := time.Now()
	members := []api.Member{
		{Name: "a", Self: true, State: api.MemberAlive},
		{Name: "b", State: api.MemberAlive, Index: &api.MemberIndex{Complete: true, AsOf: &now}, Fetch: &api.MemberFetch{QueuedBytes: 5, Open: true}},
		{Name: "c", State: api.MemberAlive, Index: &api.MemberIndex{}, Fetch: &api.MemberFetch{QueuedBytes: 6}},
		{Name: "d", State: api.MemberAlive, Unusable: "other secret"},
		{Name: "e", State: api.MemberUnreachable},
		{Name: "f", State: api.MemberFailed, Unusable: "other secret"},
		{Name: "g", State: api.MemberLeft},
	}
	c := api.Cluster{
		Enabled: true, Encrypted: true, Certificate: &now, Members: members, Rejected: []api.Rejected{{Address: "10.0.0.9"}, {Address: "10.0.0.10"}},
		Index: api.PeerIndex{Names: 100, Bytes: 1000}, Own: api.OwnIndex{Names: 50},
	}
	counters := func() []any { return []any{&peer.Counters{ReadBytes: 7}, &peer.ServerCounters{SentBytes: 8}} }
	v := New(Options{Cluster: func() api.Cluster { return c }, Remotes: []Remote{
		{Name: "peer", Counters: counters}, {Name: "cluster", Counters: func() []any { return []any{gossipOf(&cluster.Status{Flaps: 9})} }},
	}})
	got := gather(t, v)
	for _, r := range []struct {
		name, label string
		want        float64
	}{
		{"cluster_flaps_total", "", 9}, {"cluster_members", "alive", 3}, {"cluster_members", "unreachable", 1}, {"cluster_members", "leaving", 0},
		{"cluster_members", "failed", 1}, {"cluster_members", "left", 1}, {"cluster_unusable", "", 3}, {"cluster_left_alone", "", 1}, {"cluster_queued_bytes", "", 11}, {"cluster_index_incomplete", "", 1},
		{"cluster_index_names", "", 100}, {"cluster_index_bytes", "", 1000}, {"cluster_own_names", "", 50}, {"cluster_gossip_encrypted", "", 1},
		{"fetch_bytes_total", "peer in", 7}, {"fetch_bytes_total", "peer out", 8},
	} {
		if n := valueOf(t, got, "spliced_"+r.name, r.label); n != r.want {
			t.Errorf("%s of %q is %v, want %v", r.name, r.label, n, r.want)
		}
	}
	if lag := valueOf(t, got, "spliced_cluster_index_lag_seconds", ""); lag < 0 || lag > time.Since(now).Seconds() {
		t.Errorf("lag %v", lag)
	}
	if !v.hasPart("peer") || v.hasPart("object") {
		t.Error("parts")
	}
}

func TestNodeWithoutAClusterTellsNothingOfOne(t *testing.T) {
	v := New(Options{})
	if c := v.Cluster(); c.Enabled {
		t.Errorf("cluster %+v", c)
	}
	if got := gather(t, v); len(got) > 0 {
		t.Errorf("families %v", got)
	}
}

// Names of counters of a peer do not meet those of the node in listings.
func TestCountersFromBeyondAreNamedApart(t *testing.T) {
	seen := map[string]bool{}
	count := func(prefix string, c any) {
		metric.Each(c, func(name string, _ uint64) {
			if name = prefix + name; seen[name] {
				t.Errorf("two counters %s", name)
			}
			seen[name] = true
		})
	}
	count("", &stats.Counters{})
	count("peer_", &peer.Counters{})
	count("peer_", &peer.ServerCounters{})
}
