package metric

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Durations describes a histogram of durations in seconds. For servers that request the
// protobuf format it has native buckets, each at most a tenth wider than the one below. For
// all other servers it has classic buckets.
type Durations struct {
	Name, Help string
	Labels     prometheus.Labels
	Classic    []float64 // upper bounds; nil = from 100 µs to a minute
}

// Bounds of a histogram with native buckets. Each bucket is nativeFactor times as wide as
// the one below, so seven decades take about 170 buckets, and the values of one histogram
// spread over two or three decades. If a histogram exceeds nativeBuckets, it is reset if
// nativeResetAfter has passed since the last reset. Otherwise its buckets become wider.
const (
	nativeFactor     = 1.1
	nativeBuckets    = 160
	nativeResetAfter = time.Hour
)

// lengthBuckets has bounds in seconds, from a read of a fast disk to a wait that a caller
// gives up.
var lengthBuckets = []float64{100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1, 2, 5, 10, 30, 60}

// New returns the histogram. Observe may be called concurrently, and usually takes no lock.
func (d Durations) New() prometheus.Histogram { return prometheus.NewHistogram(d.options()) }

// By returns one histogram per value of a label. The caller bounds the number of values.
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
