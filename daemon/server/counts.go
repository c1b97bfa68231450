package server

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

// Reasons to drop a connection.
const (
	dropHello = iota // no hello in time
	dropSlow         // did not read its replies
	drops
)

// Counts is what the socket server counts. All of it may be used at once; none
// of it allocates or locks.
type Counts struct {
	Accepted atomic.Uint64           `count:"connections_accepted" prom:"connections_total,result=accepted" help:"Connections by what became of them at the door."`
	Refused  [refusals]atomic.Uint64 `count:"connections_refused_{peer,bound,resources}" prom:"connections_total,result=refused_peer|refused_bound|refused_resources"`
	Dropped  [drops]atomic.Uint64    `count:"connections_dropped_{no_hello,slow_reader}" prom:"connections_dropped_total,reason=*" help:"Connections ended by the daemon, by reason."`

	answers  [wire.OpCount][wire.CodeCount]atomic.Uint64 // op 0 counts operations that are unknown
	rows     [wire.OpCount][wire.CodeCount]atomic.Uint64 // of batches
	duration [wire.OpCount]prometheus.Histogram
}

// durationBuckets reaches from a lookup to a commit of a gigabyte, in seconds.
var durationBuckets = []float64{10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 500e-3, 1, 5}

func newCounts() *Counts {
	c := &Counts{}
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

func (c *Counts) answered(op wire.Op, code wire.Code) { c.answers[opIndex(op)][code].Add(1) }

func (c *Counts) row(op wire.Op, code wire.Code) { c.rows[opIndex(op)][code].Add(1) }

func (c *Counts) took(op wire.Op, d time.Duration) { c.duration[opIndex(op)].Observe(d.Seconds()) }

func (c *Counts) refused(why int) { c.Refused[why].Add(1) }
func (c *Counts) dropped(why int) { c.Dropped[why].Add(1) }

// EachAnswer calls f with the answers by operation and code, and the rows of
// batches, where there are any.
func (c *Counts) EachAnswer(f func(op, code string, answers, rows uint64)) {
	for op := range c.answers {
		for code := range c.answers[op] {
			answers, rows := c.answers[op][code].Load(), c.rows[op][code].Load()
			if answers > 0 || rows > 0 {
				f(opName(op), wire.Code(code).String(), answers, rows)
			}
		}
	}
}

// EachFailure calls f with the answers and rows of every code that is an error.
func (c *Counts) EachFailure(f func(code string, n uint64)) {
	for code := int(wire.Miss) + 1; code < wire.CodeCount; code++ {
		var n uint64
		for op := range c.answers {
			n += c.answers[op][code].Load() + c.rows[op][code].Load()
		}
		f(wire.Code(code).String(), n)
	}
}

// Durations are the histograms of all operations.
func (c *Counts) Durations() []prometheus.Histogram { return c.duration[:] }

// Duration is the histogram of an operation.
func (c *Counts) Duration(op wire.Op) prometheus.Histogram { return c.duration[opIndex(op)] }
