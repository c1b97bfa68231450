package daemon

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spliced-kv/spliced/connector/wire"
)

// Reasons to refuse a connection.
const (
	refusedPeer = iota
	refusedBound
	refusedResources
	refusals
)

var refusalNames = [refusals]string{"peer", "bound", "resources"}

// Reasons to drop a connection.
const (
	dropHello = iota // no hello in time
	dropSlow         // did not read its replies
	drops
)

var dropNames = [drops]string{"no_hello", "slow_reader"}

// counts is what the socket server counts. All of it may be used at once; none
// of it allocates or locks.
type counts struct {
	accepted atomic.Uint64
	refusal  [refusals]atomic.Uint64
	drop     [drops]atomic.Uint64
	answers  [wire.OpCount][wire.CodeCount]atomic.Uint64 // op 0 counts operations that are unknown
	rows     [wire.OpCount][wire.CodeCount]atomic.Uint64 // of batches
	duration [wire.OpCount]prometheus.Histogram
}

// durationBuckets reaches from a lookup to a commit of a gigabyte, in seconds.
var durationBuckets = []float64{10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 500e-3, 1, 5}

func newCounts() *counts {
	c := &counts{}
	for op := range c.duration {
		c.duration[op] = prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:        "spliced_request_duration_seconds",
			Help:        "Time from the arrival of a request to its answer, by operation.",
			ConstLabels: prometheus.Labels{"op": opName(op)},
			Buckets:     durationBuckets,
		})
	}
	return c
}

func opName(op int) string {
	if !wire.Op(op).Known() {
		return "unknown"
	}
	return wire.Op(op).String()
}

func opIndex(op wire.Op) int {
	if !op.Known() {
		return 0
	}
	return int(op)
}

func (c *counts) answered(op wire.Op, code wire.Code) { c.answers[opIndex(op)][code].Add(1) }

func (c *counts) row(op wire.Op, code wire.Code) { c.rows[opIndex(op)][code].Add(1) }

func (c *counts) took(op wire.Op, d time.Duration) { c.duration[opIndex(op)].Observe(d.Seconds()) }

func (c *counts) refused(why int) { c.refusal[why].Add(1) }
func (c *counts) dropped(why int) { c.drop[why].Add(1) }

// each calls f with every counter that is not zero, in a fixed order.
func (c *counts) each(f func(name string, value uint64)) {
	f("connections_accepted", c.accepted.Load())
	for i := range c.refusal {
		f("connections_refused_"+refusalNames[i], c.refusal[i].Load())
	}
	for i := range c.drop {
		f("connections_dropped_"+dropNames[i], c.drop[i].Load())
	}
	for op := range c.answers {
		for code := range c.answers[op] {
			if n := c.answers[op][code].Load(); n > 0 {
				f("requests_"+opName(op)+"_"+wire.Code(code).String(), n)
			}
			if n := c.rows[op][code].Load(); n > 0 {
				f("rows_"+opName(op)+"_"+wire.Code(code).String(), n)
			}
		}
	}
}
