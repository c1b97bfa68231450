package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

func scaleSections() []section {
	return []section{{"clients", clientRows}, {"evict", evictRows}}
}

const (
	scaleRounds = 8
	scaleWindow = 250 * time.Millisecond
)

// scaleClients are the numbers of processes that make requests at the same time.
var scaleClients = [...]int{1, 2, 4, 8, 16}

// clientRows lets 1 to 16 processes match 32 segments, acquire one of 1 MiB and release it, over
// and over. The limit is measured with the same processes, which then exchange three messages
// per operation with one echoing process. All processes are connected during the whole
// measurement.
func clientRows(ctx context.Context, s *session) (err error) {
	l, err := startLocal(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	if _, err := l.putMany(ctx, l.flat, fewKeys); err != nil {
		return err
	}
	crowd, err := baseline.StartCrowd(slices.Max(scaleClients[:]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, crowd.Stop()) }()
	window := scaleWindow
	if s.effort < 1 {
		window /= smokeShare
	}
	peers, err := startPeers(l.daemon.Socket, crowd, slices.Max(scaleClients[:]))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopPeers(peers)) }()
	var served, echoed [len(scaleClients)]scaleRuns
	for range s.rounds(scaleRounds) {
		for i, n := range scaleClients {
			if err := echoed[i].take(peers[:n], peerOrder{Kind: peerEcho, For: window}, crowd.PID()); err != nil {
				return err
			}
			if err := served[i].take(peers[:n], peerOrder{Kind: peerRequests, For: window}, l.daemon.PID()); err != nil {
				return err
			}
		}
	}
	for i, n := range scaleClients {
		s.addScale(fmt.Sprintf("clients_%d", n), &served[i], &echoed[i])
		if n > 1 {
			s.add(row(fmt.Sprintf("clients_%d_vs_1", n), "ratio", served[i].rate()/served[0].rate(), echoed[i].rate()/echoed[0].rate(), scaleBar(n)))
		}
	}
	return nil
}

// scaleBar returns the throughput that n clients must reach, relative to one client or relative
// to a bare echo.
func scaleBar(n int) bar {
	switch {
	case n < 8:
		return bar{}
	case runtime.NumCPU() < 16:
		return bar{atLeast: 1.8, ratioAtLeast: 0.9}
	default:
		return bar{atLeast: float64(n) / 2, ratioAtLeast: 0.9}
	}
}

// scaleRuns has the results of all measurements with the same number of working processes.
type scaleRuns struct {
	rates []float64 // operations per second of all processes together, one rate per measurement
	took  []float64 // µs of each operation
	spent machine.Effort
}

func (r *scaleRuns) rate() float64 { return median(r.rates) }

// take lets peers carry out an order at the same time and records the results. server is the id
// of the process that serves them.
func (r *scaleRuns) take(peers []*peer, o peerOrder, server int) error {
	before, err := machine.EffortOf(server)
	if err != nil {
		return err
	}
	answers, err := orderAll(peers, o)
	if err != nil {
		return err
	}
	after, err := machine.EffortOf(server)
	if err != nil {
		return err
	}
	r.spent = r.spent.Plus(after.Since(before))
	rate := 0.0
	for _, a := range answers {
		rate += float64(len(a.Took)) / a.Seconds
		r.took = append(r.took, a.Took...)
		r.spent = r.spent.Plus(a.Spent)
	}
	r.rates = append(r.rates, rate)
	return nil
}

// addScale adds rows with the time of an operation and its cost in clients and server.
func (s *session) addScale(name string, served, echoed *scaleRuns) {
	each := func(sum float64, r *scaleRuns) float64 { return sum / float64(len(r.took)) }
	s.add(
		row(name, "ops/s", served.rate(), echoed.rate(), bar{}),
		row(name+"_p50", "µs", median(served.took), median(echoed.took), bar{}),
		row(name+"_p99", "µs", quantile(served.took, 0.99), quantile(echoed.took, 0.99), bar{}),
		row(name+"_cpu", "µs/op", 1e6*each(served.spent.CPU, served), 1e6*each(echoed.spent.CPU, echoed), bar{}),
		row(name+"_switches", "1/op", each(served.spent.Switches, served), each(echoed.spent.Switches, echoed), bar{}),
	)
}
