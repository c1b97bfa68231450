package disk

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/tiering/metric"
)

func duration(operation string) prometheus.Histogram {
	return metric.Durations{
		Name: "disk_operation_duration_seconds", Labels: prometheus.Labels{"operation": operation},
		Help: "Duration in seconds of successful reads and writes of objects on disk: read (into memory, including verification of digests), write (coding and handing the data to the kernel, without the catalogue row and the sync).",
	}.New()
}

// Durations returns the tier's histograms.
func (t *core) Durations() []prometheus.Histogram { return []prometheus.Histogram{t.reads, t.writes} }
