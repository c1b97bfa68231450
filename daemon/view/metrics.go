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

// declared lists the structs whose fields declare the series of /metrics. Histograms are separate.
var declared = []any{
	stats.Counters{}, advise.Stats{}, disk.Counters{}, server.Counts{}, server.Load{}, canary.Sums{},
	buildSeries{}, nodeSeries{}, capabilitySeries{}, poolSeries{}, memorySeries{}, dirtySeries{}, lookupSeries{},
	diskSeries{}, diskStateSeries{}, gpuSeries{}, gpuStateSeries{}, deviceSeries{}, devicePoolSeries{}, driverSeries{}, adviceSeries{}, verdictSeries{}, decisionSeries{},
	profileSeries{}, costSeries{}, predictionSeries{}, taskSeries{}, jobSeries{}, bandwidthSeries{}, canarySeries{}, lossSeries{}, expectedLossSeries{}, answerSeries{}, rowSeries{}, failureSeries{},
	trialSeries{}, trialAnswerSeries{}, savedSeries{}, servedTokensSeries{}, servedMissedSeries{}, servedWaySeries{}, servedTimeSeries{}, servedUnverifiedSeries{},
	clusterSeries{}, memberSeries{}, lagSeries{}, certificateSeries{},
}

// metrics turns counters into Prometheus metrics at each scrape. So each counter is kept only once.
type metrics struct {
	*exporter
	families map[string]*prometheus.Desc
	lookups  *prometheus.Desc
}

// Register adds all collectors of /metrics.
func (v *exporter) Register(r *prometheus.Registry) {
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newMetrics(v), v.first)
	for _, h := range v.durations() {
		r.MustRegister(h)
	}
}

// durations returns the histograms of all parts of the node.
func (v *exporter) durations() []prometheus.Histogram {
	list := slices.Concat(v.o.Server.Counts().Durations(), v.o.Store.Durations())
	if v.o.Disk != nil {
		list = append(list, v.o.Disk.Durations()...)
	}
	for _, r := range v.o.Remotes {
		list = append(list, r.Durations...)
	}
	return list
}

func newMetrics(v *exporter) *metrics {
	m := &metrics{exporter: v, families: map[string]*prometheus.Desc{}}
	structs := slices.Clone(declared)
	for _, r := range v.o.Remotes {
		for _, c := range r.Counters() {
			structs = append(structs, reflect.Zero(reflect.TypeOf(c).Elem()).Interface())
		}
	}
	for _, f := range metric.Families(structs...) {
		m.families[f.Name] = prometheus.NewDesc("spliced_"+f.Name, f.Help, f.Labels, nil)
	}
	m.lookups = prometheus.NewDesc("spliced_lookup_duration_seconds", "Seconds from the arrival of a match request on the engine socket to its answer.", nil, nil)
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.eachStruct(func(c any) { m.tell(c, ch) })
	ch <- renamed{m.lookups, m.o.Server.Counts().Duration(wire.OpMatch)}
}

// tell sends the series of a struct.
func (m *metrics) tell(c any, ch chan<- prometheus.Metric) {
	metric.EachSeries(c, m.hasPart, func(family string, values []string, v float64) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(family, "_total") {
			kind = prometheus.CounterValue
		}
		ch <- sampleOf(m.families[family], kind, v, values)
	})
}

// sampleOf returns one sample. If the sample is invalid, the handler of /metrics counts and logs
// that, and still sends the other samples.
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

// hasPart reports whether the node has the named part (see package metric).
func (v *base) hasPart(part string) bool {
	return part == "disk" && v.o.Disk != nil || part == "hbm" && len(v.o.GPUs) > 0 || part == "peer" && slices.ContainsFunc(v.o.Remotes, Remote.holds) ||
		slices.ContainsFunc(v.o.Remotes, func(r Remote) bool { return r.Name == part })
}

// renamed is a histogram under another name and without labels.
type renamed struct {
	desc *prometheus.Desc
	prometheus.Metric
}

func (r renamed) Desc() *prometheus.Desc { return r.desc }

func (r renamed) Write(m *dto.Metric) error {
	err := r.Metric.Write(m)
	m.Label = nil
	return err
}
