// Package simulate simulates a cluster in virtual time. The set of each node, and the indexes
// that some nodes have of the other nodes' sets, use the code of tiering/peer/index. The network
// between the nodes is a model. The package opens no sockets, and a seed determines the result.
package simulate

import (
	"errors"
	"fmt"
	"time"
)

// ErrOptions means that options are out of range.
var ErrOptions = errors.New("options are out of range")

// Options describes a cluster. Zero fields get the defaults that the comments give.
type Options struct {
	Nodes    int           // 1,000
	Keys     int           // segments on each node, 100,000
	Sampled  int           // number of nodes that keep an index, 8; all nodes have sets that change, and answer requests
	Duration time.Duration // of each of two measurements, without and with restarts: 60 s
	Churn    float64       // share of a node's segments that are added, and removed, per minute: 0.01
	Shared   float64       // share of added segments that are copies of others': 0.2
	Restart  float64       // share of nodes that restart in the second part: 0.1
	Down     time.Duration // duration of a restart, 10 s
	Lost     float64       // share of its segments that a node loses by a restart, 0.1
	Latency  time.Duration // median one-way time of the network: 250 µs, with a modelled tail
	Loss     float64       // share of exchanges that lose a packet and take 200 ms more: 0.001
	Link     float64       // bytes per second that a node reads for its index, 12e6
	Parallel int           // requests in flight of a node that catches up, 8
	Seed     uint64
	// Progress is called with the share done; it may be nil.
	Progress func(float64)
}

func (o *Options) complete() error {
	defaults := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	seconds := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	share := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	defaults(&o.Nodes, 1000)
	defaults(&o.Keys, 100_000)
	defaults(&o.Sampled, min(8, o.Nodes-1))
	defaults(&o.Parallel, 8)
	seconds(&o.Duration, time.Minute)
	seconds(&o.Down, 10*time.Second)
	seconds(&o.Latency, 250*time.Microsecond)
	share(&o.Churn, 0.01)
	share(&o.Shared, 0.2)
	share(&o.Restart, 0.1)
	share(&o.Lost, 0.1)
	share(&o.Loss, 0.001)
	share(&o.Link, 12e6)
	switch {
	case o.Nodes < 3 || o.Nodes > 4000:
		return fmt.Errorf("%w: %d nodes, not 3 to 4000", ErrOptions, o.Nodes)
	case o.Keys < 100 || o.Keys > 1<<20:
		return fmt.Errorf("%w: %d segments a node, not 100 to %d", ErrOptions, o.Keys, 1<<20)
	case o.Sampled < 2 || o.Sampled >= o.Nodes:
		return fmt.Errorf("%w: %d sampled nodes, not 2 to %d", ErrOptions, o.Sampled, o.Nodes-1)
	case o.Duration < 5*time.Second || o.Duration > time.Hour:
		return fmt.Errorf("%w: %v, not 5s to 1h", ErrOptions, o.Duration)
	case !(o.Churn >= 0 && o.Churn <= 1) || !(o.Shared >= 0 && o.Shared <= 1) || !(o.Restart >= 0 && o.Restart <= 0.5) ||
		!(o.Lost >= 0 && o.Lost <= 1) || !(o.Loss >= 0 && o.Loss <= 0.5):
		return fmt.Errorf("%w: shares are 0 to 1, of restarts and losses 0 to 0.5", ErrOptions)
	case o.Latency < 0 || o.Latency > time.Second || o.Down < 0 || o.Down > o.Duration || o.Link < 1e5 || o.Parallel < 1 || o.Parallel > 64:
		return fmt.Errorf("%w: latency 0 to 1s, down 0 to the duration, link from 100 kB/s, parallel 1 to 64", ErrOptions)
	}
	return nil
}
