package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Durations says how a histogram of seconds is told. It has native buckets, each at most a
// tenth wider than the one before, which servers get that ask for the protobuf format, and
// classic ones for all others.
type Durations struct {
	Name, Help string
	Labels     prometheus.Labels
	Classic    []float64 // upper bounds; nil = from 100 µs to a minute
}

// Bounds of a histogram with native buckets. Seven decades at that width take some 170
// buckets; what is seen of one kind spreads over two or three. Past the bound the histogram
// begins anew where an hour has gone by, else its buckets get wider.
const (
	nativeFactor     = 1.1
	nativeBuckets    = 160
	nativeResetAfter = time.Hour
)

// lengthBuckets reaches from a read of a fast disk to a wait that somebody gives up.
var lengthBuckets = []float64{100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1, 2, 5, 10, 30, 60}

// New makes the histogram. It may be observed by many at once, and takes no lock as a rule.
func (d Durations) New() prometheus.Histogram { return prometheus.NewHistogram(d.options()) }

// By makes one for each value of a label, whose values are bounded elsewhere.
func (d Durations) By(label string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(d.options(), []string{label})
}

func (d Durations) options() prometheus.HistogramOpts {
	classic := d.Classic
	if classic == nil {
		classic = lengthBuckets
	}
	return prometheus.HistogramOpts{
		Name: "spliced_" + d.Name, Help: d.Help, ConstLabels: d.Labels, Buckets: classic,
		NativeHistogramBucketFactor: nativeFactor, NativeHistogramMaxBucketNumber: nativeBuckets, NativeHistogramMinResetDuration: nativeResetAfter,
	}
}
