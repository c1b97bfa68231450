package disk

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/tiering/metric"
)

func duration(operation string) prometheus.Histogram {
	return metric.Durations{
		Name: "disk_operation_duration_seconds", Labels: prometheus.Labels{"operation": operation},
		Help: "Time that objects took which the disk has read or written well: read (to memory, compared with its digests), write (coded and handed to the kernel, without its row and sync).",
	}.New()
}

// Durations returns the tier's histograms.
func (t *Tier) Durations() []prometheus.Histogram { return []prometheus.Histogram{t.reads, t.writes} }
