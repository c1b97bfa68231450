package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spliced-kv/spliced/api/child"
	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
)

// restartRow kills the daemon, starts it again and measures the time until a match is answered.
// In between, calls return only ErrUnavailable, as an engine would see it. The figure includes
// the daemon's own start, and is the worst of a few runs.
func restartRow(ctx context.Context, s *session) (err error) {
	l, err := startLocal(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	var samples []float64
	for range s.rounds(5) {
		ms, err := l.restartOne(ctx)
		if err != nil {
			return err
		}
		samples = append(samples, ms)
	}
	s.add(row("daemon_restart_reattach", "ms", quantile(samples, 1), 0, bar{atMost: 1000}))
	return nil
}

func (l *local) restartOne(ctx context.Context) (ms float64, err error) {
	key, err := l.put(ctx, l.small)
	if err != nil {
		return 0, err
	}
	q := connector.MatchQuery{Keys: []profile.SegmentKey{key}}
	var found connector.Found
	begin := time.Now()
	if err := l.daemon.Kill(); err != nil {
		return 0, err
	}
	restarted := make(chan error, 1)
	go func() { restarted <- l.daemon.Restart(ctx) }()
	tick := time.NewTicker(time.Millisecond) // an engine asks from time to time; spinning would slow down the start
	defer tick.Stop()
	for ms == 0 && err == nil {
		<-tick.C
		switch err = l.small.Match(ctx, &q, &found); {
		case err == nil:
			ms = time.Since(begin).Seconds() * 1e3
		case !errors.Is(err, connector.ErrUnavailable):
			err = fmt.Errorf("the engine saw an error that is not a miss: %w", err)
		case time.Since(begin) > 10*time.Second:
			err = fmt.Errorf("10 s after the restart: %w", err)
		default:
			err = nil
		}
	}
	if err := errors.Join(err, <-restarted); err != nil {
		return 0, err
	}
	if found.Segments[0].Hit() {
		return 0, errors.New("a new daemon answered a hit: it is the old one")
	}
	return ms, nil
}

// startRows starts daemons with a 4 GiB arena and measures them before any use.
func startRows(ctx context.Context, s *session) error {
	var ready, resident []float64
	for range s.rounds(5) {
		d, err := child.Start(ctx, child.Options{Binary: s.options.Daemon, Args: []string{"-arena", "4GiB", "-private", "64MiB"}})
		if err != nil {
			return err
		}
		memory, err := machine.ResidentOf(d.PID())
		if err := errors.Join(err, d.Stop()); err != nil {
			return err
		}
		ready = append(ready, d.Ready.Seconds()*1e3)
		resident = append(resident, float64(memory.All)/(1<<20))
	}
	s.add(
		row("ready_4GiB", "ms", median(ready), 0, bar{atMost: 2000}),
		row("idle_rss", "MiB", median(resident), 0, bar{atMost: 100}),
	)
	return nil
}
