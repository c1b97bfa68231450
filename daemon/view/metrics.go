package view

import (
	"reflect"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/canary"
	"github.com/spliced-kv/spliced/daemon/server"
	"github.com/spliced-kv/spliced/tiering/advise"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/metric"
	"github.com/spliced-kv/spliced/tiering/stats"
)

// declared are the structs whose fields say what /metrics answers, apart from the
// histograms of requests.
var declared = []any{
	stats.Counters{}, advise.Stats{}, disk.Counters{}, server.Counts{}, server.Load{}, canary.Sums{},
	buildSeries{}, nodeSeries{}, capabilitySeries{}, poolSeries{}, memorySeries{}, dirtySeries{}, lookupSeries{},
	diskSeries{}, diskStateSeries{}, gpuSeries{}, gpuStateSeries{}, deviceSeries{}, devicePoolSeries{}, driverSeries{}, adviceSeries{}, verdictSeries{}, decisionSeries{},
	costSeries{}, predictionSeries{}, jobSeries{}, bandwidthSeries{}, canarySeries{}, answerSeries{}, rowSeries{}, failureSeries{},
	clusterSeries{}, memberSeries{}, lagSeries{}, certificateSeries{},
}

// metrics turns counters into Prometheus metrics when they are asked for, so that
// counting costs nothing twice.
type metrics struct {
	*View
	families map[string]*prometheus.Desc
	lookups  *prometheus.Desc
}

// Register adds everything that /metrics answers.
func (v *View) Register(r *prometheus.Registry) {
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newMetrics(v))
	for _, h := range v.o.Server.Counts().Durations() {
		r.MustRegister(h)
	}
}

func newMetrics(v *View) *metrics {
	m := &metrics{View: v, families: map[string]*prometheus.Desc{}}
	structs := slices.Clone(declared)
	for _, r := range v.o.Remotes {
		for _, c := range r.Counters() {
			structs = append(structs, reflect.Zero(reflect.TypeOf(c).Elem()).Interface())
		}
	}
	for _, f := range metric.Families(structs...) {
		m.families[f.Name] = prometheus.NewDesc("spliced_"+f.Name, f.Help, f.Labels, nil)
	}
	m.lookups = prometheus.NewDesc("spliced_lookup_duration_seconds", "Time from the arrival of a match to its answer.", nil, nil)
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.eachStruct(func(c any) { m.tell(c, ch) })
	ch <- again(m.lookups, m.o.Server.Counts().Duration(wire.OpMatch))
}

// tell sends the series that a struct declares.
func (m *metrics) tell(c any, ch chan<- prometheus.Metric) {
	metric.EachSeries(c, m.hasPart, func(family string, values []string, v float64) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(family, "_total") {
			kind = prometheus.CounterValue
		}
		ch <- sampleOf(m.families[family], kind, v, values)
	})
}

// sampleOf is a series. One that cannot be told is counted and logged by the handler of
// /metrics, and costs no other.
func sampleOf(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) prometheus.Metric {
	valid := make([]string, len(labels))
	for i := range labels {
		valid[i] = strings.ToValidUTF8(labels[i], "\uFFFD")
	}
	sample, err := prometheus.NewConstMetric(d, kind, v, valid...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return sample
}

// hasPart reports whether the node has a part that some counters belong to.
func (v *View) hasPart(part string) bool {
	return part == "disk" && v.o.Disk != nil || part == "hbm" && len(v.o.GPUs) > 0 || part == "peer" && slices.ContainsFunc(v.o.Remotes, Remote.holds) ||
		slices.ContainsFunc(v.o.Remotes, func(r Remote) bool { return r.Name == part })
}

// again gives a histogram a second name. Writing one that we made cannot fail.
func again(d *prometheus.Desc, h prometheus.Histogram) prometheus.Metric {
	var m dto.Metric
	_ = h.Write(&m)
	buckets := map[float64]uint64{}
	for _, b := range m.Histogram.Bucket {
		buckets[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	return prometheus.MustNewConstHistogram(d, m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum(), buckets)
}
